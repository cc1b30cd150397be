"""Heads that see one neighbour each: by a mask, or by a bias of the scores."""

import numpy as np
from keras import ops

import keras_transformer as kt
from keras_transformer.layers import RelativePositions

WIDTH, FILTERS = 8, 6  # Of the inputs, and of the outputs.


def neighbours(places, offsets):
    """Returns a mask (1, H, S, S): head h at p sees what stands at p + offsets[h].

    Args:
        places: Integer array (S, A), the place of each position along each axis.
        offsets: Integer array (H, A), in positions.
    """
    wanted = places[None, :, None] + offsets[:, None, None]  # (H, S, 1, A)
    return (places[None, None] == wanted).all(-1)[None]


def heads_like(convolution, size, **options):
    """Returns attention with a head for each tap of a built convolution.

    Args:
        convolution: `Conv1D` or `Conv2D`, "same" padding, channels last.
        size: Number of taps, H.
        **options: Of `MultiHeadAttention`.
    """
    kernel, bias = map(ops.convert_to_numpy, convolution.weights)
    attention = kt.MultiHeadAttention(size, WIDTH, output_shape=FILTERS, **options)
    attention.build((None, None, WIDTH))
    attention.value_dense.kernel.assign(np.tile(np.eye(WIDTH), size))
    attention.output_dense.kernel.assign(kernel.reshape(size * WIDTH, FILTERS))
    attention.output_dense.bias.assign(bias)
    return attention


class Distance(RelativePositions):
    """Scores that fall with the square of the distance to each head's neighbour.

    Cordonnier et al., 2020, theorem 1, https://arxiv.org/abs/1911.03584.
    """

    def __init__(self, strength):
        self.strength = strength

    def bias(self, num_heads, query_positions, key_positions):
        offsets = ops.arange(num_heads)[:, None, None] - num_heads // 2
        away = key_positions[None, None] - query_positions[None, :, None] - offsets
        return -self.strength * ops.cast(ops.square(away), "float32")
