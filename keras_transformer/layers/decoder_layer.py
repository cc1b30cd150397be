"""One layer of the decoder."""

from __future__ import annotations

import keras

from keras_transformer.layers.residual_layer import ResidualLayer
from keras_transformer.masks import attention_mask, carried_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ResidualLayer):
    """One decoder layer: causal self-attention, cross-attention, feed-forward network.

    Section 3.1 and figure 1 (right) of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762. The sub-layers are the attributes
    `self_attention`, `cross_attention` and `feed_forward`, with `self_attention_norm`,
    `cross_attention_norm` and `feed_forward_norm`. `ResidualLayer` documents the
    arguments and how to replace a sub-layer. A `self_attention` whose attribute
    `causal` is true, as `LocalAttention` and `LinearAttention` have, is not given the
    causal mask.

    For decoding step by step, `decoding_weights` and `project_encoder_output` compute
    once what `step` needs, and `step` decodes one position.

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
        states = self._attend_to_past(inputs, mask, training)
        outputs = self.cross_attention(
            self._before("cross_attention", states),
            encoder_output,
            mask=_source_mask(encoder_output, encoder_output_mask),
            training=training,
        )
        states = self._after("cross_attention", states, outputs, training)
        return self._feed_forward(states, training)

    def call_with_attention(
        self,
        inputs,
        encoder_output,
        mask=None,
        encoder_output_mask=None,
        training=None,
    ):
        """As `call`; returns the weights of the attention to the source too.

        Returns:
            The output (B, T, D) and the attention weights (B, H, T, S).
        """
        states = self._attend_to_past(inputs, mask, training)
        outputs, attention_weights = self.cross_attention(
            self._before("cross_attention", states),
            encoder_output,
            mask=_source_mask(encoder_output, encoder_output_mask),
            training=training,
            return_attention_weights=True,
        )
        states = self._after("cross_attention", states, outputs, training)
        return self._feed_forward(states, training), attention_weights

    def _attend_to_past(self, inputs, mask, training):
        """The self-attention of each position to itself and those before it."""
        outputs = self.self_attention(
            self._before("self_attention", inputs),
            mask=self._past_mask(inputs, mask),
            training=training,
        )
        return self._after("self_attention", inputs, outputs, training)

    def decoding_weights(self):
        """Prepares what `step` multiplies by: the projections of both attentions."""
        return {
            "self_attention": self.self_attention.decoding_weights(
                "query", "key", "value"
            ),
            "cross_attention": self.cross_attention.decoding_weights("query"),
        }

    def project_encoder_output(self, encoder_output):
        """Computes the cross-attention's keys and values once for all steps.

        Args:
            encoder_output: Float tensor (B, S, D_encoder).

        Returns:
            Keys (B, H, S, K) and values (B, H, S, Kv).
        """
        return self.cross_attention.project_key_value(encoder_output)

    def initial_cache(self, sentences, hypotheses, length):
        """Returns the empty cache of `step`; see `MultiHeadAttention.initial_cache`."""
        return self.self_attention.initial_cache(sentences, hypotheses, length)

    def resize_cache(self, cache, sentences, more):
        """As `MultiHeadAttention.resize_cache`, of its self-attention."""
        return self.self_attention.resize_cache(cache, sentences, more)

    def step(self, inputs, cache, source, place, masks, weights):
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

    def compute_mask(self, inputs, previous_mask):
        """The output is as long as the target and carries its Keras mask."""
        return carried_mask(inputs)

    def compute_output_shape(self, inputs_shape, encoder_output_shape):
        return tuple(inputs_shape)


def _source_mask(encoder_output, mask):
    return attention_mask(carried_mask(encoder_output) if mask is None else mask)
