"""KerasHub: its Transformer layers, composed as its guides do, under `model.fit`."""

from __future__ import annotations

import keras
import keras_hub
from peers.keras_training import KerasPeer
from training_workload import DROPOUT_RATE
from workload import Size


class Peer(KerasPeer):
    """Trains a model of KerasHub's layers; see `KerasPeer`.

    One embedding with learned positions serves source, target and output. No dropout
    inside the feed-forward network: the layers have none there.
    """

    versions = KerasPeer.versions | {"keras-hub": keras_hub.__version__}

    def make_model(self, size: Size, longest: int) -> keras.Model:
        """Returns the functional model."""
        layers = keras_hub.layers
        embedding = layers.TokenAndPositionEmbedding(
            size.vocabulary_size, longest, size.d_model, mask_zero=True
        )
        options = {
            "intermediate_dim": size.d_ff,
            "num_heads": size.num_heads,
            "dropout": DROPOUT_RATE,
        }
        source = keras.Input((None,), dtype="int32")
        target_in = keras.Input((None,), dtype="int32")
        encoded = keras.layers.Dropout(DROPOUT_RATE)(embedding(source))
        for _ in range(size.num_layers):
            encoded = layers.TransformerEncoder(**options)(encoded)
        states = keras.layers.Dropout(DROPOUT_RATE)(embedding(target_in))
        for _ in range(size.num_layers):
            states = layers.TransformerDecoder(**options)(states, encoded)
        logits = embedding.token_embedding(states, reverse=True)
        return keras.Model((source, target_in), logits)
