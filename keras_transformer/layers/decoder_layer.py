"""One layer of the decoder."""

from __future__ import annotations

from typing import Self

import keras

from keras_transformer.layers.arguments import check_axes, check_mask
from keras_transformer.layers.attention_masks import combined_mask
from keras_transformer.layers.keras_hub_layers import taken_over
from keras_transformer.layers.residual_layer import ResidualLayer
from keras_transformer.masks import carried_mask
from keras_transformer.types import Nest, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ResidualLayer):
    """One decoder layer: causal self-attention, cross-attention, feed-forward network.

    Section 3.1 and figure 1 (right) of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762. The sub-layers are the attributes
    `self_attention`, `cross_attention` and `feed_forward`, with `self_attention_norm`,
    `cross_attention_norm` and `feed_forward_norm`; to use another one, override
    `make_attention`, `make_feed_forward` or `make_norm`. A `self_attention` whose
    attribute `causal` is true, as `LocalAttention` and `LinearAttention` have, is not
    given the causal mask.

    For decoding step by step, `decoding_weights` and `project_encoder_output` compute
    once what `step` needs, and `step` decodes one position.

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
        encoder_output: Float tensor (B, S, D_encoder).
        mask: Boolean tensor (B, T), (B, 1, T) or (B, T, T), True where a target
            position may be attended to, besides the causal mask; default the Keras mask
            that `inputs` carries.
        encoder_output_mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S); default the
            Keras mask that `encoder_output` carries.
        training: Whether dropout is applied.
        decoder_padding_mask: As `keras_hub.layers.TransformerDecoder` has it: boolean
            or integer tensor (B, T), 1 for a token; all masks given must allow a
            position.
        decoder_attention_mask: Likewise, (B, T, T).
        encoder_padding_mask: Likewise, of `encoder_output`, (B, S); it replaces the
            Keras mask that `encoder_output` carries.
        encoder_attention_mask: Likewise, (B, T, S).
        use_causal_mask: Whether the causal mask applies, as it does in `step`; a
            `self_attention` that is itself `causal` refuses to do without.
        self_attention_cache: Refused, like the other three of KerasHub's arguments of a
            cache: `step` decodes with one.
    Returns:
        Float tensor (B, T, D).
    Raises:
        ValueError: If an argument is out of its range, the input's width is not a
            multiple of `num_heads` and no `key_dim` is given, there is no
            `encoder_output`, or a cache, or a `self_attention` that is itself `causal`
            is to do without.

    Example:
        >>> layer = DecoderLayer(num_heads=2, d_ff=8)
        >>> target, source = np.ones((1, 4, 6)), np.ones((1, 5, 6))
        >>> layer(target, source).shape  # (1, 4, 6)
    """

    _is_causal = True

    def build(
        self, inputs_shape: Shape, encoder_output_shape: Shape | None = None
    ) -> None:
        check_axes("inputs", inputs_shape, "B", "T", "D")
        if encoder_output_shape is None:
            raise ValueError(
                "`encoder_output` must be given: `CausalLayer` is the layer of a "
                "decoder without an encoder. Received: encoder_output=None"
            )
        check_axes("encoder_output", encoder_output_shape, "B", "S", "D")
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
        self, inputs: TensorLike, encoder_output: TensorLike | None = None,
        mask: TensorLike | None = None, encoder_output_mask: TensorLike | None = None,
        training: bool | None = None, *, decoder_padding_mask: TensorLike | None = None,
        decoder_attention_mask: TensorLike | None = None,
        encoder_padding_mask: TensorLike | None = None,
        encoder_attention_mask: TensorLike | None = None, use_causal_mask: bool = True,
        self_attention_cache: TensorLike | None = None,
        self_attention_cache_update_index: TensorLike | None = None,
        cross_attention_cache: TensorLike | None = None,
        cross_attention_cache_update_index: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        _check_inputs(inputs, encoder_output)
        _check_no_cache(
            self_attention_cache=self_attention_cache,
            self_attention_cache_update_index=self_attention_cache_update_index,
            cross_attention_cache=cross_attention_cache,
            cross_attention_cache_update_index=cross_attention_cache_update_index,
        )
        mask = combined_mask(
            inputs, mask, decoder_padding_mask=decoder_padding_mask,
            decoder_attention_mask=decoder_attention_mask,
        )  # fmt: skip
        source_mask = combined_mask(
            encoder_output, encoder_output_mask,
            encoder_padding_mask=encoder_padding_mask,
            encoder_attention_mask=encoder_attention_mask,
        )  # fmt: skip
        check_mask("encoder_output_mask", source_mask, inputs, encoder_output)
        states = self._attend_to_past(inputs, mask, training, use_causal_mask)
        outputs = self.cross_attention(
            self._before("cross_attention", states),
            encoder_output,
            mask=source_mask,
            training=training,
        )
        states = self._after("cross_attention", states, outputs, training)
        return self._feed_forward(states, training)

    def call_with_attention(
        self, inputs: TensorLike, encoder_output: TensorLike,
        mask: TensorLike | None = None, encoder_output_mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """As `call`; returns the weights of the attention to the source too.

        Returns:
            The output (B, T, D) and the attention weights (B, H, T, S).
        """
        _check_inputs(inputs, encoder_output)
        mask = combined_mask(inputs, mask)
        source_mask = combined_mask(encoder_output, encoder_output_mask)
        check_mask("encoder_output_mask", source_mask, inputs, encoder_output)
        states = self._attend_to_past(inputs, mask, training)
        outputs, attention_weights = self.cross_attention(
            self._before("cross_attention", states),
            encoder_output,
            mask=source_mask,
            training=training,
            return_attention_weights=True,
        )
        states = self._after("cross_attention", states, outputs, training)
        return self._feed_forward(states, training), attention_weights

    def _attend_to_past(self, inputs, mask, training, use_causal_mask=True):
        """The self-attention of each position to itself and those before it."""
        if use_causal_mask:
            mask = self._past_mask(inputs, mask)
        elif getattr(self.self_attention, "causal", False):
            raise ValueError(
                "`use_causal_mask` must be True with a `self_attention` that sees only "
                "the past by itself. Received: use_causal_mask=False, a "
                f"{type(self.self_attention).__name__} with causal=True"
            )
        outputs = self.self_attention(
            self._before("self_attention", inputs), mask=mask, training=training
        )
        return self._after("self_attention", inputs, outputs, training)

    def decoding_weights(self) -> Nest:
        """Prepares what `step` multiplies by: the projections of both attentions."""
        return {
            "self_attention": self.self_attention.decoding_weights(
                "query", "key", "value"
            ),
            "cross_attention": self.cross_attention.decoding_weights("query"),
        }

    def project_encoder_output(self, encoder_output: TensorLike) -> Nest:
        """Computes the cross-attention's keys and values once for all steps.

        Args:
            encoder_output: Float tensor (B, S, D_encoder).

        Returns:
            Keys (B, H, S, K) and values (B, H, S, Kv).
        """
        return self.cross_attention.project_key_value(encoder_output)

    def initial_cache(self, sentences: int, hypotheses: int, length: int) -> Nest:
        """Returns the empty cache of `step`; see `MultiHeadAttention.initial_cache`."""
        return self.self_attention.initial_cache(sentences, hypotheses, length)

    def resize_cache(
        self, cache: Nest, sentences: TensorLike, more: int | TensorLike
    ) -> Nest:
        """As `MultiHeadAttention.resize_cache`, of its self-attention."""
        return self.self_attention.resize_cache(cache, sentences, more)

    def step(
        self, inputs: TensorLike, cache: Nest, source: TensorLike, place: Nest,
        masks: Nest, weights: Nest,
    ) -> tuple[Tensor, Nest, Tensor]:  # fmt: skip
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

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The output is as long as the target and carries its Keras mask."""
        return carried_mask(inputs)

    def compute_output_shape(
        self, inputs_shape: Shape, encoder_output_shape: Shape
    ) -> Shape:
        return tuple(inputs_shape)

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Self:
        """Makes a layer with the weights and options of KerasHub's.

        Args:
            layer: `keras_hub.layers.TransformerDecoder`, built with a source.

        Returns:
            A built layer that gives the same outputs.

        Raises:
            TypeError: If it is no such layer.
            ValueError: If it is not built, has no attention to a source, or is
                quantised.

        Example:
            >>> theirs = keras_hub.layers.TransformerDecoder(8, num_heads=2)
            >>> theirs.build((None, None, 6), (None, None, 6))
            >>> layer = DecoderLayer.from_keras(theirs)
        """
        attentions = ("self_attention", "cross_attention")
        return taken_over(cls, layer, "TransformerDecoder", attentions)


def _check_no_cache(**caches):
    for name, given in caches.items():
        if given is not None:
            raise ValueError(
                f"`{name}` is KerasHub's; this layer decodes with `step`, on a cache "
                f"from `initial_cache`. Received: `{name}`"
            )


def _check_inputs(inputs, encoder_output):
    check_axes("inputs", inputs, "B", "T", "D")
    check_axes("encoder_output", encoder_output, "B", "S", "D")
