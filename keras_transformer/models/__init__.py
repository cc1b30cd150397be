"""Models: layers composed."""

from keras_transformer.models.transformer import Transformer

__all__ = ["Transformer"]
