"""A convolution is attention whose heads see one neighbour each.

    python examples/why/neighbour_heads.py

A head that may attend to one position gives it all the weight, whatever its query and
key. If W^V is the identity in each head and W^O the convolution's kernel, h heads are
a convolution of size h. In the second table each head finds its neighbour by a bias.
"""

import keras_transformer.quiet

import keras
import numpy as np
import report
from keras import ops

import keras_transformer as kt
from keras_transformer.nn.layers import RelativePositions

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

    def bias(self, num_heads, query_indices, key_indices):
        offsets = ops.arange(num_heads)[:, None, None] - num_heads // 2
        away = key_indices[None, None] - query_indices[None, :, None] - offsets
        return -self.strength * ops.cast(ops.square(away), "float32")


def difference(ours, theirs):
    """Returns the largest one, as a share of the largest output."""
    ours, theirs = map(ops.convert_to_numpy, (ours, theirs))
    return float(
        np.abs(ours.reshape(theirs.shape) - theirs).max() / np.abs(theirs).max()
    )


def of_masks(sizes, taps):
    """Compares a convolution with heads that may attend to one neighbour each.

    Args:
        sizes: Length, or height and width, of the inputs (positions).
        taps: Size of the kernel along each axis, odd.
    """
    layer = keras.layers.Conv1D if len(sizes) == 1 else keras.layers.Conv2D
    convolution = layer(FILTERS, taps, padding="same", bias_initializer="normal")
    inputs = keras.random.normal((2, *sizes, WIDTH), seed=1)
    theirs = convolution(inputs)
    places, offsets = (
        np.stack(np.indices(shape), -1).reshape(-1, len(sizes))
        for shape in (sizes, taps)
    )
    mask = neighbours(places, offsets - np.array(taps) // 2)
    heads = heads_like(convolution, len(offsets))
    rows = ops.reshape(inputs, (2, -1, WIDTH))
    ours = heads(rows, attention_mask=np.repeat(mask, 2, axis=0))
    return difference(ours, theirs)


def of_strength(length, taps, strength):
    """Compares a convolution with heads that find their neighbours by a bias.

    Past the ends the nearest position is the last one, so the convolution gets it too.
    """
    convolution = keras.layers.Conv1D(FILTERS, taps)
    inputs = keras.random.normal((2, length, WIDTH), seed=1)
    ends = ((0, 0), (taps // 2, taps // 2), (0, 0))
    theirs = convolution(np.pad(ops.convert_to_numpy(inputs), ends, mode="edge"))
    heads = heads_like(convolution, taps, positions=Distance(strength))
    kernel = heads.query_dense.kernel
    kernel.assign(ops.zeros_like(kernel))
    return difference(heads(inputs), theirs)


def main(arguments=None):
    strengths = (0.1, 1.0, 3.0, 10.0, 100.0)
    parser = report.parser(__doc__, length=32, strengths=strengths)
    options = parser.parse_args(arguments)
    n, found = options.length, {}
    keras.utils.set_random_seed(1)
    report.show(["convolution", "heads", "largest difference"], [])
    for sizes, taps in (((n,), (3,)), ((n,), (11,)), ((n // 4, n // 4 + 1), (3, 3))):
        found[taps] = of_masks(sizes, taps)
        name = " x ".join(map(str, taps))
        report.show_rows([[name, int(np.prod(taps)), found[taps]]])
    report.show(["strength of the bias, size 3", "largest difference"], [])
    for strength in options.strengths:
        found[strength] = of_strength(n, 3, strength)
        report.show_rows([[strength, found[strength]]])
    return found


if __name__ == "__main__":
    main()
