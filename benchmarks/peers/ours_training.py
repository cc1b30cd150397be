"""Ours: `Transformer` under `model.fit`, with the package's loss and schedule."""

from __future__ import annotations

import keras
from peers.keras_training import ADAM, KerasPeer
from training_workload import DROPOUT_RATE, LABEL_SMOOTHING
from workload import PAD_ID, Size

from keras_transformer import (
    Adam,
    MaskedCrossentropy,
    Transformer,
    TransformerConfig,
    split_batches_over_cores,
)


class Peer(KerasPeer):
    """Trains ours; see `KerasPeer`.

    As `keras-transformer train` on a few cores: each has a part of a batch.
    """

    def __init__(self, size: Size, variant: str, threads: int, folder: str):
        tensorflow = keras.backend.backend() == "tensorflow"
        if tensorflow and "xla" not in variant:
            split_batches_over_cores(threads)
        super().__init__(size, variant, threads, folder)

    def make_model(self, size: Size, longest: int) -> keras.Model:
        """Returns a `Transformer`, dropout in all three places.

        Fused attention drops no attention weights.
        """
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
                attention_dropout_rate=0.0 if self.is_fused else DROPOUT_RATE,
                activation_dropout_rate=DROPOUT_RATE,
            ),
            dtype=keras.config.dtype_policy(),
        )

    def make_optimizer(self):
        """Returns the package's Adam."""
        return Adam(**ADAM)

    def make_loss(self):
        """Returns the package's loss."""
        return MaskedCrossentropy(LABEL_SMOOTHING, PAD_ID)
