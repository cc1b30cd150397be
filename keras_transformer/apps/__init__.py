"""Programs: the command line, the local server with its page, and the quick start.

`bulk` translates files of any size, and `plots` draws. Read `cli/__init__.py` first: it
calls the rest.
"""

from keras_transformer.extras import attach_stub

# The names are those of __init__.pyi.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
