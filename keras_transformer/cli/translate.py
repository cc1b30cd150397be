"""The verbs that use a trained model: `evaluate`, `translate` and `export`."""

from __future__ import annotations

import sys
from pathlib import Path

from keras_transformer.cli.flags import (
    PAIRS_HELP,
    add_flags,
    add_verb,
    sentence,
)
from keras_transformer.cli.loading import (
    check_no_decoding_options,
    is_run,
    load_module,
    load_pairs,
    load_run,
    load_translator,
)
from keras_transformer.cli.messages import warnings_as_lines
from keras_transformer.config import DecodingConfig
from keras_transformer.files import check_not_directory
from keras_transformer.terminal import print_message, print_result

# Options of an export's signatures, which `evaluate` and `translate` do not use.
_OF_EXPORTS = {"n_best", "top_k", "top_p", "alignment_layer"}


def add_verbs(verbs):
    """Adds the verbs to what `add_subparsers` of the parser returned."""
    _add_evaluate(verbs)
    _add_translate(verbs)
    _add_export(verbs)


def _add_evaluate(verbs):
    parser = add_verb(
        verbs, "evaluate", _evaluate, "Translate a test set and score it (sacreBLEU)."
    )
    _add_model(parser)
    parser.add_argument(
        "--test", nargs="+", required=True, metavar="FILE", help=PAIRS_HELP
    )
    parser.add_argument("--output", type=Path, help="file for the translations")
    _add_decoding_flags(parser, without=_OF_EXPORTS)


def _evaluate(options):
    _check_standard_output()
    evaluation = load_module("evaluation")
    translator = load_translator(options)
    pairs = ((pair.source, pair.target) for pair in load_pairs(options.test).pairs())
    scores = evaluation.evaluate(translator, pairs, options.output, show_progress=True)
    for line in str(scores).splitlines():
        print_result(line)


def _check_standard_output(instead=""):
    """Checks, before hours of work, that the result can be printed."""
    if sys.stdout is None:
        raise ValueError(
            f"Standard output must be open{instead}. Received: it is closed"
        )


def _add_translate(verbs):
    parser = add_verb(
        verbs,
        "translate",
        _translate,
        "Translate arguments, a file or standard input, one sentence a line.",
    )
    _add_model(parser)
    parser.add_argument(
        "texts", nargs="*", type=sentence, metavar="TEXT", help="sentences"
    )
    parser.add_argument(
        "--input",
        type=Path,
        help="file of sentences, gzipped or not, of any size (default: standard input)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="file for the translations; after an interruption the same command "
        "continues where it stopped",
    )
    parser.add_argument(
        "--ray-workers",
        type=int,
        metavar="N",
        help="translate on N processes or machines with Ray (extra `ray`); for a "
        "SavedModel and files",
    )
    _add_decoding_flags(parser, without=_OF_EXPORTS)


def _translate(options):
    if options.texts and options.input:
        raise ValueError("Give sentences or `--input`, not both.")
    if options.output is not None:
        check_not_directory(options.output)
    if options.ray_workers is not None:
        return _translate_with_ray(options)
    if options.output is None:
        _check_standard_output(", or give `--output`")
    if not options.texts and options.input is None and sys.stdin is None:
        raise ValueError(
            "Standard input must be open, or give sentences or `--input`. Received: it "
            "is closed"
        )
    translator = load_translator(options)
    if options.output is None:
        return _print_translations(translator, options)
    if options.texts:
        translations = translator(options.texts)
        return load_module("evaluation").write_lines(options.output, translations)
    summary = load_module("bulk").translate_file(
        translator,
        sys.stdin.buffer if options.input is None else options.input,
        options.output,
        fingerprint=_fingerprint(translator, options),
        show_progress=True,
    )
    print_message(str(summary))


def _print_translations(translator, options):
    bulk, lines = load_module("bulk.translate"), load_module("text.lines")
    texts, window = options.texts, bulk.WINDOW
    if not texts:
        texts = bulk.read_texts(options.input or sys.stdin.buffer)
    if not options.texts and options.input is None and not sys.stdin.seekable():
        # A person waits for each line, and a program may write its lines slowly.
        window = 1 if sys.stdin.isatty() else bulk.BATCH_SIZE
    for translation in bulk.translate_lines(translator, texts, window=window):
        print_result(lines.one_line(translation))


def _fingerprint(translator, options):
    """Identifies model and options: only the same may continue an output."""
    model_fingerprint = load_module("bulk").model_fingerprint
    if not is_run(options.model):
        return model_fingerprint(translator.path)
    return model_fingerprint(options.model, translator.config.to_json())


def _translate_with_ray(options):
    if options.ray_workers < 1:
        raise ValueError(
            "`--ray-workers` must be at least 1. Received: "
            f"--ray-workers {options.ray_workers}"
        )
    if options.input is None or options.output is None:
        raise ValueError("`--ray-workers` needs `--input` and `--output`.")
    if is_run(options.model):
        raise ValueError(
            "`--ray-workers` needs a SavedModel: `export` writes one. Received: "
            f"--model {options.model}, a training run"
        )
    check_no_decoding_options(options)
    ray = load_module("bulk.ray_workers")
    summary = ray.translate_text(
        options.model,
        options.input,
        options.output,
        ray.RayWorkers(options.ray_workers),
        show_progress=True,
    )
    print_message(str(summary))


def _add_export(verbs):
    parser = add_verb(
        verbs,
        "export",
        _export,
        "Write a SavedModel for TensorFlow Serving.",
        "Write a SavedModel for TensorFlow Serving, its warm-up requests, and beside "
        "the versions a docker-compose.yml.",
    )
    parser.add_argument(
        "--run",
        type=Path,
        required=True,
        dest="model",
        help="directory of the training run",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="such as saved_models/NAME/1"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="type of the weights and of the computation; bfloat16 takes half the "
        "memory and is faster on processors that have it (default: float32)",
    )
    parser.add_argument(
        "--jit-compile",
        action="store_true",
        help="compile with XLA: faster, but the first request of each new shape takes "
        "many seconds; TensorFlow Serving must be started with "
        "--xla_cpu_compilation_enabled",
    )
    _add_decoding_flags(parser)


def _export(options):
    translator = load_run(options)
    with warnings_as_lines():
        path = translator.export(options.output, options.dtype, options.jit_compile)
    print_result(path)


def _add_model(parser):
    parser.add_argument(
        "--model", type=Path, required=True, help="run directory or SavedModel"
    )


def _add_decoding_flags(parser, without=()):
    sections = {"decoding": DecodingConfig}
    add_flags(parser, sections, default="as in the run", without=without)
