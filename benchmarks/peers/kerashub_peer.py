"""KerasHub: its cached encoder-decoder generation, `BartSeq2SeqLM`, random weights."""

from __future__ import annotations

import keras
import keras_hub
import numpy as np
from workload import (
    PAD_ID,
    SOURCE_LENGTH,
    START_ID,
    TARGET_LENGTH,
    Setting,
    Size,
    source_ids,
)


class Peer:
    """Generates with KerasHub's samplers; see `worker.Contender`.

    `variant` is "xla" or "graph"; the environment chooses the backend. KerasHub has no
    sinusoids and no ReLU here: positions are learned and the activation is GELU.
    """

    versions = {
        "keras-hub": keras_hub.__version__,
        "keras": keras.__version__,
        keras.backend.backend(): __import__(keras.backend.backend()).__version__,
    }

    def __init__(self, size: Size, variant: str, threads: int, folder: str):
        keras.utils.set_random_seed(3)
        backbone = keras_hub.models.BartBackbone(
            vocabulary_size=size.vocabulary_size,
            num_layers=size.num_layers,
            num_heads=size.num_heads,
            hidden_dim=size.d_model,
            intermediate_dim=size.d_ff,
            max_sequence_length=SOURCE_LENGTH + TARGET_LENGTH,
        )
        self._model = keras_hub.models.BartSeq2SeqLM(backbone=backbone)
        self._jit_compile = variant == "xla"
        self._inputs = {}

    def prepare(self, setting: Setting):
        """Compiles the search and makes the sentences, as ids."""
        samplers = keras_hub.samplers
        sampler = (
            samplers.GreedySampler()
            if setting.beam == 1
            else samplers.BeamSampler(num_beams=setting.beam)
        )
        self._model.compile(sampler=sampler, jit_compile=self._jit_compile)
        source = source_ids(setting.batch)
        start = np.full((setting.batch, 1 + TARGET_LENGTH), PAD_ID, "int32")
        start[:, 0] = START_ID
        self._inputs = {
            "encoder_token_ids": source,
            "encoder_padding_mask": np.ones_like(source),
            "decoder_token_ids": start,
            # Where it is 0, a token is to be generated.
            "decoder_padding_mask": (start == START_ID).astype("int32"),
        }

    def run(self):
        """Generates for all sentences as one batch: ids [B, 1 + T] and their mask."""
        return self._model.generate(dict(self._inputs), stop_token_ids=None)

    def result(self, output) -> list[int]:
        """Tokens decoded for each sentence, the start not counted."""
        return (output["decoder_padding_mask"].sum(axis=1) - 1).tolist()
