"""Cross-entropy over a vocabulary, from logits or from the states before them.

`fused_crossentropy` never holds all logits: those of 4000 tokens and 32000 classes take
0.5 GB, and a usual training step holds several such tensors. As in section 3.2 of Hsu
et al., 2024, https://arxiv.org/abs/2410.10989, it computes losses and gradients of one
chunk of tokens after the other.

Letters: R tokens, C of them in a chunk, D width of a state, V classes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
from keras import ops

from keras_transformer.nn.kernels.execution import has_gpu, in_tensorflow_graph, scan
from keras_transformer.nn.kernels.keras_private import custom_gradient

# Measured on CPUs: smaller products are slow, larger ones do not fit into the cache.
CHUNK_TOKENS = 512
# Float32 logits of a chunk on a GPU, where large products are faster (bytes).
GPU_CHUNK_BYTES = 2**30
_NARROW = ("int8", "uint8", "int16", "uint16")


def wide_ids(ids):
    """Returns ids as a tensor that can be compared with any number of classes."""
    ids = ops.convert_to_tensor(ids)
    is_narrow = keras.backend.standardize_dtype(ids.dtype) in _NARROW
    return ops.cast(ids, "int32") if is_narrow else ids


def class_ids(ids, classes):
    """Returns int32 ids, 0 where one is no class, and whether each is one."""
    # A negative index counts from the end; others are cut, or give anything.
    ids = wide_ids(ids)
    is_class = ops.logical_and(ops.greater_equal(ids, 0), ops.less(ids, classes))
    return ops.cast(ops.where(is_class, ids, 0), "int32"), is_class


def token_weights(y_true, pad_id, sample_weight=None, classes=None, dtype="float32"):
    """Returns the weight of each target (B, T): 0 for padding, else its sample's.

    With a number of `classes`, NaN for a target that is neither padding nor a class.
    """
    y_true = wide_ids(y_true)
    is_token = ops.not_equal(y_true, pad_id)
    weights = ops.cast(is_token, dtype)
    if sample_weight is not None:
        sample_weight = ops.cast(sample_weight, dtype)
        if len(sample_weight.shape) == 1:
            sample_weight = sample_weight[:, None]
        weights = weights * sample_weight
    if classes is None:
        return weights
    _, is_class = class_ids(y_true, classes)
    is_other = ops.logical_not(is_class)
    return ops.where(ops.logical_and(is_token, is_other), math.nan, weights)


def smoothed_crossentropy(targets, logits, label_smoothing=0.0):
    """Returns the label-smoothed cross-entropy of targets (...), float32 (nats).

    logsumexp(z) - (1 - e) z_y - e mean(z) of logits z (..., V): the true class has the
    probability 1 - e + e / V, every other class e / V (Szegedy et al., 2016, section 7,
    https://arxiv.org/abs/1512.00567). NaN where a target is no class.
    """
    # fairseq and OpenNMT-tf spread e over the other V - 1 classes.
    logits = ops.cast(logits, "float32")
    targets, is_class = class_ids(targets, ops.shape(logits)[-1])
    log_sum = ops.logsumexp(logits, axis=-1)
    true_logit = ops.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    expected = (1.0 - label_smoothing) * true_logit
    if label_smoothing:
        expected = expected + label_smoothing * ops.mean(logits, axis=-1)
    return ops.where(is_class, log_sum - expected, math.nan)


def first_largest(logits):
    """Returns the index of the largest logit, the first of equal ones: int32 (...)."""
    if in_tensorflow_graph():
        import tensorflow as tf

        # `ops.argmax` reads the logits five times more, to order -0 and 0.
        return tf.argmax(logits, axis=-1, output_type=tf.int32)
    if 0 in logits.shape:  # PyTorch has no maximum of nothing.
        return ops.zeros(ops.shape(logits)[:-1], "int32")
    # XLA finds a maximum much faster than its place.
    places = ops.arange(logits.shape[-1], dtype="int32")
    is_largest = ops.equal(logits, ops.max(logits, axis=-1, keepdims=True))
    return ops.min(ops.where(is_largest, places, logits.shape[-1]), axis=-1)


@dataclasses.dataclass(frozen=True)
class TokenScores:
    """Scores of tokens that metrics take in place of `y_pred`."""

    # Float32 tensors (B, T), NaN where a target is no class; any number at padding.
    crossentropy: Any  #: -log p(target) in nats, without label smoothing
    correct: Any  #: 1 where the target has the largest logit, else 0


def fused_crossentropy(
    states, matrix, targets, weights, label_smoothing=0.0, gradient=True, bias=None
):
    """Returns the sum of weights * smoothed_crossentropy(states @ matrix.T + bias).

    Also returns the unsmoothed cross-entropy (R,) of each token, and (R,), 1 where it
    has the largest logit; NaN where a target is no class. Products are in the type of
    the states, all else in float32.
    """
    # States (R, D), matrix (V, D), targets and weights (R,), bias (V,).
    learned = (states, matrix) if bias is None else (states, matrix, bias)
    learned = tuple(map(ops.convert_to_tensor, learned))
    if states.shape[0] == 0:
        none = ops.cast(states[:, 0], "float32")
        return ops.sum(none), none, none
    targets, is_class = class_ids(targets, matrix.shape[0])
    weights = ops.cast(weights, "float32")
    # In float16 a gradient times a weight of 1 / thousands would underflow.
    is_narrow = keras.backend.standardize_dtype(states.dtype) == "float16"
    unit = ops.maximum(ops.max(ops.abs(weights)), 1e-30) if is_narrow else 1.0
    scores, slopes = _over_chunks(
        tuple(map(ops.stop_gradient, learned)),
        targets,
        weights / unit if is_narrow else weights,
        label_smoothing,
        gradient,
    )
    scores = ops.where(is_class[:, None], scores, math.nan)
    losses, crossentropies, correct = ops.unstack(scores, 3, axis=1)
    # Infinity times a weight of zero is not a number.
    total = ops.sum(ops.where(ops.equal(weights, 0.0), 0.0, losses * weights))

    @custom_gradient
    def with_gradient(*learned):
        def gradient(*upstreams, upstream=None):
            if upstream is None:  # PyTorch passes it by name, after the arguments.
                (upstream,) = upstreams
            scale = upstream * unit if is_narrow else upstream
            return keras.tree.map_structure(
                lambda slope: slope * ops.cast(scale, slope.dtype), slopes
            )

        return total, gradient

    if gradient:
        total = with_gradient(*learned)
    return total, crossentropies, correct


def chunk_tokens(classes: int) -> int:
    """Returns the most tokens in a chunk of `fused_crossentropy`."""
    if not has_gpu():
        return CHUNK_TOKENS
    return max(CHUNK_TOKENS, GPU_CHUNK_BYTES // (4 * classes))


def _over_chunks(learned, targets, weights, label_smoothing, gradient):
    """Returns the scores (R, 3) of `_chunk`, and the gradient of what is learned."""
    states, matrix, *bias = learned
    tokens = ops.shape(states)[0]
    width = states.shape[-1]
    classes = matrix.shape[0]
    count = tokens // (chunk_tokens(classes) + 1) + 1
    size = (tokens + count - 1) // count

    def step(slopes, chunk):
        scores, state_slopes, more = _chunk(
            *chunk, output, means, label_smoothing, gradient
        )
        slopes = keras.tree.map_structure(
            lambda slope, part: slope + ops.cast(part, "float32"), slopes, more
        )
        return slopes, (scores, state_slopes)

    output = [ops.cast(matrix, states.dtype), *[ops.cast(b, "float32") for b in bias]]
    # A product, because the mean along the first axis is slow.
    share = ops.full((classes,), 1 / classes)
    means = [ops.matmul(share, ops.cast(part, "float32")) for part in output]
    start = [ops.zeros(()) for _ in output]
    if gradient:
        # Smoothing changes every class alike.
        inputs = [ops.cast(states, "float32"), *[ops.ones_like(weights) for _ in bias]]
        pulled = [ops.matmul(weights, x) * (-label_smoothing / classes) for x in inputs]
        pairs = zip(pulled, (matrix, *bias), strict=True)
        start = [ops.broadcast_to(part, like.shape) for part, like in pairs]
    missing = [0, count * size - tokens]
    chunks = [ops.pad(states, [missing, [0, 0]])]
    chunks += [ops.pad(x, [missing]) for x in (targets, weights)]
    # (R, ...) --> (chunks, C, ...)
    chunks = [ops.reshape(x, (count, size, *x.shape[1:])) for x in chunks]
    like = ("float32", (None, 3)), (states.dtype, (None, width))
    slopes, (scores, state_slopes) = scan(step, tuple(start), chunks, like)
    scores = ops.reshape(scores, (-1, 3))[:tokens]
    state_slopes = ops.reshape(state_slopes, (-1, width))[:tokens]
    slopes = keras.tree.map_structure(
        lambda slope, like: ops.cast(slope, like.dtype), slopes, (matrix, *bias)
    )
    return scores, (state_slopes, *slopes)


def _chunk(states, targets, weights, output, means, label_smoothing, gradient):
    """Returns loss, cross-entropy and correctness (C, 3), and unsmoothed gradients."""
    matrix, *bias = output  # (V, D) in the type of the states; (V,) in float32
    logits = ops.einsum("nd,vd->nv", states, matrix)
    mean_logit = ops.matmul(ops.cast(states, "float32"), means[0])
    if bias:
        logits = ops.cast(logits, "float32") + bias[0]
        mean_logit = mean_logit + means[1]
    wide = ops.cast(logits, "float32")
    softmax = _softmax_in_place if in_tensorflow_graph() else _softmax
    places, log_sum, slopes = softmax(wide, targets, 1.0 - label_smoothing)
    true_logit = ops.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    true_logit = ops.cast(true_logit, "float32")
    crossentropy = log_sum - true_logit
    losses = crossentropy + label_smoothing * (true_logit - mean_logit)
    correct = ops.cast(ops.equal(places, targets), "float32")
    scores = ops.stack([losses, crossentropy, correct], axis=1)
    if not gradient:
        return scores, ops.zeros_like(states), (0.0,) * len(output)
    of_bias = (ops.matmul(weights, slopes),) if bias else ()
    slopes = ops.cast(slopes, states.dtype)
    of_states = ops.cast(ops.einsum("nv,vd->nd", slopes, matrix), "float32")
    of_states = (of_states - label_smoothing * means[0]) * weights[:, None]
    weighted = states * ops.cast(weights[:, None], states.dtype)
    of_matrix = ops.einsum("nv,nd->vd", slopes, weighted)
    return scores, ops.cast(of_states, states.dtype), (of_matrix, *of_bias)


def _softmax(logits, targets, expected):
    """Returns argmax, log-sum-exp, and softmax (C, V) less `expected` at targets."""
    largest = ops.max(logits, axis=-1, keepdims=True)
    powers = ops.exp(logits - largest)
    total = ops.sum(powers, axis=-1, keepdims=True)
    is_true = ops.equal(ops.arange(logits.shape[-1], dtype="int32"), targets[:, None])
    slopes = powers / total - ops.where(is_true, expected, 0.0)
    return first_largest(logits), (largest + ops.log(total))[:, 0], slopes


def _softmax_in_place(logits, targets, expected):
    """As `_softmax`, in a TensorFlow graph, with few passes and one large tensor."""
    import tensorflow as tf

    rows = tf.range(tf.shape(logits)[0])
    places = first_largest(logits)
    probabilities = tf.nn.softmax(logits)
    at = tf.stack([rows, places], axis=1)
    # The largest probability is at least 1 / V, so its log is exact.
    log_sum = tf.gather_nd(logits, at) - tf.math.log(tf.gather_nd(probabilities, at))
    # TensorFlow updates a tensor without a copy if nothing else will read it.
    with tf.control_dependencies([log_sum]):
        at = tf.stack([rows, targets], axis=1)
        expected = tf.fill(tf.shape(targets), expected)
        slopes = tf.tensor_scatter_nd_sub(probabilities, at, expected)
    return places, log_sum, slopes
