"""The most tokens a second that a machine allows: a bound for any program.

The product of weights [m, n] with r rows takes 2 r m n floating-point operations, so
at least that number over the machine's matmul peak in seconds; reading the weights
takes at least their bytes over the memory bandwidth. The larger of the two is a bound
from below (the roofline model, Williams et al., 2009,
https://doi.org/10.1145/1498765.1498785). Softmax, normalisation, the search, and the
traffic of activations and caches count as free.
"""

from __future__ import annotations

from workload import SOURCE_LENGTH, TARGET_LENGTH, Setting, Size


def encoder_weights(size: Size) -> int:
    """Matrix weights that are used once a sentence.

    A layer has queries, keys, values and output (4 D^2) and the feed-forward network
    (2 D F); the keys and values of the decoder's cross-attention add 2 D^2.
    """
    d_model, d_ff = size.d_model, size.d_ff
    return size.num_layers * (6 * d_model**2 + 2 * d_model * d_ff)


def decoder_weights(size: Size) -> int:
    """Matrix weights that are used at every step.

    A layer has its self-attention (4 D^2), queries and output of the cross-attention
    (2 D^2) and the feed-forward network (2 D F); the output matrix adds D V.
    """
    d_model, d_ff = size.d_model, size.d_ff
    layers = size.num_layers * (6 * d_model**2 + 2 * d_model * d_ff)
    return layers + d_model * size.vocabulary_size


def encoder_flops(size: Size, batch: int) -> int:
    """Floating-point operations before the first step, B sentences of S tokens.

    2 B S per weight, and 4 D S^2 for the scores and sums of a layer's attention.
    """
    attention = 4 * size.d_model * SOURCE_LENGTH**2 * size.num_layers
    return batch * (2 * SOURCE_LENGTH * encoder_weights(size) + attention)


def decoder_flops(size: Size, rows: int) -> int:
    """Floating-point operations of all T steps together, R rows each.

    2 R per weight and step. Step t attends to t target and S source tokens, 4 D each
    in a layer, and the sum of t over the steps is T (T + 1) / 2.
    """
    attended = TARGET_LENGTH * (TARGET_LENGTH + 1) // 2 + TARGET_LENGTH * SOURCE_LENGTH
    attention = 4 * size.d_model * attended * size.num_layers
    return rows * (2 * TARGET_LENGTH * decoder_weights(size) + attention)


def limit(
    size: Size, setting: Setting, item_bytes: int, peak: float, bandwidth: float
) -> float:
    """Upper bound of the output tokens a second.

        B T / (max(encoder FLOPs / peak, encoder bytes / bandwidth)
               + max(decoder FLOPs / peak, T * decoder bytes / bandwidth))

    The decoder has B N rows at every step, N the beam size; every step reads its
    weights again.

    Args:
        size: The Transformer's sizes.
        setting: Batch and beam.
        item_bytes: Bytes of a weight: 4 in float32, 2 in bfloat16.
        peak: Floating-point operations a second of a large matrix product.
        bandwidth: Bytes a second at which as many bytes as a step's weights are read.

    Returns:
        Output tokens a second.
    """
    rows = setting.batch * setting.beam
    encoder = max(
        encoder_flops(size, setting.batch) / peak,
        encoder_weights(size) * item_bytes / bandwidth,
    )
    decoder = max(
        decoder_flops(size, rows) / peak,
        TARGET_LENGTH * decoder_weights(size) * item_bytes / bandwidth,
    )
    return setting.tokens / (encoder + decoder)
