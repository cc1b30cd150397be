"""The verbs and flags of verbs.toml; those of a run's options come from `config`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import re
import sys
import textwrap
import tomllib
import types
import typing
from pathlib import Path

from keras_transformer.config import RunConfig
from keras_transformer.config.options import broken_rule, kinds_of
from keras_transformer.extras import reason_of
from keras_transformer.search.run_directory import trained_directory
from keras_transformer.terminal import native_messages_hidden, printable

_VERBS = Path(__file__).with_name("verbs.toml")


class Parser(argparse.ArgumentParser):
    """Takes flags by their whole names alone: `--batch` is not `--batch-tokens`."""

    def __init__(self, description, examples=(), **details):
        lines = "".join(f"\n  keras-transformer {line}" for line in examples)
        super().__init__(
            description=textwrap.fill(description, 78),
            epilog=f"examples:{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
            **details,
        )

    def add_general_flags(self, has_rare=False, reports=False):
        """Adds the flags of every verb, as the last group; returns the group."""
        group = self.add_argument_group("general options")
        how = {"nargs": 0, "help": "show this and end"}
        if has_rare:
            how = {"nargs": "?", "metavar": "all", "help": "show this, or all flags"}
        group.add_argument("-h", "--help", action=_Help, **how)
        # They may have been given before the verb.
        switch = {"action": "store_true", "default": argparse.SUPPRESS}
        what = "show where an error came from"
        group.add_argument("--traceback", help=what, **switch)
        if reports:
            what = "print results, warnings and errors only"
            group.add_argument("--quiet", help=what, **switch)
            what = "print one JSON object, the rest on standard error"
            group.add_argument("--json", help=what, **switch)
        return group

    def error(self, message):
        # A name that a `*` matched may hold anything.
        super().error(printable(message))

    def flags(self) -> list[str]:
        """Returns the flags by their names."""
        return [flag for flag in self._option_string_actions if flag[:2] == "--"]


class _Help(argparse.Action):
    """`--help` shows the flags that many need, `--help all` the rare ones too."""

    def __call__(self, parser, namespace, values, option_string=None):
        for action in parser._actions:
            if values != "all" and getattr(action, "is_rare", False):
                action.help = argparse.SUPPRESS
        parser.print_help()
        parser.exit()


def add_verbs(parser, calls):
    """Adds the verbs of verbs.toml, and returns the parser of each.

    Its function in `calls` gets the parsed options, prints results, and returns them
    for `--json`.
    """
    parsers = {}
    tables = tomllib.loads(_VERBS.read_text(encoding="utf-8"))
    subparsers = parser.add_subparsers(required=True, metavar="VERB", dest="verb")
    for name, verb in tables["verbs"].items():
        groups = [tables["groups"][group] for group in verb.get("groups", ())]
        own = subparsers.add_parser(
            name,
            help=verb["help"],
            description=f"{verb['help']} {verb.get('more', '')}",
            examples=[f"{name} {rest}".rstrip() for rest in verb["examples"]],
            usage=f"%(prog)s {verb['needs']}[OPTION ...]",
        )
        own.set_defaults(parser=own, call=calls[name])
        parsers[name] = own
        place = own.add_argument_group(verb["title"]) if "title" in verb else own
        for flag, details in verb["flags"].items():
            if isinstance(details, str):
                details = tables["flags"][details]
            details = dict(details)
            is_rare = details.pop("rare", False)
            reads = details.pop("reads", False)
            if "type" in details:
                details["type"] = _TYPES[details["type"]]
            if isinstance(details.get("metavar"), list):
                details["metavar"] = tuple(details["metavar"])
            action = place.add_argument(flag, **details)
            action.is_rare = is_rare
            action.reads = reads
        for group in groups:
            _add_options(own, **group)
        own.add_general_flags("rare" in set().union(*groups), verb.get("reports", True))
    return parsers


def check_files(options):
    """Raises `FileNotFoundError` if a path or a trained run that is read is missing."""
    for action in options.parser._actions:
        reads = getattr(action, "reads", False)
        for path in _paths_in(getattr(options, action.dest)) if reads else ():
            os.stat(path)
            if reads == "trained":
                trained_directory(path)


def _paths_in(value):
    """Returns the paths of a flag that takes one, or many, or was not given."""
    if isinstance(value, list):
        return [path for one in value for path in _paths_in(one)]
    return [] if value is None else [value]


def _add_options(parser, title, options=(), rare=(), shows_defaults=True):
    """Adds a group of flags, one for each of some options of a run."""
    group = parser.add_argument_group(title)
    for name in (*options, *rare):
        field, kind = _OPTIONS[name]
        text = field.metadata["help"]
        choices = field.metadata["choices"]
        if shows_defaults and field.default is not None:
            text += f" (default: {field.default})"
        details = {"help": text, "dest": _OPTION + name, "default": argparse.SUPPRESS}
        if kind is bool:
            details["action"] = argparse.BooleanOptionalAction
        elif choices is not None:
            details["choices"] = choices
        else:
            details["metavar"] = {int: "N", float: "X", str: "NAME"}[kind]
            details["type"] = _reader(kind, field.metadata)
        if name == "mixed_precision":  # Alone it is what most processors have.
            details |= {"nargs": "?", "const": "bfloat16"}
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, **details).is_rare = name in rare


def _reader(kind, rules):
    """Returns a function that reads a word as an option's value, within its bounds."""

    def value(word):
        value = kind(word)
        if rule := broken_rule(value, rules):
            raise argparse.ArgumentTypeError(f"must be {rule}. Received: {word}")
        return value

    value.__name__ = kind.__name__  # What argparse calls it in an error.
    return value


def _options():
    """Returns field and kind of value of every option of a run, by its name."""
    found = {}
    for section in dataclasses.fields(RunConfig):
        hints = typing.get_type_hints(type(section.default))
        for field in dataclasses.fields(section.default):
            kinds = kinds_of(hints[field.name])
            kind = next(kind for kind in kinds if kind is not types.NoneType)
            found[field.name] = field, kind
    return found


_OPTIONS = _options()
_OPTION = "option."  # Before the names of the options that were parsed.


def given(options):
    """Returns the options of a run that the command line gave, by their names."""
    named = vars(options).items()
    return {n.removeprefix(_OPTION): v for n, v in named if n.startswith(_OPTION)}


def _at_least(minimum):
    return _reader(int, {"choices": None, "bounds": {"minimum": minimum}})


# The types of verbs.toml.
_TYPES = {
    "int": int,
    "positive": _at_least(1),
    "share": _reader(float, {"choices": None, "bounds": {"minimum": 0, "maximum": 1}}),
    "path": Path,
}


def load_pairs(files, options):
    """Returns the `ParallelText` of a flag such as `--train`, read as others say."""
    if len(files) > 2:
        raise ValueError(
            "Pairs come in two aligned files or in one file of tab-separated lines. "
            f"Received: {len(files)} files"
        )
    source, target = options.columns or (None, None)
    return load_module("text").open_pairs(
        *files,
        source_key=source,
        target_key=target,
        delimiter=options.delimiter,
        encoding=options.encoding,
    )


def load_module(name: str) -> types.ModuleType:
    """Imports a module of the package without a word of TensorFlow's native code.

    A verb loads what it needs when it is called: help and bad usage need nothing.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # By default TensorFlow uses oneDNN only on processors with AVX-512 VNNI.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with native_messages_hidden():
        try:
            return importlib.import_module(f"keras_transformer.{name}")
        except ImportError as error:
            raise ImportError(reason_of("This", error)) from error


def prepare_xla(run: Path):
    """Tells TensorFlow's XLA, before it is loaded, how a run compiles its steps.

    What the environment says already stays.
    """
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        return
    # On a GPU `base` compiled in 58 s in place of 105 s, and was as fast.
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false")
    compiled = str((run / "compiled").absolute())
    if not re.search(r"\s", compiled):  # which would end the flag
        cache = f"--tf_xla_persistent_cache_directory={compiled}"
        os.environ.setdefault("TF_XLA_FLAGS", cache)


def check_standard_output(instead: str = ""):
    """Raises `ValueError`, before hours of work, if results cannot be printed."""
    if sys.stdout is None:
        raise ValueError(
            f"Standard output must be open{instead}. Received: it is closed"
        )
