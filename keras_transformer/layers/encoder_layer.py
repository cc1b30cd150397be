"""One layer of the encoder."""

from __future__ import annotations

import keras

from keras_transformer.layers.residual_layer import ResidualLayer
from keras_transformer.masks import attention_mask, carried_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ResidualLayer):
    """One encoder layer: self-attention, then a feed-forward network.

    Section 3.1 and figure 1 (left) of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762. The sub-layers are the attributes
    `self_attention` and `feed_forward`, with `self_attention_norm` and
    `feed_forward_norm`. `ResidualLayer` documents the arguments and how to replace a
    sub-layer.

    Call arguments:
        inputs: Float tensor (B, S, D).
        mask: Boolean tensor (B, S), (B, 1, S) or (B, S, S), True where a position may
            be attended to; default the Keras mask that `inputs` carries.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, S, D).

    Example:
        >>> layer = EncoderLayer(num_heads=2, d_ff=8)
        >>> layer(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    def build(self, inputs_shape):
        attention = self.make_attention("self_attention", inputs_shape[-1])
        self._add_sublayer("self_attention", attention, inputs_shape)
        feed_forward = self.make_feed_forward("feed_forward")
        self._add_sublayer("feed_forward", feed_forward, inputs_shape)
        self.built = True

    def call(self, inputs, mask=None, training=None):
        mask = attention_mask(carried_mask(inputs) if mask is None else mask)
        # 1. Self-attention.
        outputs = self.self_attention(
            self._before("self_attention", inputs), mask=mask, training=training
        )
        states = self._after("self_attention", inputs, outputs, training)
        # 2. Feed-forward network.
        return self._feed_forward(states, training)

    def compute_mask(self, inputs, previous_mask):
        """The output is as long as the input and carries its Keras mask."""
        return carried_mask(inputs)

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)
