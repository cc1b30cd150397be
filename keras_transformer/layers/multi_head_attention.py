"""Multi-head attention."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.kernels.cache import new_cache, resize_cache, write_position
from keras_transformer.kernels.execution import shape_of
from keras_transformer.kernels.softmax import masked_softmax
from keras_transformer.kernels.step_attention import attend
from keras_transformer.layers.arguments import check_rate, check_size
from keras_transformer.layers.attention import dot_product_attention
from keras_transformer.layers.attention_record import record_attention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.head_projections import HeadProjections
from keras_transformer.layers.relative_positions import relative_positions
from keras_transformer.masks import attention_mask, carried_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Attention of several heads over projected queries, keys and values.

    Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V):
    section 3.2.2 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762. The heads'
    matrices stand side by side: columns i * key_dim to (i + 1) * key_dim of
    `query_kernel` are W_i^Q.

    Queries, keys and values may have different widths. For decoding step by step,
    `initial_cache`, `step` and `resize_cache` do self-attention one position at a time,
    `project_key_value` computes the keys and values of a source once, and
    `step_across` attends to them; `decoding_weights` prepares both. Override `weigh` to
    use a function other than softmax.

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
            positions enter self-attention itself; default `None`: they do not.
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

    # Function of scores (B, H, T, S) and a boolean mask that broadcasts to them, or
    # `None`, that gives the attention weights (B, H, T, S).
    weigh = staticmethod(masked_softmax)

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
        check_rate("dropout_rate", dropout_rate)
        check_size("num_key_value_heads", num_key_value_heads, optional=True)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.output_dim = output_dim
        self.dropout_rate = dropout_rate
        self.use_bias = use_bias
        self.num_key_value_heads = num_key_value_heads
        self.projections = HeadProjections(
            num_heads, key_dim, value_dim, output_dim, use_bias,
            num_key_value_heads, self.compute_dtype,
        )  # fmt: skip
        self.projections.query_scale = self.score_scale
        if num_heads % (num_key_value_heads or 1):
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`. Received: "
                f"num_heads={num_heads}, num_key_value_heads={num_key_value_heads}"
            )
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

    def build(self, query_shape, key_shape=None, value_shape=None):
        self.projections.build(self, query_shape, key_shape, value_shape)
        self.built = True

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
        mask = attention_mask(carried_mask(key) if mask is None else mask)
        queries, keys, values = self.projections.project(query, key, value)
        outputs, attention_weights = self._attend(
            queries, keys, values, mask, self.attention_dropout if training else None
        )
        record_attention(self, attention_weights)
        output = self.projections.merge(outputs)
        return (output, attention_weights) if return_attention_weights else output

    def _attend(self, queries, keys, values, mask, dropout):
        """Attends with all heads.

        Args:
            queries: Float tensor (B, H, T, K), scaled.
            keys: Float tensor (B, G, S, K).
            values: Float tensor (B, G, S, Kv).
            mask: Boolean tensor (B, 1, S) or (B, T, S), or `None`.
            dropout: `Dropout` layer in training, else `None`.

        Returns:
            The outputs (B, H, T, Kv) and the attention weights (B, H, T, S).
        """
        bias = None
        if self.positions is not None:
            places = ops.arange(shape_of(queries)[2], dtype="int32")
            queries, keys = self._place(queries, keys, places)
            bias = self._position_bias(places, places)
        if mask is not None:
            mask = ops.expand_dims(mask, axis=1)  # (B, 1, 1 or T, S), for all heads
        return dot_product_attention(
            queries, keys, values, mask, bias, self.weigh, dropout
        )

    def _place(self, queries, keys, positions):
        """Puts positions into queries and keys of one sequence."""
        place = self.relative_positions.place
        return place(queries, positions), place(keys, positions)

    def _position_bias(self, query_positions, key_positions):
        bias = self.relative_positions.bias
        return bias(self.num_heads, query_positions, key_positions)

    def project_key_value(self, key, value=None):
        """Projects keys and values once, for many calls of `step_across`.

        Args:
            key: Float tensor (B, S, D_key).
            value: Float tensor (B, S, D_value); default `key`.

        Returns:
            Keys (B, G, S, K) and values (B, G, S, Kv), of G = H heads unless
            `num_key_value_heads` is less.
        """
        project = self.projections.project_one
        if value is None:
            return project(key, "key", "value")
        return project(key, "key") + project(value, "value")

    def decoding_weights(self, *names):
        """Returns the matrices of `step` or `step_across`, prepared.

        Args:
            *names: "query", "key", "value" for `step` and "query" for `step_across`.
        """
        return self.projections.decoding_weights(*names)

    def initial_cache(self, sentences, hypotheses, length):
        """Returns an empty cache for `step`.

        Args:
            sentences: Number of sentences, B.
            hypotheses: Hypotheses of each that are decoded side by side, N.
            length: Most positions that one can have, L.

        Returns:
            Keys (B, G, L * N, K) and values (B, G, L * N, Kv), all zero, of G = H heads
            unless `num_key_value_heads` is less; entry l * N + n belongs to position l
            of hypothesis n.
        """
        entries = length * hypotheses
        return tuple(
            new_cache(sentences, number, entries, width, self.compute_dtype)
            for number, width in map(self.projections.heads.get, ("key", "value"))
        )

    def resize_cache(self, cache, sentences, more):
        """Returns the cache of some sentences, with room for more entries.

        Args:
            cache: Keys and values, from `initial_cache` or `step`.
            sentences: Integer tensor (B',), places of the sentences to keep.
            more: Entries to add, N a position; an integer or a scalar tensor.

        Returns:
            Keys and values (B', G, L * N + more, ...).
        """
        return tuple(resize_cache(part, sentences, more) for part in cache)

    def step(self, inputs, cache, place, mask, weights):
        """Self-attention of one new position to itself and those before it.

        Args:
            inputs: Float tensor (B, N, D), the position's input for each hypothesis.
            cache: Keys and values of the earlier positions, from `initial_cache` or the
                step before; it must not be used again.
            place: `cache_place` of the position.
            mask: `prepare_mask` of a mask that broadcasts to (B, H, N, L * N), True for
                the entries l * N + n (position l of hypothesis n) of a hypothesis's
                past and for the new one itself.
            weights: `decoding_weights("query", "key", "value")`.

        Returns:
            The output (B, N, output_dim) and the cache with the position written.
        """
        queries, *new = self.projections.project_step(
            inputs, weights[0], "query", "key", "value"
        )
        bias = None
        if self.positions is not None:
            position = ops.reshape(ops.cast(place.position, "int32"), (1,))
            queries, new[0] = self._place(queries, new[0], position)
            entries = ops.arange(ops.shape(cache[0])[2], dtype="int32")
            bias = self._position_bias(position, entries // inputs.shape[1])
        cache = tuple(
            write_position(one, many, place)
            for one, many in zip(cache, new, strict=True)
        )
        outputs, _ = self._attend_step(queries, *cache, mask, position_bias=bias)
        return self.projections.merge_step(outputs, weights[1]), cache

    def step_across(self, inputs, keys, values, mask, weights):
        """Attention of one new position to the keys and values of a source.

        Args:
            inputs: Float tensor (B, N, D).
            keys: Float tensor (B, G, S, K), from `project_key_value`.
            values: Float tensor (B, G, S, Kv).
            mask: `prepare_mask` of a mask that broadcasts to (B, H, N, S).
            weights: `decoding_weights("query")`.

        Returns:
            The output (B, N, output_dim) and the attention weights (B, H, N, S).
        """
        (queries,) = self.projections.project_step(inputs, weights[0], "query")
        outputs, attention_weights = self._attend_step(
            queries, keys, values, mask, by_row=True
        )
        return self.projections.merge_step(outputs, weights[1]), attention_weights

    def _attend_step(
        self, queries, keys, values, mask, by_row=False, position_bias=None
    ):
        """As `_attend`, for one position, with a prepared mask."""
        if self.weigh is not masked_softmax:
            return dot_product_attention(
                queries, keys, values, mask.mask, position_bias, self.weigh
            )
        bias = mask.bias
        if position_bias is not None:
            bias = ops.add(bias, position_bias)
        if keys.shape[1] == self.num_heads:
            return attend(queries, keys, values, bias, by_row)
        return dot_product_attention(queries, keys, values, bias=bias)

    def compute_mask(self, inputs, previous_mask):
        """The output is as long as the query and carries its mask."""
        return carried_mask(inputs)

    def compute_output_shape(self, query_shape, key_shape=None, value_shape=None):
        return self.projections.output_shape(query_shape)

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
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "use_bias": self.use_bias,
            "dropout_rate": self.dropout_rate,
            "num_key_value_heads": self.num_key_value_heads,
            "positions": positions,
        }
