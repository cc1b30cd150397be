"""The command line: parses arguments; each verb calls one function of the package."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import types
import typing
from pathlib import Path

from keras_transformer.config import (
    DataConfig,
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)

# The learned vocabulary sets these.
_NOT_FLAGS = {
    "source_vocabulary_size",
    "target_vocabulary_size",
    "pad_id",
    "start_id",
    "end_id",
    "unknown_id",
}
_SECTIONS = {
    "model": TransformerConfig,
    "tokenizer": TokenizerConfig,
    "data": DataConfig,
    "training": TrainingConfig,
    "decoding": DecodingConfig,
}
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
    # Its native code reports every missing GPU driver as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        options.run(options)
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
    return f"{type(error).__name__}: {message} (--traceback shows where)"


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
    parser.add_argument("--language", choices=("de", "fr"), default="de")
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
    _add_flags(parser, _SECTIONS)


def _add_evaluate(verbs):
    parser = _add_verb(
        verbs, "evaluate", _evaluate, "Translate a test set and score it (sacreBLEU)."
    )
    _add_model(parser)
    parser.add_argument(
        "--test", nargs="+", required=True, metavar="FILE", help=_PAIRS_HELP
    )
    parser.add_argument("--output", type=Path, help="file for the translations")
    _add_flags(parser, {"decoding": DecodingConfig})


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
    _add_flags(parser, {"decoding": DecodingConfig})


def _add_export(verbs):
    parser = _add_verb(
        verbs, "export", _export, "Write a SavedModel for TensorFlow Serving."
    )
    parser.add_argument("--run", type=Path, required=True, dest="model")
    parser.add_argument(
        "--output", type=Path, required=True, help="such as saved_models/NAME/1"
    )
    _add_flags(parser, {"decoding": DecodingConfig})


def _add_model(parser):
    parser.add_argument(
        "--model", type=Path, required=True, help="run directory or SavedModel"
    )


def _add_flags(parser, sections):
    """Adds a flag for every option of the configuration classes."""
    for section, config in sections.items():
        group = parser.add_argument_group(f"{section} options")
        hints = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            if field.name in _NOT_FLAGS:
                continue
            kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
            kind = next(kind for kind in kinds if kind is not types.NoneType)
            details = {"type": kind, "choices": field.metadata["choices"]}
            if kind is bool:
                details = {"action": argparse.BooleanOptionalAction}
            elif kind is not str:
                details["metavar"] = kind.__name__.upper()
            text = field.metadata["help"].replace("%", "%%")
            group.add_argument(
                "--" + field.name.replace("_", "-"),
                dest=f"{section}.{field.name}",
                default=argparse.SUPPRESS,
                help=f"{text} (default: {field.default})",
                **details,
            )


def _given(options, section):
    """Returns the options of a section that the command line gave."""
    prefix = section + "."
    return {
        name.removeprefix(prefix): value
        for name, value in vars(options).items()
        if name.startswith(prefix)
    }


def _run_config(options) -> RunConfig:
    """Flags go before the configuration file, which goes before the preset."""
    values = {}
    if options.config is not None:
        RunConfig.load(options.config)  # For errors that name the file.
        values = json.loads(options.config.read_text(encoding="utf-8"))
    sections = {
        section: values.get(section, {}) | _given(options, section)
        for section in _SECTIONS
    }
    if options.preset:
        preset = TransformerConfig.PRESETS[options.preset]
        sections["model"] = preset | sections["model"]
    return RunConfig.from_dict(sections)


def _open(files):
    from keras_transformer.text import open_pairs

    if len(files) > 2:
        raise ValueError(
            "Pairs come in two aligned files or in one file of tab-separated lines. "
            f"Received: {len(files)} files"
        )
    return open_pairs(*files)


def _load(options):
    """Returns the translator of a run directory or of a SavedModel."""
    from keras_transformer.export import ExportedTranslator

    if not options.model.is_dir():
        raise FileNotFoundError(f"{options.model} is not a directory.")
    if (options.model / "model.keras").exists():
        return _load_run(options)
    if changes := _given(options, "decoding"):
        raise ValueError(
            "A SavedModel decodes as it was exported; give decoding options to "
            f"`export`. Received: {', '.join(sorted(changes))}"
        )
    return ExportedTranslator(options.model)


def _load_run(options):
    """Returns the translator of a run directory, with the decoding options given."""
    from keras_transformer.translator import Translator

    translator = Translator.load(options.model)
    config = translator.config.replace(**_given(options, "decoding"))
    return Translator(translator.model, translator.tokenizers, config)


def _quickstart(options):
    from keras_transformer.quickstart import quickstart

    quickstart(options.language, options.directory, options.saved_models)


def _train(options):
    config = _run_config(options)
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

    if options.texts and options.input:
        raise ValueError("Give sentences or `--input`, not both.")
    translator = _load(options)
    translations = translator(options.texts or _input_lines(options.input))
    if options.output is not None:
        return write_lines(options.output, translations)
    for text in translations:
        print(one_line(text))  # noqa: T201


def _input_lines(path):
    """Returns the lines of a file, gzip or not, or of standard input."""
    from keras_transformer.text import read_lines

    if path is None:
        return [line.rstrip("\r\n") for line in sys.stdin]
    texts = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{number}: not valid UTF-8") from error
    return texts


def _export(options):
    path = _load_run(options).export(options.output)
    print(path)  # noqa: T201
