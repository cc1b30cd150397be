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
        outputs, _ = self._call(
            inputs, encoder_output, mask, encoder_output_mask, training, weigh=False
        )
        return outputs

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
        return self._call(
            inputs, encoder_output, mask, encoder_output_mask, training, weigh=True
        )

    def _call(self, inputs, encoder_output, mask, encoder_output_mask, training, weigh):
        """The output, and with `weigh` the weights of the attention to the source."""
        mask = attention_mask(carried_mask(inputs) if mask is None else mask)
        if not getattr(self.self_attention, "causal", False):
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
        attention_weights = None

        def cross_attention(x):
            nonlocal attention_weights
            options = {"mask": source_mask, "training": training}
            if not weigh:
                return self.cross_attention(x, encoder_output, **options)
            output, attention_weights = self.cross_attention(
                x, encoder_output, return_attention_weights=True, **options
            )
            return output

        outputs = self._residual(
            "cross_attention", outputs, cross_attention, training=training
        )
        # 3. Feed-forward network.
        outputs = self._feed_forward(outputs, training=training)
        return outputs, attention_weights

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

    def step(self, inputs, cache, source, index, biases, weights):
        """Decodes one position; the layer's `call` gives the same for that position.

        The k hypotheses of a sentence are queries of one attention to its source.

        Args:
            inputs: Float tensor (B, k, D).
            cache: Keys (B, H, L * k, K) and values of the positions before; not to be
                used again.
            source: Keys and values (B, H, S, K) from `project_encoder_output`.
            index: Integer scalar, the position, counted from 0, or `cache_place` of it.
            biases: What `attention_bias` made of the masks of self-attention, as
                `MultiHeadAttention.step` explains, and of the source.
            weights: `decoding_weights()`.

        Returns:
            The output (B, k, D), the cache with the position written, and the weights
            (B, H, k, S) of the attention to the source.
        """
        past_bias, source_bias = biases
        attention_weights = None

        def self_attention(x):
            nonlocal cache
            output, cache = self.self_attention.step(
                x, cache, index, past_bias, weights["self_attention"]
            )
            return output

        def cross_attention(x):
            nonlocal attention_weights
            output, attention_weights = self.cross_attention.step_across(
                x, *source, source_bias, weights["cross_attention"]
            )
            return output

        outputs = self._residual("self_attention", inputs, self_attention)
        outputs = self._residual("cross_attention", outputs, cross_attention)
        return self._feed_forward(outputs), cache, attention_weights

    def compute_mask(self, inputs, previous_mask):
        """The output is as long as the target and carries its Keras mask."""
        return carried_mask(inputs)

    def compute_output_shape(self, inputs_shape, encoder_output_shape):
        return tuple(inputs_shape)
