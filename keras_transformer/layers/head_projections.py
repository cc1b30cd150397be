"""The projections to heads and back of an attention layer."""

from __future__ import annotations

from keras import ops

from keras_transformer.kernels.affine import affine, prepared
from keras_transformer.kernels.execution import shape_of
from keras_transformer.kernels.step_attention import merge_heads, split_heads
from keras_transformer.layers.arguments import check_size


class HeadProjections:
    """The matrices by which an attention layer projects its inputs and its output.

    The heads' matrices stand side by side: columns i * key_dim to (i + 1) * key_dim of
    the queries' kernel are those of head i. The weights belong to the layer that is
    given to `build`, as `query_kernel`, `query_bias` and so on.

    Args:
        num_heads: Heads of the queries, H.
        key_dim: Width of a head's queries and keys, K.
        value_dim: Width of a head's values, Kv; default `key_dim`.
        output_dim: Width of the output; default the width of the query.
        use_bias: Whether every projection adds a bias.
        num_key_value_heads: Heads of keys and values, G; default `num_heads`. Each
            serves H / G consecutive heads of queries.
        dtype: Float type to compute in.

    Attributes:
        query_scale: What queries are multiplied by, default 1. It is applied to their
            kernel, which is smaller.

    Raises:
        ValueError: If a size is not a positive integer.
    """

    def __init__(
        self, num_heads, key_dim, value_dim, output_dim, use_bias,
        num_key_value_heads=None, dtype="float32",
    ):  # fmt: skip
        check_size("num_heads", num_heads)
        check_size("key_dim", key_dim)
        check_size("value_dim", value_dim, optional=True)
        check_size("output_dim", output_dim, optional=True)
        groups = num_key_value_heads or num_heads
        value_dim = key_dim if value_dim is None else value_dim
        # Number and width of the heads.
        self.heads = {
            "query": (num_heads, key_dim),
            "key": (groups, key_dim),
            "value": (groups, value_dim),
        }
        self.width = num_heads * value_dim
        self.output_dim = output_dim
        self.use_bias = use_bias
        self.query_scale = 1.0
        self.dtype = dtype
        self.weights = {}

    def build(self, layer, query_shape, key_shape=None, value_shape=None):
        """Adds the weights to the layer that they belong to."""
        key_shape = query_shape if key_shape is None else key_shape
        value_shape = key_shape if value_shape is None else value_shape
        shapes = {"query": query_shape, "key": key_shape, "value": value_shape}
        for name, shape in shapes.items():
            number, width = self.heads[name]
            self._add(layer, name, shape[-1], number * width)
        self._add(layer, "output", self.width, self.output_shape(query_shape)[-1])

    def _add(self, layer, name, input_width, output_width):
        kernel, bias = f"{name}_kernel", f"{name}_bias"
        shape = (input_width, output_width)
        added = layer.add_weight(shape, initializer="glorot_uniform", name=kernel)
        setattr(layer, kernel, added)
        added = None
        if self.use_bias:
            added = layer.add_weight((output_width,), initializer="zeros", name=bias)
        setattr(layer, bias, added)
        self.weights[name] = getattr(layer, kernel), added

    def output_shape(self, query_shape):
        """Returns the shape of the output for queries of a shape."""
        output_dim = query_shape[-1] if self.output_dim is None else self.output_dim
        return (*query_shape[:-1], output_dim)

    def project(self, query, key, value):
        """Projects to heads; arguments that are the same tensor share one product.

        Args:
            query: Float tensor (B, T, D_query).
            key: Float tensor (B, S, D_key).
            value: Float tensor (B, S, D_value).

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
        projected = affine(rows, *self._joined(*names))
        heads = []
        for part, name in zip(self._split(projected, names), names, strict=True):
            part = ops.reshape(part, (batch, length, *self.heads[name]))
            heads.append(ops.transpose(part, (0, 2, 1, 3)))
        return tuple(heads)

    def merge(self, outputs):
        """Projects the heads' outputs (B, H, T, Kv) to (B, T, output_dim)."""
        batch, _, length, _ = shape_of(outputs)
        rows = ops.reshape(ops.transpose(outputs, (0, 2, 1, 3)), (-1, self.width))
        merged = affine(rows, *self._joined("output"))
        return ops.reshape(merged, (batch, length, merged.shape[-1]))

    def _joined(self, *names):
        """Returns the kernels side by side and, with `use_bias`, the biases."""
        joined = []
        for parts in zip(*(self.weights[name] for name in names), strict=True):
            if parts[0] is None:
                continue
            # Outside of a layer's `__call__` Keras does not cast the weights.
            parts = [ops.cast(part, self.dtype) for part in parts]
            if names[0] == "query" and self.query_scale != 1.0:
                parts[0] = parts[0] * self.query_scale
            joined.append(ops.concatenate(parts, axis=-1) if parts[1:] else parts[0])
        return tuple(joined)

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
        return prepared(*self._joined(*names)), prepared(*self._joined("output"))

    def project_step(self, inputs, weights, *names):
        """Projects (B, N, D) to heads (B, G, N, K), one tensor a name.

        Args:
            inputs: Float tensor (B, N, D), one position of N hypotheses.
            weights: The first part of `decoding_weights(*names)`.
            *names: As for `decoding_weights`.
        """
        _, hypotheses, width = inputs.shape
        rows = ops.reshape(ops.cast(inputs, self.dtype), (-1, width))
        projected = affine(rows, *weights)
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
        merged = affine(merge_heads(outputs), *weights)
        return ops.reshape(merged, (-1, outputs.shape[2], merged.shape[-1]))
