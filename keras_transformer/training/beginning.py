"""What a run begins with: options, vocabularies, and perhaps another run's weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from keras_transformer.config import (
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TransformerConfig,
)
from keras_transformer.kernels.keras_private import layers_within
from keras_transformer.models.loading import read_config
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.models.transformer import Transformer
from keras_transformer.terminal import say
from keras_transformer.text import TokenizerPair, learn_tokenizers
from keras_transformer.text.pairs import ParallelText
from keras_transformer.training.compiling import with_data_defaults
from keras_transformer.training.run_directory import LEARNED, RunDirectory
from keras_transformer.translator import Translator

# Options of a model that its weights do not depend on.
_MAY_DIFFER = {"dropout_rate", "attention_dropout_rate", "activation_dropout_rate"}


class Base(NamedTuple):
    """Options that a run has unless others are given; named like those of a run."""

    model: TransformerConfig
    tokenizer: TokenizerConfig
    decoding: DecodingConfig


class Init(NamedTuple):
    """The translator whose weights and vocabularies a run begins with.

    Attributes:
        name: What messages call it.
        translator: The translator, of a model that can be trained.
    """

    name: str
    translator: Translator

    def fingerprint(self) -> dict[str, str]:
        """Returns its name and a digest that tells it from any other."""
        digest = hashlib.blake2b(digest_size=16)
        tokenizers = self.translator.tokenizers
        for tokenizer in (tokenizers.source, tokenizers.target):
            digest.update(tokenizer.content)
        for weight in self.translator.model.get_weights():
            digest.update(repr(weight.shape).encode())
            digest.update(np.ascontiguousarray(weight).tobytes())
        return {"name": self.name, "digest": digest.hexdigest()}


def open_init(init: Any, directory: RunDirectory) -> Init | None:
    """Returns what a run begins with, loaded.

    Args:
        init: A `Translator`, a directory that `Translator.load` takes, or `None`.
        directory: Directory of the run. If it began with the weights of a translator
            whose directory is no more, it goes on without.

    Raises:
        FileNotFoundError: If there is no translator in the directory.
        ValueError: If the translator's model cannot be trained.
    """
    if init is None or _is_gone(init, directory):
        return None
    if isinstance(init, Translator):
        opened = Init("the translator given as `init`", init)
    else:
        opened = Init(str(init), Translator.load(init))
    _check_trainable(opened)
    return opened


def begins_with(init: Init | None) -> dict[str, dict[str, str]]:
    """Returns what tells a beginning from any other, as JSON can hold it.

    Returns:
        `init`, if there is one.
    """
    return {} if init is None else {"init": init.fingerprint()}


def _is_gone(init, directory):
    """Whether a run that began with a translator has outlived its directory."""
    is_path = not isinstance(init, Translator)
    return is_path and not Path(init).exists() and directory.begun_with is not None


def _check_trainable(init):
    model = init.translator.model
    if type(model) is not Transformer:
        raise ValueError(
            "`init` must have a model that a run can make from its options, a "
            "`Transformer`; train another with `model.fit`. Received: a "
            f"{type(model).__name__}"
        )
    if any(layer.quantization_mode for layer in layers_within(model)):
        raise ValueError(
            "`init` must have a model that is not quantised, as it was before "
            f"`quantize`. Received: {init.name}, whose model is"
        )


def base_options(init: str | Path) -> Base:
    """Returns the options of a translator, for a run that begins with its weights.

    Args:
        init: A directory that `Translator.load` takes. Only options are read.

    Raises:
        FileNotFoundError: If it holds no translator.
        ValueError: If a file is damaged.
    """
    init = Translator.checked_directory(init)
    return Base(
        read_config(init / "model.keras"),
        TokenizerConfig.load(init / "tokenizer" / "tokenizer.json"),
        DecodingConfig.load(init / "decoding.json"),
    )


def begun_or_new(
    directory: RunDirectory,
    config: RunConfig,
    data: dict,
    text: ParallelText,
    console: Console,
    given: TokenizerPair | None,
    init: Init | None = None,
) -> tuple[RunConfig, TokenizerPair]:
    """Returns the options and vocabularies of the run, given or learned if it is new.

    Args:
        directory: Directory of the run.
        config: Options that were given.
        data: Fingerprints of what else was given.
        text: Training pairs.
        console: Where it is said that a vocabulary is learned.
        given: Tokenizers that were given, or `None`.
        init: What a new run begins with, or `None` for random weights.

    Raises:
        ValueError: If those of the run, or of `init`, are not those that are given now.
    """
    if directory.is_set_up:
        if directory.begun_with is not None:
            begun = directory.config()
            base = Base(begun.model, begun.tokenizer, begun.decoding)
            config = _with_base(config, base)
        config = directory.config_to_go_on(config, data)
        tokenizers = TokenizerPair.load(directory.path / "tokenizer")
        _check_tokenizers(given, tokenizers, f"{directory.path} holds a run")
        return config, tokenizers
    if init is not None:
        tokenizers = init.translator.tokenizers
        _check_tokenizers(given, tokenizers, f"{init.name} is a translator")
        model = init.translator.model
        base = Base(model.config, tokenizers.config, init.translator.config)
        _check_options(config, base, init.name)
        config = _with_base(config, base)
        if config.training.export_best:
            tokenizers.check_in_graph()
    else:
        tokenizers = given
    if tokenizers is None:
        say(console, "learning the vocabulary")
        budget = config.data.bad_line_budget
        tokenizers = learn_tokenizers(text, config.tokenizer, budget)
    sizes, config = tokenizers.vocabulary_sizes, with_data_defaults(config)
    return config.replace(model=config.model.replace(**sizes)), tokenizers


def begin_with(
    init: Init | None, model: Seq2Seq, directory: RunDirectory, console: Console
):
    """Gives a new model the weights that its run begins with.

    Args:
        init: The translator that has them, or `None`.
        model: The model.
        directory: Directory of the run.
        console: Where it is said.

    Raises:
        ValueError: If the run began with weights before, was killed before its first
            state, and `init` is not there now.
    """
    if init is not None:
        model.take_weights_of(init.translator.model)
        say(console, f"beginning with the weights of {init.name}")
        return
    if directory.begun_with is not None:
        name = directory.begun_with["name"]
        raise ValueError(
            f"{directory.path} has no state yet, so the run begins again, with the "
            f"weights of {name}: give that as `init`. Received: none, or a directory "
            "that does not exist"
        )


def _check_tokenizers(given, tokenizers, what):
    if given is not None and not given.same_as(tokenizers):
        raise ValueError(
            f"{what} with another tokenizer than was given: its weights belong to its "
            "own. Give the same or none, or choose another directory."
        )


def _is_given(config, section):
    """Whether options are not just those of a new `RunConfig()`.

    That has for each section one object for all, which is no other's.
    """
    return getattr(config, section) is not getattr(RunConfig, section)


def _with_base(config, base):
    """Returns the options, with those of `base` for each section not given."""
    changes = {
        section: options
        for section, options in base._asdict().items()
        if not _is_given(config, section)
    }
    return config.replace(**changes)


def _check_options(config, base, name):
    """Raises `ValueError` if options are given that are not those of the weights."""
    differing = []
    for section in ("model", "tokenizer"):
        there = getattr(base, section).to_dict()
        here = getattr(config, section).to_dict()
        if not _is_given(config, section):
            continue
        for option in {**there, **here}:
            values = here.get(option), there.get(option)
            if values[0] != values[1] and option not in _MAY_DIFFER | LEARNED:
                differing.append("`{}` is {!r} and there {!r}".format(option, *values))
    if differing:
        raise ValueError(
            "Options of the model and of its vocabulary must be those of the weights "
            f"that a run begins with, here of {name}: {'; '.join(differing)}. Leave "
            f"them out. Only {', '.join(sorted(_MAY_DIFFER))} may differ."
        )
