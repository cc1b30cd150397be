"""The command line: parses arguments; each verb calls one function of the package."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from keras_transformer.config import DecodingConfig, TransformerConfig
from keras_transformer.flags import SECTIONS, add_flags, given, run_config

_PAIRS_HELP = (
    "two aligned text files, one file of source<TAB>target lines, gzipped or not, or "
    "tfds:NAME"
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: Words after the program's name; default those of the process.

    Returns:
        The exit status: 0, or 1 after an error, which is one line on standard error.
        Bad usage ends the process with status 2, as `argparse` does.
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        # A reader that has gone shows here, not in Python's own flush at exit.
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail("interrupted")
    except BrokenPipeError:
        # The reader of our output has gone; Python's own flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if options.traceback:
            raise
        return _fail(_describe(error))
    return 0


def _fail(message):
    print(f"keras-transformer: error: {message}", file=sys.stderr)  # noqa: T201
    return 1


def _describe(error):
    """Returns one line about an error; its kind too where the text may not do alone."""
    expected = (ValueError, TypeError, ImportError, FloatingPointError)
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    message = " ".join(str(error).split())
    if isinstance(error, (*expected, OSError)) and message:
        return message
    hint = "keras-transformer --traceback VERB ... shows where"
    return f"{type(error).__name__}: {message} ({hint})"


def _parser():
    parser = argparse.ArgumentParser(
        prog="keras-transformer",
        description="Train a Transformer on pairs of sentences and serve it.",
    )
    parser.add_argument(
        "--traceback", action="store_true", help="show where an error came from"
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_quickstart(verbs)
    _add_train(verbs)
    _add_evaluate(verbs)
    _add_translate(verbs)
    _add_export(verbs)
    return parser


def _add_verb(verbs, name, run, help):
    parser = verbs.add_parser(name, help=help, description=help)
    parser.set_defaults(run=run)
    return parser


def _add_quickstart(verbs):
    parser = _add_verb(
        verbs,
        "quickstart",
        _quickstart,
        "Train on built-in, generated sentences, evaluate, export, translate.",
    )
    parser.add_argument(
        "--language",
        choices=("de", "fr"),
        default="de",
        help="target language, from English (default: de)",
    )
    parser.add_argument(
        "--run", type=Path, dest="directory", help="run directory (new or empty)"
    )
    parser.add_argument(
        "--saved-models",
        type=Path,
        default=Path("saved_models"),
        help="where the SavedModel goes",
    )


def _add_train(verbs):
    parser = _add_verb(
        verbs, "train", _train, "Train a Transformer on pairs of sentences."
    )
    parser.add_argument(
        "--train", nargs="+", required=True, metavar="FILE", help=_PAIRS_HELP
    )
    parser.add_argument(
        "--valid", nargs="+", metavar="FILE", help="validation pairs, given alike"
    )
    parser.add_argument(
        "--run",
        type=Path,
        required=True,
        dest="directory",
        help="run directory (new or empty)",
    )
    parser.add_argument(
        "--preset", choices=tuple(TransformerConfig.PRESETS), help="model sizes"
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="JSON file of options, such as a run's config.json; flags go before it",
    )
    add_flags(parser, SECTIONS)


def _add_evaluate(verbs):
    parser = _add_verb(
        verbs, "evaluate", _evaluate, "Translate a test set and score it (sacreBLEU)."
    )
    _add_model(parser)
    parser.add_argument(
        "--test", nargs="+", required=True, metavar="FILE", help=_PAIRS_HELP
    )
    parser.add_argument("--output", type=Path, help="file for the translations")
    add_flags(parser, {"decoding": DecodingConfig}, default="as the run has it")


def _add_translate(verbs):
    parser = _add_verb(
        verbs,
        "translate",
        _translate,
        "Translate arguments, a file or standard input, one sentence a line.",
    )
    _add_model(parser)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="sentences")
    parser.add_argument("--input", type=Path, help="file of sentences")
    parser.add_argument("--output", type=Path, help="file for the translations")
    add_flags(parser, {"decoding": DecodingConfig}, default="as the run has it")


def _add_export(verbs):
    parser = _add_verb(
        verbs, "export", _export, "Write a SavedModel for TensorFlow Serving."
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
    add_flags(parser, {"decoding": DecodingConfig}, default="as the run has it")


def _add_model(parser):
    parser.add_argument(
        "--model", type=Path, required=True, help="run directory or SavedModel"
    )


def _open(files):
    with _quiet():
        from keras_transformer.text import open_pairs

    if len(files) > 2:
        raise ValueError(
            "Pairs come in two aligned files or in one file of tab-separated lines. "
            f"Received: {len(files)} files"
        )
    return open_pairs(*files)


@contextlib.contextmanager
def _quiet():
    """Hides what TensorFlow's native code prints to standard error when imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _load(options):
    """Returns the translator of a run directory or of a SavedModel."""
    if not options.model.is_dir():
        raise FileNotFoundError(f"{options.model} is not a directory.")
    if (options.model / "model.keras").exists():
        return _load_run(options)
    if changes := given(options, "decoding"):
        raise ValueError(
            "A SavedModel decodes as it was exported; give decoding options to "
            f"`export`. Received: {', '.join(sorted(changes))}"
        )
    with _quiet():
        from keras_transformer.export import ExportedTranslator

    return ExportedTranslator(options.model)


def _load_run(options):
    """Returns the translator of a run directory, with the decoding options given."""
    with _quiet():
        from keras_transformer.translator import Translator

    translator = Translator.load(options.model)
    config = translator.config.replace(**given(options, "decoding"))
    return Translator(translator.model, translator.tokenizers, config)


def _quickstart(options):
    with _quiet():
        from keras_transformer.quickstart import quickstart

    quickstart(options.language, options.directory, options.saved_models)


def _train(options):
    config = run_config(options)
    with _quiet():
        from keras_transformer.training import train

    validation = _open(options.valid) if options.valid else None
    train(_open(options.train), options.directory, config, validation)


def _evaluate(options):
    from keras_transformer.evaluation import evaluate

    translator = _load(options)
    pairs = ((pair.source, pair.target) for pair in _open(options.test).pairs())
    scores = evaluate(translator, pairs, options.output, show_progress=True)
    print(scores)  # noqa: T201


def _translate(options):
    from keras_transformer.evaluation import one_line, write_lines
    from keras_transformer.files import check_not_directory

    if options.texts and options.input:
        raise ValueError("Give sentences or `--input`, not both.")
    texts = options.texts or _input_lines(options.input)
    if options.output is not None:
        check_not_directory(options.output)
    translations = _load(options)(texts)
    if options.output is not None:
        return write_lines(options.output, translations)
    for text in translations:
        print(one_line(text))  # noqa: T201


def _input_lines(path):
    """Returns the lines of a file, gzip or not, or of standard input."""
    with _quiet():
        from keras_transformer.text import read_lines

    # Bytes, since only a line feed ends a line, and bad ones are to be named.
    lines = sys.stdin.buffer if path is None else read_lines(path)
    path = "standard input" if path is None else path
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.rstrip(b"\r\n").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{number}: not valid UTF-8") from error
    return texts


def _export(options):
    path = _load_run(options).export(options.output)
    print(path)  # noqa: T201
