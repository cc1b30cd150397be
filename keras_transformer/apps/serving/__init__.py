"""A local server with TensorFlow Serving's REST interface, for trying an export."""

from keras_transformer.apps.serving.server import serve

__all__ = ["serve"]
