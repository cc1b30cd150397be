"""The smallest corpus, translator and training run; `conftest.py` has their files."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
from rich.console import Console

import keras_transformer as kt
from keras_transformer.nn.layers import Dropout
from keras_transformer.training import train
from keras_transformer.training.state import State, StateFiles
from tests.nn.layers.reference_weights import randomise

ROOT = Path(__file__).parents[1]
_SUBJECTS = {"man": "Mann", "dog": "Hund", "bird": "Vogel", "bear": "Bär"}
_ADJECTIVES = {"old": "alte", "big": "große", "young": "junge", "good": "gute"}
_VERBS = {"sleeps": "schläft", "runs": "rennt", "sings": "singt"}
PAIRS = [
    (f"the {adjective} {noun} {verb}.", f"der {ADJECTIVE} {NOUN} {VERB}.")
    for (adjective, ADJECTIVE), (noun, NOUN), (verb, VERB) in itertools.product(
        _ADJECTIVES.items(), _SUBJECTS.items(), _VERBS.items()
    )
]
TRAIN, VALID = PAIRS[:40], PAIRS[40:]

CONFIG = kt.RunConfig(
    model=kt.TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2
    ),
    tokenizer=kt.TokenizerConfig(vocabulary_size=308),
    data=kt.DataConfig(batch_tokens=256),
    training=kt.TrainingConfig(
        epochs=3, warmup_steps=10, average_checkpoints=2, robust=False
    ),
    decoding=kt.DecodingConfig(beam_size=2, max_extra_length=3, max_source_length=32),
)
SEED = 141  # No translation loops.
DOUBT_STEPS = [[-10.0, 0.5], [-9.0, 0.375], [-5.0, 0.125]]


def write_pairs(path: Path, pairs=TRAIN) -> Path:
    """Writes pairs as lines of source, tab, target."""
    lines = (f"{source}\t{target}\n" for source, target in pairs)
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    return path


@functools.cache
def tokenizers() -> kt.TokenizerPair:
    """A joint vocabulary of 308 pieces: spans have eight."""
    return kt.learn_tokenizers(PAIRS, CONFIG.tokenizer)


@functools.cache
def model(seed: int = SEED, **options) -> kt.Transformer:
    """A Transformer with random weights, decided enough to end some sentences."""
    size = tokenizers().source.vocabulary_size
    sizes = {"source_vocabulary_size": size, "target_vocabulary_size": size}
    # A tied output matrix would favour repeating the last token.
    untied = CONFIG.model.replace(tied_embeddings="none", **sizes, **options)
    transformer = kt.Transformer(untied)
    randomise(transformer, np.random.default_rng(seed))
    scale = np.full(size, 3.0, "float32")
    scale[untied.end_id] = 9.0
    scale[4:268] = 0.0  # Spans, and bytes, which seldom are good UTF-8 together.
    kernel = transformer.output_dense.kernel
    kernel.assign(kernel.numpy() * scale)
    return transformer


@functools.cache
def translator(beam_size: int = 3, seed: int = SEED) -> kt.Translator:
    """A translator of random weights: its words make no sense, but they differ."""
    return kt.Translator(
        model(seed),
        tokenizers(),
        CONFIG.decoding.replace(beam_size=beam_size, doubt_steps=DOUBT_STEPS),
    )


def toy(config: kt.TransformerConfig) -> keras.Model:
    """A model that is traced in a moment, with dropout, where a run is what is tested.

    Each target word sees the mean of the source.
    """
    ids = [keras.Input((None,), dtype="int32") for _ in range(2)]
    table = keras.layers.Embedding(config.source_vocabulary_size, 8, mask_zero=True)
    mean = keras.layers.GlobalAveragePooling1D(keepdims=True)(table(ids[0]))
    target = keras.layers.Embedding(config.target_vocabulary_size, 8)(ids[1])
    states = Dropout(0.2)(target + mean)
    return keras.Model(ids, keras.layers.Dense(config.target_vocabulary_size)(states))


class Killed(Exception):
    """Stands for the end of the process."""


class KillAfter(keras.callbacks.Callback):
    """Ends a run after some batches, before its state is saved; 0 traces nothing."""

    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_begin(self, logs=None):
        if self.left == 0:
            raise Killed

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Killed


def run(
    directory,
    *callbacks,
    text=TRAIN,
    validation=None,
    screen=None,
    given=None,
    **options,
) -> kt.Translator:
    """Trains in a directory with options of `CONFIG` changed, by default silently.

    `screen` gets the lines, `given` holds other arguments of `train`.
    """
    console = Console(file=screen, width=200, quiet=screen is None)
    config = CONFIG.with_options(**options)
    return train(
        text,
        directory,
        config,
        validation,
        console,
        callbacks=callbacks,
        **(given or {}),
    )


def run_toy(directory, *callbacks, given=None, **options) -> kt.Translator:
    """As `run`, with the model `toy`."""
    given = {"model": toy} | (given or {})
    return run(directory, *callbacks, given=given, **options)


def last_state(directory) -> State:
    """The newest state of a run."""
    return StateFiles(Path(directory) / "states").latest(Console(quiet=True))


def in_a_process(*words, env=None, **options) -> subprocess.CompletedProcess:
    """Runs Python as a shell does, where TensorFlow prints what it likes to."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    command = [sys.executable, *map(str, words)]
    given = {"capture_output": True, "encoding": "utf-8", "env": environment}
    return subprocess.run(command, **given | options)


def assert_equal(found, expected):
    """Compares two lists of arrays, to the bit."""
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, other)
