"""What a model is made of: tensors in, tensors out, on every backend.

`layers` are the layers, `masks`, `losses` and `optimizers` what trains with them, and
`kernels` what several files share beneath them. Read
`layers/transformer_layer.py` first.
"""

# First, because all that is here is imported once Keras is.
import keras  # noqa: F401

from keras_transformer.extras import attach_stub

# The names are those of __init__.pyi.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
