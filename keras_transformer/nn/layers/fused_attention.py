"""Attention by kernels that never hold the scores: cuDNN's on JAX, PyTorch's own.

`keras.ops.dot_product_attention` calls them. They compute a softmax only, return no
attention weights and drop none. Flash attention: Dao et al., 2022,
https://arxiv.org/abs/2205.14135.

Letters: B sentences, H heads, G heads of keys and values, T queries, S keys, K width.
"""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.nn.kernels.execution import has_gpu
from keras_transformer.nn.masks import attention_bias

_WITH_KERNELS = ("jax", "torch")
HAS_KERNELS = keras.backend.backend() in _WITH_KERNELS
_HALF = ("float16", "bfloat16")
# From these lengths on PyTorch's kernel is faster on an AMD EPYC, forward and backward;
# on sentences of 30 to 40 tokens it is slower, in bfloat16 up to 7 times.
_SHORTEST_ON_PROCESSOR = {"float32": 128, "bfloat16": 512}


def obstacle(queries, keys, values, mask=None, bias=None, must=False) -> str | None:
    """Returns why `fused_attention` is not used, or `None`; `must`: even if slower."""
    backend = keras.backend.backend()
    if backend not in _WITH_KERNELS:
        return f"the backend {backend} has none"
    if len(queries.shape) != 4:
        return f"it takes queries of rank 4, not {len(queries.shape)}"
    dtype = keras.backend.standardize_dtype(queries.dtype)
    widths = queries.shape[-1], values.shape[-1]
    lengths = queries.shape[2], keys.shape[2]
    if backend == "jax":
        is_plain = mask is None and bias is None
        return _obstacle_of_cudnn(dtype, widths, lengths, is_plain)
    if not has_gpu():
        shortest = _SHORTEST_ON_PROCESSOR.get(dtype)
        if must or (shortest is not None and min(lengths) >= shortest):
            return None
        if shortest is None:
            return f"PyTorch's has not been measured on a processor in {dtype}"
        return f"PyTorch's gains from {shortest} positions on in {dtype}, not {lengths}"
    # In these cases PyTorch would hold the scores.
    if dtype == "float64":
        return "PyTorch's are not for float64"
    multiple = 8 if dtype in _HALF else 4
    if any(width % multiple for width in widths):
        return f"heads of {dtype} must be multiples of {multiple} wide, not {widths}"
    return None


def _obstacle_of_cudnn(dtype, widths, lengths, is_plain):
    if not has_gpu():
        return "JAX has none without a GPU"
    if dtype not in _HALF:
        return f"cuDNN's is for float16 and bfloat16, not {dtype}"
    width, value_width = widths
    if value_width != width or width % 8 or width > 128:
        return (
            "cuDNN's takes keys and values of one width, a multiple of 8 up to 128, "
            f"not {widths}"
        )
    if not is_plain and any(length % 2 for length in lengths):
        # Its backward pass refuses them.
        return f"cuDNN's takes a mask of even lengths only, not {lengths}"
    if keras.distribution.distribution() is not None:
        return "cuDNN's has not been tried on several devices"
    import jax

    capability = str(getattr(jax.devices()[0], "compute_capability", ""))
    if not capability.partition(".")[0].isdigit() or float(capability) < 8.0:
        return f"cuDNN's needs compute capability 8.0, not {capability!r}"
    return None


def fused_attention(queries, keys, values, mask=None, bias=None, must=False):
    """As `layers.attention.dot_product_attention`, with a bias in the queries' type."""
    # With `must`, JAX raises an error without cuDNN; else it computes the same without.
    alive = None
    if mask is not None:
        # A query with no key to attend to attends to all, lest a kernel divide by zero;
        # its output is replaced, which stops its gradient.
        alive = ops.any(mask, axis=-1, keepdims=True)
        mask = ops.logical_or(mask, ops.logical_not(alive))
    if keras.backend.backend() == "jax":
        if bias is not None and len(bias.shape) == 3:
            bias = bias[None]
        # cuDNN broadcasts over sentences and heads only.
        lengths = queries.shape[2], keys.shape[2]
        mask, bias = (
            x if x is None else ops.broadcast_to(x, (*x.shape[:2], *lengths))
            for x in (mask, bias)
        )
        options = {"mask": mask, "flash_attention": must or None}
    else:
        if mask is not None:
            masked = attention_bias(mask, queries.dtype)
            bias = masked if bias is None else masked + ops.cast(bias, queries.dtype)
        if keys.shape[1] == 1:
            # Keras copies shared heads; of a single one a view is enough.
            batch, heads = queries.shape[:2]
            keys, values = (
                ops.broadcast_to(x, (batch, heads, *x.shape[2:]))
                for x in (keys, values)
            )
        # With True PyTorch would use its flash kernel only, which takes no bias.
        options = {"flash_attention": False}
    # Keras' axes are positions, then heads.
    tensors = (ops.swapaxes(x, 1, 2) for x in (queries, keys, values))
    outputs = ops.dot_product_attention(*tensors, bias=bias, scale=1.0, **options)
    outputs = ops.swapaxes(outputs, 1, 2)
    return outputs if alive is None else ops.where(alive, outputs, 0.0)
