"""The public names for editors and type checkers, which do not run `__init__.py`."""

from keras_transformer.serving.config import ServingConfig
from keras_transformer.serving.server import serve
from keras_transformer.serving.versions import check_directory

__all__ = ["ServingConfig", "check_directory", "serve"]
