"""Training runs. Needs TensorFlow for the text."""

from keras_transformer.training.average_run import average_run
from keras_transformer.training.beginning import base_options
from keras_transformer.training.checkpoints import KeepCheckpoints, load_average
from keras_transformer.training.compiling import (
    compiled_model,
    make_optimizer,
    split_by_default,
)
from keras_transformer.training.dry_run import dry_run
from keras_transformer.training.run_callback import RunCallback
from keras_transformer.training.run_directory import check_new_directory
from keras_transformer.training.summary import lines_of as summary_lines
from keras_transformer.training.summary import read_summary
from keras_transformer.training.train import train

__all__ = [
    "KeepCheckpoints",
    "RunCallback",
    "average_run",
    "base_options",
    "check_new_directory",
    "compiled_model",
    "dry_run",
    "load_average",
    "make_optimizer",
    "read_summary",
    "split_by_default",
    "summary_lines",
    "train",
]
