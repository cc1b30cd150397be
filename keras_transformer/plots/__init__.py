"""Pictures: attention, masks, positions, learning rates, training. Needs matplotlib.

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

from keras_transformer.plots.curves import (
    learning_rate,
    training_curve,
    training_curves,
)
from keras_transformer.plots.fonts import add_font
from keras_transformer.plots.heat_maps import attention, attention_heads, mask
from keras_transformer.plots.positions import (
    position_dimensions,
    position_similarity,
    positional_encoding,
)
from keras_transformer.plots.sentences import SentenceAttention, sentence_attention

__all__ = [
    "SentenceAttention",
    "add_font",
    "attention",
    "attention_heads",
    "learning_rate",
    "mask",
    "position_dimensions",
    "position_similarity",
    "positional_encoding",
    "sentence_attention",
    "training_curve",
    "training_curves",
]
