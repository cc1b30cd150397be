"""Multi-head attention."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self, Unpack

import keras
from keras import ops

from keras_transformer.config.layer_config import check_groups
from keras_transformer.config.options import check_number
from keras_transformer.nn.arguments import check_known_width, check_rate, check_size
from keras_transformer.nn.kernels import caches
from keras_transformer.nn.kernels.caches import Place
from keras_transformer.nn.kernels.keras_private import traced_output_spec
from keras_transformer.nn.layers.attention import (
    PreparedMask,
    attention_of_step,
    dot_product_attention,
    dot_products,
    masked_softmax,
    record_attention,
    refuse_fused,
)
from keras_transformer.nn.layers.basic import (
    ComposedLayer,
    Joined,
    affine,
    joined,
    project,
)
from keras_transformer.nn.layers.dropout import Dropout
from keras_transformer.nn.layers.from_keras import attention_from_keras
from keras_transformer.nn.layers.relative_positions import (
    RelativePositions,
    relative_positions,
)
from keras_transformer.nn.masks import causal_mask, combined_mask
from keras_transformer.types import (
    Nest,
    ProjectionOptions,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)


class Heads(NamedTuple):
    """The heads of a projection."""

    number: int
    width: int


def _check_axes(query_shape, value_shape, key_shape):
    """Raises `ValueError` unless all inputs have three axes."""
    if not len(query_shape) == len(value_shape) == len(key_shape) == 3:
        raise ValueError(
            "`query`, `value` and `key` must have the shapes (B, T, D) and (B, S, D). "
            f"Received: {query_shape}, {value_shape}, {key_shape}"
        )


class StepWeights(NamedTuple):
    """Prepared matrices of a step; `()` where a layer's own call is needed."""

    projections: Joined | tuple
    output: Joined | tuple


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(ComposedLayer):
    """Attention of several heads over projected queries, keys and values.

    Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V):
    section 3.2.2 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762. The
    projections are `keras.layers.Dense` layers: `query_dense`, `key_dense`,
    `value_dense` and `output_dense`. Columns i * key_dim to (i + 1) * key_dim of
    `query_dense.kernel` are W_i^Q.

    It replaces `keras.layers.MultiHeadAttention` for inputs (B, T, D), with arguments
    of the same names, order and defaults; `from_keras` converts one. The differences: a
    query with no key to attend to gets zeros from each head, not the mean of all
    values; inputs keep their Keras masks; masks of floats are refused; `value` may be
    left out; there is no `attention_axes`, `sliding_window` or `use_gate`; kernels have
    the shape (D, H * K), in Keras (D, H, K).

    To change how it attends, override `weigh` (the softmax), `score` (the product of
    queries and keys; `add_own_weights` adds its weights) or `attend` (all between the
    projections). For decoding `step` (with `step_weights` and `initial_cache`) computes
    one position, and `look_up` (with `keys_and_values`) attends from it to a source.

    Args:
        num_heads: Heads, h in the paper.
        key_dim: Width of each head's queries and keys, d_k in the paper.
        value_dim: Width of each head's values, d_v in the paper; default `key_dim`.
        dropout: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the projections add a bias; the paper's do not.
        output_shape: Width of the output; default the width of `query`.
        flash_attention: Whether to use a fused kernel (JAX on a GPU, PyTorch): `False`
            never, `True` always, `None` where it is faster and no weights are requested
            or dropped.
        activity_regularizer: Regularizer of the output of each projection.
        seed: Integer seed of the dropout.
        num_key_value_heads: Heads of keys and values, G, a divisor of `num_heads`;
            default `num_heads`. Fewer make a smaller cache: Ainslie et al., 2023,
            https://arxiv.org/abs/2305.13245.
        positions: Positions inside self-attention: "rotary", "alibi", an object such as
            `RotaryPositions`, or `None`.
        **options: Initializers, regularizers and constraints of `keras.layers.Dense`;
            `name`, `dtype` and so on of `keras.layers.Layer`.
    Call arguments:
        query: Float tensor (B, T, D_query).
        value: Float tensor (B, S, D_value); default `query`: self-attention.
        key: Float tensor (B, S, D_key); default `value`.
        query_mask: Ignored; the output carries it as its Keras mask.
        value_mask: Boolean tensor (B, S), True where a position may be attended to;
            default the Keras mask of `value`.
        key_mask: Same, for `key`; a position must be allowed by both.
        attention_mask: Boolean or integer tensor (T, S), (B, T, S) or (B, H, T, S),
            True where a query may attend to a key.
        return_attention_scores: Whether to return the attention weights.
        use_causal_mask: Whether query t attends to keys 0 to t only.
        mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S); replaces `value_mask` and
            `key_mask`.
    Returns:
        Float tensor (B, T, output_shape); with `return_attention_scores` also the
        attention weights (B, H, T, S) before dropout.
    Raises:
        ValueError: If an argument is out of range, a mask does not fit the inputs,
            `value` differs from `query` with `positions`, or `flash_attention=True` has
            no fused kernel.
        TypeError: If a mask is neither boolean nor integer.

    Example:
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    weigh = staticmethod(masked_softmax)  # (scores, mask) -> weights (B, H, T, S)
    score = staticmethod(dot_products)  # (queries, keys) -> scores (B, H, T, S)
    equals_keras = True  # whether Keras has an equal layer, for `from_keras`

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | None = None,
        *,
        flash_attention: bool | None = None,
        activity_regularizer: Regularizer | None = None,
        seed: int | None = None,
        num_key_value_heads: int | None = None,
        positions: Literal["rotary", "alibi"] | RelativePositions | None = None,
        **options: Unpack[ProjectionOptions],
    ) -> None:
        super().__init__(**options)
        check_size("num_heads", num_heads)
        check_size("key_dim", key_dim)
        check_size("value_dim", value_dim, optional=True)
        check_size("output_shape", output_shape, optional=True)
        check_size("num_key_value_heads", num_key_value_heads, optional=True)
        check_rate("dropout", dropout)
        check_number("seed", seed, int, optional=True)
        groups = check_groups(num_heads, num_key_value_heads)
        if flash_attention and dropout:
            refuse_fused("it drops no attention weights")
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.query_scale = key_dim**-0.5  # 1 / sqrt(d_k): queries are multiplied by it.
        self.value_dim = value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        # As in Keras, whose `summary` reads `output_shape` as the shape of an output.
        self._output_shape = output_shape
        self.flash_attention = flash_attention
        # Keras' `activity_regularizer` would apply to the layer's output only.
        self.outputs_regularizer = keras.regularizers.get(activity_regularizer)
        self.seed = seed
        self.num_key_value_heads = num_key_value_heads
        self.positions = relative_positions(positions)
        if self.positions is not None:
            self.positions.check_key_dim(key_dim)
        self.query_heads = Heads(num_heads, key_dim)  # (H, K)
        self.key_heads = Heads(groups, key_dim)  # (G, K)
        self.value_heads = Heads(groups, value_dim or key_dim)  # (G, Kv)
        self.query_dense = self._projection("query_dense", num_heads * key_dim)
        self.key_dense = self._projection("key_dense", groups * key_dim)
        self.value_dense = self._projection(
            "value_dense", groups * (value_dim or key_dim)
        )
        self.attention_dropout = Dropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="attention_dropout"
        )

    def _projection(self, name, units):
        regularizer = self.outputs_regularizer
        return self.dense(name, units, self.use_bias, activity_regularizer=regularizer)

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Self:
        """Returns a layer with the weights and outputs of one of Keras' own.

        Args:
            layer: A built `keras.layers.MultiHeadAttention` or `GroupQueryAttention`.

        Example:
            >>> keras_layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=3)
            >>> keras_layer.build((None, None, 6), (None, None, 6))
            >>> attention = MultiHeadAttention.from_keras(keras_layer)
        """
        return attention_from_keras(cls, layer)

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        _check_axes(query_shape, value_shape, key_shape)
        check_known_width(self, query=query_shape, value=value_shape, key=key_shape)
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape)
        self.value_dense.build(value_shape)
        output_dim = self._output_shape or query_shape[-1]
        self.output_dense = self._projection("output_dense", output_dim)
        self.output_dense.build((None, None, self.num_heads * self.value_heads.width))
        self.add_own_weights()
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: query_shape[-1]})
        self.built = True

    def add_own_weights(self) -> None:
        """Adds weights beside the projections, once; override it for a `score`.

        `build` calls it at its end, when the widths are known. Keras finds, trains and
        saves what `self.add_weight` returns.

        Example:
            >>> class Additive(MultiHeadAttention):
            ...     def add_own_weights(self):
            ...         self.vector = self.add_weight((self.key_dim, 1), name="vector")
        """

    def call(
        self,
        query: TensorLike,
        value: TensorLike | None = None,
        key: TensorLike | None = None,
        query_mask: TensorLike | None = None,
        value_mask: TensorLike | None = None,
        key_mask: TensorLike | None = None,
        attention_mask: TensorLike | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        mask: TensorLike | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        value = query if value is None else value
        key = value if key is None else key
        _check_axes(query.shape, value.shape, key.shape)
        allowed = combined_mask(
            query,
            value,
            key,
            mask=mask,
            value_mask=value_mask,
            key_mask=key_mask,
            scores_mask=attention_mask,
        )
        queries, keys, values = self.project_to_heads(query, value, key)
        if self.positions is not None:
            if not (value is query and key is query):
                raise ValueError(
                    "`positions` need self-attention: pass `query` only, or leave "
                    "`positions` out. Received: another `value` or `key`"
                )
            places = ops.arange(ops.shape(queries)[2], dtype="int32")
            queries, keys = (self.positions.place(x, places) for x in (queries, keys))
        outputs, attention_weights = self.attend(
            queries,
            keys,
            values,
            mask=allowed,
            causal=use_causal_mask,
            training=training,
            with_weights=return_attention_scores,
        )
        if return_attention_scores and attention_weights is None:
            raise ValueError(
                f"`return_attention_scores` must be False: {type(self).__name__} has "
                "no attention weights. Received: return_attention_scores=True"
            )
        record_attention(self, attention_weights)
        output = self.merge(outputs)
        return (output, attention_weights) if return_attention_scores else output

    def attend(
        self,
        queries: TensorLike,
        keys: TensorLike,
        values: TensorLike,
        mask: TensorLike | None = None,
        causal: bool = False,
        training: bool | None = None,
        with_weights: bool = False,
        prepared: PreparedMask | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends with all heads, in a call and in a step of decoding.

        Args:
            queries: Float tensor (B, H, T, K), multiplied by `query_scale`.
            keys: Float tensor (B, G, S, K).
            values: Float tensor (B, G, S, Kv).
            mask: Boolean tensor that broadcasts to (B, H, T, S), or `None`.
            causal: Whether query t attends to keys 0 to t only.
            training: Whether to apply dropout.
            with_weights: Whether to return the attention weights.
            prepared: In decoding, the prepared form of `mask`; its `places` are the
                positions of the query (1,) and of the keys (S,), or `None` in
                `look_up`.

        Returns:
            The outputs (B, H, T, Kv) and the attention weights (B, H, T, S) before
            dropout, or `None` for them.
        """
        places = None if prepared is None else prepared.places
        if causal:
            past = causal_mask(ops.shape(queries)[2], ops.shape(keys)[2])
            mask = past[None] if mask is None else ops.logical_and(mask, past)
        bias = None
        if self.positions is not None:
            own = places or [ops.arange(ops.shape(queries)[2], dtype="int32")] * 2
            bias = self.positions.bias(self.num_heads, *own)
        is_usual = self.weigh is masked_softmax and self.score is dot_products
        # A subclass may pass another mask than the one that was prepared.
        if is_usual and prepared is not None and mask is prepared.mask:
            mask = None  # The bias masks the scores.
            bias = prepared.bias if bias is None else ops.add(prepared.bias, bias)
            if keys.shape[1] == self.num_heads:
                by_row = places is None
                return attention_of_step(queries, keys, values, bias, by_row)
        return dot_product_attention(
            queries,
            keys,
            values,
            mask=mask,
            bias=bias,
            weigh=self.weigh,
            dropout=self.attention_dropout if training else None,
            # A step has few queries, which no fused kernel takes.
            fused=self.flash_attention if prepared is None else False,
            score=self.score,
            with_weights=with_weights,
        )

    def project_to_heads(
        self,
        query: TensorLike,
        value: TensorLike,
        key: TensorLike,
        weights: Nest = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Projects to heads; with the `weights` of a step, `query` by one product."""
        if weights:
            denses = [self.query_dense, self.key_dense, self.value_dense]
            queries, keys, values = project(denses, query, self.query_scale, weights)
        else:
            (queries,) = project([self.query_dense], query, self.query_scale)
            (keys,) = project([self.key_dense], key)
            (values,) = project([self.value_dense], value)
        return (
            # (B, H, T, K) times `query_scale`
            self._split(queries, query, self.query_heads),
            self._split(keys, key, self.key_heads),  # (B, G, S, K)
            self._split(values, value, self.value_heads),  # (B, G, S, Kv)
        )

    @staticmethod
    def _split(projected, inputs, heads):
        """(B, T, G * K) --> (B, G, T, K)."""
        # Asked for the shape of what was reshaped, ONNX's converter takes another.
        batch, length = ops.shape(inputs)[:2]
        projected = ops.reshape(projected, (batch, length, *heads))
        return ops.transpose(projected, (0, 2, 1, 3))

    def merge(self, outputs: TensorLike, weights: Nest = None) -> Tensor:
        """Projects the heads' outputs (B, H, T, Kv) to (B, T, D)."""
        batch, heads, length, width = ops.shape(outputs)
        outputs = ops.transpose(outputs, (0, 2, 1, 3))
        rows = ops.reshape(outputs, (batch, length, heads * width))
        return project([self.output_dense], rows, weights=weights)[0]

    # Decoding one position at a time: B sentences of N hypotheses, L positions.

    def step_weights(self, across: bool = False) -> StepWeights:
        """Returns the prepared matrices of `step` or, with `across`, of `look_up`."""
        denses = [self.query_dense]
        if not across:
            denses += [self.key_dense, self.value_dense]
        return StepWeights(
            projections=joined(denses, self.query_scale),
            output=joined([self.output_dense]),
        )

    def initial_cache(self, sentences: int, hypotheses: int, length: int) -> Nest:
        """Returns an empty cache: keys (B, G, L * N, K) and values (B, G, L * N, Kv).

        Entry l * N + n is position l, of at most L = `length`, of hypothesis n.
        """
        size = (sentences, self.key_heads.number, length * hypotheses)
        dtype = self.compute_dtype
        keys = caches.new_cache((*size, self.key_heads.width), dtype)
        values = caches.new_cache((*size, self.value_heads.width), dtype)
        return keys, values

    def keys_and_values(self, source: TensorLike) -> Nest:
        """Projects a source (B, S, D) to keys (B, G, S, K) and values (B, G, S, Kv)."""
        keys, values = project([self.key_dense, self.value_dense], source)
        return (
            self._split(keys, source, self.key_heads),
            self._split(values, source, self.value_heads),
        )

    def step(
        self,
        inputs: TensorLike,
        cache: Nest,
        place: Place,
        mask: PreparedMask,
        weights: StepWeights,
    ) -> tuple[Tensor, Nest]:
        """Attends from one new position of N hypotheses to itself and the past.

        Returns the output (B, N, D) and the new cache.

        Args:
            inputs: Float tensor (B, N, D), the new position of each hypothesis.
            cache: From `initial_cache` or the last step; not to be used again.
            place: `caches.cache_place` of the position.
            mask: `prepare_mask` of a mask (B, 1, N, L * N), True for a hypothesis's own
                past and the new entry.
            weights: `step_weights()`.
        """
        queries, keys, values = self._step_heads(
            inputs,
            weights.projections,
            denses=[self.query_dense, self.key_dense, self.value_dense],
            heads=[self.query_heads, self.key_heads, self.value_heads],
        )
        position = ops.reshape(ops.cast(place.position, "int32"), (1,))
        if self.positions is not None:
            queries, keys = (self.positions.place(x, position) for x in (queries, keys))
        keys = caches.write_position(cache[0], keys, place)
        values = caches.write_position(cache[1], values, place)
        entries = ops.arange(ops.shape(keys)[2], dtype="int32")
        past = mask._replace(places=(position, entries // inputs.shape[1]))
        outputs, _ = self.attend(queries, keys, values, mask=mask.mask, prepared=past)
        return self._merge_step(outputs, weights.output), (keys, values)

    def look_up(
        self,
        inputs: TensorLike,
        source: Nest,
        mask: PreparedMask,
        weights: StepWeights,
    ) -> Tensor:
        """Attends from one new position of N hypotheses to a source.

        Returns the output (B, N, D).

        Args:
            inputs: Float tensor (B, N, D).
            source: `keys_and_values` of the source.
            mask: `prepare_mask` of a mask that broadcasts to (B, H, N, S).
            weights: `step_weights(across=True)`.
        """
        (queries,) = self._step_heads(
            inputs,
            weights.projections,
            denses=[self.query_dense],
            heads=[self.query_heads],
        )
        keys, values = source
        outputs, _ = self.attend(queries, keys, values, mask=mask.mask, prepared=mask)
        return self._merge_step(outputs, weights.output)

    def _step_heads(self, inputs, weights, denses, heads):
        """Projects (B, N, D) to heads (B, G, N, K), one tensor a layer of `denses`."""
        hypotheses = inputs.shape[1]
        rows = ops.reshape(ops.cast(inputs, self.compute_dtype), (-1, inputs.shape[-1]))
        if weights and len(set(heads)) == 1:
            projected = affine(rows, weights)
            return caches.split_heads(
                projected, hypotheses, *heads[0], count=len(heads)
            )
        parts = project(denses, rows, self.query_scale, weights)
        return [
            caches.split_heads(part, hypotheses, *own)[0]
            for part, own in zip(parts, heads, strict=True)
        ]

    def _merge_step(self, outputs, weights):
        """(B, H, N, Kv) --> (B, N, D)."""
        _, heads, hypotheses, width = outputs.shape
        if hypotheses > 1:
            outputs = caches.transpose(outputs, (0, 2, 1, 3))
        rows = ops.reshape(outputs, (-1, heads * width))
        (merged,) = project([self.output_dense], rows, weights=weights)
        return ops.reshape(merged, (-1, hypotheses, merged.shape[-1]))

    def compute_output_shape(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> Shape:
        return (*query_shape[:-1], self._output_shape or query_shape[-1])

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        if not self.built:  # What a copy returns, which is built for these inputs.
            return type(self).from_config(self.get_config())(*args, **kwargs)
        return traced_output_spec(self, args, kwargs)

    def get_config(self) -> dict[str, Any]:
        kept = (
            "num_heads",
            "key_dim",
            "value_dim",
            "dropout",
            "use_bias",
            "flash_attention",
            "seed",
            "num_key_value_heads",
        )
        regularizer = keras.regularizers.serialize(self.outputs_regularizer)
        own = {name: getattr(self, name) for name in kept}
        own |= {"output_shape": self._output_shape, "activity_regularizer": regularizer}
        positions = self.positions
        positions = positions and keras.saving.serialize_keras_object(positions)
        return super().get_config() | own | {"positions": positions}
