"""What stands in the directory of a run, for those who read it afterwards.

A run writes its summary there, and an evaluation its scores. Needs no Keras.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_transformer.config import DecodingConfig
from keras_transformer.files import digest, read_json, write_json

SUMMARY = "summary.json"
DATA = "data.json"
SCORES = "scores.json"
TEST = "test.tsv"


def check_new_directory(directory: Path):
    """Raises `FileExistsError` unless a directory is empty or does not exist."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(
            f"{directory} holds something already; a run needs a new or empty "
            "directory, or that of a run to resume. Choose another."
        )


def is_run(path: Path) -> bool:
    """Whether it is the directory of a run, finished or not, and not an export."""
    return any((path / name).exists() for name in ("model.keras", DATA))


def trained_directory(path: str | Path) -> Path:
    """Returns the directory of a trained translator, or raises `FileNotFoundError`.

    The error of an unfinished run has the command that finishes it.
    """
    path = Path(path)
    for name in ("model.keras", "tokenizer", "decoding.json"):
        if (path / name).exists():
            continue
        if name == "model.keras" and (path / DATA).exists():
            data = read_json(path / DATA)
            how = data.get("command", "call `train` again with the same arguments")
            now = ""
            if any(path.glob("checkpoints/step-*")):
                now = "`keras-transformer average` makes a model of its checkpoints. "
            raise FileNotFoundError(
                f"{path} is an unfinished run. {now}To finish it: {how}"
            )
        raise FileNotFoundError(
            f"{path} holds no trained translator: {name} is missing."
        )
    return path


def training_data(run: str | Path) -> dict[str, Any]:
    """Returns "fingerprint" and, of a finished run, sizes of "training" and others."""
    run = Path(run)
    digests = read_if_there(run / DATA, {})
    sizes = read_if_there(run / SUMMARY, {}).get("data", {})
    return {
        split: {"fingerprint": digests[split], **sizes.get(split, {})}
        for split in ("training", "validation")
        if split in digests
    }


def example_sources(run: str | Path) -> list[str]:
    """Returns a few source sentences, of a run's validation or else of its test set."""
    scores = [entry["scores"] for entry in read_if_there(Path(run) / SCORES, [])]
    known = [read_if_there(Path(run) / SUMMARY, {}), *scores]
    found = next((one["examples"] for one in known if one.get("examples")), [])
    return [row[0] for row in found[:3]]


def record_scores(
    directory: str | Path,
    name: str,
    fingerprint: str,
    search: DecodingConfig,
    scores: dict[str, Any],
    weights: str | None = None,
):
    """Adds the scores of a test set to a run's scores.json.

    `weights` is the `weights_digest` of what was scored; default that of now.
    """
    directory = Path(directory)
    entry = {
        "name": name,
        "fingerprint": fingerprint,
        "model": weights or weights_digest(directory),
        "search": search.to_dict(),
        "scores": scores,
    }
    # Replaces scores of the same lines and search, and all of other weights.
    others = [
        other
        for other in recorded_scores(directory)
        if (other["fingerprint"], other["search"]) != (fingerprint, entry["search"])
        or other["model"] != entry["model"]
    ]
    write_json(directory / SCORES, [*others, entry])


def recorded_scores(directory: str | Path) -> list[dict[str, Any]]:
    """Returns the recorded scores of a run's present weights."""
    directory = Path(directory)
    entries = read_if_there(directory / SCORES, [])
    model = weights_digest(directory) if entries else ""
    return [entry for entry in entries if entry["model"] == model]


def weights_digest(directory: str | Path) -> str:
    """Returns digests of the weights and the tokenizer's files of a run, as of now."""
    directory = Path(directory)
    paths = directory / "model.keras", *sorted(directory.glob("tokenizer/[!.]*"))
    return " ".join(digest(path) for path in paths if path.is_file())


def read_if_there(path: Path, default: Any) -> Any:
    """Returns the content of a JSON file, or `default` if it does not exist."""
    return read_json(path, type(default)) if path.exists() else default


def shown_figure(value: float | None) -> str:
    """Returns a figure of summary.json in words; JSON has null for NaN and infinity."""
    return "not finite" if value is None else f"{value:.4f}"
