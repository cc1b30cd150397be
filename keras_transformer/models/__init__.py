"""Models made of the layers."""

from keras_transformer.models.encoder import Encoder, EncoderStack
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.heads import MaskedLanguageModel, Tagger, TextClassifier
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.masked_tokens import MaskedTokens
from keras_transformer.models.transformer import Transformer

__all__ = [
    "Encoder",
    "EncoderStack",
    "Ensemble",
    "LanguageModel",
    "MaskedLanguageModel",
    "MaskedTokens",
    "Tagger",
    "TextClassifier",
    "Transformer",
]
