"""The verb `export`: a trained model becomes files for others."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.cli.flags import add_decoding_flags, add_verb, given
from keras_transformer.cli.loading import load_runs
from keras_transformer.cli.messages import warnings_as_lines
from keras_transformer.cli.results import print_remark
from keras_transformer.terminal import (
    native_messages_hidden,
    print_result,
)

_EXAMPLES = (
    "export --run runs/en-de --output saved_models/en-de",
    "export --run runs/a runs/b --output saved_models/en-de/2 --beam-size 5",
    "export --run runs/en-de --output lite/en-de --format litert --quantize int8",
)


def add_verbs(verbs):
    """Adds the verb to what `add_subparsers` of the parser returned."""
    _add_export(verbs)


def _add_export(verbs):
    parser = add_verb(
        verbs,
        "export",
        _export,
        "Write a SavedModel for TensorFlow Serving, a LiteRT file for devices, a page "
        "for browsers, or weights for other systems.",
        "Write a SavedModel for TensorFlow Serving with its warm-up requests and a "
        "model card, README.md, and beside the versions what starts a server with "
        "Docker or Kubernetes; or, with --format litert, a directory that translates "
        "without TensorFlow; or, with --format web, a folder for a web server whose "
        "page translates in the browser; or, with --format ctranslate2, a model for "
        "CTranslate2; or, with --format safetensors, the weights as named tensors.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "--run",
        type=Path,
        nargs="+",
        required=True,
        dest="model",
        metavar="RUN",
        help="directory of the training run; of several of one vocabulary, an "
        "ensemble is exported: the mean of their probabilities at every step",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="directory to write: for a server a version, saved_models/NAME/1, or "
        "saved_models/NAME for the model's next version; else any new directory",
    )
    _add_format_flag(parser)
    _add_saved_model_flags(parser)
    _add_litert_flags(parser)
    add_decoding_flags(parser)


def _add_format_flag(parser):
    parser.add_argument(
        "--format",
        choices=(
            "saved_model", "litert", "web", "ctranslate2", "safetensors",
        ),
        default="saved_model",
        help="what to write (default: saved_model)",
    )  # fmt: skip


def _add_saved_model_flags(parser):
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="type of the weights and of the computation; bfloat16 takes half the "
        "memory and is faster on processors that have it (default: float32); for a "
        "SavedModel",
    )


def _add_litert_flags(parser):
    parser.add_argument(
        "--quantize",
        choices=("none", "float16", "int8"),
        help="size of the weights: float16 takes half the bytes, int8 a quarter, and "
        "is faster (default: none; for the web int8); for LiteRT, the web and "
        "CTranslate2",
    )
    parser.add_argument(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="languages that translator.json, or the model card of a SavedModel, "
        "names, such as en de; for LiteRT, the web and a SavedModel",
    )
    parser.add_argument(
        "--litert-js",
        type=Path,
        metavar="NODE_MODULES",
        help="folder of npm packages with @litertjs/core, which is copied (default: "
        "the page loads it from cdn.jsdelivr.net); for the web",
    )


_ONLY_WITH = {
    "dtype": ("saved_model",),
    "quantize": ("litert", "web", "ctranslate2"),
    "languages": ("saved_model", "litert", "web"),
    "litert_js": ("web",),
}


# What an export for CTranslate2 takes of the search: a layer and lengths.
_OF_CTRANSLATE2 = {
    "alignment_layer", "max_source_length", "max_output_length", "max_extra_length",
}  # fmt: skip


def _export(options):
    for name, formats in _ONLY_WITH.items():
        if getattr(options, name) and options.format not in formats:
            raise ValueError(
                f"`--{name.replace('_', '-')}` goes with `--format "
                f"{' or '.join(formats)}`. Received: --format {options.format}"
            )
    searched = given(options, "decoding").keys() - _OF_CTRANSLATE2
    if options.format == "ctranslate2" and searched:
        raise ValueError(
            "CTranslate2 is told how to search in each call, not at export. Received: "
            f"{', '.join(sorted(searched))}"
        )
    path = _write(load_runs(options), options)
    print_result(path)
    return {"path": path, "format": options.format}


def _write(translator, options):
    """Writes the export in its format, and returns its path."""
    names = [name for name, formats in _ONLY_WITH.items() if options.format in formats]
    chosen = {name: getattr(options, name) for name in names if getattr(options, name)}
    # An ensemble has no training of its own.
    if options.format == "saved_model" and len(options.model) == 1:
        chosen["run"] = options.model[0]
    if options.format not in ("litert", "web"):
        return translator.export(options.output, options.format, **chosen)
    print_remark(options, "converting: this takes a minute")
    with warnings_as_lines(), native_messages_hidden():
        return translator.export(options.output, options.format, **chosen)
