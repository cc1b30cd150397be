"""Ours: `Transformer` under `model.fit`, with the package's loss and schedule."""

from __future__ import annotations

import keras
from peers.keras_training import KerasPeer
from training_workload import DROPOUT_RATE, LABEL_SMOOTHING
from workload import PAD_ID, Size

from keras_transformer import MaskedCrossentropy, Transformer, TransformerConfig


class Peer(KerasPeer):
    """Trains ours; see `KerasPeer`."""

    def make_model(self, size: Size, longest: int) -> keras.Model:
        """Returns a `Transformer`, dropout in all three places."""
        return Transformer(
            TransformerConfig(
                source_vocabulary_size=size.vocabulary_size,
                target_vocabulary_size=size.vocabulary_size,
                num_encoder_layers=size.num_layers,
                num_decoder_layers=size.num_layers,
                d_model=size.d_model,
                d_ff=size.d_ff,
                num_heads=size.num_heads,
                dropout_rate=DROPOUT_RATE,
                attention_dropout_rate=DROPOUT_RATE,
                activation_dropout_rate=DROPOUT_RATE,
            ),
            dtype=keras.config.dtype_policy(),
        )

    def make_loss(self):
        """Returns the package's loss."""
        return MaskedCrossentropy(LABEL_SMOOTHING, PAD_ID)
