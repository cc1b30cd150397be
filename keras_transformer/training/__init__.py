"""Training runs that can be resumed. The text needs TensorFlow on every backend.

`job` is what was asked for, `plan` what will be done, `run` all that trains, and
`intervals` goes from one saved state to the next. Read `train.py` first.
"""

from keras_transformer.training.averages import average_run, load_average
from keras_transformer.training.job import default_config
from keras_transformer.training.report import read_summary, summary_lines
from keras_transformer.training.run_model import (
    compiled_model,
    make_optimizer,
    split_by_default,
)
from keras_transformer.training.train import dry_run, train

__all__ = [
    "average_run",
    "compiled_model",
    "default_config",
    "dry_run",
    "load_average",
    "make_optimizer",
    "read_summary",
    "split_by_default",
    "summary_lines",
    "train",
]
