"""Training runs. Needs TensorFlow for the text."""

from keras_transformer.training.averaging import KeepCheckpoints, load_average
from keras_transformer.training.fit import (
    check_new_directory,
    compiled_model,
    make_optimizer,
    train,
)

__all__ = [
    "KeepCheckpoints",
    "check_new_directory",
    "compiled_model",
    "load_average",
    "make_optimizer",
    "train",
]
