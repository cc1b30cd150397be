"""What encoder and decoder layers share: options, sub-layers, residual connections."""

from __future__ import annotations

import keras

from keras_transformer.layers.arguments import check_rate, check_size
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.multi_head_attention import MultiHeadAttention


class ResidualLayer(keras.layers.Layer):
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
    Raises:
        ValueError: If an argument is out of its range, or the input's width is not a
            multiple of `num_heads` and no `key_dim` is given.
    """

    def __init__(
        self,
        num_heads,
        d_ff,
        key_dim=None,
        value_dim=None,
        dropout_rate=0.1,
        attention_dropout_rate=0.1,
        activation_dropout_rate=0.1,
        activation="relu",
        norm_first=False,
        use_bias=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_size("num_heads", num_heads)
        check_size("d_ff", d_ff)
        check_size("key_dim", key_dim, optional=True)
        check_size("value_dim", value_dim, optional=True)
        check_rate("dropout_rate", dropout_rate)
        check_rate("attention_dropout_rate", attention_dropout_rate)
        check_rate("activation_dropout_rate", activation_dropout_rate)
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.activation_dropout_rate = activation_dropout_rate
        self.activation = keras.activations.get(activation)
        self.norm_first = norm_first
        self.use_bias = use_bias
        self.supports_masking = True

    def make_attention(self, name, d_model):
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
        return MultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=self.key_dim or d_model // self.num_heads,
            value_dim=self.value_dim,
            dropout_rate=self.attention_dropout_rate,
            use_bias=self.use_bias,
            dtype=self.dtype_policy,
            name=name,
        )

    def make_feed_forward(self, name):
        """Returns the feed-forward sub-layer called `name`; override to replace it."""
        return FeedForward(
            d_ff=self.d_ff,
            activation=self.activation,
            dropout_rate=self.activation_dropout_rate,
            dtype=self.dtype_policy,
            name=name,
        )

    def make_norm(self, name):
        """Returns the normalisation called `name`; override to replace it."""
        return LayerNormalization(epsilon=1e-6, dtype=self.dtype_policy, name=name)

    def _add_sublayer(self, name, sublayer, *shapes):
        """Keeps a sub-layer, its norm and its dropout as attributes, built."""
        norm = self.make_norm(f"{name}_norm")
        dropout = Dropout(
            self.dropout_rate, dtype=self.dtype_policy, name=f"{name}_dropout"
        )
        sublayer.build(*shapes)
        norm.build(shapes[0])
        setattr(self, name, sublayer)
        setattr(self, f"{name}_norm", norm)
        setattr(self, f"{name}_dropout", dropout)

    def _residual(self, name, inputs, sublayer, training=None):
        """Adds the sub-layer's output to its input and normalises, or the reverse.

        Args:
            name: The sub-layer's name, to find its norm and dropout.
            inputs: Float tensor (B, T, D).
            sublayer: Function from a tensor (B, T, D) to one of the same shape.
            training: Whether dropout is applied.

        Returns:
            Float tensor (B, T, D).
        """
        norm, dropout = getattr(self, f"{name}_norm"), getattr(self, f"{name}_dropout")
        if self.norm_first:
            return inputs + dropout(sublayer(norm(inputs)), training=training)
        return norm(inputs + dropout(sublayer(inputs), training=training))

    def _feed_forward(self, inputs, training=None):
        return self._residual(
            "feed_forward",
            inputs,
            lambda x: self.feed_forward(x, training=training),
            training=training,
        )

    def get_config(self):
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
        }
