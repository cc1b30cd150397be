"""One layer of the encoder."""

from __future__ import annotations

from typing import Any, Self

import keras

from keras_transformer.layers.arguments import check_axes
from keras_transformer.layers.attention_masks import combined_mask
from keras_transformer.layers.keras_hub_layers import taken_over
from keras_transformer.layers.residual_layer import ResidualLayer
from keras_transformer.masks import carried_mask
from keras_transformer.types import Shape, Tensor, TensorLike


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
