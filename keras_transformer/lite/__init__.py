"""Translation from a LiteRT directory: neither Keras nor TensorFlow is needed."""

from keras_transformer.lite.translator import LiteTranslator, TextTranslator

__all__ = ["LiteTranslator", "TextTranslator"]
