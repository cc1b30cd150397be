"""The Transformer: encoder, decoder, and one cached decoding step."""

from __future__ import annotations

from typing import Unpack

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.decoding import of_parents
from keras_transformer.kernels.few_passes import prepare_mask
from keras_transformer.layers.basic import Dropout, LayerNormalization
from keras_transformer.layers.embedding import PositionalEmbedding
from keras_transformer.layers.transformer_layer import DecoderLayer, EncoderLayer
from keras_transformer.masks import padding_mask
from keras_transformer.models.decoding import (
    check_length,
    new_state,
    past_of,
    resized_state,
)
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.types import BasicOptions, Nest, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(Seq2Seq):
    """The encoder-decoder Transformer of Vaswani et al., 2017.

    Figure 1 of https://arxiv.org/abs/1706.03762, on token ids. It trains with
    `model.compile` and `model.fit` on `((source, target_in), target_out)`, where
    `target_in` is `target_out` shifted right by the start id.

    Padding (`config.pad_id`) stands at the end of a row; no query attends to padding of
    the source, and no target position to a later one.

    To use other layers, override `make_encoder_layer` or `make_decoder_layer`.

    Targets are decoded step by step with `start_decoding`, which makes a state,
    `decode_step`, which adds one position to it, and `resize_decoding`, which changes
    its size.

    Args:
        config: A `TransformerConfig`.
    Call arguments:
        inputs: A pair of integer tensors: source (B, S) and target_in (B, T).
        training: Whether dropout is applied.
        return_states: Whether to return the last states instead of the logits.
    Returns:
        Logits, a float tensor (B, T, V): row t scores the token after target_in[t]; or
        the decoder's last states, (B, T, D).
    Raises:
        TypeError: If `config` is not a `TransformerConfig`.

    Example:
        >>> config = TransformerConfig.preset(
        ...     "tiny", source_vocabulary_size=50, target_vocabulary_size=50
        ... )
        >>> model = Transformer(config)
        >>> source, target_in = np.array([[5, 6, 2]]), np.array([[1, 7]])
        >>> model((source, target_in)).shape  # (1, 2, 50)
    """

    config_class = TransformerConfig
    config: TransformerConfig

    def __init__(
        self, config: TransformerConfig, **kwargs: Unpack[BasicOptions]
    ) -> None:
        super().__init__(config, **kwargs)
        self.encoder_layers = [
            self.make_encoder_layer(f"encoder_layer_{i}")
            for i in range(config.num_encoder_layers)
        ]
        self.decoder_layers = [
            self.make_decoder_layer(f"decoder_layer_{i}")
            for i in range(config.num_decoder_layers)
        ]
        # Pre-norm leaves the last layer's sum without a norm; post-norm does not.
        self.encoder_norm, self.decoder_norm = self._make_norms(
            config.norm_first, "encoder_norm", "decoder_norm"
        )
        # Encoder and decoder have one each, even if they share the embedding.
        self.source_embedding_norm, self.target_embedding_norm = self._make_norms(
            config.normalize_embeddings,
            "source_embedding_norm",
            "target_embedding_norm",
        )
        if config.normalize_embeddings:
            self.embedding_dropout = Dropout(
                config.dropout_rate, dtype=self.dtype_policy, name="embedding_dropout"
            )
        # Every size is known, so the weights exist from the start.
        self.build()

    def make_encoder_layer(self, name: str) -> keras.layers.Layer:
        """Returns an encoder layer called `name`; override to use another one."""
        return EncoderLayer(
            **self.config.layer_options(), dtype=self.dtype_policy, name=name
        )

    def make_decoder_layer(self, name: str) -> keras.layers.Layer:
        """Returns a decoder layer called `name`; override to use another one."""
        options = self.config.layer_options()
        if self.config.decoder_self_attention == "ssru":
            options["attention"] = "ssru"
        return DecoderLayer(**options, dtype=self.dtype_policy, name=name)

    def make_embedding(self, name: str, vocabulary_size: int) -> keras.layers.Layer:
        """Returns an embedding called `name`; override to use another one.

        With `config.normalize_embeddings` the norm and the dropout are not its own.
        """
        config = self.config
        return PositionalEmbedding(
            vocabulary_size=vocabulary_size,
            d_model=config.d_model,
            dropout_rate=0.0 if config.normalize_embeddings else config.dropout_rate,
            positions="none" if config.relative_positions else config.positions,
            max_length=config.max_positions if config.positions == "learned" else None,
            dtype=self.dtype_policy,
            name=name,
        )

    def _make_norms(self, wanted, *names):
        """Returns a norm of each name, or `None` for each if none is wanted."""
        if not wanted:
            return [None] * len(names)
        options = {
            "epsilon": self.config.layer_norm_epsilon,
            "dtype": self.dtype_policy,
        }
        return [LayerNormalization(**options, name=name) for name in names]

    def build(self, input_shape: tuple[Shape, Shape] | None = None) -> None:
        config = self.config
        states = (None, None, config.d_model)
        self.build_embeddings()
        for layer in self.encoder_layers:
            layer.build(states)
        for layer in self.decoder_layers:
            layer.build(states, states)
        if config.norm_first:
            self.encoder_norm.build(states)
            self.decoder_norm.build(states)
        if config.normalize_embeddings:
            self.source_embedding_norm.build(states)
            self.target_embedding_norm.build(states)
        self.build_output_head()
        self.built = True

    def layers_of(self, part: str) -> list[keras.layers.Layer]:
        """Returns the layers of the "encoder" or "decoder", without the embedding."""
        layers, norm = {
            "encoder": (self.encoder_layers, self.encoder_norm),
            "decoder": (self.decoder_layers, self.decoder_norm),
        }[part]
        return [*layers] if norm is None else [*layers, norm]

    def _embed(self, side, ids, training, **start):
        """Embeds ids (B, T) of the "source" or the "target", with positions."""
        embedding = getattr(self, f"{side}_embedding")
        states = embedding(ids, training=training, **start)
        norm = getattr(self, f"{side}_embedding_norm")
        if norm is None:
            return states
        return self.embedding_dropout(norm(states), training=training)

    def encode(
        self, source: TensorLike, training: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encodes source sentences.

        Args:
            source: Integer tensor (B, S).
            training: Whether dropout is applied.

        Returns:
            The encoder's output (B, S, D) and its boolean mask (B, 1, S), True where a
            position is not padding, and without `source_end` not the end either.
        """
        source_mask = self.source_mask(source)
        states = self._embed("source", source, training)
        for layer in self.encoder_layers:
            states = layer(states, mask=source_mask, training=training)
        if self.encoder_norm is not None:
            states = self.encoder_norm(states)
        return states, source_mask

    def source_mask(self, source: TensorLike) -> Tensor:
        """Returns where the source may be attended to; override for other sources.

        Args:
            source: Integer tensor (B, S).

        Returns:
            Boolean tensor (B, 1, S), as `encode` returns it.
        """
        source_mask = padding_mask(source, self.config.pad_id)
        if self.config.source_end:
            return source_mask
        is_end = ops.equal(ops.expand_dims(source, 1), self.config.end_id)
        return ops.logical_and(source_mask, ops.logical_not(is_end))

    def decode_states(
        self, target_in: TensorLike, encoder_output: TensorLike,
        source_mask: TensorLike, training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """As `decode`, without the last product: states (B, T, D), for `logits`."""
        # Padding ends a row, so the causal mask hides it from every real position.
        states = self._embed("target", target_in, training)
        for layer in self.decoder_layers:
            states = layer(
                states,
                encoder_output,
                encoder_output_mask=source_mask,
                training=training,
            )
        if self.decoder_norm is not None:
            states = self.decoder_norm(states)
        return states

    def attention(
        self, target_in: TensorLike, encoder_output: TensorLike,
        source_mask: TensorLike, layer: int = -1,
    ) -> Tensor:  # fmt: skip
        """Returns how a decoder layer attends to the source.

        Args:
            target_in: Integer tensor (B, T).
            encoder_output: Float tensor (B, S, D), from `encode`.
            source_mask: Boolean tensor (B, 1, S), from `encode`.
            layer: Decoder layer, counted from 0, or from -1 backwards.

        Returns:
            Attention weights (B, H, T, S): row t is the attention with which the token
            after target_in[t] is chosen.
        """
        states = self._embed("target", target_in, training=False)
        count = range(len(self.decoder_layers))[layer] + 1
        for decoder_layer in self.decoder_layers[:count]:
            states, attention_weights = decoder_layer.call_with_attention(
                states, encoder_output, encoder_output_mask=source_mask, training=False
            )
        return attention_weights

    def start_decoding(
        self, source: TensorLike, length: int, beam_size: int = 1,
        coverage: bool = False,
    ) -> Nest:  # fmt: skip
        """Encodes the source and makes the state of `decode_step`.

        Args:
            source: Integer tensor (B, S).
            length: Most target positions that will be decoded, L (tokens).
            beam_size: Hypotheses of a sentence, N.
            coverage: Whether to sum up the attention to the source, for
                `coverage_penalty`.

        Returns:
            The state, a dictionary: that of `models.decoding_state`; "sources", keys
            and values of the source in each layer; "source_mask" (B, 1, 1, S); with
            `coverage`, "coverage" (B, N, S).

        Raises:
            ValueError: If learned positions are fewer than `length`.
        """
        check_length(self.config, length)
        encoder_output, source_mask = self.encode(source, training=False)
        is_token = ops.expand_dims(ops.swapaxes(source_mask, 1, 2), 1)  # (B, 1, S, 1)
        sources = []
        for layer in self.decoder_layers:
            keys, values = layer.project_encoder_output(encoder_output)
            # A source without any token then gives zeros, as in the attention layer.
            sources.append((keys, ops.where(is_token, values, 0.0)))
        batch, _, source_length = ops.shape(source_mask)
        state = new_state(self.decoder_layers, batch, beam_size, length) | {
            "sources": tuple(sources),
            "source_mask": ops.expand_dims(source_mask, 1),
        }
        if coverage:
            state["coverage"] = ops.zeros((batch, beam_size, source_length))
        return state

    def decoding_weights(self) -> Nest:
        """Prepares the matrices of `decode_step`, some of which are joined for speed.

        An export keeps them, laid out for decoding; without them every decoding makes
        them anew.
        """
        return {
            "output": self.output_head.decoding_weights(self.compute_dtype),
            "layers": tuple(layer.decoding_weights() for layer in self.decoder_layers),
        }

    def resize_decoding(
        self, state: Nest, sentences: TensorLike, length: int | TensorLike
    ) -> Nest:
        """Returns the state of some sentences, with room for more positions.

        Args:
            state: As `start_decoding` or `decode_step` returned it.
            sentences: Integer tensor (B',), places of the sentences to keep.
            length: Positions, an integer or a scalar tensor, at least as many as now.

        Returns:
            The state of B' sentences.
        """
        return resized_state(state, self.decoder_layers, sentences, length)

    def decode_step(
        self, ids: TensorLike, parents: TensorLike | None, state: Nest,
        weights: Nest = None,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
        """Scores the next token of each hypothesis; equals `decode` at that position.

        Args:
            ids: Integer tensor (R,), the last token of each of the R = B * N rows.
            parents: Integer tensor (B, N), the hypothesis of the step before that each
                row continues.
            state: As `start_decoding` or the step before returned it; not to be used
                again.
            weights: `decoding_weights()`, computed here if not given.

        Returns:
            Logits (R, V) and the new state.
        """
        weights = self.decoding_weights() if weights is None else weights
        past = past_of(state, parents, self.compute_dtype)
        masks = past.mask, prepare_mask(state["source_mask"], self.compute_dtype)
        index, d_model = state["index"], self.config.d_model
        states = self._embed("target", ids[:, None], training=False, start=index)
        states = ops.reshape(states, (-1, parents.shape[1], d_model))
        caches = []
        for layer, cache, source, place, layer_weights in zip(
            self.decoder_layers,
            state["caches"],
            state["sources"],
            past.places,
            weights["layers"],
            strict=True,
        ):
            states, cache, attention_weights = layer.step(
                states, cache, source, place, masks, layer_weights
            )
            caches.append(cache)
        if self.decoder_norm is not None:
            states = self.decoder_norm(states)
        rows = ops.reshape(states, (-1, d_model))
        logits = self.output_head.multiply(rows, weights["output"])
        state = dict(
            state, index=index + 1, ancestors=past.ancestors, caches=tuple(caches)
        )
        if "coverage" in state:
            attention_weights = ops.cast(attention_weights, "float32")
            before = of_parents(state["coverage"], parents)
            state["coverage"] = before + ops.mean(attention_weights, axis=1)
        return logits, state

    def coverage(self, state: Nest) -> tuple[Tensor, Tensor]:
        """Returns a state's attention summed up (B, N, S) and its mask (B, 1, S)."""
        return state["coverage"], state["source_mask"][:, :, 0]
