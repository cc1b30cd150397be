"""Verbs and their flags, those made from the configuration classes read back."""

from __future__ import annotations

import argparse
import dataclasses
import os
import types
import typing

from keras_transformer.config import (
    DataConfig,
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)

PAIRS_HELP = (
    "two aligned text files, one file of source<TAB>target lines, gzipped or not, or "
    "with --columns a .csv or another text file with a header, or a .parquet"
)
# The learned vocabulary sets them.
_NOT_FLAGS = {
    "source_vocabulary_size",
    "target_vocabulary_size",
    "pad_id",
    "start_id",
    "end_id",
    "unknown_id",
}
SECTIONS = {
    "model": TransformerConfig,
    "tokenizer": TokenizerConfig,
    "data": DataConfig,
    "training": TrainingConfig,
    "decoding": DecodingConfig,
}


def add_verb(
    verbs, name, call, help, description=None, examples=(), reports=True
) -> argparse.ArgumentParser:
    """Adds a verb.

    Args:
        verbs: What `add_subparsers` returned.
        name: The word.
        call: Function of the parsed options, which prints results and returns them as
            JSON can hold them, for `--json`.
        help: One sentence.
        description: More of it, for the verb's own help.
        examples: Command lines of it, without the program's name.
        reports: Whether it has results; if not, neither `--json` nor `--quiet`.

    Returns:
        Its parser.
    """
    parser = verbs.add_parser(name, help=help, description=description or help)
    parser.set_defaults(call=call)
    parser.add_general_flags(reports)
    parser.add_examples(examples)
    return parser


def add_columns_flag(parser):
    """Adds `--columns` to a verb that reads pairs."""
    parser.add_argument(
        "--columns",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="names of the two columns in files that have a header, such as en de",
    )


def sentence(word: str) -> str:
    """Returns an argument as text, read as UTF-8 in every locale.

    Args:
        word: As Python gives it, with surrogates for bytes that the locale cannot read.

    Raises:
        argparse.ArgumentTypeError: If it is not UTF-8.
    """
    try:
        word.encode("utf-8")
        return word
    except UnicodeEncodeError:
        pass
    try:
        return os.fsencode(word).decode("utf-8")
    except UnicodeError as error:
        raise argparse.ArgumentTypeError("not valid UTF-8") from error


class _SwitchOrWord(argparse.BooleanOptionalAction):
    """A flag that may be followed by a word: `--flag`, `--flag WORD` or `--no-flag`."""

    def __init__(self, option_strings, dest, choices, **details):
        super().__init__(option_strings, dest, **details)
        self.nargs, self.choices = "?", choices

    def __call__(self, parser, namespace, values, option_string=None):
        if not option_string.startswith("--no-"):
            setattr(namespace, self.dest, True if values is None else values)
        elif values is None:
            setattr(namespace, self.dest, False)
        else:
            parser.error(f"argument {option_string}: takes no value")


def add_flags(parser, sections, default="{}", without=(), first=(None, ())):
    """Adds a flag for every option.

    Args:
        parser: An `argparse.ArgumentParser`.
        sections: Configuration classes by section name.
        default: Wording of each default in the help.
        without: Names of options that get no flag.
        first: A group that takes some options in place of their section's, and the
            names of these.
    """
    for section, config in sections.items():
        group = parser.add_argument_group(f"{section} options")
        hints = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            if field.name in _NOT_FLAGS or field.name in without:
                continue
            kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
            kind = next(kind for kind in kinds if kind is not types.NoneType)
            details = {"type": kind, "choices": field.metadata["choices"]}
            if kind is bool and str in kinds:
                words = [word for word in details["choices"] if isinstance(word, str)]
                details = {"action": _SwitchOrWord, "choices": words}
            elif kind is bool:
                details = {"action": argparse.BooleanOptionalAction}
            elif field.metadata["choices"] is None:
                details["metavar"] = "NAME" if kind is str else kind.__name__.upper()
            text = field.metadata["help"].replace("%", "%%")
            if field.default is not None:
                text += f" (default: {default.format(field.default)})"
            details["dest"] = f"{section}.{field.name}"
            details["default"] = argparse.SUPPRESS
            place = first[0] if field.name in first[1] else group
            flag = "--" + field.name.replace("_", "-")
            place.add_argument(flag, help=text, **details)


def given(options, section):
    """Returns the options of a section that the command line gave."""
    prefix = section + "."
    return {
        name.removeprefix(prefix): value
        for name, value in vars(options).items()
        if name.startswith(prefix)
    }


def run_config(options, base=None) -> RunConfig:
    """Returns a run's options: flags override the file, which overrides the preset.

    Args:
        options: The parsed command line.
        base: Options of sections that all of these override, or `None` for the
            defaults.
    """
    values = {} if options.config is None else RunConfig.given_in(options.config)
    sections = {
        section: values.get(section, {}) | given(options, section)
        for section in SECTIONS
    }
    if options.preset:
        preset = TransformerConfig.PRESETS[options.preset]
        sections["model"] = preset | sections["model"]
    if base is not None:
        for section, defaults in base._asdict().items():
            sections[section] = defaults.to_dict() | sections[section]
    return RunConfig.from_dict(sections)


def add_decoding_flags(parser, without=()):
    """Adds the flags of the search to a verb that uses a trained model."""
    sections = {"decoding": DecodingConfig}
    add_flags(parser, sections, default="as in the run", without=without)
