"""The verb `plot` of the command line: the kinds of pictures and what each takes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def sentence(word: str) -> str:
    """Returns an argument as text: UTF-8, whatever the locale takes its bytes for.

    Args:
        word: As Python gives it, with surrogates for bytes that the locale lacks.

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


def add_plot(verbs):
    """Adds the verb; `kind` of what it parses is the kind's name.

    Args:
        verbs: What `add_subparsers` of the parser returned.
    """
    parser = verbs.add_parser(
        "plot",
        help="Draw attention, masks, positions, learning rates or a run's training.",
        description="Draw a picture as PNG, SVG or PDF, by the ending of the file's "
        "name (extra `plots`).",
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND", dest="kind")
    _add_plot_attention(kinds)
    _add_plot_mask(kinds)
    _add_plot_positions(kinds)
    _add_plot_learning_rate(kinds)
    _add_plot_training(kinds)


def _add_kind(kinds, name, help):
    parser = kinds.add_parser(name, help=help, description=help)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="picture"
    )
    parser.add_argument(
        "--font",
        type=Path,
        metavar="FILE",
        help="font file, for characters that matplotlib's usual font lacks",
    )
    return parser


def _add_plot_attention(kinds):
    parser = _add_kind(kinds, "attention", "What a run's layers attend to.")
    parser.add_argument("text", type=sentence, metavar="TEXT", help="source sentence")
    parser.add_argument(
        "--model", type=Path, required=True, metavar="RUN", help="run directory"
    )
    parser.add_argument(
        "--translation",
        type=sentence,
        metavar="TEXT",
        help="default: what the run translates to",
    )
    parser.add_argument(
        "--of",
        choices=("cross", "encoder", "decoder"),
        default="cross",
        help="attention of the decoder to the source (cross), or of the encoder or "
        "decoder to itself (default: cross)",
    )
    parser.add_argument(
        "--layer", type=int, default=-1, help="from 0; from -1 backwards (default: -1)"
    )
    parser.add_argument(
        "--head", type=int, help="one head, from 0 (default: a grid of all)"
    )


def _add_plot_mask(kinds):
    parser = _add_kind(kinds, "mask", "The mask of a decoder.")
    parser.add_argument(
        "--length", type=int, default=10, help="positions (default: 10)"
    )
    parser.add_argument(
        "--valid-length", type=int, help="positions that are not padding (default: all)"
    )


def _add_plot_positions(kinds):
    parser = _add_kind(kinds, "positions", "The paper's position vectors.")
    parser.add_argument(
        "--view",
        choices=("matrix", "dimensions", "similarity"),
        default="matrix",
        help="all values, some dimensions as curves, or cosines between positions "
        "(default: matrix)",
    )
    parser.add_argument("--d-model", type=int, default=128, help="(default: 128)")
    parser.add_argument(
        "--length", type=int, default=100, help="positions (default: 100)"
    )
    parser.add_argument(
        "--dimensions",
        type=int,
        nargs="+",
        help="dimensions of --view dimensions (default: four, evenly spaced)",
    )


def _add_plot_learning_rate(kinds):
    parser = _add_kind(kinds, "learning-rate", "The paper's learning rate.")
    parser.add_argument(
        "--d-model", type=int, nargs="+", default=(512,), help="widths (default: 512)"
    )
    parser.add_argument(
        "--warmup-steps",
        type=int,
        nargs="+",
        default=(4000,),
        help="updates of warm-up; each is drawn for each width (default: 4000)",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor (default: 1)")
    parser.add_argument(
        "--steps", type=int, help="updates to draw (default: 5 times the warm-up)"
    )


def _add_plot_training(kinds):
    parser = _add_kind(kinds, "training", "Loss and scores of a training run.")
    parser.add_argument("log", type=Path, metavar="RUN", help="directory, or log.csv")
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help="such as loss bleu (default: all)"
    )
