"""The projections to heads and back of an attention layer."""

from __future__ import annotations

import math

import keras
from keras import ops

from keras_transformer.kernels.decoding import merge_heads, split_heads
from keras_transformer.kernels.execution import shape_of
from keras_transformer.layers.arguments import check_size
from keras_transformer.layers.weight_matrix import (
    multiply,
    prepared_weights,
    side_by_side,
)
from keras_transformer.layers.weight_options import (
    own_options,
    serialised,
    weight_options,
)


class HeadProjections:
    """The matrices by which an attention layer projects its inputs and its output.

    The heads' matrices stand side by side: columns i * key_dim to (i + 1) * key_dim of
    the queries' kernel are those of head i. The weights belong to the layer that is
    given to `build`, as `query_kernel`, `query_bias` and so on.

    Args:
        num_heads: Heads of the queries, H.
        key_dim: Width of a head's queries and keys, K.
        value_dim: Width of a head's values, Kv; default `key_dim`.
        output_dim: Width of the output, or a tuple of its last axes; default the width
            of the query.
        use_bias: Whether every projection adds a bias.
        num_key_value_heads: Heads of keys and values, G; default `num_heads`. Each
            serves H / G consecutive heads of queries.
        dtype: Float type to compute in.
        use_gate: Whether queries are projected to a gate of each head's output too.

    Attributes:
        query_scale: What queries are multiplied by, default 1. It is applied to their
            kernel, which is smaller.
        activity_regularizer: Regularizer of what the projections give, or `None`.

    Raises:
        ValueError: If a size is not a positive integer, or `num_heads` is not a
            multiple of `num_key_value_heads`.
    """

    def __init__(
        self, num_heads, key_dim, value_dim, output_dim, use_bias,
        num_key_value_heads=None, dtype="float32", use_gate=False,
    ):  # fmt: skip
        check_size("num_heads", num_heads)
        check_size("key_dim", key_dim)
        check_size("value_dim", value_dim, optional=True)
        for size in output_dim if isinstance(output_dim, tuple) else (output_dim,):
            check_size("output_dim", size, optional=True)
        check_size("num_key_value_heads", num_key_value_heads, optional=True)
        groups = num_key_value_heads or num_heads
        if num_heads % groups:
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`. Received: "
                f"num_heads={num_heads}, num_key_value_heads={num_key_value_heads}"
            )
        value_dim = key_dim if value_dim is None else value_dim
        # Number and width of the heads.
        self.heads = {
            "query": (num_heads, key_dim),
            "key": (groups, key_dim),
            "value": (groups, value_dim),
        }
        if use_gate:
            self.heads["gate"] = (num_heads, value_dim)
        self.width = num_heads * value_dim
        self.output_dim = output_dim
        self.use_bias = use_bias
        self.query_scale = 1.0
        self.set_options(("glorot_uniform", None, None), ("zeros", None, None))
        self.dtype = dtype
        self.weights = {}

    def set_options(self, kernel, bias, activity_regularizer=None):
        """Says what Keras does with the weights that `build` will add.

        Args:
            kernel: Initializer, regularizer and constraint of every matrix.
            bias: Those of every bias.
            activity_regularizer: Regularizer of what the projections give.
        """
        self._kernel_options = weight_options(*kernel)
        self._bias_options = weight_options(*bias)
        self.activity_regularizer = keras.regularizers.get(activity_regularizer)

    def kernel_options(self):
        """Returns the arguments of `add_weight` for one more matrix."""
        return own_options(self._kernel_options)

    def weights_config(self):
        """Returns the options of the weights as Keras' layers have them in configs."""
        return {
            f"{kind}_{name}": serialised(option)
            for kind, options in (
                ("kernel", self._kernel_options), ("bias", self._bias_options),
            )
            for name, option in options.items()
        }  # fmt: skip

    def options_config(self):
        """Returns all options that `set_options` set, likewise."""
        regularizer = serialised(self.activity_regularizer)
        return self.weights_config() | {"activity_regularizer": regularizer}

    def build(self, layer, query_shape, value_shape, key_shape):
        """Adds the weights to the layer that they belong to."""
        shapes = {"query": query_shape, "key": key_shape, "value": value_shape}
        shapes["gate"] = query_shape
        for name, (number, width) in self.heads.items():
            self._add(layer, name, shapes[name][-1], number * width)
        self._add(
            layer, "output", self.width, math.prod(self._output_dims(query_shape))
        )

    def _add(self, layer, name, input_width, output_width):
        shape = (input_width, output_width)
        matrix = layer.add_matrix(f"{name}_kernel", shape, **self.kernel_options())
        bias, bias_name = None, f"{name}_bias"
        if self.use_bias:
            options = own_options(self._bias_options)
            bias = layer.add_weight((output_width,), name=bias_name, **options)
        setattr(layer, bias_name, bias)
        self.weights[name] = matrix, bias

    def output_shape(self, query_shape):
        """Returns the shape of the output for queries of a shape."""
        return (*query_shape[:-1], *self._output_dims(query_shape))

    def _output_dims(self, query_shape):
        if self.output_dim is None:
            return (query_shape[-1],)
        is_tuple = isinstance(self.output_dim, tuple)
        return self.output_dim if is_tuple else (self.output_dim,)

    def project(self, query, value, key):
        """Projects to heads; arguments that are the same tensor share one product.

        Args:
            query: Float tensor (B, T, D_query).
            value: Float tensor (B, S, D_value).
            key: Float tensor (B, S, D_key).

        Returns:
            Queries (B, H, T, K) times `query_scale`, keys (B, G, S, K) and values
            (B, G, S, Kv).
        """
        if key is query and value is query:
            return self.project_one(query, "query", "key", "value")
        queries = self.project_one(query, "query")
        if value is key:
            return queries + self.project_one(key, "key", "value")
        return queries + self.project_one(key, "key") + self.project_one(value, "value")

    def project_one(self, inputs, *names):
        """Projects (B, T, D) to heads (B, G, T, K), one tensor a name."""
        batch, length = shape_of(inputs)[:2]
        # One matrix product over all positions is faster than one a sentence.
        rows = ops.reshape(ops.cast(inputs, self.dtype), (-1, inputs.shape[-1]))
        projected = self._multiply(rows, self._joined(*names))
        heads = []
        for part, name in zip(self._split(projected, names), names, strict=True):
            part = ops.reshape(part, (batch, length, *self.heads[name]))
            heads.append(ops.transpose(part, (0, 2, 1, 3)))
        return tuple(heads)

    def merge(self, outputs):
        """Projects the heads' outputs (B, H, T, Kv) to (B, T, *output_dim)."""
        batch, _, length, _ = shape_of(outputs)
        rows = ops.reshape(ops.transpose(outputs, (0, 2, 1, 3)), (-1, self.width))
        merged = self._multiply(rows, self._joined("output"))
        return ops.reshape(merged, (batch, length, *self._output_dims(merged.shape)))

    def _multiply(self, rows, weights):
        return multiply(rows, weights, self.weights["output"][0].input_quantizer)

    def _joined(self, *names):
        """Returns the kernels and biases side by side, for `_multiply`."""
        matrices, biases = zip(*map(self.weights.get, names), strict=True)
        factor = self.query_scale if names[0] == "query" else 1.0
        return side_by_side(matrices, biases, self.dtype, factor)

    def _split(self, projected, names):
        """Cuts the columns of a joined product into the parts of the names."""
        widths = [number * width for number, width in map(self.heads.get, names)]
        ends = [sum(widths[: i + 1]) for i in range(len(widths) - 1)]
        return ops.split(projected, ends, axis=-1) if ends else [projected]

    def decoding_weights(self, *names):
        """Returns what `project_step` and `merge_step` multiply by.

        Args:
            *names: Those of "query", "key" and "value" that a step computes.
        """
        joined = self._joined(*names), self._joined("output")
        return tuple(map(prepared_weights, joined))

    def project_step(self, inputs, weights, *names):
        """Projects (B, N, D) to heads (B, G, N, K), one tensor a name.

        Args:
            inputs: Float tensor (B, N, D), one position of N hypotheses.
            weights: The first part of `decoding_weights(*names)`.
            *names: As for `decoding_weights`.
        """
        _, hypotheses, width = inputs.shape
        rows = ops.reshape(ops.cast(inputs, self.dtype), (-1, width))
        projected = self._multiply(rows, weights)
        numbers, widths = zip(*map(self.heads.get, names), strict=True)
        if len(set(numbers)) == 1:
            return split_heads(projected, hypotheses, numbers[0], widths)
        parts = self._split(projected, names)
        return tuple(
            split_heads(part, hypotheses, number, [width])[0]
            for part, number, width in zip(parts, numbers, widths, strict=True)
        )

    def merge_step(self, outputs, weights):
        """As `merge`, for heads (B, H, N, Kv), by the second of `decoding_weights`."""
        merged = self._multiply(merge_heads(outputs), weights)
        dims = self._output_dims(merged.shape)
        return ops.reshape(merged, (-1, outputs.shape[2], *dims))
