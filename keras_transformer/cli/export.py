"""The verbs `export` and `card`: a trained model becomes files for others."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.cli.flags import add_decoding_flags, add_verb, given
from keras_transformer.cli.loading import is_run, load_module, load_runs
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
    """Adds the verbs to what `add_subparsers` of the parser returned."""
    _add_export(verbs)
    _add_card(verbs)


def _add_card(verbs):
    parser = add_verb(
        verbs,
        "card",
        _card,
        "Print the model card of a training run or of a SavedModel.",
        "Print the model card of a training run, as `export` writes it beside a "
        "SavedModel, or that of a SavedModel: Markdown with a head for model hubs. "
        "What is not known is left to fill in.",
        examples=("card runs/en-de --languages en de > README.md", "card runs/en-de"),
    )
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="directory of a training run, or a SavedModel (NAME or NAME/VERSION)",
    )
    parser.add_argument(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="languages that the card of a run names, such as en de",
    )


def _card(options):
    card = _read_card(options)
    for line in card.splitlines():
        print_result(line)
    return {"card": card}


def _read_card(options):
    if is_run(options.model):
        translator = load_module("translator").Translator.load(options.model)
        return translator.model_card(options.model, options.languages)
    saved_model = load_module("export.saved_model")
    version = saved_model.latest_version(options.model)
    if options.languages:
        raise ValueError(
            "`--languages` goes with a training run: the card of a SavedModel is in "
            f"{version / saved_model.CARD}, yours to edit."
        )
    return (version / saved_model.CARD).read_text(encoding="utf-8")


def _add_export(verbs):
    parser = add_verb(
        verbs,
        "export",
        _export,
        "Write a SavedModel for TensorFlow Serving, a LiteRT file for devices or for "
        "TensorFlow Serving, a page for browsers, or weights for other systems.",
        "Write a SavedModel for TensorFlow Serving with its warm-up requests and a "
        "model card, README.md, and beside the versions what starts a server with "
        "Docker or Kubernetes; or, with --format litert, a directory that translates "
        "without TensorFlow; or, with --format litert_serving, a LiteRT file for "
        "TensorFlow Serving's --prefer_tflite_model, which is experimental and was not "
        "tried; or, with --format web, a folder for a web server whose page translates "
        "in the browser; or, with --format ctranslate2, a model for CTranslate2; or, "
        "with --format safetensors, the weights as named tensors.",
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
            "saved_model", "litert", "litert_serving", "web", "ctranslate2",
            "safetensors",
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
    parser.add_argument(
        "--jit-compile",
        action="store_true",
        help="compile with XLA: faster, but the first request of each new shape takes "
        "many seconds; TensorFlow Serving must be started with "
        "--xla_cpu_compilation_enabled; for a SavedModel",
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
    "jit_compile": ("saved_model",),
    "quantize": ("litert", "litert_serving", "web", "ctranslate2"),
    "languages": ("saved_model", "litert", "litert_serving", "web"),
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
    if options.format == "ctranslate2":
        quantize = options.quantize or "none"
        return translator.export_ctranslate2(options.output, quantize)
    if options.format == "safetensors":
        return translator.export_safetensors(options.output)
    if options.format != "saved_model":
        return _export_litert(translator, options)
    with warnings_as_lines():
        # An ensemble has no training of its own.
        run = options.model[0] if len(options.model) == 1 else None
        return translator.export(
            options.output, options.dtype or "float32", options.jit_compile,
            run=run, languages=options.languages,
        )  # fmt: skip


def _export_litert(translator, options):
    print_remark(options, "converting: this takes a minute")
    scores = None
    with warnings_as_lines(), native_messages_hidden():
        if options.format == "web":
            return translator.export_web(
                options.output, options.quantize or "int8", options.languages, scores,
                options.litert_js,
            )  # fmt: skip
        export = {
            "litert": translator.export_litert,
            "litert_serving": translator.export_litert_serving,
        }[options.format]
        return export(
            options.output, options.quantize or "none", options.languages, scores
        )
