"""The directory of a run, and the plan of one: options, text, tokenizers, weights.

The directory says with what its run began. Anything else is refused when it goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from keras_transformer.config import DecodingConfig, RunConfig, TokenizerConfig
from keras_transformer.config.run import FINE_TUNING
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
    "bad_line_budget", "epochs", "max_updates", "max_minutes", "patience", "nonfinite",
}  # fmt: skip
# Options of a model that its weights do not depend on.
_RATES = {"dropout_rate", "attention_dropout_rate", "activation_dropout_rate"}


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
            yield
        finally:
            os.close(descriptor)

    def save(self, plan: Plan):
        """Writes the options, and of a new run the other files that make it a run."""
        if not self.is_set_up:
            plan.tokenizers.save(self.path / "tokenizer")
            plan.tokenizers.save_digests(self.path / "tokenizer")
            with replacing(self.path / "data.json") as temporary:
                content = json.dumps(plan.data, indent=2) + "\n"
                temporary.write_text(content, encoding="utf-8")
        with replacing(self.path / "config.json") as temporary:
            temporary.write_text(plan.config.to_json(), encoding="utf-8")

    def data(self) -> dict[str, Any]:
        """Returns what was written of text, optimizer, loss and `init`."""
        path = self.path / "data.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if not {"training", "validation", "planned_updates"} <= data.keys():
                raise ValueError("a part is missing")
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        return data

    def config_to_go_on(self, config: RunConfig, data: dict) -> RunConfig:
        """Returns the given options with what the run has chosen when it began.

        A `ValueError` says what may not change: text, options, optimizer, loss, `init`.
        """
        begun, was = RunConfig.load(self.path / "config.json"), self.data()
        chosen = {
            name: getattr(begun.data, name)
            for name in ("batch_tokens", "batch_shapes")
            if getattr(config.data, name) is None
        }
        config = config.with_options(**chosen).fitted_to(was["planned_updates"])
        problem = None
        if differing := _differing(config, begun.to_dict(), _CHANGEABLE):
            allowed = ", ".join(sorted(_CHANGEABLE))
            problem = f"other options: {differing}. Only these may change: {allowed}"
        for part in ("validation", "training"):
            if was[part] != data[part]:
                problem = f"other {part} data: its lines are not those given now"
        for part in ("optimizer", "loss"):
            if was.get(part) != data.get(part):
                made = was.get(part) or "that of its options"
                problem = f"another {part}: {made}"
        if "init" in data and data["init"] != was.get("init"):
            weights = was.get("init", "random ones")
            problem = f"other weights at its beginning: {weights}"
        if problem:
            raise ValueError(
                f"{self.path} holds a run with {problem}. Give the same to go on, or "
                "choose another directory."
            )
        return config


def _differing(config: RunConfig, other: dict[str, dict], may_differ: set[str]) -> str:
    """Says which options differ from those in the sections of `other`."""
    # A run's vocabularies have the sizes that it has learned.
    free = may_differ | {"source_vocabulary_size", "target_vocabulary_size"}
    return "; ".join(
        f"`{name}` is {getattr(getattr(config, section), name)!r} and was {value!r}"
        for section, options in other.items()
        for name, value in options.items()
        if name not in free and getattr(getattr(config, section), name) != value
    )


def check_new_directory(directory: Path):
    """Raises `FileExistsError` unless a directory is empty or does not exist."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(
            f"{directory} holds something already; a run needs a new or empty "
            "directory, or that of a run to go on with. Choose another or remove it."
        )


def default_config(
    directory: str | Path, init: Translator | str | Path | None = None
) -> RunConfig:
    """Returns the options of a run that is given none.

    A run that exists has its own. A new one that begins with a translator has that
    one's model, tokenizer and search, and for the training what is good for
    fine-tuning. Any other has the paper's. No weights are read.

    Args:
        directory: The run's directory.
        init: A `Translator`, or a directory that `Translator.load` takes.

    Raises:
        FileNotFoundError: If `init` holds no translator.
        ValueError: If a file is damaged.

    Example:
        >>> config = default_config("runs/domain", init="runs/en-de")
        >>> config = config.with_options(epochs=20, dropout_rate=0.3)
    """
    if (own := Path(directory) / "config.json").exists():
        return RunConfig.load(own)
    if init is None:
        return RunConfig()
    if isinstance(init, Translator):
        sections = _translator(init).model.config, init.tokenizers.config, init.config
    else:
        folder = Translator.checked_directory(init)
        sections = (
            read_config(folder / "model.keras"),
            TokenizerConfig.load(folder / "tokenizer" / "tokenizer.json"),
            DecodingConfig.load(folder / "decoding.json"),
        )
    sections = dict(zip(("model", "tokenizer", "decoding"), sections, strict=True))
    return RunConfig(**sections).with_options(**FINE_TUNING)


class Plan(NamedTuple):
    """What a run is made of, before anything is tokenised."""

    config: RunConfig
    data: dict[str, Any]  # Digests of the text, optimizer and loss; what `init` is.
    tokenizers: TokenizerPair
    init: Translator | None  # Has the weights to begin with.
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
    has_state: bool,
    made: dict[str, Any],
) -> Plan:
    """Finds options, vocabularies and beginning, of a new run or of one to go on.

    `given` are tokenizers; `made` are an optimizer and a loss of the program's own.

    Raises:
        ValueError: If they are not those of the run, or of `init`.
    """
    text = open_pairs(text)
    validation = None if validation is None else open_pairs(validation)
    data = {
        "training": text.fingerprint(),
        "validation": None if validation is None else validation.fingerprint(),
        # Keras numbers the names of a process.
        **{
            part: re.sub(r'"name": "\w*", ', "", json.dumps(what, default=str))
            for part, what in made.items()
        },
    }
    if init is not None:
        is_made = isinstance(init, Translator)
        data["init"] = "a `Translator`" if is_made else os.path.abspath(init)
    if given is not None and not isinstance(given, TokenizerPair):
        sides = given if isinstance(given, tuple | list) else (given,)
        given = TokenizerPair.of(*sides)
    if given is not None and init is None:
        config = config.replace(tokenizer=given.config)
    tokenizers = given
    if directory.is_set_up:
        config, data = directory.config_to_go_on(config, data), directory.data()
        tokenizers = TokenizerPair.load(directory.path / "tokenizer")
        whose = f"{directory.path} holds a run"
    begun_with, init = data.get("init"), None if has_state else _translator(init)
    if begun_with and not has_state and init is None:
        raise ValueError(
            "The run has no state yet, so it begins again, with the weights of "
            f"{begun_with}: give that as `init`. Received: none"
        )
    if init is not None:
        _check_same_sizes(config, init, begun_with)
        if directory.is_set_up and not init.tokenizers.same_as(tokenizers):
            raise ValueError(
                f"{whose} whose tokenizer is not that of {begun_with}, which has "
                "changed since. Choose another directory."
            )
        tokenizers, whose = init.tokenizers, f"{begun_with} is a translator"
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
    config = config.replace(model=config.model.replace(**sizes))
    if not directory.is_set_up:  # What was chosen for a device, a run keeps.
        config = with_data_defaults(config)
    return Plan(config, data, tokenizers, init, text, validation)


def _translator(init: Translator | str | Path | None) -> Translator | None:
    """Returns the translator whose weights a run begins with."""
    if init is None:
        return None
    translator = init if isinstance(init, Translator) else Translator.load(init)
    model = translator.model
    if type(model) is not Transformer:
        raise ValueError(
            "`init` must have a model that a run can make from its options, a "
            "`Transformer`; train another with `model.fit`. Received: a "
            f"{type(model).__name__}"
        )
    if any(layer.quantization_mode for layer in layers_within(model)):
        raise ValueError(
            "`init` must have a model that is not quantised, as it was before "
            "`quantize`. Received: one that is"
        )
    return translator


def _check_same_sizes(config: RunConfig, init: Translator, name: str):
    """Checks that a run's model and vocabulary can have the weights of `init`."""
    made = {"model": init.model.config, "tokenizer": init.tokenizers.config}
    made = {section: options.to_dict() for section, options in made.items()}
    if differing := _differing(config, made, _RATES):
        raise ValueError(
            "Options of the model and of its vocabulary must be those of the weights "
            f"that a run begins with, here of {name}: {differing}. Leave them out, or "
            f"begin with `default_config`; only {', '.join(sorted(_RATES))} may differ."
        )
