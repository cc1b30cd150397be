"""The smallest corpus, translator and training run, made once and shared by tests.

A builder that writes files takes pytest's `tmp_path_factory`, of which there is one a
session: each result is made once, whichever test asks first.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
from rich.console import Console

from keras_transformer import (
    DataConfig,
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TokenizerPair,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Translator,
    learn_tokenizers,
    open_pairs,
    train,
)
from tests.layers.reference_weights import randomise

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

CONFIG = RunConfig(
    model=TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2
    ),
    tokenizer=TokenizerConfig(vocabulary_size=300),
    data=DataConfig(batch_tokens=256),
    training=TrainingConfig(epochs=3, warmup_steps=10, average_checkpoints=2),
    decoding=DecodingConfig(beam_size=2, max_extra_length=3, max_source_length=32),
)
SEED = 11


def once(build):
    """Makes `build(tmp_path_factory)` once a session; the factory has no hash."""
    made = []

    @functools.wraps(build)
    def built(tmp_path_factory):
        if not made:
            made.append(build(tmp_path_factory))
        return made[0]

    return built


def write_pairs(path: Path, pairs=TRAIN) -> Path:
    """Writes pairs as lines of source, tab, target."""
    lines = (f"{source}\t{target}\n" for source, target in pairs)
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    return path


@functools.cache
def tokenizers() -> TokenizerPair:
    """A joint vocabulary of 300 pieces."""
    return learn_tokenizers(PAIRS, CONFIG.tokenizer)


@functools.cache
def model(seed: int = SEED, **options) -> Transformer:
    """A Transformer with random weights, decided enough to end some sentences."""
    size = tokenizers().source.vocabulary_size
    sizes = {"source_vocabulary_size": size, "target_vocabulary_size": size}
    # A tied output matrix would favour repeating the last token.
    untied = CONFIG.model.replace(tied_embeddings="none", **sizes, **options)
    transformer = Transformer(untied)
    randomise(transformer, np.random.default_rng(seed))
    scale = np.full(size, 3.0, "float32")
    scale[untied.end_id] = 9.0
    scale[4:260] = 0.0  # Bytes: most of this vocabulary, seldom good UTF-8 together.
    kernel = transformer.output_dense.kernel
    kernel.assign(kernel.numpy() * scale)
    return transformer


@functools.cache
def translator(beam_size: int = 3, seed: int = SEED) -> Translator:
    """A translator of random weights: its words make no sense, but they differ."""
    return Translator(
        model(seed), tokenizers(), CONFIG.decoding.replace(beam_size=beam_size)
    )


@once
def saved_model(tmp_path_factory) -> Path:
    """The SavedModel of `translator()`: .../tiny/1."""
    return translator().export(tmp_path_factory.mktemp("saved_models") / "tiny" / "1")


@once
def litert(tmp_path_factory) -> Path:
    """The LiteRT export of `translator()`."""
    path = tmp_path_factory.mktemp("litert") / "tiny"
    return translator().export(path, "litert", languages=("en", "de"))


def run(directory: Path, validate=False, console=None, **training) -> Translator:
    """Trains on `TRAIN` in `directory`/run, by default without a word."""
    text = write_pairs(directory / "train.tsv")
    validation = write_pairs(directory / "valid.tsv", VALID)
    return train(
        open_pairs(text),
        directory / "run",
        CONFIG.replace(training=CONFIG.training.replace(**training)),
        open_pairs(validation) if validate else None,
        Console(quiet=True) if console is None else console,
    )


@once
def run_directory(tmp_path_factory) -> Path:
    """The directory of a training run of three epochs."""
    directory = tmp_path_factory.mktemp("tiny")
    run(directory, validate=True)
    return directory / "run"
