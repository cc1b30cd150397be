"""Products with matrices of 8-bit integers."""

from __future__ import annotations

from keras import ops

from keras_transformer.kernels.execution import for_litert, in_tensorflow_graph


def quantized_affine(inputs, kernel, scale, quantizer, bias=None, adapters=()):
    """Multiplies rows, rounded to 8 bits, by a matrix of 8-bit integers.

    As `keras.layers.Dense` does after `quantize("int8")`: each row is rounded with a
    scale of its own, the products are summed as integers, and the sums are divided by
    both scales. The gradient is that of the product without rounding.

    Args:
        inputs: Float tensor (R, D).
        kernel: Int8 tensor (D, E), the matrix times `scale`, rounded.
        scale: Float tensor (E,).
        quantizer: Function of the inputs and an axis that gives them as int8 and their
            scale, such as a `keras.quantizers.AbsMaxQuantizer`.
        bias: Float tensor (E,), or `None`.
        adapters: Pairs of float tensors (D, r) and (r, E_i), whose products, side by
            side, are added to the matrix; or none.

    Returns:
        Float tensor (R, E) of the inputs' type.
    """
    outputs = _product(inputs, kernel, scale, quantizer)
    if adapters:
        parts = [ops.matmul(ops.matmul(inputs, a), b) for a, b in adapters]
        outputs = outputs + ops.concatenate(parts, axis=-1)
    return outputs if bias is None else outputs + bias


def _product(inputs, kernel, scale, quantizer):
    @ops.custom_gradient
    def product(inputs, kernel, scale):
        dtype = inputs.dtype

        def gradient(*args, upstream=None):
            (upstream,) = args if upstream is None else (upstream,)
            matrix = ops.cast(kernel, "float32") / scale
            matrix = ops.cast(ops.transpose(matrix), dtype)
            return ops.matmul(upstream, matrix), None, None

        # A type of 8 bits is too coarse for the scales.
        integers, input_scale = quantizer(ops.cast(inputs, "float32"), axis=-1)
        sums = ops.cast(_summed_products(integers, kernel), "float32")
        return ops.cast(sums / (input_scale * scale), dtype), gradient

    return product(inputs, kernel, ops.cast(ops.convert_to_tensor(scale), "float32"))


def _summed_products(integers, kernel):
    if in_tensorflow_graph() or for_litert():
        # TensorFlow multiplies integers slower than floats, and LiteRT cannot. Sums of
        # up to 1,040 products are below 2^24, where float32 is exact; longer ones are
        # rounded no more than any other product.
        integers, kernel = (ops.cast(x, "float32") for x in (integers, kernel))
    return ops.matmul(integers, kernel)
