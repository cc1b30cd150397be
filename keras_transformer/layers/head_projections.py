"""The projections to heads and back that several kinds of attention share."""

from __future__ import annotations

from keras import ops

from keras_transformer.kernels.execution import shape_of
from keras_transformer.layers.arguments import check_size
from keras_transformer.layers.decoding_ops import affine, prepared, split_heads


class HeadProjections:
    """What an attention layer multiplies its inputs and its output by.

    A mixin for a Keras layer. The heads' matrices stand side by side: columns
    i * key_dim to (i + 1) * key_dim of `query_kernel` are those of head i. Where
    `num_key_value_heads`, G, is less than `num_heads`, H, each head of keys and values
    serves H / G heads of queries that follow each other.
    """

    # What the scores are multiplied by; `decoding_weights` takes it into the queries'.
    score_scale = 1.0

    def _keep_sizes(self, num_heads, key_dim, value_dim, output_dim, use_bias):
        """Checks the sizes of the projections and keeps them as attributes."""
        check_size("num_heads", num_heads)
        check_size("key_dim", key_dim)
        check_size("value_dim", value_dim, optional=True)
        check_size("output_dim", output_dim, optional=True)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.output_dim = output_dim
        self.use_bias = use_bias

    @property
    def _key_value_heads(self):
        return getattr(self, "num_key_value_heads", None) or self.num_heads

    @property
    def _head_value_dim(self):
        return self.key_dim if self.value_dim is None else self.value_dim

    def _heads_of(self, name):
        """Number and width of the heads of "query", "key" or "value"."""
        number = self.num_heads if name == "query" else self._key_value_heads
        return number, self._head_value_dim if name == "value" else self.key_dim

    def build(self, query_shape, key_shape=None, value_shape=None):
        key_shape = query_shape if key_shape is None else key_shape
        value_shape = key_shape if value_shape is None else value_shape
        shapes = {"query": query_shape, "key": key_shape, "value": value_shape}
        for name, shape in shapes.items():
            number, width = self._heads_of(name)
            self._add_projection(name, shape[-1], number * width)
        output_dim = query_shape[-1] if self.output_dim is None else self.output_dim
        heads_width = self.num_heads * self._head_value_dim
        self._add_projection("output", heads_width, output_dim)
        self.built = True

    def _add_projection(self, name, input_width, output_width):
        kernel = self.add_weight(
            shape=(input_width, output_width),
            initializer="glorot_uniform",
            name=f"{name}_kernel",
        )
        bias = None
        if self.use_bias:
            bias = self.add_weight(
                shape=(output_width,), initializer="zeros", name=f"{name}_bias"
            )
        setattr(self, f"{name}_kernel", kernel)
        setattr(self, f"{name}_bias", bias)

    def project_key_value(self, key, value=None):
        """Projects keys and values once, for many calls of `step_across`.

        Args:
            key: Float tensor (B, S, D_key).
            value: Float tensor (B, S, D_value); default `key`.

        Returns:
            Keys (B, G, S, K) and values (B, G, S, Kv), of G = H heads unless
            `num_key_value_heads` is less.
        """
        value = key if value is None else value
        names = ("key", "value")
        if value is key:
            return self._project_together(key, names)
        return self._project_one(key, names[0]), self._project_one(value, names[1])

    def _project(self, query, key, value, scale=1.0):
        """Projects to (B, H, T, K) times `scale`, (B, G, S, K), (B, G, S, Kv)."""
        if key is query and value is query:
            return self._project_together(query, ("query", "key", "value"), scale)
        queries = self._project_one(query, "query", scale)
        return (queries, *self.project_key_value(key, value))

    def _project_together(self, inputs, names, scale=1.0):
        """Projects one tensor several ways at once, the first times `scale`."""

        def joined(kind):
            parts = [getattr(self, f"{name}_{kind}") for name in names]
            parts[0] = _scaled(parts[0], scale)
            return ops.concatenate(parts, axis=-1)

        bias = joined("bias") if self.use_bias else None
        projected = self._linear(inputs, joined("kernel"), bias)
        widths = [getattr(self, f"{name}_kernel").shape[1] for name in names]
        ends = [sum(widths[: i + 1]) for i in range(len(widths) - 1)]
        parts = ops.split(projected, ends, axis=-1)
        return tuple(map(self._split_heads, parts, names))

    def _project_one(self, inputs, name, scale=1.0):
        kernel = _scaled(getattr(self, f"{name}_kernel"), scale)
        bias = getattr(self, f"{name}_bias")
        bias = None if bias is None else _scaled(bias, scale)
        return self._split_heads(self._linear(inputs, kernel, bias), name)

    def _linear(self, inputs, kernel, bias=None):
        """Multiplies (B, T, D) by (D, E) as one matrix product, not one a sentence."""
        batch, length = shape_of(inputs)[:2]
        flat = ops.reshape(ops.cast(inputs, self.compute_dtype), (-1, inputs.shape[-1]))
        # Outside of `__call__` Keras does not cast the weights.
        parts = [kernel] if bias is None else [kernel, bias]
        outputs = affine(flat, *(ops.cast(x, self.compute_dtype) for x in parts))
        return ops.reshape(outputs, (batch, length, kernel.shape[1]))

    def _split_heads(self, tensor, name):
        """(B, T, H * K) --> (B, H, T, K)."""
        batch, length = shape_of(tensor)[:2]
        split = ops.reshape(tensor, (batch, length, *self._heads_of(name)))
        return ops.transpose(split, (0, 2, 1, 3))

    def _merge_heads(self, outputs):
        """(B, H, T, Kv) --> (B, T, output_dim)."""
        batch, _, length, _ = shape_of(outputs)
        merged = ops.reshape(
            ops.transpose(outputs, (0, 2, 1, 3)),
            (batch, length, self.num_heads * self._head_value_dim),
        )
        return self._linear(merged, self.output_kernel, self.output_bias)

    def decoding_weights(self, *names):
        """Returns what `step` or `step_across` multiplies by, in and out.

        Args:
            *names: "query", "key", "value" for `step` and
                "query" for `step_across`.
        """
        return self._joined_projection(*names), self._joined_projection("output")

    def _joined_projection(self, *names):
        """Prepares the projections of one step of decoding.

        Args:
            *names: Of "query", "key", "value" and "output", those that are computed
                together.

        Returns:
            A tuple, as `decoding_ops.affine` takes it: their kernels side by side and,
            with `use_bias`, their biases. The queries' part is multiplied by
            `score_scale`, which saves a step from doing so.
        """

        def joined(kind):
            parts = [
                ops.cast(getattr(self, f"{name}_{kind}"), self.compute_dtype)
                * (self.score_scale if name == "query" else 1.0)
                for name in names
            ]
            return ops.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]

        bias = joined("bias") if self.use_bias else None
        return prepared(joined("kernel"), bias)

    def _project_step(self, inputs, projection, *names):
        """Projects (B, k, D) to tensors (B, heads, k, width), one a name."""
        _, hypotheses, width = inputs.shape
        flat = ops.reshape(ops.cast(inputs, self.compute_dtype), (-1, width))
        projected = affine(flat, *projection)
        numbers, widths = zip(*map(self._heads_of, names), strict=True)
        if len(set(numbers)) == 1:
            return split_heads(projected, hypotheses, numbers[0], widths)
        sizes = [n * width for n, width in zip(numbers, widths, strict=True)]
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
        parts = ops.split(projected, ends, axis=-1)
        return tuple(
            split_heads(part, hypotheses, number, [width])[0]
            for part, number, width in zip(parts, numbers, widths, strict=True)
        )

    def compute_output_shape(self, query_shape, key_shape=None, value_shape=None):
        output_dim = query_shape[-1] if self.output_dim is None else self.output_dim
        return (*query_shape[:-1], output_dim)

    def get_config(self):
        return super().get_config() | {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "use_bias": self.use_bias,
        }


def _scaled(weight, scale):
    # A weight is smaller than what it is multiplied by.
    return weight if scale == 1.0 else weight * scale
