"""Encoder and decoder layers (figure 1), and a causal layer without a source."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any, TypeVar, Unpack

import keras

from keras_transformer.config.layer_config import (
    CAUSAL_KINDS,
    CausalKind,
    PositionsInside,
    SublayerConfig,
    check_ssru,
    head_width,
)
from keras_transformer.config.options import argument_lines, check_choice
from keras_transformer.nn.arguments import check_known_width, refuse_integers
from keras_transformer.nn.kernels.caches import Place
from keras_transformer.nn.kernels.keras_private import carried_mask
from keras_transformer.nn.layers.attention import PreparedMask
from keras_transformer.nn.layers.basic import (
    ComposedLayer,
    FeedForward,
    LayerNormalization,
)
from keras_transformer.nn.layers.dropout import Dropout
from keras_transformer.nn.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.nn.layers.relative_positions import (
    AlibiPositions,
    RelativePositions,
    relative_positions,
)
from keras_transformer.nn.layers.ssru import SSRU
from keras_transformer.nn.masks import attention_mask
from keras_transformer.types import (
    Activation,
    Nest,
    Shape,
    Tensor,
    TensorLike,
    WeightOptions,
)

_T = TypeVar("_T", bound=type)
_OPTIONS = tuple(field.name for field in dataclasses.fields(SublayerConfig))


class LayerArguments(WeightOptions, total=False):
    """Options of the layers, for type checkers."""

    key_dim: int | None
    value_dim: int | None
    activation: Activation
    norm_first: bool
    layer_norm_epsilon: float
    use_bias: bool
    num_key_value_heads: int | None
    dropout_rate: float
    attention_dropout_rate: float | None
    activation_dropout_rate: float | None
    positions: PositionsInside | RelativePositions | None


def _documented(cls: _T) -> _T:
    """Replaces `{options}` in a docstring by the options of `SublayerConfig`."""
    if cls.__doc__:
        lines = argument_lines(SublayerConfig, required=("num_heads", "d_ff"))
        options = textwrap.indent("\n".join(lines), "    ")
        cls.__doc__ = cls.__doc__.replace("        {options}", options)
    return cls


def _of_keys(mask):
    """Returns a mask (B, S) as (B, 1, S)."""
    is_of_rows = len(getattr(mask, "shape", ())) == 2
    return attention_mask(mask) if is_of_rows else mask


@dataclasses.dataclass
class Residual:
    """The residual connection, dropout and normalisation around a sub-layer.

    LayerNorm(x + Dropout(Sublayer(x))), or with `norm_first` x +
    Dropout(Sublayer(LayerNorm(x))): sections 3.1 and 5.4 of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762.

    Attributes:
        name: Name of the sub-layer, for errors.
        norm: Normalisation, a layer.
        dropout: Dropout of the sub-layer's outputs, a layer.
        norm_first: Whether the norm comes before the sub-layer.
    """

    name: str
    norm: keras.layers.Layer
    dropout: keras.layers.Layer
    norm_first: bool

    def __call__(self, x, sublayer, *others, training=None, **options):
        """Returns x (B, T, D) with a sub-layer's outputs for x and others added."""
        inputs = self.before(x, training)
        outputs = sublayer(inputs, *others, training=training, **options)
        return self.after(x, outputs, training)

    def before(self, x, training=None):
        """Returns what the sub-layer takes."""
        return self.norm(x, training=training) if self.norm_first else x

    def after(self, x, outputs, training=None):
        """Returns x with the sub-layer's outputs added."""
        if "int" in keras.backend.standardize_dtype(x.dtype):
            refuse_integers(x)
        width = outputs.shape[-1]
        expected = x.shape[-1]
        if width != expected and None not in (width, expected):
            raise ValueError(
                f"`{self.name}` must return outputs as wide as its inputs, to which "
                f"they are added. Received: width {width} for inputs of width "
                f"{expected}"
            )
        x = x + self.dropout(outputs, training=training)
        return x if self.norm_first else self.norm(x, training=training)


class TransformerLayer(ComposedLayer):
    """Base of the layers: their options, sub-layers and residual connections.

    The sub-layers are the attributes `self_attention`, `feed_forward` and, with
    `attends_to_source`, `cross_attention`. Around each is a `Residual`:
    `self_attention_residual` and so on.

    Call arguments:
        inputs: Float tensor (B, T, D).
        mask: See `EncoderLayer`.
    Raises:
        TypeError: If an option has the wrong type.
        ValueError: If an option is out of range.
    """

    causal = False  # whether self-attention sees no later position
    attends_to_source = False  # whether there is a `cross_attention`

    def __init__(
        self, num_heads: int, d_ff: int, **options: Unpack[LayerArguments]
    ) -> None:
        given = {name: options.pop(name) for name in _OPTIONS if name in options}
        activation = given.pop("activation", "relu")  # may be a function
        positions = options.pop("positions", None)
        super().__init__(**options)
        checked = SublayerConfig(num_heads=num_heads, d_ff=d_ff, **given)
        self._options = checked  # as given: `None` for a rate that follows another
        for name in _OPTIONS:
            setattr(self, name, getattr(checked, name))
        self.attention_dropout_rate = checked.rate(checked.attention_dropout_rate)
        self.activation_dropout_rate = checked.rate(checked.activation_dropout_rate)
        self.activation = keras.activations.get(activation)
        self.positions = relative_positions(positions)
        if positions == "alibi" and not self.causal:
            self.positions = AlibiPositions(after=2.0)  # See `AlibiPositions`.
        self.self_attention_residual = self.make_residual("self_attention")
        residuals = [self.self_attention_residual]
        if self.attends_to_source:
            self.cross_attention_residual = self.make_residual("cross_attention")
            residuals.append(self.cross_attention_residual)
        self.feed_forward_residual = self.make_residual("feed_forward")
        residuals.append(self.feed_forward_residual)
        # Keras finds layers in attributes and in lists, and names files by these.
        self.norms = [residual.norm for residual in residuals]
        self.dropouts = [residual.dropout for residual in residuals]

    def make_attention(self, name: str, d_model: int) -> keras.layers.Layer:
        """Returns the attention `name`, for inputs (B, T, d_model); override it.

        For decoding "self_attention" needs `step_weights`, `initial_cache` and `step`,
        "cross_attention" `step_weights`, `keys_and_values` and `look_up`.
        """
        key_dim = head_width(d_model, self.num_heads, self.key_dim)
        return MultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=key_dim,
            value_dim=self.value_dim,
            dropout=self.attention_dropout_rate,
            use_bias=self.use_bias,
            num_key_value_heads=self.num_key_value_heads,
            positions=self.positions if name == "self_attention" else None,
            dtype=self.dtype_policy,
            name=name,
            **self.weight_options(),
        )

    def make_feed_forward(self, name: str) -> keras.layers.Layer:
        """Returns the feed-forward sub-layer `name`; override to replace it."""
        return FeedForward(
            self.d_ff,
            self.activation,
            dropout_rate=self.activation_dropout_rate,
            dtype=self.dtype_policy,
            name=name,
            **self.weight_options(),
        )

    def make_norm(self, name: str) -> keras.layers.Layer:
        """Returns the normalisation `name`; override to replace it."""
        epsilon = self.layer_norm_epsilon
        return LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name=name)

    def make_residual(self, name: str) -> Residual:
        """Returns the connection around the sub-layer `name`; override to replace it.

        A call and a step of decoding use its `before` and `after`.
        """
        norm = self.make_norm(f"{name}_norm")
        norm.supports_masking = True  # Keras' RMSNormalization warns of masks.
        dropout = Dropout(
            self.dropout_rate, dtype=self.dtype_policy, name=f"{name}_dropout"
        )
        return Residual(name, norm, dropout, self.norm_first)

    def build(self, input_shape: Shape) -> None:
        if len(input_shape) != 3:
            raise ValueError(
                "`inputs` must have the shape (B, T, D): embed ids first, as "
                "`PositionalEmbedding` does, and give one row as row[None]. Received: "
                f"shape {tuple(input_shape)}"
            )
        check_known_width(self, inputs=input_shape)
        # Made here, because the default of `key_dim` depends on the width.
        self.self_attention = self.make_attention("self_attention", input_shape[-1])
        self.self_attention.build(input_shape)
        self.feed_forward = self.make_feed_forward("feed_forward")
        self.feed_forward.build(input_shape)
        for norm in self.norms:
            norm.build(input_shape)
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: input_shape[-1]})
        self.built = True

    def call(
        self,
        inputs: TensorLike,
        mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> Tensor:
        causal = {"use_causal_mask": True} if self.causal else {}
        mask = _of_keys(mask)
        x = self.self_attention_residual(
            inputs, self.self_attention, mask=mask, training=training, **causal
        )
        return self.feed_forward_residual(x, self.feed_forward, training=training)

    def get_config(self) -> dict[str, Any]:
        own = self._options.given()
        own["activation"] = keras.activations.serialize(self.activation)
        positions = self.positions
        positions = positions and keras.saving.serialize_keras_object(positions)
        return super().get_config() | own | {"positions": positions}


@keras.saving.register_keras_serializable(package="keras_transformer")
@_documented
class EncoderLayer(TransformerLayer):
    """One encoder layer: self-attention, then a feed-forward network.

    Section 3.1 and figure 1 (left) of Vaswani et al., 2017. To use another sub-layer,
    override `make_attention`, `make_feed_forward` or `make_norm`.

    Args:
        {options}
        positions: Positions inside self-attention: "rotary", "alibi", an object such as
            `RotaryPositions`, or `None`.
        **options: See `FeedForward`; they apply to all sub-layers.
    Call arguments:
        inputs: Float tensor (B, S, D).
        mask: Boolean tensor (B, S), (B, 1, S) or (B, S, S), True where a position may
            be attended to; default the Keras mask of `inputs`.
    Returns:
        Float tensor (B, S, D).
    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, or the width of the inputs is not a
            multiple of `num_heads` and `key_dim` is not given.

    Example:
        >>> layer = EncoderLayer(num_heads=2, d_ff=8)
        >>> layer(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """


@keras.saving.register_keras_serializable(package="keras_transformer")
@_documented
class CausalLayer(TransformerLayer):
    """An encoder layer in which no position attends to a later one.

    The layer of the decoder-only Transformer: Liu et al., 2018, section 4.2.3,
    https://arxiv.org/abs/1801.10198. `step` decodes one position, with the results of
    `step_weights` and `initial_cache`.

    Args:
        {options}
        attention: Self-attention, "dot-product" as in the paper, or "ssru".
        positions: See `EncoderLayer`; not with an `SSRU`.
        **options: See `EncoderLayer`.
    Call arguments:
        inputs: Float tensor (B, T, D).
        mask: Boolean tensor (B, T), (B, 1, T) or (B, T, T), True where a position that
            is not later may be attended to; default the Keras mask of `inputs`.
    Returns:
        Float tensor (B, T, D).
    Raises:
        TypeError, ValueError: As `EncoderLayer`, or for `positions` of an SSRU.

    Example:
        >>> layer = CausalLayer(num_heads=2, d_ff=8)
        >>> layer(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    causal = True

    def __init__(
        self,
        num_heads: int,
        d_ff: int,
        *,
        attention: CausalKind = "dot-product",
        **options: Unpack[LayerArguments],
    ) -> None:
        super().__init__(num_heads, d_ff, **options)
        check_choice("attention", attention, CAUSAL_KINDS)
        check_ssru("attention", attention, self.positions)
        self.attention = attention

    def make_attention(self, name: str, d_model: int) -> keras.layers.Layer:
        if name == "self_attention" and self.attention == "ssru":
            options = self.weight_options()
            return SSRU(dtype=self.dtype_policy, name=name, **options)
        return super().make_attention(name, d_model)

    def step_weights(self) -> Nest:
        """Returns the prepared matrices of `step`."""
        return {"past": self.self_attention.step_weights()}

    def initial_cache(self, sentences: int, hypotheses: int, length: int) -> Nest:
        """Returns the empty cache of `step`; see `MultiHeadAttention.initial_cache`."""
        return self.self_attention.initial_cache(sentences, hypotheses, length)

    def step(
        self,
        inputs: TensorLike,
        cache: Nest,
        place: Place,
        masks: tuple[PreparedMask, PreparedMask | None],
        weights: Nest,
        source: Nest = None,
    ) -> tuple[Tensor, Nest]:
        """Computes one position of N hypotheses per sentence, as `call` does.

        Returns the output (B, N, D) and the new cache.

        Args:
            inputs: See `MultiHeadAttention.step`, as for `cache` and `place`.
            masks: The `prepare_mask` of the past and of the source.
            weights: `step_weights()`.
            source: `keys_and_values` of the source, or `None`.
        """
        past_mask, source_mask = masks
        around = self.self_attention_residual
        outputs, cache = self.self_attention.step(
            around.before(inputs), cache, place, past_mask, weights["past"]
        )
        x = around.after(inputs, outputs)
        if self.attends_to_source:
            around = self.cross_attention_residual
            outputs = self.cross_attention.look_up(
                around.before(x), source, source_mask, weights["source"]
            )
            x = around.after(x, outputs)
        return self.feed_forward_residual(x, self.feed_forward), cache

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"attention": self.attention}


@keras.saving.register_keras_serializable(package="keras_transformer")
@_documented
class DecoderLayer(CausalLayer):
    """One decoder layer: causal self-attention, cross-attention, feed-forward network.

    Section 3.1 and figure 1 (right) of Vaswani et al., 2017. `step` decodes one
    position, with the results of `step_weights`, `initial_cache` and `keys_and_values`.

    Args:
        {options}
        attention: See `CausalLayer`, as for `positions`.
        positions: See `CausalLayer`.
        **options: See `EncoderLayer`.
    Call arguments:
        inputs: Float tensor (B, T, D).
        encoder_output: Float tensor (B, S, D_encoder).
        mask: See `CausalLayer`.
        encoder_output_mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S); default the
            Keras mask of `encoder_output`.
    Returns:
        Float tensor (B, T, D).

    Example:
        >>> layer = DecoderLayer(num_heads=2, d_ff=8)
        >>> target, source = np.ones((1, 4, 6)), np.ones((1, 5, 6))
        >>> layer(target, source).shape  # (1, 4, 6)
    """

    attends_to_source = True

    def build(self, inputs_shape: Shape, encoder_output_shape: Shape) -> None:
        check_known_width(self, encoder_output=encoder_output_shape)
        super().build(inputs_shape)
        self.cross_attention = self.make_attention("cross_attention", inputs_shape[-1])
        self.cross_attention.build(inputs_shape, encoder_output_shape)

    def compute_output_shape(
        self, inputs_shape: Shape, encoder_output_shape: Shape | None = None
    ) -> Shape:
        return tuple(inputs_shape)

    def call(
        self,
        inputs: TensorLike,
        encoder_output: TensorLike,
        mask: TensorLike | None = None,
        encoder_output_mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> Tensor:
        mask = _of_keys(carried_mask(inputs) if mask is None else mask)
        encoder_output_mask = _of_keys(encoder_output_mask)
        x = self.self_attention_residual(
            inputs,
            self.self_attention,
            mask=mask,
            training=training,
            use_causal_mask=True,
        )
        x = self.cross_attention_residual(
            x,
            self.cross_attention,
            encoder_output,
            mask=encoder_output_mask,
            training=training,
        )
        return self.feed_forward_residual(x, self.feed_forward, training=training)

    def step_weights(self) -> Nest:
        """Returns the prepared matrices of `step`, for both attentions."""
        weights = super().step_weights()
        return weights | {"source": self.cross_attention.step_weights(across=True)}

    def keys_and_values(self, encoder_output: TensorLike) -> Nest:
        """Returns keys and values of the encoder's output (B, S, D)."""
        return self.cross_attention.keys_and_values(encoder_output)
