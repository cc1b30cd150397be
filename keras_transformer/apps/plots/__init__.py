"""Pictures: attention and training. Needs matplotlib.

Every function returns the `matplotlib.figure.Figure`, to be shown by a notebook, after
`%matplotlib inline`, or written with `savefig`. Figures made here are not pyplot's:
nothing needs to be closed.
"""

import lazy_loader

from keras_transformer.config.extras import required

required("matplotlib", "Plots need matplotlib", "plots")

# The names of __init__.pyi are loaded when used: `training_curves` needs no Keras.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
