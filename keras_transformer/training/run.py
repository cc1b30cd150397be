"""The directory of a run: new, half set up, or with a run to go on with.

It says with which options, text and weights a run began, and refuses others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from rich.console import Console

from keras_transformer.config import (
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)
from keras_transformer.files import replacing, take_lock
from keras_transformer.kernels.keras_private import layers_within
from keras_transformer.models.loading import read_config
from keras_transformer.models.transformer import Transformer
from keras_transformer.terminal import say
from keras_transformer.text import (
    ParallelText,
    TokenizerPair,
    learn_tokenizers,
    open_pairs,
)
from keras_transformer.training.model import with_data_defaults
from keras_transformer.translator import Translator

# Options that do not affect an update of the weights, or that end the training.
_CHANGEABLE = {
    "data": {"bad_line_budget"},
    "training": {"epochs", "max_updates", "max_minutes", "patience", "nonfinite"},
}
# Known only after the run has learned its vocabularies.
_LEARNED = {"source_vocabulary_size", "target_vocabulary_size"}
# Options of a model that its weights do not depend on.
_MAY_DIFFER = {"dropout_rate", "attention_dropout_rate", "activation_dropout_rate"}


class Options(NamedTuple):
    """Options that go with the weights of a translator, named like those of a run."""

    model: TransformerConfig
    tokenizer: TokenizerConfig
    decoding: DecodingConfig


class RunDirectory:
    """The directory of a run.

    Setting a run up writes tokenizer/ with its digests, data.json with the fingerprints
    of the text, and config.json last. If a process is killed before the end, the next
    one writes them again.

    Raises:
        FileExistsError: If it holds something else.
        ValueError: If its name is not UTF-8.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            # TensorFlow and HDF5 take no other names.
            os.path.abspath(self.path).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                "The name of a run's directory must be UTF-8, in a locale that knows "
                f"its characters, such as LC_ALL=C.UTF-8. Received: {ascii(str(path))}"
            ) from error
        needed = ("config.json", "data.json", "tokenizer")
        self.is_set_up = all((self.path / name).exists() for name in needed)
        if not self.is_set_up:
            # What a process leaves that was killed before it had set up the run.
            left = {"tokenizer", "tokenizer.sha256", "data.json", "corpus"}
            names = {path.name for path in self.path.glob("*")} - left
            if self.path.is_file() or any(not n.startswith(".partial-") for n in names):
                check_new_directory(self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training here; no lock outlives this process."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            if not take_lock(descriptor, self.path):
                raise BlockingIOError(
                    f"Another process is training in {self.path}. Wait until it ends, "
                    "or choose another directory."
                )
            for path in self.path.rglob(".partial-*"):
                path.unlink(missing_ok=True)  # A killed process left it half-written.
            for export in self.path.glob("export/*/.*.partial"):
                shutil.rmtree(export, ignore_errors=True)
            yield
        finally:
            os.close(descriptor)

    def set_up(self, config: RunConfig, data: dict, tokenizers: TokenizerPair):
        """Writes the files that make the directory a run."""
        tokenizers.save(self.path / "tokenizer")
        tokenizers.save_digests(self.path / "tokenizer")
        with replacing(self.path / "data.json") as temporary:
            temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        self.save_config(config)

    def save_config(self, config: RunConfig):
        """Writes config.json."""
        with replacing(self.path / "config.json") as temporary:
            temporary.write_text(config.to_json(), encoding="utf-8")

    def data(self) -> dict[str, Any]:
        """Returns what `set_up` wrote of the text and of what else was given."""
        path = self.path / "data.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if not {"training", "validation", "planned_updates"} <= data.keys():
                raise ValueError("a part is missing")
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        return data

    def config_to_go_on(self, config: RunConfig, data: dict) -> RunConfig:
        """Returns the given options with what the run has learned or chosen.

        A `ValueError` says what may not change: text, options, optimizer, loss, `init`.
        """
        begun, was = RunConfig.load(self.path / "config.json"), self.data()
        if "init" in was:
            config = with_options_of(config, begun)
        sizes = {name: getattr(begun.model, name) for name in _LEARNED}
        # What was chosen for the device that the run began on, it keeps.
        chosen = {
            name: getattr(begun.data, name)
            for name in ("batch_tokens", "batch_shapes")
            if getattr(config.data, name) is None
        }
        config = config.replace(
            model=config.model.replace(**sizes), data=config.data.replace(**chosen)
        ).fitted_to(was["planned_updates"])
        differing = [
            f"`{name}` is {getattr(getattr(config, section), name)!r} and was {value!r}"
            for section, options in begun.to_dict().items()
            for name, value in options.items()
            if name not in _CHANGEABLE.get(section, ())
            and value != getattr(getattr(config, section), name)
        ]
        if differing:
            allowed = ", ".join(sorted(set().union(*_CHANGEABLE.values())))
            words = f"{'; '.join(differing)}. Only these may change: {allowed}"
            raise self._other(f"other options: {words}")
        for part in ("training", "validation", "optimizer", "loss"):
            if was.get(part) != data.get(part):
                made = was.get(part) or "that of its options"
                words = f"another {part}: {made}"
                if part in ("training", "validation"):
                    words = f"other {part} data: its lines are not those given now"
                raise self._other(words)
        given = data.get("init")
        if given is not None and given["digest"] != was.get("init", {}).get("digest"):
            weights = "random weights"
            if "init" in was:
                weights = f"the weights of {was['init']['name']}, as they were then"
            raise ValueError(
                f"{self.path} holds a run that began with {weights}. Received: `init` "
                f"{given['name']}, which has others. Leave it out to go on, or choose "
                "another directory."
            )
        return config

    def _other(self, what):
        return ValueError(
            f"{self.path} holds a run with {what}. Give the same to go on, or choose "
            "another directory."
        )


def check_new_directory(directory: Path):
    """Checks that a run can be kept in a directory.

    Args:
        directory: Directory of the run.

    Raises:
        FileExistsError: Unless it is empty or does not exist.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(
            f"{directory} holds something already; a run needs a new or empty "
            "directory, or that of a run to go on with. Choose another or remove it."
        )


def made_of(optimizer: Any, loss: Any) -> dict[str, str]:
    """Describes a program's own optimizer and loss, to be compared with a run's."""
    made = {}
    if optimizer is not None:
        made["optimizer"] = keras.optimizers.serialize(optimizer)
    if loss is not None:
        made["loss"] = keras.losses.serialize(loss)
    # Keras numbers the names of a process.
    return {
        part: re.sub(r'"name": "\w*", ', "", json.dumps(config, default=str))
        for part, config in made.items()
    }


class Init:
    """The translator, or the directory of one, whose weights a run begins with.

    Raises:
        ValueError: If its model cannot be trained.
    """

    def __init__(self, given: Translator | str | Path):
        is_made = isinstance(given, Translator)
        self.name = "the translator given as `init`" if is_made else str(given)
        self.translator = given if is_made else Translator.load(given)
        model, tokenizers = self.translator.model, self.translator.tokenizers
        if type(model) is not Transformer:
            raise ValueError(
                "`init` must have a model that a run can make from its options, a "
                "`Transformer`; train another with `model.fit`. Received: a "
                f"{type(model).__name__}"
            )
        if any(layer.quantization_mode for layer in layers_within(model)):
            raise ValueError(
                "`init` must have a model that is not quantised, as it was before "
                f"`quantize`. Received: {self.name}, whose model is"
            )
        self.options = Options(model.config, tokenizers.config, self.translator.config)

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

    def config_of(self, config: RunConfig) -> RunConfig:
        """Returns a run's options with this translator's where none were given."""
        differing = []
        for section in ("model", "tokenizer"):
            here, there = getattr(config, section), getattr(self.options, section)
            if here == getattr(RunConfig(), section):
                continue  # Not given.
            for name, value in there.to_dict().items():
                given = getattr(here, name)
                if given != value and name not in _MAY_DIFFER | _LEARNED:
                    differing.append(f"`{name}` is {given!r} and there {value!r}")
        if differing:
            raise ValueError(
                "Options of the model and of its vocabulary must be those of the "
                f"weights that a run begins with, here of {self.name}: "
                f"{'; '.join(differing)}. Leave them out. Only "
                f"{', '.join(sorted(_MAY_DIFFER))} may differ."
            )
        return with_options_of(config, self.options)


def with_options_of(config: RunConfig, other: Options | RunConfig) -> RunConfig:
    """Returns options with those of `other` for each section that is the default."""
    defaults = RunConfig()
    changes = {
        section: getattr(other, section)
        for section in Options._fields
        if getattr(config, section) == getattr(defaults, section)
    }
    return config.replace(**changes)


def base_options(init: str | Path) -> Options:
    """Returns the options of a run that begins with a translator, read without weights.

    Args:
        init: A directory that `Translator.load` takes.

    Raises:
        FileNotFoundError: If it holds no translator.
        ValueError: If a file is damaged.
    """
    init = Translator.checked_directory(init)
    return Options(
        read_config(init / "model.keras"),
        TokenizerConfig.load(init / "tokenizer" / "tokenizer.json"),
        DecodingConfig.load(init / "decoding.json"),
    )


class Plan(NamedTuple):
    """What a run is made of, before anything is tokenised."""

    config: RunConfig
    data: dict[str, Any]  # Digests of the text and of what else was given.
    tokenizers: TokenizerPair
    init: Init | None
    text: ParallelText
    validation: ParallelText | None


def plan_run(
    directory: RunDirectory,
    config: RunConfig,
    text: Any,
    validation: Any,
    console: Console,
    given: Any,
    init: Any,
    made: dict[str, Any],
) -> Plan:
    """Finds options, vocabularies and beginning, of a new run or of one to go on.

    Raises:
        ValueError: If they are not those of the run, or of `init`.
    """
    text = open_pairs(text)
    validation = None if validation is None else open_pairs(validation)
    is_gone = not isinstance(init, Translator) and init and not Path(init).exists()
    # A run may outlive the directory of what it began with.
    init = None if init is None or (directory.is_set_up and is_gone) else Init(init)
    keras.utils.set_random_seed(config.training.seed)  # Loading draws numbers.
    data = {
        "training": text.fingerprint(),
        "validation": None if validation is None else validation.fingerprint(),
    } | made
    if given is not None and not isinstance(given, TokenizerPair):
        sides = given if isinstance(given, tuple | list) else (given,)
        given = TokenizerPair.of(*sides)
    if given is not None and init is None:
        config = config.replace(tokenizer=given.config)
    if init is not None:
        data["init"] = init.fingerprint()
    if directory.is_set_up:
        config = directory.config_to_go_on(config, data)
        data = directory.data()
        tokenizers = TokenizerPair.load(directory.path / "tokenizer")
        whose = f"{directory.path} holds a run"
    elif init is not None:
        config, tokenizers = init.config_of(config), init.translator.tokenizers
        whose = f"{init.name} is a translator"
    else:
        tokenizers = given
    if tokenizers is None:
        say(console, "learning the vocabulary")
        budget = config.data.bad_line_budget
        tokenizers = learn_tokenizers(text, config.tokenizer, budget)
    if given is not None and not given.same_as(tokenizers):
        raise ValueError(
            f"{whose} with another tokenizer than was given: its weights belong to its "
            "own. Give the same or none, or choose another directory."
        )
    sizes = tokenizers.vocabulary_sizes
    config = with_data_defaults(config.replace(model=config.model.replace(**sizes)))
    return Plan(config, data, tokenizers, init, text, validation)


def begin(model: Transformer, plan: Plan, console: Console):
    """Gives a new model the weights that its run begins with.

    Raises:
        ValueError: If the run began with weights that are not given now.
    """
    if plan.init is not None:
        model.take_weights_of(plan.init.translator.model)
        say(console, f"beginning with the weights of {plan.init.name}")
    elif "init" in plan.data:
        raise ValueError(
            "The run has no state yet, so it begins again, with the weights of "
            f"{plan.data['init']['name']}: give that as `init`. Received: none, or a "
            "directory that does not exist"
        )


def check_optimizer(optimizer: Any, options: TrainingConfig):
    """Checks an optimizer of one's own.

    Raises:
        ValueError: If it is not new, or an option belongs to the options' own.
    """
    if optimizer is not None and optimizer.built:
        raise ValueError(
            "`optimizer` must be new: one that has updated a model keeps its moments. "
            f"Received: a {type(optimizer).__name__} that is built"
        )
    if optimizer is not None and options.ema_decay is not None:
        raise ValueError(
            "`ema_decay` belongs to the options' optimizer, in place of which "
            "`optimizer` was given: leave one of them out. Received: "
            f"ema_decay={options.ema_decay}"
        )
