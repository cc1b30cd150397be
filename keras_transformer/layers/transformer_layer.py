"""The self-attention of encoder and decoder layers, by the name of its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self, Unpack

import keras
from keras import ops

from keras_transformer.attention_kinds import AttentionName, check_attention
from keras_transformer.layers.adaptable_layer import HasAdaptableLayers
from keras_transformer.layers.arguments import (
    check_axes,
    check_mask,
    check_rate,
    check_size,
)
from keras_transformer.layers.attention_masks import combined_mask
from keras_transformer.layers.basic import Dropout, FeedForward, LayerNormalization
from keras_transformer.layers.from_keras import taken_over
from keras_transformer.layers.linear_attention import (
    LinearAttention,
    PerformerAttention,
)
from keras_transformer.layers.local_attention import LocalAttention
from keras_transformer.layers.lsh_attention import LSHAttention
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.relative_positions import (
    AlibiPositions,
    RelativePositions,
    kept_positions,
    serialised_positions,
)
from keras_transformer.layers.score_attentions import (
    MultiHeadAdditiveAttention,
    ReluAttention,
)
from keras_transformer.layers.weight_options import (
    keep_options,
    kept_config,
    kept_options,
)
from keras_transformer.masks import carried_mask, causal_mask
from keras_transformer.types import (
    Activation,
    Constraint,
    Initializer,
    LayerOptions,
    Nest,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)


def _local(causal, attention_window, **options):
    return LocalAttention(window=attention_window, causal=causal, **options)


def _masked(layer_class):
    """A kind whose causal mask its layer gives it."""

    def make(causal, attention_window, **options):
        return layer_class(**options)

    return make


def _subquadratic(layer_class, *unset):
    """A kind that is causal by itself and lacks options, which are unset then."""

    def make(causal, attention_window, **options):
        # `check_attention` has seen that they are.
        options = {k: v for k, v in options.items() if k not in unset}
        return layer_class(causal=causal, **options)

    return make


_NO_SCORES = "positions", "num_key_value_heads", "dropout_rate"
# One entry for each of `attention_kinds.ATTENTION_KINDS`.
_MAKERS: dict[str, Callable[..., keras.layers.Layer]] = {
    "dot-product": _masked(MultiHeadAttention),
    "local": _local,
    "relu": _masked(ReluAttention),
    "additive": _masked(MultiHeadAdditiveAttention),
    "linear": _subquadratic(LinearAttention, *_NO_SCORES),
    "performer": _subquadratic(PerformerAttention, *_NO_SCORES),
    "lsh": _subquadratic(LSHAttention, "positions", "num_key_value_heads"),
}


def make_self_attention(
    attention: str, causal: bool, attention_window: int | None, **options: Any
) -> keras.layers.Layer:
    """Makes a self-attention of a kind.

    Args:
        attention: A key of `ATTENTION_KINDS`, checked by `check_attention`.
        causal: Whether a position sees none after it. What computes with a mask leaves
            that to the mask; the others have an attribute `causal`.
        attention_window: Positions to each side that a query sees, or `None`.
        **options: The arguments of `MultiHeadAttention` that a layer sets.

    Returns:
        The layer, with the methods that `make_attention` asks for.
    """
    if options["positions"] == "alibi" and not causal:
        options["positions"] = AlibiPositions(after=2.0)
    return _MAKERS[attention](causal, attention_window, **options)


class ResidualLayer(HasAdaptableLayers, keras.layers.Layer):
    """Base of `EncoderLayer` and `DecoderLayer`.

    Each sub-layer computes LayerNorm(x + Dropout(Sublayer(x))), as in sections 3.1 and
    5.4 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, or with `norm_first`
    x + Dropout(Sublayer(LayerNorm(x))).

    To use another attention, feed-forward network or normalisation, override
    `make_attention`, `make_feed_forward` or `make_norm`.

    Args:
        num_heads: Attention heads, h in the paper.
        d_ff: Width of the feed-forward network's hidden layer, d_ff in the paper.
        key_dim: Width of a head's queries and keys; default the input's width divided
            by `num_heads`, which must then divide it.
        value_dim: Width of a head's values; default `key_dim`.
        dropout_rate: Share of each sub-layer's output dropped in training, in [0, 1);
            P_drop in the paper.
        attention_dropout_rate: Share of the attention weights dropped in training.
        activation_dropout_rate: Share of the feed-forward network's hidden units
            dropped in training.
        activation: Activation of the feed-forward network.
        norm_first: Whether to normalise before each sub-layer instead of after it.
        use_bias: Whether the attention projections add a bias.
        layer_norm_epsilon: What the norms add to the variance.
        attention: Kind of self-attention: "dot-product", or that of `LocalAttention`
            ("local"), `ReluAttention` ("relu"), `MultiHeadAdditiveAttention`
            ("additive"), `LinearAttention` ("linear"), `PerformerAttention`
            ("performer") or `LSHAttention` ("lsh", for lengths of about a thousand).
        attention_window: Positions to each side that "local" attention sees.
        num_key_value_heads: Heads of keys and values of every attention, a divisor of
            `num_heads`; default `num_heads`. See `MultiHeadAttention`.
        positions: "rotary", "alibi" or an object such as `RotaryPositions`: how
            positions enter the self-attention; default `None`: they do not.
        kernel_initializer: Initializer of the matrices.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the matrices, or `None`.
        bias_regularizer: Regularizer of the biases, or `None`.
        kernel_constraint: Constraint on the matrices, or `None`.
        bias_constraint: Constraint on the biases, or `None`.
    Raises:
        ValueError: If an argument is out of its range, or the input's width is not a
            multiple of `num_heads` and no `key_dim` is given.
    """

    # Whether a position's self-attention sees none after it.
    _is_causal = False

    def __init__(
        self, num_heads: int, d_ff: int, key_dim: int | None = None,
        value_dim: int | None = None, dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.1, activation_dropout_rate: float = 0.1,
        activation: Activation = "relu", norm_first: bool = False,
        use_bias: bool = False, *, layer_norm_epsilon: float = 1e-6,
        attention: AttentionName = "dot-product", attention_window: int | None = None,
        num_key_value_heads: int | None = None,
        positions: Literal["rotary", "alibi"] | RelativePositions | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None, **kwargs: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.num_heads, self.d_ff = num_heads, d_ff
        self.key_dim, self.value_dim = key_dim, value_dim
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.activation_dropout_rate = activation_dropout_rate
        self.activation = keras.activations.get(activation)
        self.norm_first = norm_first
        self.use_bias = use_bias
        self.layer_norm_epsilon = layer_norm_epsilon
        self.attention = attention
        self.attention_window = attention_window
        self.num_key_value_heads = num_key_value_heads
        self.positions = kept_positions(positions)
        self._check_options()
        keep_options(
            self,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
        )
        self.supports_masking = True

    def _check_options(self):
        for name in ("num_heads", "d_ff"):
            check_size(name, getattr(self, name))
        sizes = "key_dim", "value_dim", "attention_window", "num_key_value_heads"
        for name in sizes:
            check_size(name, getattr(self, name), optional=True)
        for kind in ("", "attention_", "activation_"):
            check_rate(f"{kind}dropout_rate", getattr(self, f"{kind}dropout_rate"))
        check_attention(
            self.attention,
            num_heads=self.num_heads,
            attention_window=self.attention_window,
            num_key_value_heads=self.num_key_value_heads,
            positions=self.positions,
            attention_dropout_rate=self.attention_dropout_rate,
        )

    def make_attention(self, name: str, d_model: int) -> keras.layers.Layer:
        """Returns the attention sub-layer called `name` for inputs of width `d_model`.

        Override it to use another attention. For decoding step by step it needs the
        methods of `MultiHeadAttention`, and to show what it attends to in
        `call_with_attention`, the argument `return_attention_weights`.
        """
        if self.key_dim is None and d_model % self.num_heads:
            raise ValueError(
                "The input's width must be a multiple of `num_heads` unless `key_dim` "
                f"is given. Received: width={d_model}, num_heads={self.num_heads}"
            )
        options = {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim or d_model // self.num_heads,
            "value_dim": self.value_dim,
            "dropout_rate": self.attention_dropout_rate,
            "use_bias": self.use_bias,
            "num_key_value_heads": self.num_key_value_heads,
            "dtype": self.dtype_policy,
            "name": name,
        } | kept_options(self)
        if name != "self_attention":
            return MultiHeadAttention(**options)
        return make_self_attention(
            self.attention,
            self._is_causal,
            self.attention_window,
            positions=self.positions,
            **options,
        )

    def make_feed_forward(self, name: str) -> keras.layers.Layer:
        """Returns the feed-forward sub-layer called `name`; override to replace it."""
        return FeedForward(
            d_ff=self.d_ff,
            activation=self.activation,
            dropout_rate=self.activation_dropout_rate,
            dtype=self.dtype_policy,
            name=name,
            **kept_options(self),
        )

    def make_norm(self, name: str) -> keras.layers.Layer:
        """Returns the normalisation called `name`; override to replace it."""
        return LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def _add_sublayer(self, name, sublayer, *shapes):
        """Builds a sub-layer, its norm and its dropout as attributes."""
        norm = self.make_norm(f"{name}_norm")
        dropout = Dropout(
            self.dropout_rate, dtype=self.dtype_policy, name=f"{name}_dropout"
        )
        sublayer.build(*shapes)
        norm.build(shapes[0])
        setattr(self, name, sublayer)
        setattr(self, f"{name}_norm", norm)
        setattr(self, f"{name}_dropout", dropout)

    def _before(self, name, states):
        """Returns a sub-layer's input: the states, normalised if norms go first.

        Args:
            name: The sub-layer's name.
            states: Float tensor (B, T, D).

        Returns:
            Float tensor (B, T, D).
        """
        return getattr(self, f"{name}_norm")(states) if self.norm_first else states

    def _after(self, name, states, outputs, training=None):
        """Adds a sub-layer's output; normalises the sum unless norms go first.

        Args:
            name: The sub-layer's name.
            states: Float tensor (B, T, D), those given to `_before`.
            outputs: The sub-layer's output, (B, T, D).
            training: Whether dropout is applied.

        Returns:
            Float tensor (B, T, D).
        """
        dropout = getattr(self, f"{name}_dropout")
        states = states + dropout(outputs, training=training)
        return states if self.norm_first else getattr(self, f"{name}_norm")(states)

    def _feed_forward(self, states, training=None):
        outputs = self.feed_forward(
            self._before("feed_forward", states), training=training
        )
        return self._after("feed_forward", states, outputs, training)

    def _past_mask(self, inputs, mask):
        """The mask of self-attention to a position and those before it.

        A `self_attention` that is itself `causal` needs no causal mask.

        Args:
            inputs: Float tensor (B, T, D).
            mask: Boolean tensor (B, 1, T) or (B, T, T) from `combined_mask`, or `None`.
        """
        check_mask("mask", mask, inputs, inputs)
        if getattr(self.self_attention, "causal", False):
            return mask
        causal = causal_mask(ops.shape(inputs)[1])
        return causal if mask is None else ops.logical_and(mask, causal)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "activation_dropout_rate": self.activation_dropout_rate,
            "activation": keras.activations.serialize(self.activation),
            "norm_first": self.norm_first,
            "use_bias": self.use_bias,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "attention": self.attention,
            "attention_window": self.attention_window,
            "num_key_value_heads": self.num_key_value_heads,
            "positions": serialised_positions(self.positions),
            **kept_config(self),
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ResidualLayer):
    """One encoder layer: self-attention, then a feed-forward network.

    Section 3.1 and figure 1 (left) of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762. The sub-layers are the attributes
    `self_attention` and `feed_forward`, with `self_attention_norm` and
    `feed_forward_norm`; to use another one, override `make_attention`,
    `make_feed_forward` or `make_norm`.

    Args:
        num_heads: Attention heads, h in the paper.
        d_ff: Width of the feed-forward network's hidden layer, d_ff in the paper.
        key_dim: Width of a head's queries and keys; default the input's width divided
            by `num_heads`, which must then divide it.
        value_dim: Width of a head's values; default `key_dim`.
        dropout_rate: Share of each sub-layer's output dropped in training, in [0, 1);
            P_drop in the paper.
        attention_dropout_rate: Share of the attention weights dropped in training.
        activation_dropout_rate: Share of the feed-forward network's hidden units
            dropped in training.
        activation: Activation of the feed-forward network.
        norm_first: Whether to normalise before each sub-layer instead of after it.
        use_bias: Whether the attention projections add a bias.
        layer_norm_epsilon: What the norms add to the variance.
        attention: Kind of self-attention: "dot-product", or that of `LocalAttention`
            ("local"), `ReluAttention` ("relu"), `MultiHeadAdditiveAttention`
            ("additive"), `LinearAttention` ("linear"), `PerformerAttention`
            ("performer") or `LSHAttention` ("lsh", for lengths of about a thousand).
        attention_window: Positions to each side that "local" attention sees.
        num_key_value_heads: Heads of keys and values of every attention, a divisor of
            `num_heads`; default `num_heads`. See `MultiHeadAttention`.
        positions: "rotary", "alibi" or an object such as `RotaryPositions`: how
            positions enter the self-attention; default `None`: they do not. "alibi" has
            a steeper slope after a position than before it; see `AlibiPositions`.
        kernel_initializer: Initializer of the matrices.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the matrices, or `None`.
        bias_regularizer: Regularizer of the biases, or `None`.
        kernel_constraint: Constraint on the matrices, or `None`.
        bias_constraint: Constraint on the biases, or `None`.
    Call arguments:
        inputs: Float tensor (B, S, D).
        mask: Boolean tensor (B, S), (B, 1, S) or (B, S, S), True where a position may
            be attended to; default the Keras mask that `inputs` carries.
        training: Whether dropout is applied.
        padding_mask: As `keras_hub.layers.TransformerEncoder` has it: boolean or
            integer tensor (B, S), 1 for a token; all masks given must allow a position.
        attention_mask: Likewise, (B, S, S).
        return_attention_scores: Whether the attention weights are returned too.
    Returns:
        Float tensor (B, S, D); with `return_attention_scores` a tuple of it and the
        attention weights (B, H, S, S).
    Raises:
        ValueError: If an argument is out of its range, or the input's width is not a
            multiple of `num_heads` and no `key_dim` is given.

    Example:
        >>> layer = EncoderLayer(num_heads=2, d_ff=8)
        >>> layer(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    def build(self, inputs_shape: Shape) -> None:
        check_axes("inputs", inputs_shape, "B", "S", "D")
        attention = self.make_attention("self_attention", inputs_shape[-1])
        self._add_sublayer("self_attention", attention, inputs_shape)
        feed_forward = self.make_feed_forward("feed_forward")
        self._add_sublayer("feed_forward", feed_forward, inputs_shape)
        self.built = True

    def call(
        self, inputs: TensorLike, mask: TensorLike | None = None,
        training: bool | None = None, *, padding_mask: TensorLike | None = None,
        attention_mask: TensorLike | None = None, return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        check_axes("inputs", inputs, "B", "S", "D")
        mask = combined_mask(
            inputs, mask, padding_mask=padding_mask, attention_mask=attention_mask
        )
        mask = self._mask_of_call(inputs, mask)
        # Not every attention takes the argument.
        more = {"return_attention_weights": True} if return_attention_scores else {}
        # 1. Self-attention.
        outputs = self.self_attention(
            self._before("self_attention", inputs), mask=mask, training=training, **more
        )
        if return_attention_scores:
            outputs, attention_weights = outputs
        states = self._after("self_attention", inputs, outputs, training)
        # 2. Feed-forward network.
        states = self._feed_forward(states, training)
        return (states, attention_weights) if return_attention_scores else states

    def _mask_of_call(self, inputs, mask):
        """The mask of self-attention, for the mask that the call says."""
        return mask

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Self:
        """Makes a layer with the weights and options of KerasHub's.

        Args:
            layer: `keras_hub.layers.TransformerEncoder`, built.

        Returns:
            A built layer that gives the same outputs.

        Raises:
            TypeError: If it is no such layer.
            ValueError: If it is not built, or is quantised.

        Example:
            >>> theirs = keras_hub.layers.TransformerEncoder(8, num_heads=2)
            >>> theirs.build((None, None, 6))
            >>> layer = EncoderLayer.from_keras(theirs)
        """
        return taken_over(cls, layer, "TransformerEncoder", ("self_attention",))

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The output is as long as the input and carries its Keras mask."""
        return carried_mask(inputs)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return tuple(inputs_shape)

    def compute_output_spec(
        self, inputs: TensorLike, *args: Any, return_attention_scores: bool = False,
        **more: Any,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, keras.KerasTensor]:  # fmt: skip
        output = keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        batch, length = inputs.shape[:2]
        shape = (batch, self.num_heads, length, length)
        return output, keras.KerasTensor(shape, dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ResidualLayer):
    """One decoder layer: causal self-attention, cross-attention, feed-forward network.

    Section 3.1 and figure 1 (right) of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762. The sub-layers are the attributes
    `self_attention`, `cross_attention` and `feed_forward`, with `self_attention_norm`,
    `cross_attention_norm` and `feed_forward_norm`; to use another one, override
    `make_attention`, `make_feed_forward` or `make_norm`. A `self_attention` whose
    attribute `causal` is true, as `LocalAttention` and `LinearAttention` have, is not
    given the causal mask.

    For decoding step by step, `decoding_weights` and `project_encoder_output` compute
    once what `step` needs, and `step` decodes one position.

    Args:
        num_heads: Attention heads, h in the paper.
        d_ff: Width of the feed-forward network's hidden layer, d_ff in the paper.
        key_dim: Width of a head's queries and keys; default the input's width divided
            by `num_heads`, which must then divide it.
        value_dim: Width of a head's values; default `key_dim`.
        dropout_rate: Share of each sub-layer's output dropped in training, in [0, 1);
            P_drop in the paper.
        attention_dropout_rate: Share of the attention weights dropped in training.
        activation_dropout_rate: Share of the feed-forward network's hidden units
            dropped in training.
        activation: Activation of the feed-forward network.
        norm_first: Whether to normalise before each sub-layer instead of after it.
        use_bias: Whether the attention projections add a bias.
        layer_norm_epsilon: What the norms add to the variance.
        attention: Kind of self-attention: "dot-product", or that of `LocalAttention`
            ("local"), `ReluAttention` ("relu"), `MultiHeadAdditiveAttention`
            ("additive"), `LinearAttention` ("linear"), `PerformerAttention`
            ("performer") or `LSHAttention` ("lsh", for lengths of about a thousand).
        attention_window: Positions to each side that "local" attention sees.
        num_key_value_heads: Heads of keys and values of every attention, a divisor of
            `num_heads`; default `num_heads`. See `MultiHeadAttention`.
        positions: "rotary", "alibi" or an object such as `RotaryPositions`: how
            positions enter the self-attention; default `None`: they do not.
        kernel_initializer: Initializer of the matrices.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the matrices, or `None`.
        bias_regularizer: Regularizer of the biases, or `None`.
        kernel_constraint: Constraint on the matrices, or `None`.
        bias_constraint: Constraint on the biases, or `None`.
    Call arguments:
        inputs: Float tensor (B, T, D).
        encoder_output: Float tensor (B, S, D_encoder).
        mask: Boolean tensor (B, T), (B, 1, T) or (B, T, T), True where a target
            position may be attended to, besides the causal mask; default the Keras mask
            that `inputs` carries.
        encoder_output_mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S); default the
            Keras mask that `encoder_output` carries.
        training: Whether dropout is applied.
        decoder_padding_mask: As `keras_hub.layers.TransformerDecoder` has it: boolean
            or integer tensor (B, T), 1 for a token; all masks given must allow a
            position.
        decoder_attention_mask: Likewise, (B, T, T).
        encoder_padding_mask: Likewise, of `encoder_output`, (B, S); it replaces the
            Keras mask that `encoder_output` carries.
        encoder_attention_mask: Likewise, (B, T, S).
        use_causal_mask: Whether the causal mask applies, as it does in `step`; a
            `self_attention` that is itself `causal` refuses to do without.
        self_attention_cache: Refused, like the other three of KerasHub's arguments of a
            cache: `step` decodes with one.
    Returns:
        Float tensor (B, T, D).
    Raises:
        ValueError: If an argument is out of its range, the input's width is not a
            multiple of `num_heads` and no `key_dim` is given, there is no
            `encoder_output`, or a cache, or a `self_attention` that is itself `causal`
            is to do without.

    Example:
        >>> layer = DecoderLayer(num_heads=2, d_ff=8)
        >>> target, source = np.ones((1, 4, 6)), np.ones((1, 5, 6))
        >>> layer(target, source).shape  # (1, 4, 6)
    """

    _is_causal = True

    def build(
        self, inputs_shape: Shape, encoder_output_shape: Shape | None = None
    ) -> None:
        check_axes("inputs", inputs_shape, "B", "T", "D")
        if encoder_output_shape is None:
            raise ValueError(
                "`encoder_output` must be given: `CausalLayer` is the layer of a "
                "decoder without an encoder. Received: encoder_output=None"
            )
        check_axes("encoder_output", encoder_output_shape, "B", "S", "D")
        d_model = inputs_shape[-1]
        self_attention = self.make_attention("self_attention", d_model)
        self._add_sublayer("self_attention", self_attention, inputs_shape)
        cross_attention = self.make_attention("cross_attention", d_model)
        self._add_sublayer(
            "cross_attention", cross_attention, inputs_shape, encoder_output_shape
        )
        feed_forward = self.make_feed_forward("feed_forward")
        self._add_sublayer("feed_forward", feed_forward, inputs_shape)
        self.built = True

    def call(
        self, inputs: TensorLike, encoder_output: TensorLike | None = None,
        mask: TensorLike | None = None, encoder_output_mask: TensorLike | None = None,
        training: bool | None = None, *, decoder_padding_mask: TensorLike | None = None,
        decoder_attention_mask: TensorLike | None = None,
        encoder_padding_mask: TensorLike | None = None,
        encoder_attention_mask: TensorLike | None = None, use_causal_mask: bool = True,
        self_attention_cache: TensorLike | None = None,
        self_attention_cache_update_index: TensorLike | None = None,
        cross_attention_cache: TensorLike | None = None,
        cross_attention_cache_update_index: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        _check_inputs(inputs, encoder_output)
        _check_no_cache(
            self_attention_cache=self_attention_cache,
            self_attention_cache_update_index=self_attention_cache_update_index,
            cross_attention_cache=cross_attention_cache,
            cross_attention_cache_update_index=cross_attention_cache_update_index,
        )
        mask = combined_mask(
            inputs, mask, decoder_padding_mask=decoder_padding_mask,
            decoder_attention_mask=decoder_attention_mask,
        )  # fmt: skip
        source_mask = combined_mask(
            encoder_output, encoder_output_mask,
            encoder_padding_mask=encoder_padding_mask,
            encoder_attention_mask=encoder_attention_mask,
        )  # fmt: skip
        check_mask("encoder_output_mask", source_mask, inputs, encoder_output)
        states = self._attend_to_past(inputs, mask, training, use_causal_mask)
        outputs = self.cross_attention(
            self._before("cross_attention", states),
            encoder_output,
            mask=source_mask,
            training=training,
        )
        states = self._after("cross_attention", states, outputs, training)
        return self._feed_forward(states, training)

    def call_with_attention(
        self, inputs: TensorLike, encoder_output: TensorLike,
        mask: TensorLike | None = None, encoder_output_mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """As `call`; returns the weights of the attention to the source too.

        Returns:
            The output (B, T, D) and the attention weights (B, H, T, S).
        """
        _check_inputs(inputs, encoder_output)
        mask = combined_mask(inputs, mask)
        source_mask = combined_mask(encoder_output, encoder_output_mask)
        check_mask("encoder_output_mask", source_mask, inputs, encoder_output)
        states = self._attend_to_past(inputs, mask, training)
        outputs, attention_weights = self.cross_attention(
            self._before("cross_attention", states),
            encoder_output,
            mask=source_mask,
            training=training,
            return_attention_weights=True,
        )
        states = self._after("cross_attention", states, outputs, training)
        return self._feed_forward(states, training), attention_weights

    def _attend_to_past(self, inputs, mask, training, use_causal_mask=True):
        """The self-attention of each position to itself and those before it."""
        if use_causal_mask:
            mask = self._past_mask(inputs, mask)
        elif getattr(self.self_attention, "causal", False):
            raise ValueError(
                "`use_causal_mask` must be True with a `self_attention` that sees only "
                "the past by itself. Received: use_causal_mask=False, a "
                f"{type(self.self_attention).__name__} with causal=True"
            )
        outputs = self.self_attention(
            self._before("self_attention", inputs), mask=mask, training=training
        )
        return self._after("self_attention", inputs, outputs, training)

    def decoding_weights(self) -> Nest:
        """Prepares what `step` multiplies by: the projections of both attentions."""
        return {
            "self_attention": self.self_attention.decoding_weights(
                "query", "key", "value"
            ),
            "cross_attention": self.cross_attention.decoding_weights("query"),
        }

    def project_encoder_output(self, encoder_output: TensorLike) -> Nest:
        """Computes the cross-attention's keys and values once for all steps.

        Args:
            encoder_output: Float tensor (B, S, D_encoder).

        Returns:
            Keys (B, H, S, K) and values (B, H, S, Kv).
        """
        return self.cross_attention.project_key_value(encoder_output)

    def initial_cache(self, sentences: int, hypotheses: int, length: int) -> Nest:
        """Returns the empty cache of `step`; see `MultiHeadAttention.initial_cache`."""
        return self.self_attention.initial_cache(sentences, hypotheses, length)

    def resize_cache(
        self, cache: Nest, sentences: TensorLike, more: int | TensorLike
    ) -> Nest:
        """As `MultiHeadAttention.resize_cache`, of its self-attention."""
        return self.self_attention.resize_cache(cache, sentences, more)

    def step(
        self, inputs: TensorLike, cache: Nest, source: TensorLike, place: Nest,
        masks: Nest, weights: Nest,
    ) -> tuple[Tensor, Nest, Tensor]:  # fmt: skip
        """Decodes one position; the layer's `call` gives the same for that position.

        The N hypotheses of a sentence are queries of one attention to its source.

        Args:
            inputs: Float tensor (B, N, D).
            cache: Keys (B, H, L * N, K) and values of the positions before; not to be
                used again.
            source: Keys and values (B, H, S, K) from `project_encoder_output`.
            place: `cache_place` of the position.
            masks: `prepare_mask` of the mask of the past, as `MultiHeadAttention.step`
                explains, and of the source's.
            weights: `decoding_weights()`.

        Returns:
            The output (B, N, D), the cache with the position written, and the weights
            (B, H, N, S) of the attention to the source.
        """
        past_mask, source_mask = masks
        outputs, cache = self.self_attention.step(
            self._before("self_attention", inputs),
            cache,
            place,
            past_mask,
            weights["self_attention"],
        )
        states = self._after("self_attention", inputs, outputs)
        outputs, attention_weights = self.cross_attention.step_across(
            self._before("cross_attention", states),
            *source,
            source_mask,
            weights["cross_attention"],
        )
        states = self._after("cross_attention", states, outputs)
        return self._feed_forward(states), cache, attention_weights

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The output is as long as the target and carries its Keras mask."""
        return carried_mask(inputs)

    def compute_output_shape(
        self, inputs_shape: Shape, encoder_output_shape: Shape
    ) -> Shape:
        return tuple(inputs_shape)

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Self:
        """Makes a layer with the weights and options of KerasHub's.

        Args:
            layer: `keras_hub.layers.TransformerDecoder`, built with a source.

        Returns:
            A built layer that gives the same outputs.

        Raises:
            TypeError: If it is no such layer.
            ValueError: If it is not built, has no attention to a source, or is
                quantised.

        Example:
            >>> theirs = keras_hub.layers.TransformerDecoder(8, num_heads=2)
            >>> theirs.build((None, None, 6), (None, None, 6))
            >>> layer = DecoderLayer.from_keras(theirs)
        """
        attentions = ("self_attention", "cross_attention")
        return taken_over(cls, layer, "TransformerDecoder", attentions)


def _check_no_cache(**caches):
    for name, given in caches.items():
        if given is not None:
            raise ValueError(
                f"`{name}` is KerasHub's; this layer decodes with `step`, on a cache "
                f"from `initial_cache`. Received: `{name}`"
            )


def _check_inputs(inputs, encoder_output):
    check_axes("inputs", inputs, "B", "T", "D")
    check_axes("encoder_output", encoder_output, "B", "S", "D")


@keras.saving.register_keras_serializable(package="keras_transformer")
class CausalLayer(EncoderLayer):
    """An encoder layer in which no position attends to a later one.

    The layer of the decoder-only Transformer: Liu et al., 2018, section 4.2.3,
    https://arxiv.org/abs/1801.10198. For decoding step by step, `decoding_weights`
    computes once what `step` needs, and `step` decodes one position.

    To use another sub-layer, override `make_attention`, `make_feed_forward` or
    `make_norm`. A `self_attention` whose attribute `causal` is true, as
    `LocalAttention` and `LinearAttention` have, is not given the causal mask.

    Args:
        num_heads: Attention heads, h in the paper.
        d_ff: Width of the feed-forward network's hidden layer, d_ff in the paper.
        key_dim: Width of a head's queries and keys; default the input's width divided
            by `num_heads`, which must then divide it.
        value_dim: Width of a head's values; default `key_dim`.
        dropout_rate: Share of each sub-layer's output dropped in training, in [0, 1);
            P_drop in the paper.
        attention_dropout_rate: Share of the attention weights dropped in training.
        activation_dropout_rate: Share of the feed-forward network's hidden units
            dropped in training.
        activation: Activation of the feed-forward network.
        norm_first: Whether to normalise before each sub-layer instead of after it.
        use_bias: Whether the attention projections add a bias.
        layer_norm_epsilon: What the norms add to the variance.
        attention: Kind of self-attention: "dot-product", or that of `LocalAttention`
            ("local"), `ReluAttention` ("relu"), `MultiHeadAdditiveAttention`
            ("additive"), `LinearAttention` ("linear"), `PerformerAttention`
            ("performer") or `LSHAttention` ("lsh", for lengths of about a thousand).
        attention_window: Positions to each side that "local" attention sees.
        num_key_value_heads: Heads of keys and values of every attention, a divisor of
            `num_heads`; default `num_heads`. See `MultiHeadAttention`.
        positions: "rotary", "alibi" or an object such as `RotaryPositions`: how
            positions enter the self-attention; default `None`: they do not.
        kernel_initializer: Initializer of the matrices.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the matrices, or `None`.
        bias_regularizer: Regularizer of the biases, or `None`.
        kernel_constraint: Constraint on the matrices, or `None`.
        bias_constraint: Constraint on the biases, or `None`.
    Call arguments:
        inputs: Float tensor (B, T, D).
        mask: Boolean tensor (B, T), (B, 1, T) or (B, T, T), True where a position may
            be attended to, besides the causal mask that always applies; default the
            Keras mask that `inputs` carries.
        training: Whether dropout is applied.
        padding_mask: As `EncoderLayer` has it: boolean or integer tensor (B, T), 1 for
            a token; all masks given must allow a position.
        attention_mask: Likewise, (B, T, T).
        return_attention_scores: Whether the attention weights are returned too.
    Returns:
        Float tensor (B, T, D); with `return_attention_scores` a tuple of it and the
        attention weights (B, H, T, T).
    Raises:
        ValueError: If an argument is out of its range, or the input's width is not a
            multiple of `num_heads` and no `key_dim` is given.

    Example:
        >>> layer = CausalLayer(num_heads=2, d_ff=8)
        >>> layer(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    _is_causal = True

    def _mask_of_call(self, inputs, mask):
        return self._past_mask(inputs, mask)

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Self:
        """Makes a layer with the weights and options of KerasHub's.

        Args:
            layer: `keras_hub.layers.TransformerDecoder`, built without a source.

        Returns:
            A built layer that gives the same outputs.

        Raises:
            TypeError: If it is no such layer.
            ValueError: If it is not built, attends to a source, or is quantised.

        Example:
            >>> theirs = keras_hub.layers.TransformerDecoder(8, num_heads=2)
            >>> theirs.build((None, None, 6))
            >>> layer = CausalLayer.from_keras(theirs)
        """
        return taken_over(cls, layer, "TransformerDecoder", ("self_attention",))

    def decoding_weights(self) -> Nest:
        """Prepares what `step` multiplies by: the projections of the attention."""
        return self.self_attention.decoding_weights("query", "key", "value")

    def initial_cache(self, texts: int, hypotheses: int, length: int) -> Nest:
        """Returns the empty cache of `step`; see `MultiHeadAttention.initial_cache`."""
        return self.self_attention.initial_cache(texts, hypotheses, length)

    def resize_cache(
        self, cache: Nest, texts: TensorLike, more: int | TensorLike
    ) -> Nest:
        """As `MultiHeadAttention.resize_cache`, of its self-attention."""
        return self.self_attention.resize_cache(cache, texts, more)

    def step(
        self, inputs: TensorLike, cache: Nest, place: Nest, mask: TensorLike | None,
        weights: Nest,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
        """Decodes one position; the layer's `call` gives the same for that position.

        Args:
            inputs: Float tensor (B, N, D), of the N hypotheses of each text.
            cache: Keys (B, H, L * N, K) and values of the positions before; not to be
                used again.
            place: `cache_place` of the position.
            mask: `prepare_mask` of the past's mask, as `MultiHeadAttention.step`
                explains.
            weights: `decoding_weights()`.

        Returns:
            The output (B, N, D) and the cache with the position written.
        """
        outputs, cache = self.self_attention.step(
            self._before("self_attention", inputs), cache, place, mask, weights
        )
        states = self._after("self_attention", inputs, outputs)
        return self._feed_forward(states), cache
