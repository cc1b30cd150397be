"""Command-line flags made from the configuration classes, and read back."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing

from keras_transformer.config import (
    FAMILIES,
    DataConfig,
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
    family_of,
)

# `add_family_flags` adds the first; the learned vocabulary sets the others.
_NOT_FLAGS = {
    "family",
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


def add_flags(parser, sections, default="{}", without=(), title="{} options"):
    """Adds a flag for every option.

    Args:
        parser: An `argparse.ArgumentParser`.
        sections: Configuration classes by section name.
        default: Wording of each default in the help.
        without: Names of options that get no flag.
        title: Wording of the title of each section in the help.
    """
    for section, config in sections.items():
        group = parser.add_argument_group(title.format(section))
        hints = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            if field.name in _NOT_FLAGS or field.name in without:
                continue
            kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
            kind = next(kind for kind in kinds if kind is not types.NoneType)
            details = {"type": kind, "choices": field.metadata["choices"]}
            if kind is bool:
                details = {"action": argparse.BooleanOptionalAction}
            elif field.metadata["choices"] is None:
                details["metavar"] = "NAME" if kind is str else kind.__name__.upper()
            text = field.metadata["help"].replace("%", "%%")
            if field.default is not None:
                text += f" (default: {default.format(field.default)})"
            group.add_argument(
                "--" + field.name.replace("_", "-"),
                dest=f"{section}.{field.name}",
                default=argparse.SUPPRESS,
                help=text,
                **details,
            )


def add_family_flags(parser):
    """Adds `--family`, and the flags of the families that the Transformer has not.

    Args:
        parser: An `argparse.ArgumentParser` with the flags of `SECTIONS`.
    """
    parser.add_argument(
        "--family",
        choices=tuple(FAMILIES),
        dest="model.family",
        default=argparse.SUPPRESS,
        help="kind of model (default: transformer)",
    )
    added = {field.name for field in dataclasses.fields(TransformerConfig)}
    for family, config in FAMILIES.items():
        if config is not TransformerConfig:
            title = f"{{}} options of --family {family}"
            add_flags(parser, {"model": config}, without=added, title=title)
            added |= {field.name for field in dataclasses.fields(config)}


def given(options, section):
    """Returns the options of a section that the command line gave."""
    prefix = section + "."
    return {
        name.removeprefix(prefix): value
        for name, value in vars(options).items()
        if name.startswith(prefix)
    }


def run_config(options) -> RunConfig:
    """Flags go before the configuration file, which goes before the preset."""
    values = {} if options.config is None else RunConfig.given_in(options.config)
    sections = {
        section: values.get(section, {}) | given(options, section)
        for section in SECTIONS
    }
    if options.preset:
        preset = family_of(sections["model"]).preset_options(options.preset)
        sections["model"] = preset | sections["model"]
    return RunConfig.from_dict(sections)
