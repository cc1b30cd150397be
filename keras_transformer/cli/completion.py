"""The verb `completion`: what a shell completes after `keras-transformer`."""

from __future__ import annotations

import argparse
from pathlib import Path

from keras_transformer.cli.flags import add_verb
from keras_transformer.terminal import print_result

_SHELLS = ("bash", "zsh", "tcsh")


def add_verbs(verbs):
    """Adds the verb to what `add_subparsers` of the parser returned."""
    parser = add_verb(
        verbs,
        "completion",
        _completion,
        "Print a script that completes verbs, flags and their values in a shell.",
        "Print a script for a shell, which then completes verbs, flags, the values "
        "that a flag allows, and file names. Needs the extra `completion` (shtab).",
        examples=(
            "completion bash > ~/.local/share/bash-completion/completions/"
            "keras-transformer",
            "completion zsh > ~/.zfunc/_keras-transformer",
        ),
        reports=False,
    )
    parser.add_argument("shell", choices=_SHELLS, help="the shell")


def _completion(options):
    try:
        import shtab
    except ImportError as error:
        raise ImportError(
            "`completion` needs shtab: install keras-transformer-seq2seq[completion]"
        ) from error
    _complete_files(options.parser, shtab.FILE)
    for line in shtab.complete(options.parser, options.shell).splitlines():
        print_result(line)


def _complete_files(parser, files):
    """Has file names completed wherever a flag takes them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _complete_files(below, files)
        elif action.type is Path or action.metavar == "FILE":
            action.complete = files
