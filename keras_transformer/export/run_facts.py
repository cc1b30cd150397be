"""What a training run's directory says of its model: options, data, time, scores.

Its files are written by others: summary.json when a training ends, scores.json by
`record_scores`, data.json when a run is set up, config.json by `train` and `import`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple, Self

from keras_transformer.config import DecodingConfig, RunConfig
from keras_transformer.files import replacing

SUMMARY = "summary.json"
DATA = "data.json"
_SCORES = "scores.json"


class RunFacts(NamedTuple):
    """What is known of a run; everything may be missing.

    Attributes:
        config: Its options.
        summary: What its training wrote at the end.
        scores: What `record_scores` wrote of the model as it is now.
        data: Digests of the lines that it was trained on and validated with.
    """

    config: RunConfig | None = None
    summary: dict[str, Any] | None = None
    scores: tuple[dict[str, Any], ...] = ()
    data: dict[str, Any] | None = None

    @classmethod
    def read(cls, directory: str | Path) -> Self:
        """Reads the files of a run; those that it lacks are `None` or empty.

        Args:
            directory: The run's directory.

        Raises:
            FileNotFoundError: If it holds no trained model.
            ValueError: If a file is damaged.
        """
        directory = Path(directory)
        if not (directory / "model.keras").exists():
            raise FileNotFoundError(f"{directory} holds no trained model.")
        config, data = directory / "config.json", _read(directory / DATA)
        if not isinstance(data, dict | None):
            raise ValueError(f"{directory / DATA} is damaged: it holds no object")
        return cls(
            RunConfig.load(config) if config.exists() else None,
            _read(directory / SUMMARY),
            tuple(recorded_scores(directory)),
            data,
        )

    def training_data(self) -> dict[str, Any] | None:
        """Returns what is known of the data, as JSON can hold it, or `None`.

        Of "training" and "validation": "fingerprint", a digest of the lines (BLAKE2b of
        16 bytes; the lines in UTF-8, source, tab, target and line end, whatever the
        files' names and compression), and where the training has ended "files",
        "pairs", "bad_lines", "batches" and "tokens".
        """
        known = {}
        for split in ("training", "validation"):
            digest = (self.data or {}).get(split)
            sizes = ((self.summary or {}).get("data") or {}).get(split)
            if digest or sizes:
                known[split] = {"fingerprint": digest} | (sizes or {})
        return known or None


def record_scores(
    directory: str | Path,
    name: str,
    fingerprint: str,
    search: DecodingConfig,
    scores: dict[str, Any],
):
    """Adds the scores of a test set to a run's scores.json.

    They replace those of the same text and search. Scores of other weights, from before
    the run was trained on, are dropped.

    Args:
        directory: The run's directory.
        name: What the test set is called.
        fingerprint: What tells its lines from any other's.
        search: How the translations were searched for.
        scores: As JSON can hold them.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If the file that is there is damaged.
    """
    directory = Path(directory)
    entry = {
        "name": name,
        "fingerprint": fingerprint,
        "model": _digest(directory),
        "search": search.to_dict(),
        "scores": scores,
    }
    others = [
        other
        for other in recorded_scores(directory)
        if (other["fingerprint"], other["search"]) != (fingerprint, entry["search"])
    ]
    with replacing(directory / _SCORES) as temporary:
        content = json.dumps([*others, entry], indent=2, ensure_ascii=False)
        temporary.write_text(content + "\n", encoding="utf-8")


def recorded_scores(directory: str | Path) -> list[dict[str, Any]]:
    """Returns what `record_scores` wrote of a run's present weights.

    Args:
        directory: The run's directory.

    Raises:
        ValueError: If the file is damaged.
    """
    path = Path(directory) / _SCORES
    entries = _read(path) or []
    try:
        digest = _digest(Path(directory)) if entries else ""
        return [
            entry
            for entry in entries
            if {"name", "fingerprint", "search", "scores"} <= entry.keys()
            and entry["model"] == digest
        ]
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{path} is damaged: remove it") from error


def _digest(directory):
    """Returns what tells the weights and the vocabulary of a run from any other's."""
    digest = hashlib.sha256()
    for path in (directory / "model.keras", directory / "tokenizer.sha256"):
        if path.exists():
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _read(path):
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: remove it") from error
