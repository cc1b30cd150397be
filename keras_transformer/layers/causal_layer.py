"""One layer of a decoder without a source: self-attention to the past, feed-forward."""

from __future__ import annotations

import keras

from keras_transformer.layers.encoder_layer import EncoderLayer


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
        mask = self._past_mask(inputs, mask)
        return super().call(inputs, mask=mask, training=training)

    def decoding_weights(self):
        """Prepares what `step` multiplies by: the projections of the attention."""
        return self.self_attention.decoding_weights("query", "key", "value")

    def initial_cache(self, texts, hypotheses, length):
        """Returns the empty cache of `step`; see `MultiHeadAttention.initial_cache`."""
        return self.self_attention.initial_cache(texts, hypotheses, length)

    def resize_cache(self, cache, texts, more):
        """As `MultiHeadAttention.resize_cache`, of its self-attention."""
        return self.self_attention.resize_cache(cache, texts, more)

    def step(self, inputs, cache, place, mask, weights):
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
