"""What a run says before it trains: its data, and what it computes on."""

from __future__ import annotations

import math

import keras
from rich.console import Console

from keras_transformer.config import RunConfig
from keras_transformer.exact_training.cores import available_cores
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.terminal import say
from keras_transformer.text import Corpus, MixedPairs
from keras_transformer.training.devices import gpu_names, has_nvidia_gpu
from keras_transformer.training.freezing import shares_frozen_output

# The extras of the package with each backend's own libraries for NVIDIA GPUs.
_EXTRAS = {"tensorflow": "gpu", "jax": "gpu-jax"}


def report_data(console: Console, training: Corpus, validation: Corpus | None):
    """Says how many pairs and batches there are, and in how many shapes.

    Args:
        console: Where it is printed.
        training: Training corpus.
        validation: Validation corpus, or `None`.
    """
    for name, corpus in (("training", training), ("validation", validation)):
        if corpus is not None:
            say(
                console,
                f"{name} data: {corpus.num_pairs:,} pairs, {corpus.num_batches:,} "
                f"batches, {corpus.bad_lines}",
            )
            if isinstance(corpus.text, MixedPairs):
                say(console, f"mixed of {_mix(corpus)}")
    say(
        console,
        f"a batch has {training.num_tokens / training.num_batches:,.0f} tokens of both "
        "sides on average, without padding",
    )
    if training.padding is not None:
        say(
            console,
            f"batches of {len(training.shapes)} shapes, each compiled when it first "
            f"comes, with {training.padding:.0%} padding",
        )


def report_warm_up(console: Console, given: RunConfig, fitted: RunConfig, updates: int):
    """Says that the warm-up is shorter than was given, where it is.

    Args:
        console: Where it is printed.
        given: Options of the run.
        fitted: Those with a schedule that fits into the planned updates.
        updates: The planned updates.
    """
    long, short = given.training.warmup_steps, fitted.training.warmup_steps
    if short < long:
        say(
            console,
            f"warm-up: {short:,} of the {updates:,} updates planned, in place of "
            f"{long:,}",
        )


def _mix(corpus):
    """Says how many pairs of an epoch come from each corpus of a mix."""
    mix = corpus.text
    parts = zip(mix.weights, mix.parts, corpus.pairs_of_part, strict=True)
    return ", ".join(
        f"{weight} x {pairs // weight:,} pairs of {part.origin}"
        for weight, part, pairs in parts
    )


# What says how large a model is.
_SIZES = ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads")


def describe_model(model: Seq2Seq) -> str:
    """Returns the class of a model and its sizes in words.

    Args:
        model: The model.
    """
    config = model.config
    sizes = [f"{name} {getattr(config, name)}" for name in _SIZES]
    vocabularies = {config.source_vocabulary_size, config.target_vocabulary_size}
    pieces = " and ".join(f"{size:,}" for size in sorted(vocabularies))
    return f"{type(model).__name__}: {', '.join(sizes)}; {pieces} pieces"


def count_parameters(model: Seq2Seq, freeze: str | None) -> str:
    """Returns in words how many weights a model has, and how many are trained.

    Args:
        model: The model, with weights frozen.
        freeze: The option that says which.
    """
    total = f"{model.count_params():,} parameters"
    if freeze is None:
        return total
    frozen = sum(math.prod(v.shape) for v in model.non_trainable_weights)
    trained = model.count_params() - frozen
    words = f"{trained:,} of {total}, without {freeze}"
    if shares_frozen_output(model, freeze):
        words += (
            f"; `tied_embeddings` is {model.config.tied_embeddings}, so that one "
            "frozen matrix is both the output's and an embedding's"
        )
    return words


def report_devices(console: Console, dtype: str):
    """Says what a run computes on, and warns of a GPU that it cannot use.

    Args:
        console: Where it is printed.
        dtype: Float type that the model computes in.
    """
    backend = keras.backend.backend()
    names = gpu_names()
    cores = available_cores()
    processor = f"{cores} processor core{'s' * (cores > 1)}"
    where = (
        f"{len(names)} GPU{'s' * (len(names) > 1)}, {names[0]}" if names else processor
    )
    say(console, f"computing in {dtype} with {backend} on {where}")
    if not names and has_nvidia_gpu():
        extra = _EXTRAS.get(backend)
        remedy = (
            f"install keras-transformer-seq2seq[{extra}]" if extra
            else "install a PyTorch that is built for CUDA"
        )  # fmt: skip
        say(
            console,
            f"warning: {backend} cannot use the NVIDIA GPU of this machine: {remedy}, "
            "and see docs/gpu.md",
        )
