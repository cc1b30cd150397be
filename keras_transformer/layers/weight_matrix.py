"""The matrices of weights of our layers: plain, with an adapter, or quantised."""

from __future__ import annotations

import math

import keras
from keras import ops

from keras_transformer.kernels.few_passes import affine, prepared
from keras_transformer.kernels.keras_private import untrack
from keras_transformer.kernels.quantized import quantized_affine
from keras_transformer.layers.quantization import activation_quantizer, block_size

# The integers of 4 bits, as `keras.layers.Dense` rounds to them.
INT4_RANGE = (-8, 7)


class WeightMatrix:
    """A matrix of weights that belongs to a layer, the variable of that name.

    With an adapter (LoRA: Hu et al., 2021, section 4.1,
    https://arxiv.org/abs/2106.09685) the layer computes with W + alpha / rank A B and
    trains A and B. Quantised, as `keras.layers.Dense` does it, the variable holds
    integers of 8 bits, or pairs of 4 bits, with a scale for each output unit or for
    each block of inputs to it.

    Args:
        layer: The layer or model.
        name: Name of the variable and the layer's attribute.
        shape: Shape (D, E), inputs first; (V, D) if `is_table`.
        is_table: Whether each row is a vector to look up, which has a scale of its own.
        policy: Quantised dtype policy to begin with, or `None`.
        **options: As for `keras.layers.Layer.add_weight`.

    Attributes:
        variable: W, or its integers, the layer's variable.
        scale: What W was multiplied by, (E,) or (V,), or, with blocks, what its
            integers are to be multiplied by, (blocks, E) or (V, blocks); or `None`.
        zero: The integers that stand for 0 in each block, or `None`.
        policy: Quantised dtype policy, or `None`.
        input_quantizer: What rounds the inputs to 8 bits, or `None`.
        lora_a: A (D, r), or `None` without an adapter.
        lora_b: B (r, E), or `None`.
        lora_scale: alpha / rank.
    """

    def __init__(self, layer, name, shape, is_table=False, policy=None, **options):
        self.layer = layer
        self.name = name
        self.shape = tuple(shape)
        self.is_table = is_table
        self.options = options
        self.lora_a = self.lora_b = self.lora_scale = None
        self.scale = self.zero = self.policy = self.input_quantizer = None
        if policy is None:
            self.variable = self._add("", self.shape, **options)
        else:
            self._add_integers(policy)

    def _add(self, end, shape, **options):
        """Adds a variable to the layer as an attribute called like the matrix."""
        name = self.name + end
        setattr(self.layer, name, self.layer.add_weight(shape, name=name, **options))
        return getattr(self.layer, name)

    # Adapters.

    def add_adapter(self, rank, lora_alpha, a_initializer, b_initializer):
        """Adds A and B, which are trained in place of W."""
        options = {
            # Half precision is too coarse for the small steps of training.
            "dtype": "float32",
            "regularizer": self.options.get("regularizer"),
        }
        name = f"lora_{self.name}"
        for end, shape, initializer in (
            ("a", (self.shape[0], rank), a_initializer),
            ("b", (rank, self.shape[1]), b_initializer),
        ):
            added = self.layer.add_weight(
                shape, initializer=initializer, name=f"{name}_{end}", **options
            )
            setattr(self, f"lora_{end}", added)
            setattr(self.layer, f"{name}_{end}", added)
        self.variable.trainable = False
        self.lora_scale = lora_alpha / rank

    @property
    def lora_rank(self):
        """Rank of the adapter, or `None` without one."""
        return None if self.lora_a is None else self.lora_a.shape[1]

    def _adapter(self, dtype="float32", factor=1.0):
        """Returns A, and B times alpha / rank and a factor."""
        a, b = (ops.cast(part, dtype) for part in (self.lora_a, self.lora_b))
        return a, b * (self.lora_scale * factor)

    # Quantisation.

    def quantize(self, config, policy):
        """Rounds the matrix, as a `keras.quantizers.QuantizationConfig` says.

        Args:
            config: The configuration.
            policy: The quantised dtype policy made from it.
        """
        value = ops.cast(self.variable, "float32")
        rounded = self._rounded(value, policy, config.weight_quantizer)
        untrack(self.layer, self.variable)
        self._add_integers(policy)
        self._assign(rounded)

    def _add_integers(self, policy):
        """Adds the variables of a quantised matrix, for values to come."""
        self.policy = policy
        self.input_quantizer = activation_quantizer(policy)
        (inputs, outputs), columns = self._sizes(), self.shape[1]
        if policy.quantization_mode == "int4":
            columns = math.ceil(columns / 2)
        frozen = {"initializer": "zeros", "trainable": False}
        stored = (self.shape[0], columns)
        self.variable = self._add("", stored, dtype="int8", **frozen)
        shape, size = (outputs,), block_size(policy)
        if size is not None:
            blocks = math.ceil(inputs / size)
            shape = (outputs, blocks) if self.is_table else (blocks, outputs)
        # A half precision type would add an error of its own.
        exact = {"dtype": "float32", "autocast": False}
        self.scale = self._add("_scale", shape, **frozen | exact)
        if size is not None:
            self.zero = self._add("_zero", shape, dtype="int8", **frozen)

    def _sizes(self):
        """How many inputs and outputs a product with the matrix has."""
        return self.shape[::-1] if self.is_table else self.shape

    def _rounded(self, value, policy, quantizer=None):
        """Returns the integers of a float32 matrix, their scale and their zero."""
        is_int4, size = policy.quantization_mode == "int4", block_size(policy)
        turn = ops.transpose if self.is_table else (lambda matrix: matrix)
        if size is not None:
            grouped = keras.quantizers.abs_max_quantize_grouped_with_zero_point
            parts = grouped(turn(value), block_size=size, to_numpy=True)
            integers, scale, zero = map(turn, parts)
        else:
            if quantizer is None:
                limits = INT4_RANGE if is_int4 else (-127, 127)
                quantizer = keras.quantizers.AbsMaxQuantizer(value_range=limits)
            axis = -1 if self.is_table else 0
            integers, scale = quantizer(value, axis=axis, to_numpy=True)
            scale, zero = ops.squeeze(scale, axis), None
        if is_int4:
            integers, _, _ = keras.quantizers.pack_int4(integers, axis=-1)
        return integers, scale, zero

    def _assign(self, rounded):
        for variable, value in zip(self._parts(), rounded, strict=True):
            if variable is not None:
                variable.assign(value)

    def _parts(self):
        return self.variable, self.scale, self.zero

    def _integers(self, stored):
        """Unpacks integers of 4 bits."""
        if self.policy.quantization_mode != "int4":
            return ops.convert_to_tensor(stored)
        return keras.quantizers.unpack_int4(stored, self.shape[1], axis=-1)

    def _dequantized(self, stored, scale, zero):
        """Returns float32 values of the whole matrix, or of some rows of a table."""
        axis = -1 if self.is_table else 0
        integers = ops.cast(self._integers(stored), "float32")
        if zero is None:
            return integers / ops.expand_dims(scale, axis)
        scale, zero = self._spread(scale), self._spread(ops.cast(zero, "float32"))
        return (integers - zero) * scale

    def _spread(self, parts):
        """Repeats what holds for each block of inputs for each input in it."""
        inputs, size = self._sizes()[0], block_size(self.policy)
        if self.is_table:
            return ops.repeat(parts, size, axis=-1)[..., :inputs]
        return ops.repeat(parts, size, axis=0)[:inputs]

    # What the layer computes with.

    def value(self, dtype=None):
        """Returns the matrix, by default in the type of its layer's variables."""
        if self.policy is None:
            value = ops.convert_to_tensor(self.variable)
            dtype = value.dtype if dtype is None else dtype
        else:
            value = self._dequantized(*map(_tensor, self._parts()))
            dtype = self.layer.variable_dtype if dtype is None else dtype
        if self.lora_a is not None:
            value = ops.cast(value, "float32") + ops.matmul(*self._adapter())
        # Outside of a layer's `__call__` Keras does not cast the weights.
        return ops.cast(value, dtype)

    def rows(self, ids, dtype):
        """Looks up rows of a table.

        Args:
            ids: Integer tensor (...).
            dtype: Float type.

        Returns:
            Float tensor (..., D).
        """
        if self.policy is None:
            rows = ops.take(self.variable, ids, axis=0)
        else:
            taken = (
                None if part is None else ops.take(part, ids, axis=0)
                for part in self._parts()
            )
            rows = self._dequantized(*taken)
        if self.lora_a is not None:
            a, b = self._adapter()
            # TensorFlow adds no two types.
            rows = ops.cast(rows, "float32") + ops.matmul(ops.take(a, ids, axis=0), b)
        return ops.cast(rows, dtype)

    def kernel(self, dtype):
        """Returns the matrix (D, E), inputs first even if it is a table."""
        value = self.value(dtype)
        return ops.transpose(value) if self.is_table else value

    def integers(self, dtype, factor):
        """Returns what a product of integers needs, inputs first.

        Args:
            dtype: Float type of the adapter.
            factor: What the matrix is multiplied by.

        Returns:
            Int8 tensor (D, E), float32 scale (E,), and the adapter or `None`.
        """
        kernel, adapter = self._integers(self.variable), None
        if self.lora_a is not None:
            adapter = self._adapter(dtype, factor)
        if self.is_table:
            kernel = ops.transpose(kernel)
            adapter = adapter and tuple(map(ops.transpose, reversed(adapter)))
        return kernel, ops.convert_to_tensor(self.scale) / factor, adapter

    def stored(self):
        """Returns what a file holds for each of the matrix's variables, by its `id`."""
        if self.lora_a is None:
            return {}
        values = (self.value(),)
        if self.policy is not None:
            values = self._rounded(self.value("float32"), self.policy)
        return {
            id(variable): value
            for variable, value in zip(self._parts(), values, strict=False)
            if variable is not None
        }


def _tensor(part):
    return None if part is None else ops.convert_to_tensor(part)


def side_by_side(matrices, biases, dtype, factor=1.0):
    """Returns what `multiply` multiplies by, for several matrices at once.

    Args:
        matrices: `WeightMatrix`s (D, E_i) of one layer.
        biases: A variable (E_i,) for each, or `None` for each.
        dtype: Float type.
        factor: What the first matrix and its bias are multiplied by.

    Returns:
        The kernel (D, E) and, if there is one, the bias (E,): the arguments of `affine`
        after its input. If the inputs are to be rounded, a dictionary of arguments of
        `quantized_affine`.
    """
    factors = [factor] + [1.0] * (len(matrices) - 1)
    if matrices[0].input_quantizer is None:
        kernels = [
            _times(matrix.kernel(dtype), times)
            for matrix, times in zip(matrices, factors, strict=True)
        ]
        return (_joined(kernels), *_joined_biases(biases, dtype, factors))
    parts = [m.integers(dtype, f) for m, f in zip(matrices, factors, strict=True)]
    kernels, scales, adapters = zip(*parts, strict=True)
    weights = {"kernel": _joined(kernels), "scale": _joined(scales)}
    if any(adapters):
        weights["adapters"] = [
            adapter or _no_adapter(kernel, dtype)
            for adapter, kernel in zip(adapters, kernels, strict=True)
        ]
    for bias in _joined_biases(biases, dtype, factors):
        weights["bias"] = bias
    return weights


def _no_adapter(kernel, dtype):
    """Returns an adapter that adds nothing, beside others that add something."""
    inputs, outputs = kernel.shape
    return ops.zeros((inputs, 1), dtype), ops.zeros((1, outputs), dtype)


def _joined(parts):
    return ops.concatenate(parts, axis=-1) if parts[1:] else parts[0]


def _joined_biases(biases, dtype, factors):
    """Returns a tuple of the biases side by side, or an empty one without biases."""
    if biases[0] is None:
        return ()
    pairs = zip(biases, factors, strict=True)
    return (_joined([_times(ops.cast(bias, dtype), times) for bias, times in pairs]),)


def _times(tensor, factor):
    return tensor if factor == 1.0 else tensor * factor


def multiply(inputs, weights, quantizer=None, training=False):
    """Multiplies rows by matrices.

    Args:
        inputs: Float tensor (R, D).
        weights: What `side_by_side` or `prepared_weights` returned.
        quantizer: The matrices' `input_quantizer`.
        training: Whether a gradient will be asked for.

    Returns:
        Float tensor (R, E).
    """
    if isinstance(weights, dict):
        return quantized_affine(inputs, quantizer=quantizer, **weights)
    return affine(inputs, *weights, training=training)


def prepared_weights(weights):
    """Returns what `side_by_side` returned, prepared for many products."""
    return weights if isinstance(weights, dict) else prepared(*weights)
