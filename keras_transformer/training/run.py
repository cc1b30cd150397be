"""A run's directory, and everything that trains in it, new or resumed.

The directory records what the run began with; a resumed run must be given the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
from rich.console import Console

from keras_transformer.config import (
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
)
from keras_transformer.config.run_config import FINE_TUNING, preset_for
from keras_transformer.files import (
    read_json,
    remove_abandoned,
    take_lock,
    write_json,
)
from keras_transformer.models.loading import read_config
from keras_transformer.models.transformer import Transformer
from keras_transformer.nn.kernels.keras_private import layers_within
from keras_transformer.search.run_directory import (
    SUMMARY,
    check_new_directory,
    trained_directory,
)
from keras_transformer.search.translator import Translator
from keras_transformer.terminal import plain_console, say
from keras_transformer.text import Corpus, TokenizerPair, learn_tokenizers, open_pairs
from keras_transformer.training.averages import can_be_opened, checkpoint_path
from keras_transformer.training.compiled_model import (
    build_training_variables,
    compiled_model,
    with_device_defaults,
)
from keras_transformer.training.compiling import keep_compiled_steps
from keras_transformer.training.devices import Distribution, distribution_scope, machine
from keras_transformer.training.report import (
    plural,
    report_data,
    report_devices,
    report_model,
    report_resumed,
    run_facts,
)
from keras_transformer.training.state import State, StateFiles, capture
from keras_transformer.training.validation import check_validated, rows_to_average

# Options that end the training, and all options that a resumed run may change.
_LIMITS = ("epochs", "max_updates", "max_minutes", "patience")
_CHANGEABLE = {*_LIMITS, "bad_line_budget", "nonfinite"}
# Options that a new run chooses where they are `None`, and keeps.
_CHOSEN = ("batch_tokens", "batch_shapes", "vocabulary_size", "average")
# Options of a model that do not affect its weights.
_RATES = {"dropout_rate", "attention_dropout_rate", "activation_dropout_rate"}
_LOST = "is missing, empty or damaged"
# Seconds after which a network file system shows what another host has written.
_LATE = 60


class Run:
    """A run: its directory and, once it is opened, everything that trains.

    A new run writes tokenizer/, data.json and then config.json. If the process is
    killed before that, the next one writes them again.
    """

    config: RunConfig
    data: dict[str, Any]  # data.json: digests of the text, optimizer, loss, `init`
    tokenizers: TokenizerPair
    model: keras.Model
    translator: Translator  # of `model`
    training: Corpus
    validation: Corpus | None
    distribution: Distribution
    machine: dict[str, Any]  # what the last bits of the weights depend on
    states: StateFiles
    state: State | None  # the newest
    console: Console
    facts: dict[str, Any]  # for summary.json

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            # TensorFlow and HDF5 need UTF-8.
            os.path.abspath(self.path).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                "The name of a run's directory must be UTF-8: use a UTF-8 locale, such "
                f"as LC_ALL=C.UTF-8. Received: {ascii(str(path))}"
            ) from error
        needed = ("config.json", "data.json", "tokenizer")
        missing = [name for name in needed if not (self.path / name).exists()]
        self.is_set_up = not missing
        if not self.is_set_up:
            # A process that is killed while it sets up the run leaves these.
            left = {"tokenizer", "tokenizer.sha256", "data.json", "corpus", "compiled"}
            names = {path.name for path in self.path.glob("*")} - left
            if any((self.path / name).is_dir() for name in ("states", "checkpoints")):
                raise FileExistsError(
                    f"{self.path} holds the weights of a run that has lost "
                    f"{' and '.join(missing)}: bring that back to resume it, or choose "
                    "another directory."
                )
            if self.path.is_file() or any(not n.startswith(".partial-") for n in names):
                check_new_directory(self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the directory for this process, until it ends in whatever way."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            if not take_lock(descriptor, self.path):
                raise BlockingIOError(
                    f"Another process is training in {self.path}. Wait until it ends, "
                    "or choose another directory."
                )
            # Those that a killed process has half written.
            halves = self.path.rglob(".partial-*")
            remove_abandoned(path for path in halves if path.is_file())
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def opened(
        self,
        text,
        config,
        validation,
        console,
        tokenizers,
        init,
        optimizer=None,
        loss=None,
        make_model=None,
        command=None,
        is_dry=False,
    ) -> Iterator[bool]:
        """Prepares the run for training; yields whether it is finished already."""
        console = plain_console() if console is None else console
        text = open_pairs(text)
        if config is None:
            config = default_config(self.path, init, text, console)
        check_validated(config.training, validation is not None)
        if make_model and (init or config.training.freeze):
            raise ValueError(
                "`model` makes its own weights: leave out `init` and `freeze`."
            )
        if optimizer is not None and (optimizer.built or config.training.ema_decay):
            raise ValueError(
                "`optimizer` must be new: one that has updated a model keeps its "
                "moments. For a moving average give it `use_ema=True` in place of "
                f"`ema_decay`. Received: built={optimizer.built}, "
                f"ema_decay={config.training.ema_decay}"
            )
        with contextlib.ExitStack() as stack:
            devices = distribution_scope(config.training.distribute)
            self.distribution = stack.enter_context(devices)
            self.machine = machine(self.distribution)
            processes = self.distribution.num_processes
            if keras.backend.backend() == "jax" and processes > 1:
                # Only the first host averages checkpoints, and JAX would need all.
                raise ValueError(
                    "With JAX a run trains on one host: on several, call `model.fit` "
                    "in a `distribution_scope`, or use TensorFlow with `multi_worker`. "
                    f"Received: {processes} processes"
                )
            is_chief = self.distribution.is_chief
            writes = is_chief and not is_dry
            if writes:
                stack.enter_context(self.locked())
                keep_compiled_steps(self.path / "compiled")
            self.console = console if is_chief else Console(quiet=True)
            # The summary is written last.
            parts = ("model.keras", "decoding.json", SUMMARY)
            is_whole = all((self.path / name).exists() for name in parts)
            self.states = StateFiles(self.path / "states")
            self.state = self._newest_state(_limits(config.training), is_whole)
            validation = None if validation is None else open_pairs(validation)
            data = _described(text, validation, optimizer, loss, init, make_model)
            if command is not None:
                data["command"] = command
            init = self._plan(config, data, text, tokenizers, init)
            has_ended = self.state is not None and self.state.finished == self.limits()
            is_finished = has_ended and is_whole and not is_dry
            if is_finished:
                say(
                    self.console,
                    f"{self.path} is finished: {plural(self.state.updates, 'update')}. "
                    "To train on, raise `epochs`, `max_updates`, `max_minutes` or "
                    "`patience`.",
                )
            else:
                # Invalid options and data raise errors before anything is saved.
                place = None if is_dry else self.path / "corpus"
                if not is_dry and not is_chief:
                    self.distribution.any(False)  # Waits until the chief wrote them.
                self._make_corpora(text, validation, place, writes or is_dry)
                if writes:
                    self.distribution.any(False)
                self._begin(init, optimizer, loss, make_model, writes)
            del init  # frees the memory of its model
            yield is_finished

    def _plan(self, config, data, text, given, init):
        """Sets options and tokenizers; returns the translator to begin with, if any.

        Raises `ValueError` if they differ from those of the run or of `init`.
        """
        origin = self.path
        if given is not None and not isinstance(given, TokenizerPair):
            sides = given if isinstance(given, tuple | list) else (given,)
            given = TokenizerPair.of(*sides)
        if given is not None and init is None:
            config = config.replace(tokenizer=given.config)
        tokenizers = given
        if self.is_set_up:
            config, data = self._resumed(config, data)
            tokenizers = TokenizerPair.load(self.path / "tokenizer")
        begun_with = data.get("init")
        if begun_with and self.state is None and init is None:
            raise ValueError(
                f"The run began with the weights of {begun_with} and has no state yet: "
                "give that as `init` again. Received: none"
            )
        init = None if self.state is not None else init
        if init is not None:
            init = _loaded(init, begun_with, config)
            if self.is_set_up and not init.tokenizers.same_as(tokenizers):
                raise ValueError(
                    f"{self.path} has another tokenizer than {begun_with}, which has "
                    "changed since. Choose another directory."
                )
            tokenizers = init.tokenizers
            origin = begun_with
        if tokenizers is None:
            say(self.console, "learning the vocabulary")
            budget = config.data.bad_line_budget
            tokenizers = learn_tokenizers(text, config.tokenizer, budget)
            asked = tokenizers.config.vocabulary_size
            config = config.with_options(vocabulary_size=asked)
            for found in sorted({*tokenizers.vocabulary_sizes.values()} - {asked}):
                why = "has no more" if found < asked else "needs one for each character"
                words = f"learned {found:,} pieces, not {asked:,}: the text {why}"
                say(self.console, words)
        if given is not None and not given.same_as(tokenizers):
            raise ValueError(
                f"{origin} has another tokenizer than the given one. Give the same or "
                "none, or choose another directory."
            )
        sizes = tokenizers.vocabulary_sizes
        config = config.replace(model=config.model.replace(**sizes))
        if not self.is_set_up:  # A run keeps what was chosen for its first device.
            config = config.replace(data=with_device_defaults(config).data)
            if config.training.average is None:
                # Fine-tuning on few pairs soon learns them by heart.
                can_choose = begun_with is not None and data["validation"] is not None
                config = config.with_options(average="best" if can_choose else "last")
        self.config = config
        self.data = data
        self.tokenizers = tokenizers
        return init

    def _resumed(self, config, data):
        """Returns options and data with what the run chose when it began.

        Raises `ValueError` if text, options, optimizer, loss, model or `init` changed.
        """
        path = self.path / "data.json"
        was = read_json(path)
        if not {"training", "validation", "planned_updates"} <= was.keys():
            raise ValueError(f"{path} is damaged: a part is missing")
        begun = RunConfig.load(self.path / "config.json")
        given = _flat(config)
        had = _flat(begun)
        chosen = {name: had[name] for name in _CHOSEN if given[name] is None}
        config = config.with_options(**chosen).fitted_to(was["planned_updates"])
        problem = None
        if differing := _differing(config, begun.given(), _CHANGEABLE):
            allowed = ", ".join(sorted(_CHANGEABLE))
            problem = f"other options: {differing}. Only these may change: {allowed}"
        for part in ("validation", "training"):
            if was[part] != data[part]:
                problem = f"other {part} data: its lines differ from the given ones"
        for part in ("optimizer", "loss", "model"):
            if was.get(part) != data.get(part):
                problem = f"another {part}: {was.get(part) or 'that of its options'}"
        if "init" in data and data["init"] != was.get("init"):
            weights = was.get("init", "random")
            problem = f"other initial weights: {weights}"
        if problem:
            raise ValueError(
                f"{self.path} holds a run with {problem}. Give the same to resume it, "
                "or choose another directory."
            )
        return config, was

    def limits(self) -> dict[str, Any]:
        """Returns the options that end the training."""
        return _limits(self.config.training)

    def checkpoint_of(self, row: dict[str, float]) -> Path:
        """Returns the path of the checkpoint of a row of the history."""
        return checkpoint_path(self.path / "checkpoints", row["step"])

    def _newest_state(self, limits, is_whole):
        """Returns the newest state, or the one before if its checkpoint was lost.

        The state before makes it anew. Says which other checkpoints, needed at the end,
        were lost. A run that has its model needs none.
        """
        if not self.is_set_up:
            return self.states.latest(self.console)
        options = RunConfig.load(self.path / "config.json").training
        newest = None
        for state in self.states.intact(self.console):
            if is_whole and state.finished == limits:
                return state
            newest = newest or state
            own = checkpoint_path(self.path / "checkpoints", state.step)
            rows = rows_to_average(state.history, options)
            needed = [self.checkpoint_of(row) for row in rows]
            lost = [path for path in needed if not can_be_opened(path)]
            if own not in lost:
                # The end of a run removes what the state before it would need.
                told = [path for path in lost if path.exists() or state is newest]
                for path in told:
                    what = "the final weights may have to do without it"
                    say(self.console, f"warning: {path} {_LOST}; {what}")
                return state
            what = "trying the state before it"
            say(self.console, f"warning: {own} {_LOST}; {what}")
        return newest

    def _make_corpora(self, text, validation, place, writes):
        """Makes the corpora, kept in `place`, and fits the schedule to them.

        Without `writes` another process has written them.
        """
        config = self.config
        kind = Corpus if writes else _CorpusOfTheChief
        common = {
            "tokenizers": self.tokenizers,
            "config": config.data,
            "static_shapes": with_device_defaults(config).training.jit_compile,
            "console": self.console,
        }
        self.training = kind(
            text,
            seed=config.training.seed,
            directory=place and place / "training",
            **common,
        )
        if "planned_updates" not in self.data:
            planned = config.training.planned_updates(self.training.num_batches)
            self.data["planned_updates"] = planned
            self.config = config.fitted_to(planned)
            before, now = (c.training.warmup_steps for c in (config, self.config))
            if now < before and "optimizer" not in self.data:
                say(
                    self.console,
                    f"the learning rate rises for {plural(now, 'update')}, not "
                    f"{before:,}: at most a fifth of the training",
                )
        self.validation = None
        if validation is not None:
            self.validation = kind(
                validation,
                boundaries=self.training.boundaries,
                directory=place and place / "validation",
                **common,
            )

    def _begin(self, init, optimizer, loss, make_model, writes):
        """Makes the model, writes the options and what else begins a run, and reports.

        The model has the weights of `init`, if there is one.
        """
        config = self.config
        console = self.console
        tokenizers = self.tokenizers
        keras.utils.set_random_seed(config.training.seed)
        with self.distribution.scope():
            self.model = compiled_model(config, optimizer, loss, make_model)
            build_training_variables(self.model)
        if init is not None:
            self.model.take_weights_of(init.model)
            say(console, f"starting from the weights of {self.data['init']}")
        self.translator = Translator(self.model, tokenizers, config.decoding)
        if writes:
            # An earlier model.keras is of fewer updates: the run is unfinished again.
            (self.path / SUMMARY).unlink(missing_ok=True)
            if not self.is_set_up:
                tokenizers.save(self.path / "tokenizer")
                tokenizers.save_digests(self.path / "tokenizer")
                write_json(self.path / "data.json", self.data)
            write_json(self.path / "config.json", config.to_dict())
        report_data(console, self.training, self.validation)
        report_devices(console, self.model.compute_dtype)
        if self.state is None:
            report_model(console, self.model, config.training.freeze)
            self.state = capture(self.model)
        else:
            batches = self.training.num_batches
            report_resumed(console, self.state, batches, self.machine)
        self.facts = run_facts(self.model, self.training, self.validation)


class _CorpusOfTheChief(Corpus):
    """A corpus that the first of several hosts writes, and this one reads."""

    def _is_kept(self, path, made_of):
        facts = path.with_suffix(".json")
        seen_until = time.monotonic() + _LATE
        while not facts.exists() and time.monotonic() < seen_until:
            time.sleep(1)
        return super()._is_kept(path, made_of)

    def _write(self, path, made_of, console):
        raise FileNotFoundError(
            f"{path} is missing or of other data than those of this host. All hosts "
            "need the same data, and one `--run` that they share, where the first host "
            "writes this file."
        )


def _limits(options: TrainingConfig) -> dict[str, Any]:
    """Returns the options that end the training."""
    return {name: getattr(options, name) for name in _LIMITS}


def _described(text, validation, optimizer, loss, init, make_model):
    """Returns data.json: digests of the text, and arguments of `train`."""
    data = {
        "training": text.fingerprint(),
        "validation": None if validation is None else validation.fingerprint(),
    }
    for kind, part in (("optimizer", optimizer), ("loss", loss)):
        if part is not None:
            words = json.dumps(keras.saving.serialize_keras_object(part), default=str)
            # Keras numbers names within a process.
            data[kind] = re.sub(r'"name": "\w*", ', "", words)
    if make_model is not None:
        data["model"] = getattr(make_model, "__qualname__", repr(type(make_model)))
    if init is not None:
        is_made = isinstance(init, Translator)
        # One name for one directory, whatever links lead to it.
        data["init"] = "a `Translator`" if is_made else os.path.realpath(init)
    return data


def _flat(config: RunConfig) -> dict[str, Any]:
    """Returns the options of data, tokenizer and training by their names."""
    sections = config.data, config.tokenizer, config.training
    return {name: x for section in sections for name, x in vars(section).items()}


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


def default_config(
    directory: str | Path,
    init: Translator | str | Path | None = None,
    text: Any = None,
    console: Console | None = None,
) -> RunConfig:
    """Returns the default options of a run.

    An existing run has its own. A new one has the preset for its number of pairs; or
    with `init` the model, tokenizer and search options of that translator and training
    options for fine-tuning.

    Args:
        directory: Directory of the run.
        init: The translator that it begins with, or its directory.
        text: Training pairs, as `open_pairs` returns or takes them. Without them and
            `init` a new run has the paper's options.
        console: Rich console that is told the preset.

    Raises:
        FileNotFoundError: If `init` holds no translator.
        ValueError: If a file is damaged.

    Example:
        >>> config = default_config("runs/domain", init="runs/en-de")
        >>> config = config.with_options(epochs=20, dropout_rate=0.3)
    """
    if (own := Path(directory) / "config.json").exists():
        return RunConfig.load(own)
    if init is None and text is None:
        return RunConfig()
    if init is None:
        count = open_pairs(text).count()
        name = preset_for(count)
        if console is not None:
            words = f"the preset for {plural(count, 'pair')} is {name}"
            say(console, f"{words}: other options override it")
        return RunConfig.preset(name)
    if isinstance(init, Translator):
        _check_transformer(init.model)
        parts = init.model.config, init.tokenizers.config, init.config
    else:
        folder = trained_directory(init)
        parts = (
            read_config(folder / "model.keras"),
            TokenizerConfig.load(folder / "tokenizer" / "tokenizer.json"),
            DecodingConfig.load(folder / "decoding.json"),
        )
    model, tokenizer, search = parts
    return RunConfig(model, tokenizer, decoding=search).with_options(**FINE_TUNING)


def _check_transformer(model):
    if type(model) is not Transformer:
        raise ValueError(
            "The model of `init` must be a `Transformer`; train others with "
            f"`model.fit`. Received: a {type(model).__name__}"
        )


def _loaded(init: Translator | str | Path, name: str, config: RunConfig) -> Translator:
    """Returns the translator whose weights a run begins with.

    Raises `ValueError` if they do not fit the run's model and vocabulary.
    """
    translator = init if isinstance(init, Translator) else Translator.load(init)
    model = translator.model
    _check_transformer(model)
    if any(layer.quantization_mode for layer in layers_within(model)):
        raise ValueError(
            "The model of `init` must not be quantised: use the one from before "
            "`quantize`."
        )
    made = {"model": model.config, "tokenizer": translator.tokenizers.config}
    if differing := _differing(config, made, _RATES):
        raise ValueError(
            f"Options of model and tokenizer must be those of {name}, whose weights "
            f"the run begins with: {differing}. Leave them out or use "
            f"`default_config`; only {', '.join(sorted(_RATES))} may differ."
        )
    return translator
