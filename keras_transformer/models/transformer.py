"""The Transformer, and the base of models from source ids to target ids."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config.options import check_number
from keras_transformer.models.token_model import TokenModel
from keras_transformer.nn.arguments import described, integer_ids
from keras_transformer.nn.layers.attention import recorded_attention
from keras_transformer.nn.layers.dropout import Dropout
from keras_transformer.nn.layers.transformer_layer import DecoderLayer, EncoderLayer
from keras_transformer.nn.masks import padding_mask
from keras_transformer.types import BasicOptions, Nest, Shape, Tensor, TensorLike

_PAIR = "`inputs` must be a pair, (source, target_in)"


class Seq2Seq(TokenModel):
    """Base of models from source ids to target ids.

    It is called and trained like `Transformer`; `Generator`, `Translator` and exports
    accept it. A subclass has a `config_class`, `layers_of`, and what `Searchable` asks
    for and a `TokenModel` has not.
    """

    config_class = TransformerConfig
    config: TransformerConfig
    trains_without_logits = True
    has_attention = True

    def __init__(
        self, config: TransformerConfig, **kwargs: Unpack[BasicOptions]
    ) -> None:
        super().__init__(config, **kwargs)
        self.target_embedding = self.make_embedding(
            "target_embedding", config.target_vocabulary_size
        )
        self.source_embedding = self.target_embedding
        if config.tied_embeddings != "three-way":  # one matrix for both and the output
            self.source_embedding = self.make_embedding(
                "source_embedding", config.source_vocabulary_size
            )

    def __call__(self, inputs: Any, *others: Any, **options: Any) -> Any:
        if others:  # The second would be `training`.
            raise TypeError(f"{_PAIR}. Received: {1 + len(others)} arguments")
        return keras.Model.__call__(self, inputs, **options)

    def call(
        self,
        inputs: tuple[TensorLike, TensorLike],
        training: bool | None = None,
        return_states: bool = False,
    ) -> Tensor:
        source, target_in = _pair_of(inputs)
        source = integer_ids("source", source, "B", "S")
        target_in = integer_ids("target_in", target_in, "B", "T")
        rows = source.shape[0], target_in.shape[0]
        if None not in rows and rows[0] != rows[1]:
            raise ValueError(
                "`source` and `target_in` must have the same number of rows. Received: "
                f"{rows[0]} and {rows[1]}"
            )
        encoder_output, source_mask = self.encode(source, training=training)
        states = self.decode_states(target_in, encoder_output, source_mask, training)
        return states if return_states else self.masked_logits(states, target_in)

    def input_signature(self) -> list[Any]:
        """Returns the `InputSpec` of source (B, S) and target_in (B, T)."""
        return [
            tuple(
                keras.InputSpec(shape=(None, None), dtype="int32", name=name)
                for name in ("source", "target_in")
            )
        ]

    def compute_output_shape(self, input_shape: Any) -> Shape:
        _, target = _pair_of(input_shape)
        if not isinstance(target, (tuple, list)):
            raise TypeError(f"{_PAIR}. Received: one tensor of shape {input_shape}")
        return (*target, self.config.target_vocabulary_size)


def _pair_of(inputs):
    """Returns source and target_in, which may be given by name."""
    if isinstance(inputs, dict) and inputs.keys() == {"source", "target_in"}:
        return inputs["source"], inputs["target_in"]
    if not isinstance(inputs, (tuple, list)) or len(inputs) != 2:
        raise TypeError(f"{_PAIR}. Received: {described(inputs)}")
    return inputs


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(Seq2Seq):
    """The encoder-decoder Transformer of Vaswani et al., 2017, on token ids.

    Figure 1 of https://arxiv.org/abs/1706.03762. Train it with `model.fit` on
    `((source, target_in), target_out)`, where `target_in` is `target_out` shifted right
    by the start id. Padding (`config.pad_id`) ends a row and is never attended to.

    Override `make_encoder_layer`, `make_decoder_layer` or `make_embedding` to use other
    layers. `start_decoding` and `decode_step` decode one position at a time.

    Args:
        config: A `TransformerConfig`.
    Call arguments:
        inputs: Integer tensors (source, target_in), (B, S) and (B, T).
        return_states: Whether to return the last states instead of logits.
    Returns:
        Logits, a float tensor (B, T, V), row t for the token after target_in[t]; or the
        last states (B, T, D).

    Example:
        >>> config = TransformerConfig.preset(
        ...     "tiny", source_vocabulary_size=50, target_vocabulary_size=50
        ... )
        >>> model = Transformer(config)
        >>> source, target_in = np.array([[5, 6, 2]]), np.array([[1, 7]])
        >>> model((source, target_in)).shape  # (1, 2, 50)
    """

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
        # Pre-norm does not normalise the last layer's sum.
        self.encoder_norm = self.decoder_norm = None
        if config.norm_first:
            self.encoder_norm = self._make_norm("encoder_norm")
            self.decoder_norm = self._make_norm("decoder_norm")
        self.embedding_norms = {}
        if config.normalize_embeddings:
            self.embedding_norms = {
                side: self._make_norm(f"{side}_embedding_norm")
                for side in ("source", "target")
            }
            self.embedding_dropout = Dropout(
                config.dropout_rate, dtype=self.dtype_policy, name="embedding_dropout"
            )
        # Every size is known, so the weights exist from the start.
        self.build()

    def make_encoder_layer(self, name: str) -> keras.layers.Layer:
        """Returns the encoder layer `name`; override to replace it."""
        return EncoderLayer(
            **self.config.layer_options(), dtype=self.dtype_policy, name=name
        )

    def make_decoder_layer(self, name: str) -> keras.layers.Layer:
        """Returns the decoder layer `name`; override to replace it."""
        options = self.config.layer_options()
        kind = self.config.decoder_self_attention
        return DecoderLayer(
            **options, attention=kind, dtype=self.dtype_policy, name=name
        )

    def build(self, input_shape: tuple[Shape, Shape] | None = None) -> None:
        config = self.config
        states = (None, None, config.d_model)
        self.target_embedding.build((None, None))
        if self.source_embedding is not self.target_embedding:
            self.source_embedding.build((None, None))
        for layer in self.decoder_layers:
            layer.build(states, states)
        norms = self.encoder_norm, self.decoder_norm, *self.embedding_norms.values()
        for part in (*self.encoder_layers, *norms):
            if part is not None:
                part.build(states)
        tied = None if config.tied_embeddings == "none" else self.target_embedding
        self.make_output(tied, config.target_vocabulary_size, config.output_bias)
        self.built = True

    def layers_of(self, part: str) -> list[keras.layers.Layer]:
        """Returns the layers of the "encoder" or "decoder", without the embedding."""
        layers = self.decoder_layers
        norm = self.decoder_norm
        if part == "encoder":
            layers = self.encoder_layers
            norm = self.encoder_norm
        return [*layers] if norm is None else [*layers, norm]

    def _embed(self, side, ids, training, **start):
        """Embeds ids (B, T) of a side, the first at position `start`."""
        is_source = side == "source"
        embedding = self.source_embedding if is_source else self.target_embedding
        states = embedding(ids, training=training, **start)
        if not self.embedding_norms:  # Else the dropout comes after the norm.
            return states
        states = self.embedding_norms[side](states, training=training)
        return self.embedding_dropout(states, training=training)

    def encode(
        self, source: TensorLike, training: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the encoder's output (B, S, D) and the padding mask (B, 1, S)."""
        states = self._embed("source", source, training)
        source_mask = padding_mask(source, self.config.pad_id)
        for layer in self.encoder_layers:
            states = layer(states, mask=source_mask, training=training)
        if self.encoder_norm is not None:
            states = self.encoder_norm(states, training=training)
        return states, source_mask

    def decode_states(
        self,
        target_in: TensorLike,
        encoder_output: TensorLike,
        source_mask: TensorLike,
        training: bool | None = None,
    ) -> Tensor:
        """Returns the last states (B, T, D), from target_in (B, T) and `encode`."""
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
            states = self.decoder_norm(states, training=training)
        return states

    def attention(
        self,
        target_in: TensorLike,
        encoder_output: TensorLike,
        source_mask: TensorLike,
        layer: int = -1,
    ) -> Tensor:
        """Returns the attention to the source in a decoder layer, (B, H, T, S).

        Row t is the attention that predicts the token after target_in[t]. Takes
        target_in (B, T) and the results of `encode`.
        """
        count = len(self.decoder_layers)
        check_number("layer", layer, int, minimum=-count, maximum=count - 1)
        with recorded_attention() as record:
            self.decode_states(target_in, encoder_output, source_mask, training=False)
        return record[self.decoder_layers[layer].cross_attention][0]

    def start_decoding(
        self, source: TensorLike, length: int, beam_size: int = 1
    ) -> Nest:
        """Encodes the source (B, S) and returns the state of `decode_step`.

        It has room for `length` positions of N = `beam_size` hypotheses per sentence.
        To the state of a `TokenModel` it adds "sources", the keys and values in each
        layer, and "source_mask" (B, 1, 1, S).

        Raises:
            ValueError: If there are fewer learned positions than `length`.
        """
        encoder_output, source_mask = self.encode(source, training=False)
        state = self._new_state(ops.shape(source)[0], beam_size, length)
        is_token = ops.expand_dims(ops.swapaxes(source_mask, 1, 2), 1)  # (B, 1, S, 1)
        sources = []
        for layer in self.decoder_layers:
            keys, values = layer.keys_and_values(encoder_output)
            # In a step a fully masked source gets the mean of its values: zeros.
            sources.append((keys, ops.where(is_token, values, 0.0)))
        mask = ops.expand_dims(source_mask, 1)
        return state | {"sources": tuple(sources), "source_mask": mask}

    def decode_step(
        self,
        ids: TensorLike,
        parents: TensorLike,
        state: Nest,
        weights: Nest = None,
    ) -> tuple[Tensor, Nest]:
        """Scores the next token of each hypothesis, as a call does.

        Args:
            ids: Integer tensor (R,), the last token of each of the R = B * N rows.
            parents: Integer tensor (B, N), the hypothesis that each row continues.
            state: From `start_decoding` or the last step; not to be used again.
            weights: `decoding_weights()`; default computed here.

        Returns:
            Logits (R, V) and the new state.
        """
        x = self._embed("target", ids[:, None], training=False, start=state["index"])
        return self._step_through(self.decoder_norm, x, parents, state, weights)
