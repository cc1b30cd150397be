"""Optional packages, and what to install where one is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

import lazy_loader

# The extras of packages that whole modules need; `text` brings the others.
_EXTRAS = {"matplotlib": "plots"}


def how_to_install(extra: str) -> str:
    """Returns how to install an extra: no index has this package yet."""
    return f'`pip install ".[{extra}]"` in a clone of keras_transformer'


def required(module: str, need: str, extra: str) -> ModuleType:
    """Imports a module; an `ImportError` tells the `need` and the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{need}: {how_to_install(extra)}.") from error


def attach_stub(package: str, file: str) -> tuple:
    """As that of `lazy_loader`, but a name that lacks a package fails when it is used.

    So `help`, `hasattr` and `import *` work without the extras.
    """
    load, list_names, names = lazy_loader.attach_stub(package, file)

    def get(name):
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return load(name)
        except ImportError as error:
            return _Missing(name, (), {"__doc__": reason_of(f"`{name}`", error)})

    return get, list_names, names


class _Missing(type):
    """A class in the place of a name that cannot be loaded; using it says why."""

    def __call__(cls, *args, **kwargs):
        raise ImportError(cls.__doc__)

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise ImportError(cls.__doc__)


def reason_of(what: str, error: ImportError) -> str:
    """Returns what to install; an `ImportError` if Keras itself lacks its backend."""
    if not isinstance(error, ModuleNotFoundError):
        return str(error)
    package = str(error.name).partition(".")[0]
    how = how_to_install(_EXTRAS.get(package, "text"))
    if package in ("tensorflow", "jax", "torch"):
        try:
            importlib.import_module("keras")
        except ImportError:
            raise ImportError(
                f"Keras needs a backend, and {package} is not installed: {how} brings "
                "TensorFlow; with JAX or PyTorch set KERAS_BACKEND to jax or torch."
            ) from error
    return f"{what} needs {package}, which is not installed: {how}."
