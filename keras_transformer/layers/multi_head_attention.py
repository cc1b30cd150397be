"""Multi-head attention."""

from __future__ import annotations

from typing import Any, Literal, Self, Unpack

import keras
from keras import ops

from keras_transformer.kernels.execution import shape_of
from keras_transformer.kernels.few_passes import masked_softmax
from keras_transformer.layers.adaptable_layer import AdaptableLayer
from keras_transformer.layers.arguments import (
    aliased,
    check_inputs,
    check_rate,
    check_size,
    default_inputs,
)
from keras_transformer.layers.attention import (
    dot_product_attention,
    is_recording,
    record_attention,
)
from keras_transformer.layers.attention_axes import (
    AxesFolding,
    attended_axes,
    given_axes,
    scores_shape,
)
from keras_transformer.layers.attention_masks import (
    CallMasks,
    allowed_keys,
)
from keras_transformer.layers.basic import Dropout
from keras_transformer.layers.cached_attention import CachedAttention
from keras_transformer.layers.flash_attention import check_flash_attention, wants_fused
from keras_transformer.layers.from_keras import (
    options_of,
    shapes_of,
    take,
    weights_of,
)
from keras_transformer.layers.head_projections import HeadProjections
from keras_transformer.layers.projection import Projection
from keras_transformer.layers.quantization import float_policy
from keras_transformer.layers.relative_positions import (
    RelativePositions,
    relative_positions,
    serialised_positions,
)
from keras_transformer.masks import carried_mask
from keras_transformer.types import (
    BasicOptions,
    Constraint,
    Initializer,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)

_AXES = ("B", "...", "T", "D")


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(AdaptableLayer, CachedAttention):
    """Attention of several heads over projected queries, keys and values.

    Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V):
    section 3.2.2 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762. The heads'
    matrices stand side by side: columns i * key_dim to (i + 1) * key_dim of
    `query_kernel` are W_i^Q.

    It replaces `keras.layers.MultiHeadAttention`: arguments, their order and their
    defaults are Keras', and `from_keras` takes over the weights of one. So biases are
    added unless `use_bias=False`; the paper has none, and neither have the
    `EncoderLayer` and the `DecoderLayer` by default. Three things differ. A query that
    may attend to nothing gets zeros from each head, not the mean of all values. The
    inputs keep the masks they carry, which Keras' layer takes away from them. And a
    constraint along an axis sees matrices with the heads side by side, where Keras'
    have an axis of their own.

    Queries, keys and values may have different widths. For decoding step by step,
    `initial_cache`, `step` and `resize_cache` do self-attention one position at a time,
    `project_key_value` computes the keys and values of a source once, and
    `step_across` attends to them; `decoding_weights` prepares both. Override `weigh` to
    use a function other than softmax.

    Args:
        num_heads: Heads, h in the paper.
        key_dim: Width of each head's queries and keys, d_k in the paper.
        value_dim: Width of each head's values, d_v in the paper; default `key_dim`.
        dropout: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the projections add a bias.
        output_shape: Width of the output, or a tuple of its last axes; default the
            width of `query`.
        attention_axes: Axis or axes of the inputs to attend over; default all but the
            first (the batch) and the last (the features).
        sliding_window: Queries see keys less than this many positions away; default
            `None`: at any distance.
        flash_attention: Whether whole sequences are attended to by a fused kernel that
            never holds the scores (of JAX on a GPU, of PyTorch): `None` where it gains
            and no weights are asked for, recorded or dropped, `False` never, `True`
            always.
        kernel_initializer: Initializer of the projections' matrices.
        bias_initializer: Initializer of their biases.
        kernel_regularizer: Regularizer of the matrices.
        bias_regularizer: Regularizer of the biases.
        activity_regularizer: Regularizer of what each projection gives (queries before
            they are scaled, keys, values, gate and output), as in Keras.
        kernel_constraint: Constraint of the matrices.
        bias_constraint: Constraint of the biases.
        use_gate: Whether each head's output is multiplied by a sigmoid of one more
            projection of the query: Qiu et al., 2025, https://arxiv.org/abs/2505.06708.
        seed: Integer seed of the dropout.
        num_key_value_heads: Heads of keys and values, a divisor of `num_heads`; default
            `num_heads`. Fewer make a smaller cache (grouped-query attention: Ainslie et
            al., 2023, https://arxiv.org/abs/2305.13245); 1 is multi-query attention.
        positions: "rotary", "alibi" or an object such as `RotaryPositions`: how
            positions enter self-attention itself; default `None`: they do not.
        dropout_rate: Another name for `dropout`.
        output_dim: Another name for `output_shape`.
    Call arguments:
        query: Float tensor (B, T, D_query), or (B, ..., D_query) with more axes.
        value: Float tensor (B, S, D_value); default `query`, which is self-attention.
        key: Float tensor (B, S, D_key); default `value`.
        query_mask: Boolean tensor (B, T), True where a query may attend at all. One
            that `query` merely carries is passed on and changes nothing else.
        value_mask: Boolean tensor (B, S), True where a position may be attended to;
            default the Keras mask that `value` carries.
        key_mask: The same of `key`; what both allow is allowed.
        attention_mask: Boolean or integer tensor (T, S), (B, T, S) or (B, H, T, S),
            True or not 0 where a query may attend to a key, besides what the masks
            above allow. With `attention_axes` each axis stands in place of T and of S,
            after the other axes.
        return_attention_scores: Whether the attention weights are returned too.
        training: Whether dropout is applied.
        use_causal_mask: Whether query t attends to keys 0 to t alone.
        mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S), True where a position may
            be attended to; it replaces the masks that the inputs carry.
        return_attention_weights: Another name for `return_attention_scores`.
    Returns:
        Float tensor (B, T, output_dim); with `return_attention_scores` a tuple of it
        and the attention weights (B, H, T, S) before dropout.
    Raises:
        ValueError: If a size is not positive, a rate is outside [0, 1), `positions` is
            not known, a `value` is given with `positions`, inputs or masks do not fit
            each other, or `flash_attention` is True and no fused kernel can be used.
        TypeError: If an input is no tensor, or a mask has another type.

    Example:
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    # Function of scores (B, H, T, S) and a boolean mask that broadcasts to them, or
    # `None`, that gives the attention weights (B, H, T, S).
    weigh = staticmethod(masked_softmax)

    def __init__(
        self, num_heads: int, key_dim: int, value_dim: int | None = None,
        dropout: float = 0.0, use_bias: bool = True,
        output_shape: int | tuple[int, ...] | None = None,
        attention_axes: int | tuple[int, ...] | None = None,
        sliding_window: int | None = None, flash_attention: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        activity_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None, use_gate: bool = False,
        seed: int | None = None, *, num_key_value_heads: int | None = None,
        positions: Literal["rotary", "alibi"] | RelativePositions | None = None,
        dropout_rate: float | None = None,
        output_dim: int | tuple[int, ...] | None = None, **kwargs: Unpack[BasicOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        check_size("sliding_window", sliding_window, optional=True)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        dropout = aliased("dropout", dropout, "dropout_rate", dropout_rate, 0.0)
        check_rate("dropout" if dropout_rate is None else "dropout_rate", dropout)
        self.dropout = self.dropout_rate = dropout
        check_flash_attention(flash_attention, dropout, self.weigh)
        self.flash_attention = flash_attention
        self.use_bias = use_bias
        self.output_dim = _output_sizes(output_shape, output_dim)
        self.attention_axes = given_axes(attention_axes)
        self.sliding_window = sliding_window
        self.use_gate = use_gate
        self.seed = seed
        self.num_key_value_heads = num_key_value_heads
        self._make_parts(
            (kernel_initializer, kernel_regularizer, kernel_constraint),
            (bias_initializer, bias_regularizer, bias_constraint),
            activity_regularizer,
        )
        self._set_positions(positions)
        self.supports_masking = True

    def _make_parts(self, kernel, bias, activity_regularizer):
        """Makes the projections, with the options of their weights, and the dropout."""
        self.projections = HeadProjections(
            self.num_heads, self.key_dim, self.value_dim, self.output_dim,
            self.use_bias, self.num_key_value_heads, self.compute_dtype, self.use_gate,
        )  # fmt: skip
        self.projections.query_scale = self.score_scale
        self.projections.set_options(kernel, bias, activity_regularizer)
        self.attention_dropout = Dropout(
            self.dropout, seed=self.seed, dtype=float_policy(self.dtype_policy),
            name="attention_dropout",
        )  # fmt: skip

    def _set_positions(self, positions):
        self.relative_positions = relative_positions(positions)
        if self.relative_positions is not None:
            self.relative_positions.check_key_dim(self.key_dim)
        is_name = isinstance(positions, str)
        self.positions = positions if is_name else self.relative_positions

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Self:
        """Makes a layer with the weights and the options of one of Keras' own.

        Args:
            layer: `keras.layers.MultiHeadAttention` or `GroupQueryAttention`, built.

        Returns:
            A built layer that gives the same outputs.

        Raises:
            TypeError: If it is no such layer.
            ValueError: If it is not built, or attends in a way of its own.

        Example:
            >>> keras_layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=3)
            >>> keras_layer.build((None, None, 6), (None, None, 6))
            >>> attention = MultiHeadAttention.from_keras(keras_layer)
        """
        taken = cls(**options_of(layer))
        taken.build(*shapes_of(layer))
        for name, value in weights_of(layer).items():
            take(getattr(taken, name), value)
        return taken

    @property
    def query_dense(self) -> Projection:
        """The projection of queries, to be adapted or frozen alone: a `Projection`."""
        return Projection(self, "query")

    @property
    def key_dense(self) -> Projection:
        """That of keys."""
        return Projection(self, "key")

    @property
    def value_dense(self) -> Projection:
        """That of values."""
        return Projection(self, "value")

    @property
    def output_dense(self) -> Projection:
        """That of the heads' outputs."""
        return Projection(self, "output")

    @property
    def score_scale(self) -> float:
        """What the product of a query and a key is multiplied by."""
        return self.key_dim**-0.5

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:  # fmt: skip
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        check_inputs(query_shape, value_shape, key_shape, *_AXES)
        self.projections.build(self, query_shape, value_shape, key_shape)
        self.built = True

    def call(
        self, query: TensorLike, value: TensorLike | None = None,
        key: TensorLike | None = None, query_mask: TensorLike | None = None,
        value_mask: TensorLike | None = None, key_mask: TensorLike | None = None,
        attention_mask: TensorLike | None = None, return_attention_scores: bool = False,
        training: bool | None = None, use_causal_mask: bool = False, *,
        mask: TensorLike | None = None, return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        with_weights = aliased(
            "return_attention_scores", return_attention_scores,
            "return_attention_weights", return_attention_weights, False,
        )  # fmt: skip
        value, key = default_inputs(query, value, key, *_AXES)
        axes = attended_axes(self.attention_axes, len(query.shape))
        self._check_positions(axes, query, value, key)
        masks = CallMasks(
            mask, attention_mask, query_mask, value_mask, key_mask, use_causal_mask,
            self.sliding_window,
        )  # fmt: skip
        allowed = allowed_keys(masks, axes, self.num_heads, query, value, key)
        inputs, folding = (query, value, key), None
        if len(query.shape) > 3:
            folding = AxesFolding(axes, query, value)
            inputs, allowed = folding.fold_all(inputs, allowed)
        fused = wants_fused(self.flash_attention, with_weights or is_recording())
        output, weights, activities = self._attention(inputs, allowed, training, fused)
        self._regularise(query, activities)
        if folding is not None:
            output = folding.unfold(output)
            weights = None if weights is None else folding.unfold_weights(weights)
        return (output, weights) if with_weights else output

    def _check_positions(self, axes, query, value, key):
        is_self_attention = value is query and key is query
        if self.positions is not None and not is_self_attention:
            raise ValueError(
                "`positions` are for self-attention: give `query` alone, or leave "
                f"`positions` out. Received: positions={self.positions!r} and a `value`"
            )
        if self.positions is not None and len(axes) > 1:
            raise ValueError(
                "`positions` need an order, so attention over one axis: choose it by "
                f"`attention_axes`. Received: inputs of rank {len(query.shape)}"
            )

    def _attention(self, inputs, mask, training, fused):
        """Attends from query to value by key, given in that order, each of rank 3.

        Returns:
            The output, the attention weights, or `None` from a fused kernel, and what
            each projection gave.
        """
        projections = self.projections
        queries, keys, values = projections.project(*inputs)
        dropout = self.attention_dropout if training else None
        outputs, attention_weights = self._attend(
            queries, keys, values, mask, dropout, fused
        )
        record_attention(self, attention_weights)
        gates = ()
        if self.use_gate:
            gates = (ops.sigmoid(projections.project_one(inputs[0], "gate")[0]),)
            outputs = outputs * gates[0]
        output = projections.merge(outputs)
        return output, attention_weights, (queries, keys, values, *gates, output)

    def _regularise(self, query, activities):
        """Adds the losses that Keras adds for each projection, a row of the batch."""
        regularizer = self.projections.activity_regularizer
        if regularizer is None:
            return
        queries, *others = activities
        for activity in (queries / self.projections.query_scale, *others):
            loss = regularizer(activity)
            self.add_loss(loss / ops.cast(ops.shape(query)[0], loss.dtype))

    def _attend(self, queries, keys, values, mask, dropout, fused=False):
        """Attends with all heads.

        Args:
            queries: Float tensor (B, H, T, K), scaled.
            keys: Float tensor (B, G, S, K).
            values: Float tensor (B, G, S, Kv).
            mask: Boolean tensor that broadcasts to (B, H, T, S), or `None`.
            dropout: `Dropout` layer in training, else `None`.
            fused: As of `dot_product_attention`.

        Returns:
            The outputs (B, H, T, Kv) and the attention weights (B, H, T, S), or `None`.
        """
        bias = None
        if self.positions is not None:
            places = ops.arange(shape_of(queries)[2], dtype="int32")
            queries, keys = self._place(queries, keys, places)
            bias = self._position_bias(places, places)
        return dot_product_attention(
            queries, keys, values, mask, bias, self.weigh, dropout, fused
        )

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The output is as long as the query and carries its mask."""
        return carried_mask(inputs)

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> Shape:  # fmt: skip
        return self.projections.output_shape(query_shape)

    def compute_output_spec(
        self, query: TensorLike, value: TensorLike | None = None,
        key: TensorLike | None = None, query_mask: TensorLike | None = None,
        value_mask: TensorLike | None = None, key_mask: TensorLike | None = None,
        attention_mask: TensorLike | None = None, return_attention_scores: bool = False,
        training: bool | None = None, use_causal_mask: bool = False, *,
        mask: TensorLike | None = None, return_attention_weights: bool | None = None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, keras.KerasTensor]:  # fmt: skip
        output = keras.KerasTensor(
            self.compute_output_shape(query.shape), dtype=self.compute_dtype
        )
        if not (return_attention_scores or return_attention_weights):
            return output
        axes = attended_axes(self.attention_axes, len(query.shape))
        value_shape = query.shape if value is None else value.shape
        shape = scores_shape(axes, self.num_heads, query.shape, value_shape)
        return output, keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self.output_dim,
            "attention_axes": self.attention_axes,
            "sliding_window": self.sliding_window,
            "flash_attention": self.flash_attention,
            "use_gate": self.use_gate,
            "seed": self.seed,
            "num_key_value_heads": self.num_key_value_heads,
            "positions": serialised_positions(self.positions),
            **self.projections.options_config(),
        }


def _output_sizes(output_shape, output_dim):
    """Returns a width, a tuple of sizes or `None` for the width of the query."""
    sizes = aliased("output_shape", output_shape, "output_dim", output_dim, None)
    if isinstance(sizes, list | tuple):
        sizes = tuple(sizes)
    for size in sizes if isinstance(sizes, tuple) else (sizes,):
        name = "output_shape" if output_dim is None else "output_dim"
        check_size(name, size, optional=sizes is None)
    return sizes
