"""From texts to translations: the search, a model and its search, and strings.

`beam` and `sampling` search over any step function, `generator` searches a model, from
ids to ids, and `translator` goes from strings to strings. Read `beam.py` first. Each
name is loaded when it is asked for: `translation` needs neither Keras nor TensorFlow.
"""

from keras_transformer.extras import attach_stub

# The names are those of __init__.pyi.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
