"""Models made of the layers, and the training step that they share.

`transformer.py` is the one to read first; `token_model.py` is its base, and
`exact_training.py` with the step of each backend is how it trains.
"""

from keras_transformer.models.batch_step import split_batches_over_cores
from keras_transformer.models.encoder import EncoderStack
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.exact_training import ExactModel, ExactTraining
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.transformer import Transformer

__all__ = [
    "EncoderStack",
    "Ensemble",
    "ExactModel",
    "ExactTraining",
    "LanguageModel",
    "Transformer",
    "split_batches_over_cores",
]
