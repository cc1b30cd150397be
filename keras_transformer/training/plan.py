"""What a run is asked for, and what it will do, found out by reading alone.

What can be refused without a model and a corpus is refused here.
The directory records what the run began with; a resumed run must be asked for the same.
Keras is loaded only for tokenizers, and for the weights that a run begins with.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from keras_transformer import text
from keras_transformer.config import RunConfig, TransformerConfig
from keras_transformer.files import read_json
from keras_transformer.search.run_directory import (
    DATA,
    SUMMARY,
    TRAINING_IDS,
    check_new_directory,
)
from keras_transformer.terminal import plural, say, warn
from keras_transformer.text.parallel_text import ParallelText
from keras_transformer.training.state import (
    State,
    StateFiles,
    can_be_opened,
    checkpoint_path,
    checkpoints_of,
    rows_to_keep,
)

if TYPE_CHECKING:
    import keras

    from keras_transformer.search.translator import Translator

# What a run has written once it begins to train, and once it is finished.
_BEGUN = ("config.json", DATA, "tokenizer")
_FINISHED = ("model.keras", "decoding.json", SUMMARY)  # The summary is written last.
# What a process that is killed while it sets up a run leaves.
_LEFT = {"tokenizer", DATA, "corpus", "compiled"}
# Options that end the training, and all options that a resumed run may change.
_LIMITS = ("epochs", "max_updates", "max_minutes", "patience")
_CHANGEABLE = {*_LIMITS, "bad_line_share", "nonfinite"}
# Options that a new run chooses where they are `None`, and keeps. The warm-up and the
# cosine follow from what is planned, which stands in the state.
_CHOSEN = {
    "data": ("batch_tokens", "batch_shapes"),
    "tokenizer": ("vocabulary_size",),
}
# Options of a model that do not affect its weights.
_RATES = {"dropout_rate", "attention_dropout_rate", "activation_dropout_rate"}
_LOST = "is missing, empty or damaged"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What `train` is asked for, by the names of its arguments.

    Raises `ValueError` if a part does not go with the others.
    """

    text: ParallelText
    config: RunConfig
    validation: ParallelText | None
    console: Console
    test: ParallelText | None = None
    tokenizers: Any = None
    init: Translator | str | Path | None = None
    optimizer: keras.optimizers.Optimizer | None = None
    loss: Any = None
    model: Callable[[TransformerConfig], keras.Model] | None = None
    command: str | None = None

    def __post_init__(self):
        options = self.config.training
        given = {
            f"`monitor` {options.monitor!r}": options.monitor != "loss",
            "`patience`": options.patience is not None,
        }
        needing = [name for name, is_given in given.items() if is_given]
        if needing and self.validation is None:
            raise ValueError(
                f"{', '.join(needing)} needs validation pairs: give some (`--valid`), "
                "or leave it out."
            )
        if self.model and (self.init or options.freeze):
            raise ValueError(
                "`model` makes its own weights: leave out `init` and `freeze`."
            )
        optimizer = self.optimizer
        if optimizer is not None and (optimizer.built or options.ema_decay):
            raise ValueError(
                "`optimizer` must be new: one that has updated a model keeps its "
                "moments. For a moving average give it `use_ema=True` in place of "
                f"`ema_decay`. Received: built={optimizer.built}, "
                f"ema_decay={options.ema_decay}"
            )


@dataclass(frozen=True)
class Plan:
    """What a run will do: what it was asked for, and what it was when it began."""

    job: Job
    directory: Path
    config: RunConfig
    data: dict[str, Any]  # data.json: digests of texts, optimizer, loss, `init`
    tokenizers: text.TokenizerPair
    init: Translator | None  # whose weights it begins with now
    state: State | None  # from which it goes on
    limits: dict[str, Any]  # the options that end the training
    is_set_up: bool  # whether config.json and its like are written
    is_finished: bool


def plan(job: Job, directory: Path) -> Plan:
    """Returns what a run will do. Writes nothing, and learns a vocabulary if need be.

    Raises `ValueError` if the job differs from what the run or its `init` was.
    """
    is_set_up = not _missing(directory)
    config = job.config
    data = _described(job)
    given = _pair_of(job.tokenizers)
    if given is not None and job.init is None:
        config = config.replace(tokenizer=given.config)
    limits = {name: getattr(config.training, name) for name in _LIMITS}
    tokenizers = given
    state = init = finished = None
    origin = directory
    if is_set_up:
        config, data = _resumed(directory, config, data)
        if all((directory / name).exists() for name in _FINISHED):
            finished = limits
        state = _newest_state(directory, config.training, finished, job.console)
        tokenizers = text.TokenizerPair.load(directory / "tokenizer")
    if state is None and "init" in data:
        origin = data["init"]
        init = _initial(job.init, origin, config)
        if is_set_up and not init.tokenizers.same_as(tokenizers):
            raise ValueError(
                f"{directory} has another tokenizer than {origin}, which has changed "
                "since. Choose another directory."
            )
        tokenizers = init.tokenizers
    if tokenizers is None:
        tokenizers = _learned(job, config)
        size = tokenizers.config.vocabulary_size
        config = config.with_options(vocabulary_size=size)
    if given is not None and not given.same_as(tokenizers):
        raise ValueError(
            f"{origin} has another tokenizer than the given one. Give the same or "
            "none, or choose another directory."
        )
    sizes = tokenizers.vocabulary_sizes
    config = config.replace(model=config.model.replace(**sizes))
    is_finished = state is not None and state.finished == finished
    if is_finished:
        say(
            job.console,
            f"{directory} is finished: {plural(state.updates, 'update')}. To train "
            "on, raise `epochs`, `max_updates`, `max_minutes` or `patience`.",
        )
    return Plan(
        job=job,
        directory=directory,
        config=config,
        data=data,
        tokenizers=tokenizers,
        init=init,
        state=state,
        limits=limits,
        is_set_up=is_set_up,
        is_finished=is_finished,
    )


def check_directory(directory: Path):
    """Raises an error unless a directory is new, empty, or that of a run."""
    try:
        # TensorFlow and HDF5 need UTF-8.
        os.path.abspath(directory).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            "The name of a run's directory must be UTF-8: use a UTF-8 locale, such "
            f"as LC_ALL=C.UTF-8. Received: {ascii(str(directory))}"
        ) from error
    missing = _missing(directory)
    if not missing:
        return
    if any((directory / name).is_dir() for name in ("states", "checkpoints")):
        raise FileExistsError(
            f"{directory} holds the weights of a run that has lost "
            f"{' and '.join(missing)}: bring that back to resume it, or choose "
            "another directory."
        )
    names = {path.name for path in directory.glob("*")} - _LEFT
    if directory.is_file() or any(not n.startswith(".partial-") for n in names):
        check_new_directory(directory)


def _missing(directory):
    """Returns the names of what a run that was set up has, and this one has not."""
    return [name for name in _BEGUN if not (directory / name).exists()]


def _newest_state(directory, options, finished, console):
    """Returns the newest state, or the one before if its checkpoint was lost.

    The state before makes it anew. Says which other checkpoints, needed at the end,
    were lost. A run that is finished, with the limits `finished`, needs none.
    """
    checkpoints = directory / "checkpoints"
    newest = None
    for state in StateFiles(directory / "states").intact(console):
        if state.finished == finished:
            return state
        newest = newest or state
        needed = checkpoints_of(checkpoints, rows_to_keep(state.history, options))
        lost = [path for path in needed if not can_be_opened(path)]
        own = checkpoint_path(checkpoints, state.step)
        if own not in lost:
            # The end of a run removes what the state before it would need.
            told = [path for path in lost if path.exists() or state is newest]
            for path in told:
                what = "the final weights may have to do without it"
                warn(console, f"{path} {_LOST}; {what}")
            return state
        warn(console, f"{own} {_LOST}; trying the state before it")
    return newest


def _described(job):
    """Returns data.json of a new run: digests of the text, and what else it is of."""
    data = {
        "training": job.text.fingerprint(),
        "validation": job.validation and job.validation.fingerprint(),
    }
    for kind, part in (("optimizer", job.optimizer), ("loss", job.loss)):
        if part is not None:
            import keras  # It is loaded by what was given.

            words = json.dumps(keras.saving.serialize_keras_object(part), default=str)
            # Keras numbers names within a process.
            data[kind] = re.sub(r'"name": "\w*", ', "", words)
    if job.config.training.monitor != "loss":
        from keras_transformer.training.evaluation import tokenizer_for

        share = job.config.data.bad_line_share
        references = job.validation.sentences(["target"], share)
        data["bleu_tokenizer"] = tokenizer_for(references)
    if job.model is not None:
        data["model"] = getattr(job.model, "__qualname__", repr(type(job.model)))
    if job.init is not None:
        data["init"] = "a `Translator`"
        if isinstance(job.init, (str, os.PathLike)):
            # One name for one directory, whatever links lead to it.
            data["init"] = os.path.realpath(job.init)
            ids = Path(data["init"], TRAINING_IDS)
            if job.config.data.replay and ids.exists():
                digest = read_json(ids.with_suffix(".json"))["digest"]
                data["replayed"] = [str(ids), digest]
    if job.command is not None:
        data["command"] = job.command
    return data


def _pair_of(given):
    """Returns the pair of the argument `tokenizers`, or `None`."""
    if given is None or isinstance(given, text.TokenizerPair):
        return given
    sides = given if isinstance(given, (tuple, list)) else [given]
    return text.TokenizerPair.of(*sides)


def _resumed(
    directory: Path, config: RunConfig, data: dict[str, Any]
) -> tuple[RunConfig, dict[str, Any]]:
    """Returns options and data with what the run chose when it began.

    Raises `ValueError` if text, options, optimizer, loss, model or `init` changed.
    """
    path = directory / DATA
    was = read_json(path)
    if not {"training", "validation"} <= was.keys():
        raise ValueError(f"{path} is damaged: a part is missing")
    begun = RunConfig.load(directory / "config.json")
    chosen = {
        name: getattr(getattr(begun, section), name)
        for section, names in _CHOSEN.items()
        for name in names
        if getattr(getattr(config, section), name) is None
    }
    config = config.with_options(**chosen)
    problem = None
    for part in ("validation", "training"):
        if was[part] != data[part]:
            problem = f"other {part} data: its lines differ from the given ones"
    for part in ("optimizer", "loss", "model", "bleu_tokenizer"):
        if was.get(part) != data.get(part):
            problem = f"another {part}: {was.get(part) or 'that of its options'}"
    if "init" in data and data["init"] != was.get("init"):
        weights = was.get("init", "random")
        problem = f"other initial weights: {weights}"
    # Last, because options choose pairs.
    if differing := _differing(config, begun.given(), _CHANGEABLE):
        allowed = ", ".join(sorted(_CHANGEABLE))
        problem = f"other options: {differing}. Only these may change: {allowed}"
    if problem:
        raise ValueError(
            f"{directory} holds a run with {problem}. Give the same to resume it, "
            "or choose another directory."
        )
    return config, was


def _differing(config: RunConfig, other: dict[str, Any], may_differ: set[str]) -> str:
    """Returns the options that differ from those in the sections of `other`."""
    # The tokenizers determine the sizes of the vocabularies.
    free = may_differ | {"source_vocabulary_size", "target_vocabulary_size"}
    differing = []
    for section, was in other.items():
        now = getattr(config, section)
        for name in was.given():
            before = getattr(was, name)
            after = getattr(now, name)
            if name not in free and before != after:
                differing.append(f"`{name}` is {after!r} and was {before!r}")
    return "; ".join(differing)


def _initial(init, name, config):
    """Returns the translator whose weights a run begins with.

    Raises `ValueError` if they do not fit the run's model and vocabulary.
    """
    if init is None:
        raise ValueError(
            f"The run began with the weights of {name} and has no state yet: "
            "give that as `init` again. Received: none"
        )
    # Only here, because they load Keras.
    from keras_transformer.search.translator import Translator
    from keras_transformer.training.run_model import check_initial

    translator = init if isinstance(init, Translator) else Translator.load(init)
    model = translator.model
    check_initial(model)
    made = {"model": model.config, "tokenizer": translator.tokenizers.config}
    if differing := _differing(config, made, _RATES):
        raise ValueError(
            f"Options of model and tokenizer must be those of {name}, whose weights "
            f"the run begins with: {differing}. Leave them out or use "
            f"`default_config`; only {', '.join(sorted(_RATES))} may differ."
        )
    return translator


def _learned(job, config):
    """Returns tokenizers learned from the text, and says where they differ in size."""
    say(job.console, "learning the vocabulary")
    share = config.data.bad_line_share
    robust = config.training.robust
    tokenizers = text.learn_tokenizers(job.text, config.tokenizer, share, robust)
    asked = tokenizers.config.vocabulary_size
    for found in sorted({*tokenizers.vocabulary_sizes.values()} - {asked}):
        why = "has no more" if found < asked else "needs one for each character"
        words = f"learned {found:,} pieces, not {asked:,}: the text {why}"
        say(job.console, words)
    return tokenizers
