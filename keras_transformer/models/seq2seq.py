"""What models from source ids to target ids share, and what each must define."""

from __future__ import annotations

from typing import Any, Unpack

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.arguments import check_pair, integer_ids
from keras_transformer.models.model import TokenModel
from keras_transformer.types import BasicOptions, Shape, Tensor, TensorLike


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
        ids = keras.InputSpec(shape=(None, None), dtype="int32")
        return [(ids, ids)]

    def compute_output_shape(self, input_shape: tuple[Shape, Shape]) -> Shape:
        return (*input_shape[1], self.config.target_vocabulary_size)
