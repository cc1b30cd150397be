"""What verbs print: results as lines, or with `--json` as one object."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from keras_transformer.terminal import print_message, print_result, warnings_only


def run_verb(options: Namespace):
    """Runs a verb, which prints its results, or with `--json` returns them.

    With `--json` whatever the verb prints goes to standard error, or with `--quiet` to
    nowhere, and what it returned becomes the one line of standard output. Nothing is
    printed there if it fails.

    Args:
        options: The parsed command line.

    Raises:
        ValueError: If there is no standard output for the object.
    """
    if not options.json:
        options.call(options)
        return
    check_standard_output()
    elsewhere = io.StringIO() if options.quiet else sys.stderr
    with contextlib.redirect_stdout(elsewhere):
        values = options.call(options)
    print_result(json.dumps(_plain(values)))


def check_standard_output(instead: str = ""):
    """Checks, before hours of work, that the result can be printed.

    Args:
        instead: What else may be done, for the error.

    Raises:
        ValueError: If standard output is closed.
    """
    if sys.stdout is None:
        raise ValueError(
            f"Standard output must be open{instead}. Received: it is closed"
        )


def console_of(options: Namespace):
    """Returns the Rich console where a verb says what it does.

    With `--quiet` only warnings are printed there, on standard error.
    """
    from rich.console import Console

    return warnings_only() if options.quiet else Console()


def print_remark(options: Namespace, text: str):
    """Prints a line on standard error that is no result, unless `--quiet` is given."""
    if not options.quiet:
        print_message(text)


def _plain(value: Any) -> Any:
    """Returns values as JSON has them: paths as text, no NaN and no infinity."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Path):
        return os.fspath(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
