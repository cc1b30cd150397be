"""The command line: a file for each group of verbs, with its flags and its calls.

Importing it loads neither Keras nor TensorFlow; a verb does, when it is called.
"""

from __future__ import annotations

import argparse
import os
import sys

from keras_transformer.cli import (
    export,
    importing,
    neighbours,
    plot,
    serve,
    train,
    translate,
)
from keras_transformer.cli.messages import print_error
from keras_transformer.cli.parser import Parser
from keras_transformer.terminal import replace_closed_streams


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: Words after the program's name; default those of the process.

    Returns:
        The exit status: 0, or 1 after an error, which is one line on standard error.
        Bad usage ends the process with status 2, as `argparse` does.
    """
    replace_closed_streams()
    options = make_parser().parse_args(arguments)
    try:
        options.call(options)
        # If the reader has gone, fail here and not in Python's own flush at exit.
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print_error("interrupted")
        return 1
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
    """Returns the parser; what it parses has the `verb` and the `call` that runs it."""
    parser = Parser(
        prog="keras-transformer",
        description="Train a Transformer on pairs of sentences and serve it.",
    )
    parser.add_argument(
        "--traceback", action="store_true", help="show where an error came from"
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="verb")
    for group in (train, importing, translate, export, serve, plot, neighbours):
        group.add_verbs(verbs)
    return parser
