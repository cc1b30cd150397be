"""Translation with a LiteRT directory, without Keras and TensorFlow."""

from keras_transformer.lite.translator import (
    Alignment,
    LiteTranslator,
    Score,
    TextTranslator,
    Translation,
)

__all__ = ["Alignment", "LiteTranslator", "Score", "TextTranslator", "Translation"]
