"""Sentence pairs, tokenizers and batches. Needs TensorFlow and tensorflow-text.

Each name is loaded when it is asked for: `text.lines` needs neither.
Read `pairs.py` first.
"""

from keras_transformer.extras import attach_stub

# The names are those of __init__.pyi.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
