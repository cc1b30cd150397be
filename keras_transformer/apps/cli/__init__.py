"""The command line: verbs.toml says what there is, a function of each verb does it.

Importing it loads neither Keras nor TensorFlow; a verb does, when it is called.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import shlex
import signal
import sys
import warnings
from importlib import metadata

from keras_transformer.apps.cli import export_verbs, train_verbs, use_verbs
from keras_transformer.apps.cli.flags import (
    Parser,
    add_verbs,
    check_files,
    check_standard_output,
)
from keras_transformer.files import strict_json
from keras_transformer.terminal import (
    print_message,
    print_result,
    print_warning,
    replace_closed_streams,
)

_CALLS = {
    "quickstart": train_verbs.quickstart,
    "train": train_verbs.train,
    "average": train_verbs.average,
    "import": train_verbs.import_foreign,
    "evaluate": use_verbs.evaluate,
    "translate": use_verbs.translate,
    "clean": use_verbs.clean,
    "distill": use_verbs.distill,
    "export": export_verbs.export,
    "serve": export_verbs.serve,
    "plot-attention": export_verbs.plot_attention,
    "plot-training": export_verbs.plot_training,
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
    words = sys.argv[1:] if arguments is None else arguments
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _status(words)


def _status(words):
    """Runs the command of words, tells its error in a line, and returns its status."""
    try:
        options = _parsed(words)
        check_files(options)
        if options.json:
            check_standard_output()
            quiet = io.StringIO() if options.quiet else sys.stderr
            with contextlib.redirect_stdout(quiet):
                values = options.call(options)
            print_result(strict_json(values, default=os.fspath))
        else:
            options.call(options)
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
        if "--traceback" in words:
            raise
        print_message(f"keras-transformer: error: {_in_a_line(error, words)}")
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser; its `verbs` has those of the verbs by their names.

    What it parses has the `verb`, its `call`, and its `parser`.
    """
    versions = [f"Python {sys.version.split()[0]}"]
    for name in "tensorflow-text", "tensorflow", "keras", "keras-transformer-seq2seq":
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.insert(0, f"{name} {metadata.version(name)}")
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
    parser.set_defaults(quiet=False, json=False)
    parser.verbs = add_verbs(parser, _CALLS)
    version = {"action": "version", "version": ", ".join(versions)}
    general = parser.add_general_flags()
    general.add_argument("--version", help="show versions and end", **version)
    return parser


def _parsed(words):
    """Returns the options that words give; bad usage ends the process."""
    options, unknown = make_parser().parse_known_args(words)
    options.command = shlex.join(["keras-transformer", *words])
    if hasattr(options, "texts") and not any(word[:1] == "-" for word in unknown):
        # argparse takes no sentence that comes after a flag.
        options.texts += unknown
    elif unknown:
        flags = options.parser.flags()
        near = difflib.get_close_matches(unknown[0].partition("=")[0], flags, n=2)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return options


def _show_warning(message, *place):
    print_warning(" ".join(str(message).split()))


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
