"""Training runs that can be resumed. The text needs TensorFlow on every backend.

`plan` is what was asked for and will be done, `run` holds all that trains, and
`intervals` goes from one saved state to the next. Read `train.py` first. Each name is
loaded when it is asked for: `plan` refuses options without Keras.
"""

from keras_transformer.extras import attach_stub

# The names are those of __init__.pyi.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
