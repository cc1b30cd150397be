"""A local server for trying an export: TensorFlow Serving's REST and a page."""

from keras_transformer.apps.serving.server import serve

__all__ = ["serve"]
