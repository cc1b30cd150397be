"""Pictures: attention and training. Needs matplotlib.

Every function takes the axes to draw on, or makes a figure of its own, and returns the
`matplotlib.figure.Figure`, to be shown by a notebook, after `%matplotlib inline`, or
written with `savefig`. Figures made here are not pyplot's: nothing needs to be closed.
"""

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError(
        'Plots need matplotlib: pip install "keras-transformer-seq2seq[plots]"'
    ) from error

from keras_transformer.plots.attention import (
    SentenceAttention,
    attention,
    attention_heads,
    sentence_attention,
)
from keras_transformer.plots.curves import training_curves

__all__ = [
    "SentenceAttention",
    "attention",
    "attention_heads",
    "sentence_attention",
    "training_curves",
]
