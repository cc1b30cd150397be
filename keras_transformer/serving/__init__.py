"""A local server with TensorFlow Serving's REST interface, to try an export."""

from keras_transformer.serving.server import serve

__all__ = ["serve"]
