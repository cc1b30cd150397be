"""The parser of the command line: it takes every flag by its whole name."""

from __future__ import annotations

import argparse
import difflib
import sys

from keras_transformer.terminal import printable

# A model is anything that translates, a run what `train` wrote: a verb takes either.
_OTHERS = {"--run": "--model", "--model": "--run"}


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that guesses nothing and suggests instead.

    Abbreviated flags would be taken for others: `--batch` for `--batch-tokens`. The
    parsers of verbs, which `add_subparsers` makes, are of this class too.
    """

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, **kwargs)
        self._verbs = {}

    def add_subparsers(self, **kwargs):
        verbs = super().add_subparsers(**kwargs)
        self._verbs = verbs.choices
        return verbs

    def parse_args(self, args=None, namespace=None):
        args = list(sys.argv[1:] if args is None else args)
        # Before anything that is missing: it may be there under a name with a typo.
        self._check_flags(args)
        return super().parse_args(args, namespace)

    def _check_flags(self, words):
        parser, unknown = self, []
        for word in words:
            name = word.partition("=")[0]
            if word == "--":
                break
            if word in parser._verbs:
                parser = parser._verbs[word]
            # As in argparse, what has a space is a sentence.
            elif name.startswith("--") and " " not in name:
                if name not in parser._option_string_actions:
                    unknown.append(name + parser._suggestion(name))
        if unknown:
            parser.error(f"unrecognized arguments: {', '.join(unknown)}")

    def _suggestion(self, name):
        """Returns words that name the flags most like `name`, or nothing."""
        flags = [
            flag
            for flag, action in self._option_string_actions.items()
            if flag.startswith("--") and action.help != argparse.SUPPRESS
        ]
        other = _OTHERS.get(name)
        if other in flags:
            return f" (give it as {other})"
        longer = [flag for flag in flags if flag.startswith(name)]
        near = longer or difflib.get_close_matches(name, flags)
        return f" (did you mean {' or '.join(near[:3])}?)" if near else ""

    def error(self, message):
        """Prints it safely: a file name that a `*` matched may hold anything."""
        super().error(printable(message))
