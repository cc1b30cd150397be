"""One layer of a decoder without a source: self-attention to the past, feed-forward."""

from __future__ import annotations

from typing import Self

import keras

from keras_transformer.layers.encoder_layer import EncoderLayer
from keras_transformer.layers.keras_hub_layers import taken_over
from keras_transformer.types import Nest, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class CausalLayer(EncoderLayer):
    """An encoder layer in which no position attends to a later one.

    The layer of the decoder-only Transformer: Liu et al., 2018, section 4.2.3,
    https://arxiv.org/abs/1801.10198. For decoding step by step, `decoding_weights`
    computes once what `step` needs, and `step` decodes one position.

    To use another sub-layer, override `make_attention`, `make_feed_forward` or
    `make_norm`. A `self_attention` whose attribute `causal` is true, as
    `LocalAttention` and `LinearAttention` have, is not given the causal mask.

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
    Call arguments:
        inputs: Float tensor (B, T, D).
        mask: Boolean tensor (B, T), (B, 1, T) or (B, T, T), True where a position may
            be attended to, besides the causal mask that always applies; default the
            Keras mask that `inputs` carries.
        training: Whether dropout is applied.
        padding_mask: As `EncoderLayer` has it: boolean or integer tensor (B, T), 1 for
            a token; all masks given must allow a position.
        attention_mask: Likewise, (B, T, T).
        return_attention_scores: Whether the attention weights are returned too.
    Returns:
        Float tensor (B, T, D); with `return_attention_scores` a tuple of it and the
        attention weights (B, H, T, T).
    Raises:
        ValueError: If an argument is out of its range, or the input's width is not a
            multiple of `num_heads` and no `key_dim` is given.

    Example:
        >>> layer = CausalLayer(num_heads=2, d_ff=8)
        >>> layer(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    _is_causal = True

    def _mask_of_call(self, inputs, mask):
        return self._past_mask(inputs, mask)

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Self:
        """Makes a layer with the weights and options of KerasHub's.

        Args:
            layer: `keras_hub.layers.TransformerDecoder`, built without a source.

        Returns:
            A built layer that gives the same outputs.

        Raises:
            TypeError: If it is no such layer.
            ValueError: If it is not built, attends to a source, or is quantised.

        Example:
            >>> theirs = keras_hub.layers.TransformerDecoder(8, num_heads=2)
            >>> theirs.build((None, None, 6))
            >>> layer = CausalLayer.from_keras(theirs)
        """
        return taken_over(cls, layer, "TransformerDecoder", ("self_attention",))

    def decoding_weights(self) -> Nest:
        """Prepares what `step` multiplies by: the projections of the attention."""
        return self.self_attention.decoding_weights("query", "key", "value")

    def initial_cache(self, texts: int, hypotheses: int, length: int) -> Nest:
        """Returns the empty cache of `step`; see `MultiHeadAttention.initial_cache`."""
        return self.self_attention.initial_cache(texts, hypotheses, length)

    def resize_cache(
        self, cache: Nest, texts: TensorLike, more: int | TensorLike
    ) -> Nest:
        """As `MultiHeadAttention.resize_cache`, of its self-attention."""
        return self.self_attention.resize_cache(cache, texts, more)

    def step(
        self, inputs: TensorLike, cache: Nest, place: Nest, mask: TensorLike | None,
        weights: Nest,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
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
