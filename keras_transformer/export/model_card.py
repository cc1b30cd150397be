"""The model card: README.md of an export, in the form that model hubs read.

YAML between two lines of dashes, as https://huggingface.co/docs/hub/model-cards says,
then Markdown. A value that is not known is left to fill in; none is invented.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

from keras_transformer.config import DecodingConfig
from keras_transformer.config.options import Config
from keras_transformer.export.run_facts import RunFacts, record_scores  # noqa: F401

_FILL_IN = "*to fill in*"
# Options that say how large a model is and how it searches, whatever their values.
_SIZES = (
    "num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads",
    "source_vocabulary_size", "target_vocabulary_size",
)  # fmt: skip
_SEARCH = ("beam_size", "length_penalty")
# The inputs and outputs of each signature; [B] unless a shape is said.
SIGNATURES = {
    "serving_default": ("text", "translation, score (float32)"),
    "nbest": ("text", "translations [B, n_best], scores [B, n_best] (float32)"),
    "complete": ("text, prefix", "translation, score (float32)"),
    "sample": (
        "text, temperature (float32), seed (int64)",
        "translation, score (float32)",
    ),
    "score": (
        "source, target",
        "log_probability (float32), tokens [B, T], token_log_probabilities [B, T] "
        "(float32)",
    ),
    "align": (
        "text",
        "translation, source_tokens [B, S], target_tokens [B, T], attention [B, T, S] "
        "(float32)",
    ),
}


class Subject(NamedTuple):
    """The model that a card is about.

    Attributes:
        name: Its name.
        kind: Class of the model.
        parameters: Number of weights.
        sizes: Its options, or those of each member of an ensemble.
        search: How translations are searched for.
        dtype: Type of the weights of the export, or `None` if it is none.
        version: Name of the version's directory.
        languages: Codes of source and target language, or `None`.
        examples: Sources of the validation data, their translations by this model, and
            the references.
    """

    name: str
    kind: str
    parameters: int
    sizes: Sequence[Config]
    search: DecodingConfig
    dtype: str | None = None
    version: str = "1"
    languages: Sequence[str] | None = None
    examples: Sequence[Sequence[str]] = ()


def model_card(subject: Subject, facts: RunFacts) -> str:
    """Returns the card of a translator.

    Args:
        subject: The model.
        facts: What its run says; an empty `RunFacts` of a model without a run.
    """
    sections = (
        _head(subject, facts),
        _introduction(subject),
        _use(subject),
        _model(subject),
        _data(facts),
        _training(facts),
        _scores(facts),
        _examples(subject, facts),
        _limits(subject, facts),
        _licence(),
    )
    return "\n".join(section for section in sections if section)


def _head(subject, facts):
    """The YAML of a card. A string of JSON is one of YAML too."""
    lines = [
        "---",
        "license:  # to fill in, such as apache-2.0; the data's may bind it",
    ]
    if subject.languages:
        lines += ["language:", *(f"- {json.dumps(code)}" for code in subject.languages)]
    else:
        lines.append("language:  # to fill in: a list of codes, such as en and de")
    lines += [
        "library_name: keras", "pipeline_tag: translation",
        "tags:", "- translation", "- transformer", "- tensorflow", "- tf-serving",
    ]  # fmt: skip
    if facts.scores:
        lines += ["metrics:", "- sacrebleu", "- chrf", "model-index:"]
        lines += [f"- name: {json.dumps(subject.name)}", "  results:"]
    for entry in facts.scores:
        name, scores = json.dumps(entry["name"]), entry["scores"]
        lines += [
            "  - task:", "      type: translation",
            "    dataset:", f"      name: {name}", f"      type: {name}",
            "    metrics:",
        ]  # fmt: skip
        for kind, key, title in (
            ("sacrebleu", "bleu", "BLEU"), ("chrf", "chrf", "chrF2"),
        ):  # fmt: skip
            lines += [
                f"    - type: {kind}", f"      value: {scores[key]:.2f}",
                f"      name: {json.dumps(title + ' ' + scores[key + '_signature'])}",
            ]  # fmt: skip
    return "\n".join([*lines, "---", ""])


def _introduction(subject):
    from_to = "sentences"
    if subject.languages:
        from_to = f"sentences from `{subject.languages[0]}` to `{subject.languages[1]}`"
    return (
        f"# {subject.name}\n\nTranslates {from_to}: a TensorFlow SavedModel with "
        "strings in and strings out. The tokenizer and the search are inside; it needs "
        "TensorFlow and the operations of tensorflow-text, and no other code.\n"
    )


def _use(subject):
    rows = "\n".join(
        f"| `{name}` | {inputs} | {outputs} |"
        for name, (inputs, outputs) in SIGNATURES.items()
    )
    name = subject.name
    request = '{"instances": [{"text": "..."}]}'
    return f"""\
## How to use it

```python
import tensorflow as tf, tensorflow_text

serve = tf.saved_model.load("{name}/{subject.version}").signatures["serving_default"]
serve(text=tf.constant(["..."]))["translation"]
```

With TensorFlow Serving, in the directory of the versions, where the export wrote a
`docker-compose.yml` (the name is that of the directory):

```bash
docker compose up
curl http://127.0.0.1:8501/v1/models/{name}:predict -d '{request}'
```

The first axis of every input and output is the batch, B; what has no type is a string,
what has no shape is [B]. Every signature also gives `truncated` (bool): whether a text
was cut at {subject.search.max_source_length} tokens.

| signature | inputs | outputs |
|---|---|---|
{rows}
"""


def _model(subject):
    lines = [f"- {subject.kind}, {subject.parameters:,} parameters"]
    lines += [f"- {_shown(sizes, _SIZES)}" for sizes in subject.sizes]
    if subject.dtype:
        lines.append(f"- weights and computation in {subject.dtype}")
    lines.append(f"- search: {_shown(subject.search, _SEARCH)}")
    lines.append(f"- written by keras_transformer {_version()}")
    return "## Model\n\n" + "\n".join(lines) + "\n"


def _version():
    try:
        return metadata.version("keras-transformer-seq2seq")
    except metadata.PackageNotFoundError:
        return "(version not known)"


def _shown(config, always):
    """The options that matter, and those that are not the defaults, in words."""
    defaults = type(config)().to_dict()
    return ", ".join(
        f"{name} {value}"
        for name, value in config.to_dict().items()
        if name in always or value != defaults[name]
    )


def _data(facts):
    lines = []
    for split, data in ((facts.summary or {}).get("data") or {}).items():
        files = ", ".join(f"`{name}`" for name in data["files"]) or "a program's rows"
        lines.append(
            f"- {split}: {data['pairs']:,} pairs, {data['tokens']:,} tokens of both "
            f"sides, from {files}; {data['bad_lines']:,} bad lines left out (empty, "
            "not text, or too long)"
        )
    if facts.config is not None and lines:
        most = facts.config.data.max_length
        lines.append(f"- pairs with more than {most} tokens on a side were left out")
    lines.append(f"- where the text comes from, its licence and domain: {_FILL_IN}")
    return "## Data\n\n" + "\n".join(lines) + "\n"


def _training(facts):
    summary = facts.summary
    if summary is None:
        return "## Training\n\nNot recorded.\n"
    machine = summary.get("machine", {})
    devices = ", ".join(machine.get("gpus") or [machine.get("processor", "not known")])
    lines = [f"- {summary['updates']:,} updates, {summary['epochs']} epochs"]
    if summary.get("seconds") is not None:
        lines[0] += f", {summary['seconds'] / 60:,.1f} minutes"
    # Each part of a batch has threads of its own.
    threads = machine.get("threads", 1) * machine.get("parts", 1)
    lines.append(
        f"- on {devices}, {threads} thread{'s' * (threads > 1)}, "
        f"{machine.get('backend', 'backend not known')}, in "
        f"{summary['model']['dtype']}"
    )
    if summary.get("averaged_checkpoints"):
        lines.append(
            f"- the weights are the mean of {summary['averaged_checkpoints']} "
            "checkpoints"
        )
    if last := summary.get("last_epoch"):
        shown = ", ".join(
            f"{name} {value:.4f}" for name, value in last.items() if name != "epoch"
        )
        lines.append(f"- last epoch, before any averaging: {shown}")
    return "## Training\n\n" + "\n".join(lines) + "\n"


def _scores(facts):
    if not facts.scores:
        return (
            "## Scores\n\nNone is recorded: `keras-transformer evaluate` on the "
            "training run records them.\n"
        )
    rows = []
    for entry in facts.scores:
        s, search = entry["scores"], DecodingConfig.from_dict(entry["search"])
        rows.append(
            f"| {_cell(entry['name'])} | {s['sentences']:,} | {s['bleu']:.2f} | "
            f"{s['chrf']:.2f} | {_shown(search, _SEARCH)} |"
        )
    first = facts.scores[0]["scores"]
    return (
        "## Scores\n\n| test set | sentences | BLEU | chrF2 | search |\n"
        "|---|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "By sacreBLEU on detokenised text, of the model in float32: BLEU "
        f"`{first['bleu_signature']}`, chrF2 `{first['chrf_signature']}`.\n"
    )


def _examples(subject, facts):
    rows, origin = subject.examples, "the validation data"
    if facts.scores:
        rows = facts.scores[0]["scores"].get("examples", ())
        origin = _cell(facts.scores[0]["name"])
    if not rows:
        return ""
    lines = "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows)
    return (
        f"## Examples\n\nThe first sentences of {origin}, not chosen.\n\n"
        "| source | translation | reference |\n|---|---|---|\n"
        f"{lines}\n"
    )


def _cell(text):
    """Returns a text as it stands in a cell of a table: nothing in it is Markdown."""
    text = " ".join(text.split())
    for character in "\\`*_{}[]<>#|~&":
        text = text.replace(character, "\\" + character)
    return text


def _limits(subject, facts):
    longest = facts.config.data.max_length if facts.config is not None else None
    trained = f"of at most {longest} tokens" if longest else "like those of its data"
    return (
        "## Limits\n\n"
        f"- It was trained on single sentences {trained}, and translates each text "
        "without its surroundings: split a document into sentences first.\n"
        f"- A text longer than {subject.search.max_source_length} tokens is cut, and "
        "`truncated` says so.\n"
        "- A translation may be wrong, leave something out or add something, most "
        "where the text is unlike the training data. It repeats the data's biases. "
        "Have a person check what matters.\n"
        f"- What else it must not be used for: {_FILL_IN}\n"
    )


def _licence():
    return f"""\
## Licence and contact

- licence of the model: {_FILL_IN} (also in the head of this file)
- authors and contact: {_FILL_IN}
- architecture: Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
"""
