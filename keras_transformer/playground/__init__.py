"""A page on this machine to try translators with. Needs TensorFlow and a web server.

Each name is loaded when it is asked for: the command line reads the options for its
help, and should not wait for the server.
"""

import importlib

_MODULES = {
    "PlaygroundConfig": "config",
    "check_models": "directories",
    "play": "server",
}

__all__ = sorted(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__():
    return __all__
