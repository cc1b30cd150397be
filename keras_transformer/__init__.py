"""The Transformer of "Attention Is All You Need" for Keras 3.

Public names are loaded when they are used: configurations need neither Keras nor
TensorFlow, layers and models need Keras and its backend, and text, training runs,
translation and export need the extra `text`.
"""

import importlib
import sys

from keras_transformer.extras import attach_stub

_DISTRIBUTION = "keras-transformer-seq2seq"
# Their classes must be registered before Keras loads a file that uses them.
_REGISTERING = ("models", "nn.layers", "nn.losses", "nn.optimizers")

# The names are those of __init__.pyi.
_load, _names, __all__ = attach_stub(__name__, __file__)


def __getattr__(name):
    return _version() if name == "__version__" else _load(name)


def __dir__():
    return sorted([*_names(), "__version__"])


def _version():
    """Returns the installed version."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise AttributeError(
            f"`__version__` is known once {_DISTRIBUTION} is installed: pip install ."
        ) from error


def _register():
    """Registers every class with Keras, which takes a tenth of a second."""
    for module in _REGISTERING:
        importlib.import_module(f"{__name__}.{module}")


class _AfterKeras:
    """Finds Keras as the other finders do, and registers once it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "keras":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec and spec.loader:
            self.loader = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        sys.meta_path.remove(self)  # Not before: without a backend Keras raises.
        _register()


if "keras" in sys.modules:
    _register()
else:
    # Keras takes seconds to import, so this waits until the program does.
    sys.meta_path.insert(0, _AfterKeras())
