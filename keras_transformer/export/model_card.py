"""The model card, README.md of an export, and what it says of a training run.

A card is YAML between two lines of dashes, as
https://huggingface.co/docs/hub/model-cards says, then Markdown, of templates/. A value
that is not known is left to fill in; none is invented.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.config import DecodingConfig, RunConfig
from keras_transformer.export.serving_files import filled, model_name
from keras_transformer.files import digest, replacing

SUMMARY, DATA, SCORES = "summary.json", "data.json", "scores.json"
# Options that a card shows even where they have their defaults.
_SIZES = (
    "num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads",
    "source_vocabulary_size", "target_vocabulary_size",
)  # fmt: skip
_SEARCH = ("beam_size", "length_penalty")


class RunFacts(NamedTuple):
    """What the files of a training run say; everything may be missing."""

    config: RunConfig | None = None  # its options
    summary: dict[str, Any] | None = None  # what its training wrote at the end
    scores: Sequence[dict[str, Any]] = ()  # of the model as it is now
    data: dict[str, Any] | None = None  # digests of the lines of each split

    @classmethod
    def of(cls, run: str | Path | RunFacts | None) -> RunFacts:
        """Returns what the directory of a run says, or facts as they are given."""
        if isinstance(run, RunFacts):
            return run
        if run is None:
            return cls()
        directory = Path(run)
        config = directory / "config.json"
        if not config.exists() and not (directory / "model.keras").exists():
            raise FileNotFoundError(f"{directory} holds no training run.")
        return cls(
            RunConfig.load(config) if config.exists() else None,
            _read(directory / SUMMARY, dict),
            recorded_scores(directory),
            _read(directory / DATA, dict),
        )

    def training_data(self) -> dict[str, Any] | None:
        """Returns the "fingerprint" of the lines of each split and, at the end, sizes.

        It is a digest of the lines, whatever the files' names and compression.
        """
        sizes = (self.summary or {}).get("data", {})
        known = {
            split: {"fingerprint": (self.data or {}).get(split)} | sizes.get(split, {})
            for split in ("training", "validation")
            if split in (self.data or {}) or split in sizes
        }
        return known or None


def record_scores(
    directory: str | Path,
    name: str,
    fingerprint: str,
    search: DecodingConfig,
    scores: dict[str, Any],
):
    """Adds the scores of a test set to a run's scores.json.

    They replace those of the same lines and search, and all of other weights.
    """
    directory = Path(directory)
    entry = {
        "name": name,
        "fingerprint": fingerprint,
        "model": _model(directory),
        "search": search.to_dict(),
        "scores": scores,
    }
    others = [
        other
        for other in recorded_scores(directory)
        if (other["fingerprint"], other["search"]) != (fingerprint, entry["search"])
    ]
    with replacing(directory / SCORES) as temporary:
        content = json.dumps([*others, entry], indent=2, ensure_ascii=False)
        temporary.write_text(content + "\n", encoding="utf-8")


def recorded_scores(directory: str | Path) -> list[dict[str, Any]]:
    """Returns what `record_scores` wrote of a run's present weights."""
    directory = Path(directory)
    entries = _read(directory / SCORES, list)
    if not entries:
        return []
    model = _model(directory)
    return [entry for entry in entries if entry["model"] == model]


def _model(directory):
    """Digests of the weights and of the vocabulary of a run."""
    paths = directory / "model.keras", directory / "tokenizer.sha256"
    return " ".join(digest(path) for path in paths if path.exists())


def _read(path, kind):
    """The content of a JSON file, or `None` where there is none."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, kind):
            raise ValueError(f"it holds no {kind.__name__}")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: remove it") from error
    return content


def model_card(
    translator: Any,
    version: Path,
    facts: RunFacts,
    languages: Sequence[str] | None = None,
    dtype: str = "float32",
) -> str:
    """Returns the card of an export in the directory `version`, NAME/VERSION.

    Where a run has no scores, sentences of its validation data are translated.
    """
    check_languages(languages)
    config, model, name = translator.config, translator.model, model_name(version)
    summary, data = facts.summary or {}, facts.config and facts.config.data
    members = getattr(model, "members", [model])
    parameters = sum(member.count_params() for member in members)
    try:
        package = metadata.version("keras-transformer-seq2seq")
    except metadata.PackageNotFoundError:  # A checkout on the path.
        package = "(version not known)"
    described = [
        f"{type(model).__name__}, {parameters:,} parameters",
        *(_options(member.config, _SIZES) for member in members),
        f"weights and computation in {dtype}",
        f"search: {_options(config, _SEARCH)}",
        f"written by keras_transformer {package}",
    ]
    from_to, trained_on = "sentences", "like those of its data"
    if languages:
        from_to = f"sentences from `{languages[0]}` to `{languages[1]}`"
    if data:
        trained_on = f"of at most {data.max_length} tokens"
    return filled(
        "model_card.md",
        head=_head(name, languages, facts.scores),
        name=name,
        version=version.name,
        languages=from_to,
        max_source_length=str(config.max_source_length),
        model=_list(described),
        data=_data(summary, data),
        training=_training(summary) if summary else "Not recorded.",
        scores=_scores(facts.scores),
        examples=_examples(translator, summary, facts.scores),
        trained_on=trained_on,
    )


def check_languages(languages: Sequence[str] | None):
    """Raises `ValueError` unless `languages` are the codes of source and target."""
    if languages is not None and len(languages) != 2:
        raise ValueError(
            f"`languages` must be two codes, such as en and de. Received: {languages!r}"
        )


def _list(lines):
    return "- " + "\n- ".join(lines)


def _head(name, languages, scores):
    """The YAML of a card without the licence. JSON is YAML too."""
    values = {
        "library_name": "keras",
        "pipeline_tag": "translation",
        "tags": ["translation", "transformer", "tensorflow", "tf-serving"],
    }
    if scores:
        values["metrics"] = ["sacrebleu", "chrf"]
        results = [
            {
                "task": {"type": "translation"},
                "dataset": {"name": entry["name"], "type": entry["name"]},
                "metrics": [
                    _metric("sacrebleu", "BLEU", "bleu", entry["scores"]),
                    _metric("chrf", "chrF2", "chrf", entry["scores"]),
                ],
            }
            for entry in scores
        ]
        values["model-index"] = [{"name": name, "results": results}]
    language = " # to fill in: a list of codes, such as [en, de]"
    if languages:
        language = json.dumps(list(languages))
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"language: {language}", *lines, ""])


def _metric(kind, title, key, scores):
    named = f"{title} {scores[key + '_signature']}"
    return {"type": kind, "value": round(scores[key], 2), "name": named}


def _options(config, always):
    """The options that matter, and those that are not the defaults, in words."""
    defaults = type(config)().to_dict()
    return ", ".join(
        f"{name} {value}"
        for name, value in config.to_dict().items()
        if name in always or value != defaults[name]
    )


def _data(summary, options):
    lines = []
    for split, data in summary.get("data", {}).items():
        files = ", ".join(f"`{name}`" for name in data["files"]) or "a program's rows"
        lines.append(
            f"{split}: {data['pairs']:,} pairs, {data['tokens']:,} tokens of both "
            f"sides, from {files}; {data['bad_lines']:,} bad lines left out (empty, "
            "not text, or too long)"
        )
    if options is not None and lines:
        most = options.max_length
        lines.append(f"pairs with more than {most} tokens on a side were left out")
    lines.append("where the text comes from, its licence and domain: *to fill in*")
    return _list(lines)


def _training(summary):
    machine = summary.get("machine", {})
    devices = ", ".join(machine.get("gpus") or [machine.get("processor", "not known")])
    spent = f"{summary['updates']:,} updates, {summary['epochs']} epochs"
    if summary.get("seconds") is not None:
        spent += f", {summary['seconds'] / 60:,.1f} minutes"
    # Each part of a batch has threads of its own.
    threads = machine.get("threads", 1) * machine.get("parts", 1)
    lines = [
        spent,
        f"on {devices}, {threads} thread{'s' * (threads > 1)}, "
        f"{machine.get('backend', 'backend not known')}, in "
        f"{summary['model']['dtype']}",
    ]
    averaged = summary.get("averaged_checkpoints", 0)
    if averaged > 1:
        lines.append(f"the weights are the mean of {averaged} checkpoints")
    if last := summary.get("last_epoch"):
        shown = ", ".join(
            f"{name} {value:.4f}" for name, value in last.items() if name != "epoch"
        )
        lines.append(f"last epoch, before any averaging: {shown}")
    return _list(lines)


def _scores(entries):
    if not entries:
        return (
            "None is recorded: `keras-transformer evaluate` on the training run "
            "records them."
        )
    rows = []
    for entry in entries:
        scores, search = entry["scores"], DecodingConfig.from_dict(entry["search"])
        sizes = f"{scores['sentences']:,}", f"{scores['bleu']:.2f}"
        searched = f"{scores['chrf']:.2f}", _options(search, _SEARCH)
        rows.append([_cell(entry["name"]), *sizes, *searched])
    head = ["test set", "sentences", "BLEU", "chrF2", "search"]
    first = entries[0]["scores"]
    return (
        f"{_table(head, rows)}\n\n"
        "By sacreBLEU on detokenised text, of the model in float32: BLEU "
        f"`{first['bleu_signature']}`, chrF2 `{first['chrf_signature']}`."
    )


def _examples(translator, summary, scores):
    """A section with the first sentences of a test set, or of the validation data."""
    rows, origin = (), "the validation data"
    if scores:
        rows, origin = scores[0]["scores"].get("examples", ()), _cell(scores[0]["name"])
    elif pairs := summary.get("examples"):
        sources, references = zip(*pairs, strict=True)
        rows = list(zip(sources, translator(sources), references, strict=True))
    if not rows:
        return ""
    table = _table(
        ["source", "translation", "reference"], [map(_cell, row) for row in rows]
    )
    return f"\n## Examples\n\nThe first sentences of {origin}, not chosen.\n\n{table}\n"


def _table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text):
    """A text as it stands in a cell of a table: nothing in it is Markdown."""
    text = " ".join(text.split())
    for character in "\\`*_{}[]<>#|~&":
        text = text.replace(character, "\\" + character)
    return text
