"""The Transformer of "Attention Is All You Need" for Keras 3.

Public names are loaded when they are used: configurations need neither Keras nor
TensorFlow, layers and models need Keras and its backend, and text, training runs,
translation and export need TensorFlow.
"""

import importlib
import sys

import lazy_loader

_DISTRIBUTION = "keras-transformer-seq2seq"
# Their classes must be registered before Keras loads a file that uses them.
_REGISTERING = ("models", "nn.layers", "nn.losses", "nn.optimizers")

# The names are those of __init__.pyi.
_load, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name):
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = _load(name)
    _register_if_keras_is_there()
    return value


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


def _register_if_keras_is_there():
    """Registers every class if Keras is imported, which takes seconds."""
    if "keras" in sys.modules:
        for module in _REGISTERING:
            importlib.import_module(f"{__name__}.{module}")


_register_if_keras_is_there()
