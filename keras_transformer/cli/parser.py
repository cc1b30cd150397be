"""The parser of the command line: flags by their whole names, suggestions, examples."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence

from keras_transformer.terminal import printable

# A model is anything that translates, a run what `train` wrote: a verb takes either.
_OTHERS = {"--run": "--model", "--model": "--run"}


class HelpFormatter(argparse.HelpFormatter):
    """Keeps the lines of an epilog, and says in the usage only what must be given."""

    def add_usage(self, usage, actions, groups, prefix=None):
        needed = [a for a in actions if a.required or not a.option_strings]
        if len(needed) < len(actions):
            needed.insert(0, argparse.Action([], "", metavar="[OPTION ...]"))
        super().add_usage(usage, needed, [], prefix)

    def _fill_text(self, text, width, indent):
        if "\n" in text:
            return text
        return super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that guesses nothing and suggests instead.

    Abbreviated flags would be taken for others: `--batch` for `--batch-tokens`. The
    parsers of verbs, which `add_subparsers` makes, are of this class too.
    """

    def __init__(self, **kwargs):
        super().__init__(
            allow_abbrev=False, add_help=False, formatter_class=HelpFormatter, **kwargs
        )
        self._verbs, self._kind = {}, ""
        self._general = self.add_argument_group("general options")
        self._general.add_argument(
            "-h", "--help", action="help", help="show this and end"
        )

    def add_general_flags(self, reports: bool = True):
        """Adds the flags that every verb has.

        Args:
            reports: Whether the verb returns what `--json` prints, and is silenced by
                `--quiet`.
        """
        flags = {"--traceback": "show where an error came from"}
        if reports:
            flags["--quiet"] = "print results, warnings and errors only"
            flags["--json"] = (
                "print one JSON object of results on standard output, and everything "
                "else on standard error"
            )
        for flag, help in flags.items():
            self._general.add_argument(
                flag, action="store_true", default=argparse.SUPPRESS, help=help
            )

    def add_version(self, action: type[argparse.Action]):
        """Adds `--version`, which `action` prints."""
        self._general.add_argument(
            "--version", action=action, nargs=0, help="show versions and end"
        )

    def add_examples(self, examples: Sequence[str]):
        """Shows command lines, without the program's name, below the help."""
        if examples:
            lines = "".join(f"\n  keras-transformer {line}" for line in examples)
            self.epilog = f"example{'s' * (len(examples) > 1)}:{lines}"

    def add_subparsers(self, **kwargs):
        verbs = super().add_subparsers(**kwargs)
        self._verbs, self._kind = verbs.choices, kwargs["metavar"]
        return verbs

    def format_help(self):
        # What every verb has comes after what is its own.
        self._action_groups.sort(key=lambda group: group is self._general)
        return super().format_help()

    def parse_args(self, args=None, namespace=None):
        args = list(sys.argv[1:] if args is None else args)
        # Before anything that is missing: it may be there under a name with a typo.
        self._check_words(args)
        return super().parse_args(args, namespace)

    def _check_words(self, words):
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
            elif parser._verbs and not word.startswith("-"):
                parser._refuse_verb(word)
        if unknown:
            parser.error(f"unrecognized arguments: {', '.join(unknown)}")

    def _refuse_verb(self, word):
        """Ends the process with a line on a word that is no verb."""
        near = difflib.get_close_matches(word, self._verbs)
        rest = f"choose from {', '.join(self._verbs)}"
        if near:
            rest = f"did you mean {' or '.join(near)}?"
        self.error(f"unknown {self._kind} {word!r} ({rest})")

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
        if any(name in verb._option_string_actions for verb in self._verbs.values()):
            return f" (give it after the {self._kind})"
        longer = [flag for flag in flags if flag.startswith(name)]
        near = longer or difflib.get_close_matches(name, flags)
        return f" (did you mean {' or '.join(near[:3])}?)" if near else ""

    def error(self, message):
        """Prints it safely: a file name that a `*` matched may hold anything."""
        super().error(printable(message))
