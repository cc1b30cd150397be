"""The command line: a file for each group of verbs, with its flags and its calls.

Importing it loads neither Keras nor TensorFlow; a verb does, when it is called.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys

from keras_transformer.cli import (
    completion,
    export,
    importing,
    playground,
    plot,
    serve,
    train,
    translate,
)
from keras_transformer.cli.messages import print_error
from keras_transformer.cli.parser import Parser
from keras_transformer.cli.results import run_verb
from keras_transformer.terminal import (
    print_message,
    print_result,
    replace_closed_streams,
)

_GROUPS = (
    train, importing, translate, export, serve, playground, plot, completion
)  # fmt: skip
_EXAMPLES = (
    "quickstart",
    "train --train train.en train.de --valid valid.en valid.de --run runs/en-de",
    'translate --model runs/en-de "Two men are talking."',
    "train --help",
)


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
    options = make_parser().parse_args(arguments)
    try:
        run_verb(options)
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
        print_error(error)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser.

    What it parses has the `verb`, the `call` that runs it, and the `parser` itself.
    """
    parser = Parser(
        prog="keras-transformer",
        description="Train a Transformer on pairs of sentences and serve it.",
    )
    parser.add_general_flags(reports=False)
    parser.add_version(_Version)
    parser.add_examples(_EXAMPLES)
    parser.set_defaults(traceback=False, quiet=False, json=False, parser=parser)
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="verb")
    for group in _GROUPS:
        group.add_verbs(verbs)
    return parser


class _Version(argparse.Action):
    """Prints the versions of the package and of what it stands on; loads none."""

    def __call__(self, parser, namespace, values, option_string=None):
        from importlib import metadata

        names = "keras-transformer-seq2seq", "keras", "tensorflow", "tensorflow-text"
        words = [f"Python {sys.version.split()[0]}"]
        for name in names:
            with contextlib.suppress(metadata.PackageNotFoundError):
                words.append(f"{name} {metadata.version(name)}")
        print_result(", ".join([*words[1:], words[0]]))
        parser.exit()
