"""One layer of the decoder."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.layers.residual_layer import ResidualLayer
from keras_transformer.masks import attention_mask, carried_mask, causal_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ResidualLayer):
    """One decoder layer: causal self-attention, cross-attention, feed-forward network.

    Section 3.1 and figure 1 (right) of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762. The sub-layers are the attributes
    `self_attention`, `cross_attention` and `feed_forward`, with `self_attention_norm`,
    `cross_attention_norm` and `feed_forward_norm`. `ResidualLayer` documents the
    arguments and how to replace a sub-layer.

    For decoding step by step, `project_encoder_output` computes the keys and values of
    the source once, and `step` decodes one position.

    Call arguments:
        inputs: Float tensor (B, T, D).
        encoder_output: Float tensor (B, S, D_encoder).
        mask: Boolean tensor (B, T), (B, 1, T) or (B, T, T), True where a target
            position may be attended to, besides the causal mask that always applies;
            default the Keras mask that `inputs` carries.
        encoder_output_mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S); default the
            Keras mask that `encoder_output` carries.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, T, D).

    Example:
        >>> layer = DecoderLayer(num_heads=2, d_ff=8)
        >>> target, source = np.ones((1, 4, 6)), np.ones((1, 5, 6))
        >>> layer(target, source).shape  # (1, 4, 6)
    """

    def build(self, inputs_shape, encoder_output_shape):
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
        self,
        inputs,
        encoder_output,
        mask=None,
        encoder_output_mask=None,
        training=None,
    ):
        mask = attention_mask(carried_mask(inputs) if mask is None else mask)
        causal = causal_mask(ops.shape(inputs)[1])
        mask = causal if mask is None else ops.logical_and(mask, causal)
        if encoder_output_mask is None:
            encoder_output_mask = carried_mask(encoder_output)
        source_mask = attention_mask(encoder_output_mask)
        # 1. Self-attention to this position and those before it.
        outputs = self._residual(
            "self_attention",
            inputs,
            lambda x: self.self_attention(x, mask=mask, training=training),
            training=training,
        )
        # 2. Attention to the source.
        outputs = self._residual(
            "cross_attention",
            outputs,
            lambda x: self.cross_attention(
                x, encoder_output, mask=source_mask, training=training
            ),
            training=training,
        )
        # 3. Feed-forward network.
        return self._feed_forward(outputs, training=training)

    def project_encoder_output(self, encoder_output):
        """Computes the cross-attention's keys and values once for all steps.

        Args:
            encoder_output: Float tensor (B, S, D_encoder).

        Returns:
            Keys (B, H, S, K) and values (B, H, S, Kv).
        """
        return self.cross_attention.project_key_value(encoder_output)

    def initial_cache(self, rows, length):
        """Returns the empty cache of `step`; see `MultiHeadAttention.initial_cache`."""
        return self.self_attention.initial_cache(rows, length)

    def step(self, inputs, cache, source, index, encoder_output_mask=None):
        """Decodes one position; the layer's `call` gives the same for that position.

        Several hypotheses of a sentence share its keys and values: with R = B * k rows,
        rows b * k to (b + 1) * k belong to sentence b.

        Args:
            inputs: Float tensor (R, 1, D).
            cache: Keys and values (R, H, L, K) of the positions before.
            source: Keys and values (B, H, S, K) from `project_encoder_output`.
            index: Integer scalar, the position, counted from 0.
            encoder_output_mask: Boolean tensor (B, S) or (B, 1, S), or `None`.

        Returns:
            The output (R, 1, D) and the cache with the position written.
        """
        source_mask = attention_mask(encoder_output_mask)

        def self_attention(x):
            nonlocal cache
            output, cache = self.self_attention.step(x, cache, index)
            return output

        def cross_attention(x):
            rows, _, width = ops.shape(x)
            # The hypotheses of a sentence are queries of one attention.
            queries = ops.reshape(x, (ops.shape(source[0])[0], -1, width))
            output, _ = self.cross_attention.attend(queries, *source, mask=source_mask)
            return ops.reshape(output, (rows, 1, width))

        outputs = self._residual("self_attention", inputs, self_attention)
        outputs = self._residual("cross_attention", outputs, cross_attention)
        return self._feed_forward(outputs), cache

    def compute_mask(self, inputs, previous_mask):
        """The output is as long as the target and carries its Keras mask."""
        return carried_mask(inputs)

    def compute_output_shape(self, inputs_shape, encoder_output_shape):
        return tuple(inputs_shape)
