"""Multi-head attention."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.graph_mode import in_tensorflow_graph
from keras_transformer.layers.arguments import check_rate, check_size
from keras_transformer.layers.attention import scaled_dot_product_attention
from keras_transformer.layers.cached_attention import CachedAttention
from keras_transformer.layers.decoding_ops import affine
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.training_ops import dropped_softmax
from keras_transformer.masks import attention_mask, carried_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(CachedAttention, keras.layers.Layer):
    """Attention of several heads over projected queries, keys and values.

    Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V):
    section 3.2.2 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762. The heads'
    matrices stand side by side: columns i * key_dim to (i + 1) * key_dim of
    `query_kernel` are W_i^Q.

    Queries, keys and values may have different widths. For decoding step by step,
    `initial_cache` and `step` do self-attention one position at a time,
    `project_key_value` computes the keys and values of a source once, and
    `step_across` attends to them; `decoding_weights` prepares both.

    Args:
        num_heads: Heads, h in the paper.
        key_dim: Width of each head's queries and keys, d_k in the paper.
        value_dim: Width of each head's values, d_v in the paper; default `key_dim`.
        output_dim: Width of the output; default the width of `query`.
        dropout_rate: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the projections add a bias; the paper's do not.
    Call arguments:
        query: Float tensor (B, T, D_query).
        key: Float tensor (B, S, D_key); default `query`, which is self-attention.
        value: Float tensor (B, S, D_value); default `key`.
        mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S), True where a position may
            be attended to; default the Keras mask that `key` carries.
        training: Whether dropout is applied.
        return_attention_weights: Whether the weights are returned too.
    Returns:
        Float tensor (B, T, output_dim); with `return_attention_weights` a tuple of it
        and the attention weights (B, H, T, S) before dropout.
    Raises:
        ValueError: If a size is not positive or a rate is outside [0, 1).

    Example:
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        output_dim=None,
        dropout_rate=0.0,
        use_bias=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_size("num_heads", num_heads)
        check_size("key_dim", key_dim)
        check_size("value_dim", value_dim, optional=True)
        check_size("output_dim", output_dim, optional=True)
        check_rate("dropout_rate", dropout_rate)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.output_dim = output_dim
        self.dropout_rate = dropout_rate
        self.use_bias = use_bias
        self.attention_dropout = Dropout(
            dropout_rate, dtype=self.dtype_policy, name="attention_dropout"
        )
        self.supports_masking = True

    @property
    def _head_value_dim(self):
        return self.key_dim if self.value_dim is None else self.value_dim

    def build(self, query_shape, key_shape=None, value_shape=None):
        key_shape = query_shape if key_shape is None else key_shape
        value_shape = key_shape if value_shape is None else value_shape
        key_width = self.num_heads * self.key_dim
        value_width = self.num_heads * self._head_value_dim
        output_dim = query_shape[-1] if self.output_dim is None else self.output_dim
        self._add_projection("query", query_shape[-1], key_width)
        self._add_projection("key", key_shape[-1], key_width)
        self._add_projection("value", value_shape[-1], value_width)
        self._add_projection("output", value_width, output_dim)
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

    def call(
        self,
        query,
        key=None,
        value=None,
        mask=None,
        training=None,
        return_attention_weights=False,
    ):
        key = query if key is None else key
        value = key if value is None else value
        mask = carried_mask(key) if mask is None else mask
        if training and in_tensorflow_graph():
            attend, scale = self._attend_in_graph, self.key_dim**-0.5
        else:
            attend, scale = self._attend, 1.0
        queries, keys, values = self._project(query, key, value, scale)
        output, attention_weights = attend(
            queries, keys, values, mask=mask, training=training
        )
        return (output, attention_weights) if return_attention_weights else output

    def project_key_value(self, key, value=None):
        """Projects keys and values once, for many calls of `step_across`.

        Args:
            key: Float tensor (B, S, D_key).
            value: Float tensor (B, S, D_value); default `key`.

        Returns:
            Keys (B, H, S, K) and values (B, H, S, Kv).
        """
        value = key if value is None else value
        names = ("key", "value")
        if value is key:
            return self._project_together(key, names)
        return self._project_one(key, names[0]), self._project_one(value, names[1])

    def _project(self, query, key, value, scale=1.0):
        """Projects to (B, H, T, K) times `scale`, (B, H, S, K), (B, H, S, Kv)."""
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
        return tuple(map(self._split_heads, ops.split(projected, ends, axis=-1)))

    def _project_one(self, inputs, name, scale=1.0):
        kernel = _scaled(getattr(self, f"{name}_kernel"), scale)
        bias = getattr(self, f"{name}_bias")
        bias = None if bias is None else _scaled(bias, scale)
        return self._split_heads(self._linear(inputs, kernel, bias))

    def _linear(self, inputs, kernel, bias=None):
        """Multiplies (B, T, D) by (D, E) as one matrix product, not one a sentence."""
        batch, length = ops.shape(inputs)[:2]
        flat = ops.reshape(ops.cast(inputs, self.compute_dtype), (-1, inputs.shape[-1]))
        # Outside of `__call__` Keras does not cast the weights.
        parts = [kernel] if bias is None else [kernel, bias]
        outputs = affine(flat, *(ops.cast(x, self.compute_dtype) for x in parts))
        return ops.reshape(outputs, (batch, length, kernel.shape[1]))

    def _split_heads(self, tensor):
        """(B, T, H * K) --> (B, H, T, K)."""
        batch, length = ops.shape(tensor)[:2]
        width = tensor.shape[-1] // self.num_heads
        split = ops.reshape(tensor, (batch, length, self.num_heads, width))
        return ops.transpose(split, (0, 2, 1, 3))

    def _attend(self, queries, keys, values, mask=None, training=None):
        mask = attention_mask(mask)
        if mask is not None:
            mask = ops.expand_dims(mask, axis=1)  # (B, 1, 1 or T, S), for all heads
        outputs, attention_weights = scaled_dot_product_attention(
            queries,
            keys,
            values,
            mask=mask,
            dropout=lambda weights: self.attention_dropout(weights, training=training),
        )
        return self._merge_heads(outputs), attention_weights

    def _attend_in_graph(self, queries, keys, values, mask=None, training=None):
        """As `_attend` in training, of scaled queries, for a TensorFlow graph."""
        mask = attention_mask(mask)
        if mask is not None:
            mask = ops.expand_dims(mask, axis=1)  # (B, 1, 1 or T, S), for all heads
        scores = ops.matmul(queries, ops.swapaxes(keys, -1, -2))  # (B, H, T, S)
        keep, scale = None, 1.0
        if self.attention_dropout.is_hashed:
            keep, scale = self.attention_dropout.next_in_graph(ops.shape(scores))
        dropped, attention_weights = dropped_softmax(scores, mask, keep, scale)
        return self._merge_heads(ops.matmul(dropped, values)), attention_weights

    def _merge_heads(self, outputs):
        """(B, H, T, Kv) --> (B, T, output_dim)."""
        batch, _, length, _ = ops.shape(outputs)
        merged = ops.reshape(
            ops.transpose(outputs, (0, 2, 1, 3)),
            (batch, length, self.num_heads * self._head_value_dim),
        )
        return self._linear(merged, self.output_kernel, self.output_bias)

    def compute_mask(self, inputs, previous_mask):
        """The output is as long as the query and carries its mask."""
        return carried_mask(inputs)

    def compute_output_shape(self, query_shape, key_shape=None, value_shape=None):
        output_dim = query_shape[-1] if self.output_dim is None else self.output_dim
        return (*query_shape[:-1], output_dim)

    def compute_output_spec(
        self,
        query,
        key=None,
        value=None,
        mask=None,
        training=None,
        return_attention_weights=False,
    ):
        output = keras.KerasTensor(
            self.compute_output_shape(query.shape), dtype=self.compute_dtype
        )
        if not return_attention_weights:
            return output
        batch, length = query.shape[:2]
        source_length = length if key is None else key.shape[1]
        weights_shape = (batch, self.num_heads, length, source_length)
        return output, keras.KerasTensor(weights_shape, dtype=self.compute_dtype)

    def get_config(self):
        return super().get_config() | {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "dropout_rate": self.dropout_rate,
            "use_bias": self.use_bias,
        }


def _scaled(weight, scale):
    # A weight is smaller than what it is multiplied by.
    return weight if scale == 1.0 else weight * scale
