"""The Transformer: encoder, decoder, and one cached decoding step.

`Seq2Seq` has what all models from source ids to target ids share.
"""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.arguments import check_pair, integer_ids
from keras_transformer.layers.attention import recorded_attention
from keras_transformer.layers.basic import Dropout
from keras_transformer.layers.transformer_layer import DecoderLayer, EncoderLayer
from keras_transformer.masks import padding_mask
from keras_transformer.models.decoding import new_state, step_through
from keras_transformer.models.model import TokenModel
from keras_transformer.types import BasicOptions, Nest, Shape, Tensor, TensorLike


class Seq2Seq(TokenModel):
    """Base of the models from a source sequence to a target sequence of ids.

    It is called and trained as `Transformer` describes. `Generator`, `Translator` and
    exports take any such model. A subclass has a `config_class` and `Transformer`'s
    methods `encode`, `decode_states`, `attention`, `start_decoding`, `decode_step` and
    `layers_of`; and `resize_decoding` and `decoding_weights`, unless it goes through
    the layers in `decoder_layers`.
    """

    config_class = TransformerConfig
    config: TransformerConfig

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

    def call(
        self, inputs: tuple[TensorLike, TensorLike], training: bool | None = None,
        return_states: bool = False,
    ) -> Tensor:  # fmt: skip
        if isinstance(inputs, dict) and inputs.keys() == {"source", "target_in"}:
            inputs = inputs["source"], inputs["target_in"]
        check_pair("inputs", inputs, "source", "target_in")
        source = integer_ids("source", inputs[0], "B", "S")
        target_in = integer_ids("target_in", inputs[1], "B", "T")
        rows = source.shape[0], target_in.shape[0]
        if None not in rows and rows[0] != rows[1]:
            raise ValueError(
                "`source` and `target_in` must have as many rows. Received: "
                f"{rows[0]} and {rows[1]}"
            )
        encoder_output, source_mask = self.encode(source, training=training)
        states = self.decode_states(target_in, encoder_output, source_mask, training)
        # Exact training takes the states and never holds all logits.
        return states if return_states else self.logits(states)

    def input_signature(self) -> list[Any]:
        """Any batch of ids, source (B, S) and target_in (B, T)."""
        details = {"shape": (None, None), "dtype": "int32"}
        names = "source", "target_in"
        return [tuple(keras.InputSpec(name=name, **details) for name in names)]

    def compute_output_shape(self, input_shape: Any) -> Shape:
        is_named = isinstance(input_shape, dict)
        target = input_shape["target_in" if is_named else 1]
        return (*target, self.config.target_vocabulary_size)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(Seq2Seq):
    """The encoder-decoder Transformer of Vaswani et al., 2017, on token ids.

    Figure 1 of https://arxiv.org/abs/1706.03762. It trains with `model.compile` and
    `model.fit` on `((source, target_in), target_out)`, where `target_in` is
    `target_out` shifted right by the start id. Padding (`config.pad_id`) stands at the
    end of a row; no query attends to padding of the source, and no target position to a
    later one.

    To use other layers, override `make_encoder_layer`, `make_decoder_layer` or
    `make_embedding`. To decode step by step, make a state with `start_decoding` and add
    a position to it with each `decode_step`.

    Args:
        config: A `TransformerConfig`.
    Call arguments:
        inputs: A pair of integer tensors: source (B, S) and target_in (B, T).
        training: Whether dropout is applied.
        return_states: Whether to return the last states instead of the logits.
    Returns:
        Logits, a float tensor (B, T, V): row t scores the token after target_in[t]; or
        the decoder's last states, (B, T, D).

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
        # Pre-norm leaves the last layer's sum without a norm; post-norm does not.
        self.encoder_norm = self.decoder_norm = None
        if config.norm_first:
            self.encoder_norm = self._make_norm("encoder_norm")
            self.decoder_norm = self._make_norm("decoder_norm")
        # Source and target have one each, even if they share the embedding.
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
        layers, norm = self.decoder_layers, self.decoder_norm
        if part == "encoder":
            layers, norm = self.encoder_layers, self.encoder_norm
        return [*layers] if norm is None else [*layers, norm]

    def _embed(self, side, ids, training, **start):
        """Embeds ids (B, T) of the "source" or "target"; `start`: the first's place."""
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
        """Returns the encoder's output (B, S, D) of ids (B, S), and its mask.

        The mask (B, 1, S) is True where a position is not padding.
        """
        source_mask = padding_mask(source, self.config.pad_id)
        states = self._embed("source", source, training)
        for layer in self.encoder_layers:
            states = layer(states, mask=source_mask, training=training)
        if self.encoder_norm is not None:
            states = self.encoder_norm(states, training=training)
        return states, source_mask

    def decode_states(
        self, target_in: TensorLike, encoder_output: TensorLike,
        source_mask: TensorLike, training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """Returns the decoder's last states (B, T, D), for `logits`.

        Takes target_in (B, T), and what `encode` returns: the encoder's output
        (B, S, D) and its mask (B, 1, S).
        """
        # Padding ends a row, so the causal mask hides it from every real position.
        states = self._embed("target", target_in, training)
        for layer in self.decoder_layers:
            states = layer(
                states, encoder_output, encoder_output_mask=source_mask,
                training=training,
            )  # fmt: skip
        if self.decoder_norm is not None:
            states = self.decoder_norm(states, training=training)
        return states

    def attention(
        self, target_in: TensorLike, encoder_output: TensorLike,
        source_mask: TensorLike, layer: int = -1,
    ) -> Tensor:  # fmt: skip
        """Returns how a decoder layer, such as the last, attends to the source.

        Takes target_in (B, T) and what `encode` returns. In the result (B, H, T, S),
        row t is the attention with which the token after target_in[t] is chosen.
        """
        with recorded_attention() as record:  # {attention layer: [weights of a call]}
            self.decode_states(target_in, encoder_output, source_mask, training=False)
        return record[self.decoder_layers[layer].cross_attention][0]

    def start_decoding(
        self, source: TensorLike, length: int, beam_size: int = 1
    ) -> Nest:
        """Encodes the source (B, S) and makes the state of `decode_step`.

        It has room for L = `length` positions of N = `beam_size` hypotheses of each
        sentence. The state is a dictionary: "index", "caches" and "ancestors", as
        `models.decoding` has them; "sources", keys and values in each layer; and
        "source_mask" (B, 1, 1, S).

        Raises:
            ValueError: If learned positions are fewer than `length`.
        """
        state = new_state(self, ops.shape(source)[0], beam_size, length)
        encoder_output, source_mask = self.encode(source, training=False)
        is_token = ops.expand_dims(ops.swapaxes(source_mask, 1, 2), 1)  # (B, 1, S, 1)
        sources = []
        for layer in self.decoder_layers:
            keys, values = layer.keys_and_values(encoder_output)
            # A step adds its mask to the scores, so that a source without any token
            # gets the mean of its values: zeros, as in a call.
            sources.append((keys, ops.where(is_token, values, 0.0)))
        mask = ops.expand_dims(source_mask, 1)
        return state | {"sources": tuple(sources), "source_mask": mask}

    def decode_step(
        self, ids: TensorLike, parents: TensorLike, state: Nest,
        weights: Nest = None,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
        """Scores the next token of each hypothesis; equals a call at that position.

        Args:
            ids: Integer tensor (R,), the last token of each of the R = B * N rows.
            parents: Integer tensor (B, N), the hypothesis that each row continues.
            state: Of `start_decoding` or the step before. It must not be used again,
                because a TensorFlow graph writes to its caches.
            weights: `decoding_weights()`, computed here if not given.

        Returns:
            Logits (R, V) and the new state.
        """
        weights = self.decoding_weights() if weights is None else weights
        x = self._embed("target", ids[:, None], training=False, start=state["index"])
        return step_through(self, self.decoder_norm, x, parents, state, weights)
