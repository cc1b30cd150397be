"""What a training run was made of and came to: summary.json in its directory."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import RunConfig
from keras_transformer.export.model_card import SUMMARY, RunFacts
from keras_transformer.files import replacing
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.text import Corpus
from keras_transformer.training.devices import gpu_names
from keras_transformer.training.expected_time import duration
from keras_transformer.training.logs import last_scores
from keras_transformer.training.state import TrainingState

# Pairs of the validation data that are kept, for a model card.
_EXAMPLES = 3


def data_facts(training: Corpus, validation: Corpus | None) -> dict[str, Any]:
    """Returns the sizes of a run's data and what was left out of it.

    Args:
        training: Training corpus.
        validation: Validation corpus, or `None`.

    Returns:
        For "training" and "validation", where there is one: "files", by their names
        alone, "pairs", "bad_lines", "batches" and "tokens", each of an epoch; tokens
        are those of both sides with end tokens, without padding.
    """
    corpora = {"training": training, "validation": validation}
    return {
        name: {
            "files": [path.name for path in corpus.text.files()],
            "pairs": corpus.num_pairs,
            "bad_lines": corpus.bad_lines.count,
            "batches": corpus.num_batches,
            "tokens": corpus.num_tokens,
        }
        for name, corpus in corpora.items()
        if corpus is not None
    }


def model_facts(model: Seq2Seq) -> dict[str, Any]:
    """Returns the class of a model, its number of weights and the type it computes in.

    Args:
        model: The model.
    """
    return {
        "class": type(model).__name__,
        "parameters": model.count_params(),
        "dtype": model.compute_dtype,
    }


def write_summary(
    directory: Path,
    model: Seq2Seq,
    training: Corpus,
    validation: Corpus | None,
    state: TrainingState,
    checkpoints: int,
):
    """Writes the facts of a run that has ended.

    Args:
        directory: The run's directory, with its log.csv.
        model: The model.
        training: Training corpus.
        validation: Validation corpus, or `None`.
        state: The state at the end.
        checkpoints: Number of checkpoints whose mean the weights are, or 0.
    """
    limit = state.callbacks_at_end.get("StopAtLimit", {})
    summary = _summary(model, training, validation, state.machine) | {
        "updates": state.updates,
        "epochs": state.epoch,
        # In `fit`, over all processes that went on with the run.
        "seconds": limit.get("seconds"),
        "averaged_checkpoints": checkpoints,
        # Of the last epoch, before checkpoints were averaged.
        "last_epoch": last_scores(directory) or {},
    }
    with replacing(directory / SUMMARY) as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _summary(model, training, validation, machine):
    """What a summary says of a run at any time."""
    return {
        "model": model_facts(model),
        "data": data_facts(training, validation),
        "machine": machine | {"gpus": gpu_names()},
        "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
        "examples": [] if validation is None else _first_pairs(validation),
    }


class FactsSoFar:
    """What is known of a run that goes on, for the cards of its exports.

    Args:
        config: All options of the run.
        data: Digests of its text, as `fingerprints` returned them.
        training: Training corpus.
        validation: Validation corpus, or `None`.
        machine: Of the function `machine`.

    Attributes:
        seconds: Returns how long the run has trained; set when `fit` begins.
    """

    def __init__(
        self,
        config: RunConfig,
        data: dict[str, Any],
        training: Corpus,
        validation: Corpus | None,
        machine: dict[str, Any],
    ):
        self._config, self._data, self._machine = config, data, machine
        self._corpora = training, validation
        self.seconds: Callable[[], float | None] = lambda: None

    def after(self, epoch: int, model: Seq2Seq, logs: Mapping[str, float]) -> RunFacts:
        """Returns what is known at the end of an epoch.

        Args:
            epoch: The epoch, counted from 0.
            model: The model in training.
            logs: The scores of the epoch.
        """
        summary = _summary(model, *self._corpora, self._machine) | {
            "updates": model.updates,
            "epochs": epoch + 1,
            "seconds": self.seconds(),
            "last_epoch": {name: float(value) for name, value in logs.items()},
        }
        return RunFacts(self._config, summary, data=self._data)


def _first_pairs(corpus):
    """Returns the first sentences of a corpus, and their translations."""
    pairs = corpus.text.pairs(corpus.bad_lines)
    return [pair[1:] for pair in itertools.islice(pairs, _EXAMPLES)]


def read_summary(directory: str | Path) -> dict[str, Any] | None:
    """Returns what `write_summary` wrote, or `None` if a run has none.

    Args:
        directory: The run's directory.

    Raises:
        ValueError: If the file is damaged.
    """
    path = Path(directory) / SUMMARY
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        lines_of(summary, Path())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: remove it") from error
    return summary


def lines_of(summary: dict[str, Any], directory: Path) -> list[str]:
    """Returns what a person wants to read after a training, as lines.

    Args:
        summary: As `read_summary` returns it.
        directory: The run's directory.
    """
    spent = summary["seconds"]
    took = "" if spent is None else f" in {duration(spent)}"
    scores = "".join(
        f", {name} {value:.4f}"
        for name, value in summary["last_epoch"].items()
        if name.startswith("val_")
    )
    run = shlex.quote(str(directory))
    return [
        f"trained {summary['model']['parameters']:,} parameters: "
        f"{summary['updates']:,} updates, {summary['epochs']} epochs{took}{scores}",
        f"written to {directory}: model.keras, tokenizer/, config.json, log.csv, "
        "tensorboard/, checkpoints/",
        f"next: keras-transformer evaluate --model {run} --test FILE FILE",
        f"      keras-transformer translate --model {run} TEXT",
        f"      keras-transformer export --run {run} --output saved_models/NAME",
    ]
