"""The directory of a run, and whether a command may continue the run in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_transformer.config import RunConfig
from keras_transformer.files import replacing, take_lock
from keras_transformer.text.parallel_text import ParallelText
from keras_transformer.text.tokenizer_pair import TokenizerPair

# Options that do not affect an update of the weights, or that end the training.
CHANGEABLE = {
    "data": {"bad_line_budget"},
    "training": {
        "epochs",
        "max_updates",
        "max_minutes",
        "patience",
        "nonfinite",
        "save_every",
    },
}
# Known only after the run has learned its vocabularies.
LEARNED = {"source_vocabulary_size", "target_vocabulary_size"}
_TOKENIZER_FILES = {
    "joint.model", "source.model", "target.model",
    "joint.json", "source.json", "target.json", "tokenizer.json",
}  # fmt: skip


class RunDirectory:
    """The directory of a run: new, half set up, or with a run to continue.

    Setting a run up writes tokenizer/ with its digests, data.json with the fingerprints
    of the text, and config.json last. If a process is killed before the end, the next
    one writes them again.

    Args:
        path: The directory; it need not exist.

    Raises:
        FileExistsError: If it holds something else.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.is_set_up = all(
            (self.path / name).exists()
            for name in ("config.json", "data.json", "tokenizer")
        )
        if not self.is_set_up and not self._is_rest_of_set_up():
            check_new_directory(self.path)

    def _is_rest_of_set_up(self):
        """Whether all that is there may come from a process that was killed."""
        if not self.path.is_dir():
            return False
        folder = self.path / "tokenizer"
        if folder.exists() and not folder.is_dir():
            return False
        names = {p.name for p in self.path.iterdir() if not _is_temporary(p)}
        inside = {p.name for p in folder.glob("*") if not _is_temporary(p)}
        begun = {"tokenizer", "tokenizer.sha256", "data.json"}
        return names <= begun and inside <= _TOKENIZER_FILES

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training here; no lock outlives this process.

        Raises:
            BlockingIOError: If another process trains here.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            if not take_lock(descriptor, self.path):
                raise BlockingIOError(
                    f"Another process is training in {self.path}. Wait until it ends, "
                    "or choose another directory."
                )
            yield
        finally:
            os.close(descriptor)

    def set_up(self, config: RunConfig, data: dict, tokenizers: TokenizerPair):
        """Writes the files that make the directory a run.

        Args:
            config: All options, with the vocabulary sizes that were learned.
            data: What `fingerprints` and `compiled_with` returned.
            tokenizers: The vocabularies.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        tokenizers.save(self.path / "tokenizer")
        tokenizers.save_digests(self.path / "tokenizer")
        with replacing(self.path / "data.json") as temporary:
            temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        self.save_config(config)
        self.is_set_up = True

    def save_config(self, config: RunConfig):
        """Writes config.json."""
        with replacing(self.path / "config.json") as temporary:
            temporary.write_text(config.to_json(), encoding="utf-8")

    def config(self) -> RunConfig:
        """Returns the options of the run that is set up."""
        return RunConfig.load(self.path / "config.json")

    @property
    def begun_with(self) -> dict[str, str] | None:
        """Name and digest of the translator whose weights it began with, or `None`."""
        return self._data().get("init") if self.is_set_up else None

    @property
    def planned_updates(self) -> int | None:
        """Weight updates that were planned when the run began, or `None`."""
        return self._data().get("planned_updates") if self.is_set_up else None

    def _data(self):
        """What `set_up` wrote of the text and of what else was given."""
        path = self.path / "data.json"
        return json.loads(path.read_text(encoding="utf-8"))

    def config_to_go_on(self, config: RunConfig, data: dict) -> RunConfig:
        """Returns the given options with what the run has learned or chosen.

        Args:
            config: Options of the command.
            data: Fingerprints of the command's text, and what it compiles with.

        Raises:
            ValueError: If the text differs from the run's, or an option, optimizer,
                loss or beginning that may not change.
        """
        begun = self.config()
        sizes = {name: getattr(begun.model, name) for name in LEARNED}
        config = config.replace(model=config.model.replace(**sizes))
        # What was chosen for the device that the run began on, it keeps.
        chosen = {
            name: getattr(begun.data, name)
            for name in ("batch_tokens", "batch_shapes")
            if getattr(config.data, name) is None
        }
        config = config.replace(data=config.data.replace(**chosen))
        differing = list(_differences(begun, config))
        if differing:
            allowed = sorted(set().union(*CHANGEABLE.values()))
            raise ValueError(
                f"{self.path} holds a run with other options: {'; '.join(differing)}. "
                "Give those to go on, or choose another directory. Only these may "
                f"change: {', '.join(allowed)}."
            )
        begun_data = self._data()
        for side in ("training", "validation"):
            if begun_data[side] != data[side]:
                raise ValueError(
                    f"{self.path} holds a run with other {side} data: its lines are "
                    "not those that are given now. Give the same to go on, or choose "
                    "another directory."
                )
        for part in ("optimizer", "loss"):
            if _unnumbered(begun_data.get(part)) != _unnumbered(data.get(part)):
                raise ValueError(
                    f"{self.path} holds a run with another {part}: "
                    f"{begun_data.get(part) or 'that of its options'}. Give the same "
                    "to go on, or choose another directory."
                )
        self._check_init(begun_data.get("init"), data.get("init"))
        return config

    def _check_init(self, begun, given):
        """Checks that a run goes on with the weights that it began with, or none."""
        if given is None or (begun is not None and begun["digest"] == given["digest"]):
            return
        with_what = "random weights"
        if begun is not None:
            with_what = f"the weights of {begun['name']}, as they were then"
        raise ValueError(
            f"{self.path} holds a run that began with {with_what}. Received: "
            f"`init` {given['name']}, which has others. Leave it out to go on, or "
            "choose another directory."
        )

    def remove_temporary_files(self):
        """Removes files that a killed process left half-written."""
        for folder in (".", "states", "checkpoints", "tokenizer", "nonfinite"):
            for path in (self.path / folder).glob(".partial-*"):
                if path.is_file():
                    path.unlink(missing_ok=True)
        for export in self.path.glob("export/*/.*.partial"):
            shutil.rmtree(export, ignore_errors=True)


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


def fingerprints(text: ParallelText, validation: ParallelText | None) -> dict:
    """Returns digests of the lines of a run's text, to tell it from any other."""
    return {
        "training": text.fingerprint(),
        "validation": None if validation is None else validation.fingerprint(),
    }


def compiled_with(optimizer: Any, loss: Any) -> dict:
    """Returns what tells an optimizer and a loss of one's own from any other.

    Args:
        optimizer: A Keras optimizer, or `None`.
        loss: A Keras loss or a function, or `None`.

    Returns:
        `optimizer` and `loss`, where they are given, as JSON can hold them.
    """
    made = {}
    if optimizer is not None:
        made["optimizer"] = keras.optimizers.serialize(optimizer)
    if loss is not None:
        made["loss"] = keras.losses.serialize(loss)
    # What JSON has no form for is its text.
    return _unnumbered(json.loads(json.dumps(made, default=str)))


def _unnumbered(value):
    """Returns serialised objects without names: Keras numbers those of a process."""
    if isinstance(value, list):
        return [_unnumbered(part) for part in value]
    if not isinstance(value, dict):
        return value
    parts = {name: _unnumbered(part) for name, part in value.items()}
    if "class_name" in parts and isinstance(parts.get("config"), dict):
        parts["config"].pop("name", None)
    return parts


def _differences(begun, config):
    """Yields a phrase for each option that differs and may not."""
    for section, options in begun.to_dict().items():
        now = config.to_dict()[section]
        for name, value in options.items():
            given = now[name]
            if value != given and name not in CHANGEABLE.get(section, ()):
                yield f"`{name}` is {given!r} and was {value!r}"


def _is_temporary(path):
    return path.name.startswith(".partial-")
