"""Models: layers composed."""

from keras_transformer.models.encoder_stack import EncoderStack
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.graph_classifier import GraphClassifier
from keras_transformer.models.image_captioner import ImageCaptioner
from keras_transformer.models.image_classifier import ImageClassifier
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.masked_language_model import (
    MaskedLanguageModel,
    MaskedTokens,
)
from keras_transformer.models.node_classifier import NodeClassifier
from keras_transformer.models.tagger import Tagger
from keras_transformer.models.text_classifier import TextClassifier
from keras_transformer.models.text_encoder import TextEncoder
from keras_transformer.models.transformer import Transformer
from keras_transformer.models.vector_encoder import VectorEncoder

__all__ = [
    "EncoderStack",
    "Ensemble",
    "GraphClassifier",
    "ImageCaptioner",
    "ImageClassifier",
    "LanguageModel",
    "MaskedLanguageModel",
    "MaskedTokens",
    "NodeClassifier",
    "Tagger",
    "TextClassifier",
    "TextEncoder",
    "Transformer",
    "VectorEncoder",
]
