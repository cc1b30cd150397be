"""The public names for editors and type checkers, which do not run `__init__.py`."""

from keras_transformer.playground.config import PlaygroundConfig
from keras_transformer.playground.directories import check_models
from keras_transformer.playground.server import play

__all__ = ["PlaygroundConfig", "check_models", "play"]
