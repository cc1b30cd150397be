"""The command line: verbs.toml says what there is, a function of each verb does it.

Importing it loads neither Keras nor TensorFlow; a verb does, when it is called.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import os
import shlex
import signal
import sys
import warnings
from importlib import metadata

from keras_transformer.cli import export, train, use
from keras_transformer.cli.flags import (
    Parser,
    add_verbs,
    check_files,
    check_standard_output,
    sentence,
)
from keras_transformer.terminal import (
    print_message,
    print_result,
    replace_closed_streams,
)

_CALLS = {
    "quickstart": train.quickstart,
    "train": train.train,
    "average": train.average,
    "import": train.import_foreign,
    "evaluate": use.evaluate,
    "translate": use.translate,
    "export": export.export,
    "serve": export.serve,
    "playground": export.playground,
    "plot attention": export.plot_attention,
    "plot training": export.plot_training,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: Words after the program's name; default those of the process.

    Returns:
        The exit status: 0, or 1 after an error, which is one line on standard error,
        or 130 after Ctrl-C, as a shell reports it. Bad usage ends the process with
        status 2, as `argparse` does.
    """
    replace_closed_streams()
    warnings.showwarning = _show_warning
    words = sys.argv[1:] if arguments is None else arguments
    options, unknown = make_parser().parse_known_args(words)
    if hasattr(options, "texts") and not any(word[:1] == "-" for word in unknown):
        # argparse takes no sentence that comes after a flag.
        try:
            options.texts += map(sentence, unknown)
        except argparse.ArgumentTypeError as error:
            options.parser.error(f"argument TEXT: {error}")
    elif unknown:
        flags = options.parser.flags()
        near = difflib.get_close_matches(unknown[0].partition("=")[0], flags, n=2)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    try:
        _run(options)
        # If the reader has gone, fail here and not in Python's own flush at exit.
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print_message("keras-transformer: interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output has gone; Python's own flush at exit must not fail.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if options.traceback:
            raise
        print_message(f"keras-transformer: error: {_in_a_line(error, words)}")
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser; its `verbs` has those of the verbs by their names.

    What it parses has the `verb`, its `call`, and its `parser`.
    """
    parser = Parser(
        prog="keras-transformer",
        description="Train a Transformer on pairs of sentences and serve it.",
        examples=(
            "quickstart",
            "train --train a.en a.de --valid v.en v.de --run runs/a",
            'translate runs/a "Two men are talking."',
            "train --help",
        ),
    )
    parser.set_defaults(traceback=False, quiet=False, json=False)
    parser.general.add_argument(
        "--version", action="version", version=_versions(), help="show versions and end"
    )
    parser.verbs = add_verbs(parser, _CALLS)
    return parser


def _versions():
    """Returns the versions of the package and of what it stands on; loads none."""
    words = []
    for name in "keras-transformer-seq2seq", "keras", "tensorflow", "tensorflow-text":
        with contextlib.suppress(metadata.PackageNotFoundError):
            words.append(f"{name} {metadata.version(name)}")
    return ", ".join([*words, f"Python {sys.version.split()[0]}"])


def _run(options):
    """Runs the verb; with `--json` what it returns is all of standard output."""
    check_files(options)
    if not options.json:
        options.call(options)
        return
    check_standard_output()
    with contextlib.redirect_stdout(io.StringIO() if options.quiet else sys.stderr):
        values = json.dumps(options.call(options), default=os.fspath)
    # JSON has no NaN and no infinity.
    print_result(json.dumps(json.loads(values, parse_constant=lambda name: None)))


def _show_warning(message, *place):
    print_message(f"keras-transformer: warning: {' '.join(str(message).split())}")


def _in_a_line(error, words):
    """Returns an error in words; its kind too where these say too little."""
    expected = (ValueError, TypeError, ImportError, FloatingPointError, OSError)
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    message = " ".join(str(error).split())
    if isinstance(error, expected) and message:
        return message
    command = shlex.join(["keras-transformer", "--traceback", *words])
    return f"{type(error).__name__}: {message} (where: {command})"
