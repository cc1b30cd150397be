"""Translation with a LiteRT directory, without Keras and TensorFlow."""

from keras_transformer.lite.translator import LiteTranslator, TextTranslator

__all__ = ["LiteTranslator", "TextTranslator"]
