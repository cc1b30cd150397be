"""One layer of a decoder without a source: self-attention to the past, feed-forward."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.layers.encoder_layer import EncoderLayer
from keras_transformer.masks import attention_mask, carried_mask, causal_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class CausalLayer(EncoderLayer):
    """An encoder layer in which no position attends to a later one.

    The layer of the decoder-only Transformer: Liu et al., 2018, section 4.2.3,
    https://arxiv.org/abs/1801.10198. For decoding step by step, `decoding_weights`
    computes once what `step` needs, and `step` decodes one position. `ResidualLayer`
    documents the arguments and how to replace a sub-layer. A `self_attention` whose
    attribute `causal` is true, as `LocalAttention` and `LinearAttention` have, is not
    given the causal mask.

    Call arguments:
        inputs: Float tensor (B, T, D).
        mask: Boolean tensor (B, T), (B, 1, T) or (B, T, T), True where a position may
            be attended to, besides the causal mask that always applies; default the
            Keras mask that `inputs` carries.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, T, D).

    Example:
        >>> layer = CausalLayer(num_heads=2, d_ff=8)
        >>> layer(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    def call(self, inputs, mask=None, training=None):
        mask = attention_mask(carried_mask(inputs) if mask is None else mask)
        if not getattr(self.self_attention, "causal", False):
            causal = causal_mask(ops.shape(inputs)[1])
            mask = causal if mask is None else ops.logical_and(mask, causal)
        return super().call(inputs, mask=mask, training=training)

    def decoding_weights(self):
        """Prepares what `step` multiplies by: the projections of the attention."""
        return self.self_attention.decoding_weights("query", "key", "value")

    def initial_cache(self, rows, hypotheses, length):
        """Returns the empty cache of `step`; see `MultiHeadAttention.initial_cache`."""
        return self.self_attention.initial_cache(rows, hypotheses, length)

    def resize_cache(self, cache, rows, more):
        """As `MultiHeadAttention.resize_cache`, of its self-attention."""
        return self.self_attention.resize_cache(cache, rows, more)

    def step(self, inputs, cache, index, bias, weights):
        """Decodes one position; the layer's `call` gives the same for that position.

        Args:
            inputs: Float tensor (B, k, D), of the k hypotheses of each row.
            cache: Keys (B, H, L * k, K) and values of the positions before; not to be
                used again.
            index: Integer scalar, the position, counted from 0, or `cache_place` of it.
            bias: What `attention_bias` made of the mask of the past, as
                `MultiHeadAttention.step` explains.
            weights: `decoding_weights()`.

        Returns:
            The output (B, k, D) and the cache with the position written.
        """

        def self_attention(x):
            nonlocal cache
            output, cache = self.self_attention.step(x, cache, index, bias, weights)
            return output

        outputs = self._residual("self_attention", inputs, self_attention)
        return self._feed_forward(outputs), cache
