"""What a model is made of: tensors in, tensors out, on every backend.

`layers` are the layers, `masks`, `losses` and `optimizers` what trains with them, and
`kernels` what several files share beneath them. Read
`layers/transformer_layer.py` first.
"""

import lazy_loader

# The names are those of __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
