"""CTranslate2: a model of random weights built with its own specification classes."""

from __future__ import annotations

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec
from workload import (
    SOURCE_LENGTH,
    SPECIAL_PIECES,
    TARGET_LENGTH,
    Setting,
    Size,
    source_ids,
    word,
)


class Peer:
    """Translates with `ctranslate2.Translator`; see `worker.Contender`.

    The threads of one batch, and all else as by default. `variant` is the type that
    weights are kept and multiplied in: float32 or int8.
    """

    versions = {"ctranslate2": ctranslate2.__version__}

    def __init__(self, size: Size, variant: str, threads: int, folder: str):
        write_model(size, variant, folder)
        self._translator = ctranslate2.Translator(
            folder, device="cpu", compute_type=variant, intra_threads=threads
        )
        self._pieces = _pieces(size)
        self._source, self._beam = [], 1

    def prepare(self, setting: Setting):
        """Makes the sentences, as pieces."""
        pieces = self._pieces
        self._source = [[pieces[i] for i in row] for row in source_ids(setting.batch)]
        self._beam = setting.beam

    def run(self):
        """Translates all sentences as one batch."""
        return self._translator.translate_batch(
            self._source,
            beam_size=self._beam,
            min_decoding_length=TARGET_LENGTH,
            max_decoding_length=TARGET_LENGTH,
        )

    def result(self, output) -> list[int]:
        """Tokens decoded for each sentence."""
        return [len(result.hypotheses[0]) for result in output]


def write_model(size: Size, quantization: str, folder: str):
    """Writes a Transformer of random weights: post-norm, sinusoids, one embedding.

    Like ours it has no biases in the attention, nor on the output.

    Args:
        size: Sizes of the Transformer.
        quantization: Type of the weights: float32 or int8.
        folder: Directory to write to.
    """
    spec = TransformerSpec.from_config(
        size.num_layers, size.num_heads, pre_norm=False, activation=_RELU
    )
    random = np.random.default_rng(seed=5)
    d_model = size.d_model
    embedding = _normal(random, size.vocabulary_size, d_model)
    spec.encoder.embeddings[0].weight = embedding
    spec.decoder.embeddings.weight = embedding
    spec.decoder.projection.weight = embedding
    for side in (spec.encoder, spec.decoder):
        side.position_encodings.encodings = _sinusoids(d_model)
        for layer in side.layer:
            _fill_attention(layer.self_attention, random, (3, 1), d_model)
            if hasattr(layer, "attention"):
                _fill_attention(layer.attention, random, (1, 2, 1), d_model)
            _fill_feed_forward(layer.ffn, random, size)
    pieces = _pieces(size)
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(folder)


_RELU = ctranslate2.specs.common_spec.Activation.RELU


def _fill_attention(spec, random, widths, d_model):
    """Fills fused projections: queries, keys and values side by side, and output."""
    for linear, width in zip(spec.linear, widths, strict=True):
        linear.weight = _normal(random, width * d_model, d_model)
    _fill_norm(spec.layer_norm, d_model)


def _fill_feed_forward(spec, random, size):
    spec.linear_0.weight = _normal(random, size.d_ff, size.d_model)
    spec.linear_0.bias = np.zeros(size.d_ff, np.float32)
    spec.linear_1.weight = _normal(random, size.d_model, size.d_ff)
    spec.linear_1.bias = np.zeros(size.d_model, np.float32)
    _fill_norm(spec.layer_norm, size.d_model)


def _fill_norm(spec, d_model):
    spec.gamma = np.ones(d_model, np.float32)
    spec.beta = np.zeros(d_model, np.float32)


def _normal(random, outputs, inputs):
    scale = np.float32(inputs**-0.5)
    return random.standard_normal((outputs, inputs), np.float32) * scale


def _sinusoids(d_model):
    """Position vectors [positions, D], sines first; their order costs no time."""
    positions = np.arange(SOURCE_LENGTH + TARGET_LENGTH)[:, None]
    angles = positions / 10000 ** (np.arange(0, d_model, 2) / d_model)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _pieces(size):
    words = map(word, range(len(SPECIAL_PIECES), size.vocabulary_size))
    return [*SPECIAL_PIECES, *words]
