"""The step of `fit`: one update follows the gradient of one large batch."""

from keras_transformer.exact_training.exact_training import ExactModel, ExactTraining
from keras_transformer.exact_training.row_parts import split_batches_over_cores

__all__ = ["ExactModel", "ExactTraining", "split_batches_over_cores"]
