"""Training steps whose gradient is that of one large batch."""

from keras_transformer.exact_training.model import ExactModel, ExactTraining
from keras_transformer.exact_training.step import split_batches_over_cores

__all__ = ["ExactModel", "ExactTraining", "split_batches_over_cores"]
