"""Training steps whose gradient is that of one large batch."""

from keras_transformer.exact_training.cores import split_batches_over_cores
from keras_transformer.exact_training.model import ExactModel, ExactTraining

__all__ = ["ExactModel", "ExactTraining", "split_batches_over_cores"]
