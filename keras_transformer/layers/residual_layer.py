"""What encoder and decoder layers share: options, sub-layers, residual connections."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import keras
from keras import ops

from keras_transformer.attention_kinds import AttentionName, check_attention
from keras_transformer.layers.adaptable_layer import HasAdaptableLayers
from keras_transformer.layers.arguments import check_mask, check_rate, check_size
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.relative_positions import (
    RelativePositions,
    kept_positions,
    serialised_positions,
)
from keras_transformer.layers.self_attention import make_self_attention
from keras_transformer.layers.weight_options import (
    keep_options,
    kept_config,
    kept_options,
)
from keras_transformer.masks import causal_mask
from keras_transformer.types import (
    Activation,
    Constraint,
    Initializer,
    LayerOptions,
    Regularizer,
)


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
