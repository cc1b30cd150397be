"""Models: layers composed."""

from keras_transformer.models.encoder_stack import EncoderStack
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.masked_language_model import (
    MaskedLanguageModel,
    MaskedTokens,
)
from keras_transformer.models.tagger import Tagger
from keras_transformer.models.text_classifier import TextClassifier
from keras_transformer.models.text_encoder import TextEncoder
from keras_transformer.models.transformer import Transformer

__all__ = [
    "EncoderStack",
    "Ensemble",
    "LanguageModel",
    "MaskedLanguageModel",
    "MaskedTokens",
    "Tagger",
    "TextClassifier",
    "TextEncoder",
    "Transformer",
]
