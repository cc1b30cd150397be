"""Multi-head attention."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.kernels.execution import in_tensorflow_graph, shape_of
from keras_transformer.layers.arguments import check_rate, check_size
from keras_transformer.layers.attention import (
    dot_product_attention,
    grouped_product,
    masked_softmax,
)
from keras_transformer.layers.attention_record import record_attention
from keras_transformer.layers.cached_attention import CachedAttention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.head_projections import HeadProjections
from keras_transformer.layers.relative_positions import relative_positions
from keras_transformer.layers.training_ops import dropped_softmax
from keras_transformer.masks import attention_mask, carried_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(CachedAttention, HeadProjections, keras.layers.Layer):
    """Attention of several heads over projected queries, keys and values.

    Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V):
    section 3.2.2 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762. The heads'
    matrices stand side by side: columns i * key_dim to (i + 1) * key_dim of
    `query_kernel` are W_i^Q.

    Queries, keys and values may have different widths. For decoding step by step,
    `initial_cache`, `step` and `resize_cache` do self-attention one position at a time,
    `project_key_value` computes the keys and values of a source once, and
    `step_across` attends to them; `decoding_weights` prepares both. Override `weigh` to
    use another function than softmax.

    Args:
        num_heads: Heads, h in the paper.
        key_dim: Width of each head's queries and keys, d_k in the paper.
        value_dim: Width of each head's values, d_v in the paper; default `key_dim`.
        output_dim: Width of the output; default the width of `query`.
        dropout_rate: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the projections add a bias; the paper's do not.
        num_key_value_heads: Heads of keys and values, a divisor of `num_heads`; default
            `num_heads`. Fewer make a smaller cache (grouped-query attention: Ainslie et
            al., 2023, https://arxiv.org/abs/2305.13245); 1 is multi-query attention.
        positions: "rotary", "alibi" or an object such as `RotaryPositions`: how
            positions enter self-attention itself; default `None`, not at all.
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
        ValueError: If a size is not positive, a rate is outside [0, 1), `positions` is
            not known, or a `key` is given with `positions`.

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
        num_key_value_heads=None,
        positions=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._keep_sizes(num_heads, key_dim, value_dim, output_dim, use_bias)
        check_rate("dropout_rate", dropout_rate)
        check_size("num_key_value_heads", num_key_value_heads, optional=True)
        if num_heads % (num_key_value_heads or 1):
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`. Received: "
                f"num_heads={num_heads}, num_key_value_heads={num_key_value_heads}"
            )
        self.dropout_rate = dropout_rate
        self.num_key_value_heads = num_key_value_heads
        self.relative_positions = relative_positions(positions)
        if self.relative_positions is not None:
            self.relative_positions.check_key_dim(key_dim)
        is_name = isinstance(positions, str)
        self.positions = positions if is_name else self.relative_positions
        self.attention_dropout = Dropout(
            dropout_rate, dtype=self.dtype_policy, name="attention_dropout"
        )
        self.supports_masking = True

    @property
    def score_scale(self):
        """What the product of a query and a key is multiplied by."""
        return self.key_dim**-0.5

    def weigh(self, scores, mask=None):
        """Turns scores into attention weights; override it to use no softmax.

        Args:
            scores: Float tensor (B, H, T, S).
            mask: Boolean tensor that broadcasts to `scores`, or `None`.

        Returns:
            Float tensor (B, H, T, S).
        """
        return masked_softmax(scores, mask)

    @property
    def _has_softmax(self):
        return type(self).weigh is MultiHeadAttention.weigh

    def call(
        self,
        query,
        key=None,
        value=None,
        mask=None,
        training=None,
        return_attention_weights=False,
    ):
        if self.positions is not None and key is not None:
            raise ValueError(
                "`positions` are for self-attention: give `query` alone, or leave "
                f"`positions` out. Received: positions={self.positions!r} and a `key`"
            )
        key = query if key is None else key
        value = key if value is None else value
        mask = carried_mask(key) if mask is None else mask
        scale = self.score_scale if self._is_fused(training) else 1.0
        queries, keys, values = self._project(query, key, value, scale)
        outputs, attention_weights = self._attend(
            queries, keys, values, mask=attention_mask(mask), training=training
        )
        output = self._merge_heads(outputs)
        record_attention(self, attention_weights)
        return (output, attention_weights) if return_attention_weights else output

    def _is_fused(self, training):
        """Whether `dropped_softmax` does the work, of queries scaled beforehand."""
        return training and self._has_softmax and in_tensorflow_graph()

    def _attend(self, queries, keys, values, mask=None, training=None):
        """Attends with all heads.

        Args:
            queries: Float tensor (B, H, T, K), scaled if `_is_fused`.
            keys: Float tensor (B, G, S, K).
            values: Float tensor (B, G, S, Kv).
            mask: Boolean tensor (B, 1, S) or (B, T, S), or `None`.
            training: Whether dropout is applied.

        Returns:
            The outputs (B, H, T, Kv) and the attention weights (B, H, T, S).
        """
        bias = None
        if self.positions is not None:
            queries, keys = self._place(queries, keys)
            places = ops.arange(shape_of(queries)[2], dtype="int32")
            bias = self._position_bias(places, places)
        if mask is not None:
            mask = ops.expand_dims(mask, axis=1)  # (B, 1, 1 or T, S), for all heads
        return self._attend_scored(queries, keys, values, mask, bias, training)

    def _place(self, queries, keys):
        """Puts the positions from 0 into queries and keys of one sequence."""
        places = ops.arange(shape_of(queries)[2], dtype="int32")
        place = self.relative_positions.place
        return place(queries, places), place(keys, places)

    def _position_bias(self, query_positions, key_positions):
        bias = self.relative_positions.bias
        return bias(self.num_heads, query_positions, key_positions)

    def _attend_scored(self, queries, keys, values, mask, bias, training):
        """As `_attend`, with `mask` and `bias` that broadcast to the scores."""
        if self._is_fused(training):
            return self._attend_in_graph(queries, keys, values, mask, bias)
        return dot_product_attention(
            queries * self.score_scale,
            keys,
            values,
            mask=mask,
            bias=bias,
            dropout=lambda weights: self.attention_dropout(weights, training=training),
            weigh=self.weigh,
        )

    def _attend_in_graph(self, queries, keys, values, mask, bias):
        """As `_attend_scored`, of scaled queries, in training in a TensorFlow graph."""
        scores = grouped_product(queries, ops.swapaxes(keys, -1, -2))  # (B, H, T, S)
        if bias is not None:
            scores = ops.add(scores, bias)
        keep, scale = None, 1.0
        if self.attention_dropout.is_hashed:
            keep, scale = self.attention_dropout.next_in_graph(shape_of(scores))
        dropped, attention_weights = dropped_softmax(scores, mask, keep, scale)
        if bias is not None:
            dropped = ops.cast(dropped, values.dtype)
        return grouped_product(dropped, values), attention_weights

    def compute_mask(self, inputs, previous_mask):
        """The output is as long as the query and carries its mask."""
        return carried_mask(inputs)

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
        positions = self.positions
        if positions is self.relative_positions and positions is not None:
            positions = keras.saving.serialize_keras_object(positions)
        return super().get_config() | {
            "dropout_rate": self.dropout_rate,
            "num_key_value_heads": self.num_key_value_heads,
            "positions": positions,
        }
