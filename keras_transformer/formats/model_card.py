"""The model card (README.md) of an export, and filling in templates.

Its format is that of https://huggingface.co/docs/hub/model-cards: YAML, then Markdown.
Unknown values are left out or marked to be filled in.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any

from keras_transformer.config import DecodingConfig
from keras_transformer.models.own_model import OwnModel
from keras_transformer.search.run_directory import (
    SUMMARY,
    read_if_there,
    recorded_scores,
    shown_figure,
)

TEMPLATES = Path(__file__).with_name("templates")
# Options that a card shows even at their defaults.
_SIZES = (
    "num_encoder_layers",
    "num_decoder_layers",
    "d_model",
    "d_ff",
    "num_heads",
    "source_vocabulary_size",
    "target_vocabulary_size",
)
_COUNTS = ("epoch", "updates")
_SEARCH = ("beam_size", "length_penalty")
_METRICS = (("sacrebleu", "BLEU", "bleu"), ("chrf", "chrF2", "chrf"))


def model_name(path: str | Path) -> str:
    """Returns the name under which TensorFlow Serving serves NAME/VERSION."""
    name = Path(os.path.abspath(path)).parent.name
    # URLs and configuration files would have to escape other characters.
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name) or "model"


def filled(template: str, **values: Any) -> str:
    """Returns a template with its `$names` replaced.

    A line with a name whose value is missing or `None` is dropped.
    """
    text = ""
    lines = (TEMPLATES / template).read_text("utf-8").splitlines(keepends=True)
    for line in lines:
        if None not in map(values.get, Template(line).get_identifiers()):
            text += Template(line).substitute(values)
    return text


def model_card(
    translator: Any,
    version: Path,
    run: str | Path | None = None,
    languages: Sequence[str] | None = None,
    dtype: str = "float32",
    no_examples: bool = False,
) -> str:
    """Returns the card of an export to `version`, NAME/VERSION.

    Any file of the training run may be missing, except model.keras.
    """
    check_languages(languages)
    config = translator.config
    model = translator.generator.searchable
    name = model_name(version)
    members = getattr(model, "members", [model])
    try:
        package = metadata.version("keras-transformer-seq2seq")
    except metadata.PackageNotFoundError:  # a checkout on the path
        package = "(version not known)"
    values = {
        "languages": "# to fill in: a list of codes, such as [en, de]",
        "from_to": "",
        "name": name,
        "version": version.name,
        "max_source_length": config.max_source_length,
        "class": type(model).__name__,
        "parameters": f"{sum(member.count_params() for member in members):,}",
        "sizes": "; ".join(map(_sizes, members)),
        "align": "`align`" if model.has_attention else None,
        "dtype": dtype,
        "search": _options(config, _SEARCH),
        "doubts": "None learned.",
        "package": package,
        "scores": "None recorded: `keras-transformer evaluate` on the training run "
        "records them.",
        "scored_dtype": model.compute_dtype,
    }
    if steps := config.doubt_steps:
        rows = [[f"{score:.2f}", f"{share:.0%}"] for score, share in steps]
        values["doubts"] = _table(["score from", "wrong"], rows)
    if languages:
        values["languages"] = json.dumps(list(languages))
        values["from_to"] = f" from `{languages[0]}` to `{languages[1]}`"
    if run is None:
        return filled("model_card.md", **values)
    run = Path(run)
    if not (run / "model.keras").exists():
        raise FileNotFoundError(f"{run} holds no training run.")
    summary = read_if_there(run / SUMMARY, {})
    if summary:
        values |= _training(summary)
    scores = recorded_scores(run)
    if scores:
        values |= _scores(name, scores)
    origin, rows = "the validation data", []
    if scores:
        origin, rows = _cell(scores[0]["name"]), scores[0]["scores"]["examples"]
    elif pairs := summary.get("examples"):
        sources, references = zip(*pairs, strict=True)
        rows = zip(sources, translator(sources), references, strict=True)
    cells = [[_cell(text) for text in row] for row in rows]
    if cells and not no_examples:
        values["examples_of"] = origin
        values["examples"] = _table(["source", "translation", "reference"], cells)
    return filled("model_card.md", **values)


def check_languages(languages: Sequence[str] | None):
    """Raises `ValueError` unless `languages` are the codes of source and target."""
    if languages is not None and len(languages) != 2:
        raise ValueError(
            f"`languages` must be two codes, such as en and de. Received: {languages!r}"
        )


def _sizes(model):
    """Returns the options of a model in words."""
    if isinstance(model, OwnModel):
        return f"target_vocabulary_size {model.config.target_vocabulary_size}"
    return _options(model.config, _SIZES)


def _options(config, always):
    """Returns in words the options in `always` and those that are not defaults."""
    values = config.given()
    return ", ".join(
        f"{field.name} {values[field.name]}"
        for field in dataclasses.fields(config)
        if field.name in always
        or (values[field.name] != field.default and field.name != "doubt_steps")
    )


def _training(summary):
    """Returns the card's values about a run's data and training."""
    values = {}
    machine = summary["machine"]
    for split, data in summary["data"].items():
        files = ", ".join(f"`{name}`" for name in data["files"])
        values[f"{split}_files"] = files or "a program's rows"
        for name in ("pairs", "tokens"):
            values[f"{split}_{name}"] = f"{data[name]:,}"
    final = summary["final"].items()
    shown = [f"{k} {shown_figure(x)}" for k, x in final if k not in _COUNTS]
    return values | {
        "weights": summary["weights"],
        "final": ", ".join(shown) or None,
        "updates": f"{summary['updates']:,}",
        "epochs": summary["epochs"],
        "minutes": f"{summary['seconds'] / 60:,.1f}",
        "devices": ", ".join(machine["gpus"] or [machine["processor"]]),
        "trained_dtype": summary["model"]["dtype"],
    }


def _scores(model, entries):
    """Returns the card's values about test sets; in its YAML head they are JSON."""
    results = []
    rows = []
    first = entries[0]["scores"]
    for entry in entries:
        name = entry["name"]
        scores = entry["scores"]
        metrics = [
            {
                "type": kind,
                "value": round(scores[key], 2),
                "name": f"{title} {scores[f'{key}_signature']}",
            }
            for kind, title, key in _METRICS
        ]
        dataset = {"name": name, "type": name}
        task = {"type": "translation"}
        results.append({"task": task, "dataset": dataset, "metrics": metrics})
        numbers = (f"{scores['sentences']:,}", *(f"{m['value']:.2f}" for m in metrics))
        search = _options(DecodingConfig.from_dict(entry["search"]), _SEARCH)
        rows.append([_cell(name), *numbers, search])
    return {
        "metrics": json.dumps([kind for kind, _, _ in _METRICS]),
        "results": json.dumps([{"name": model, "results": results}]),
        "scores": _table(["test set", "sentences", "BLEU", "chrF2", "search"], rows),
        "bleu_signature": first["bleu_signature"],
        "chrf_signature": first["chrf_signature"],
    }


def _table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text):
    """Returns a text for a cell of a table, its Markdown escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", " ".join(text.split()))
