"""Pictures: attention and training. Needs matplotlib.

Every function returns the `matplotlib.figure.Figure`, to be shown by a notebook, after
`%matplotlib inline`, or written with `savefig`. Figures made here are not pyplot's:
nothing needs to be closed.
"""

from keras_transformer.extras import attach_stub

# The names of __init__.pyi are loaded when used: `training_curves` needs no Keras.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
