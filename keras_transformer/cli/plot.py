"""The verb `plot`: the kinds of pictures, and what each takes and draws."""

from __future__ import annotations

import itertools
from pathlib import Path

from keras_transformer.cli.flags import add_verb, sentence
from keras_transformer.cli.loading import is_run, load_module, load_run
from keras_transformer.cli.messages import warnings_as_lines
from keras_transformer.files import check_not_directory, replacing
from keras_transformer.terminal import print_result

_DOTS_PER_INCH = 150


def add_verbs(verbs):
    """Adds the verb to what `add_subparsers` of the parser returned."""
    parser = add_verb(
        verbs,
        "plot",
        _plot,
        "Draw attention, masks, positions, learning rates or a run's training.",
        "Draw a picture as PNG, SVG or PDF, by the ending of the file's name (extra "
        "`plots`).",
        examples=(
            'plot attention "Two men are talking." --run runs/en-de -o attention.png',
            "plot training runs/en-de -o training.png",
            "plot attention --help",
        ),
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    _add_attention(kinds)
    _add_mask(kinds)
    _add_positions(kinds)
    _add_learning_rate(kinds)
    _add_training(kinds)


def _plot(options):
    """Draws a picture and writes it, whole or not at all."""
    check_not_directory(options.output)
    plots = load_module("plots")
    ending = _ending(options.output)
    if options.font is not None:
        plots.add_font(options.font)
    with warnings_as_lines():
        figure = options.draw(options)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with replacing(options.output) as temporary:
            figure.savefig(temporary, format=ending, dpi=_DOTS_PER_INCH)
    print_result(options.output)
    return {"path": options.output}


def _ending(path):
    from matplotlib.backend_bases import FigureCanvasBase

    ending = path.suffix.lstrip(".").lower()
    if ending not in FigureCanvasBase.get_supported_filetypes():
        raise ValueError(
            "`--output` must end with the name of a kind of picture, such as .png, "
            f".svg or .pdf. Received: --output {path}"
        )
    return ending


def _add_kind(kinds, name, draw, help, example):
    parser = kinds.add_parser(name, help=help, description=help)
    parser.set_defaults(draw=draw)
    parser.add_general_flags()
    parser.add_examples([f"plot {name} {example}"])
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


def _add_attention(kinds):
    parser = _add_kind(
        kinds,
        "attention",
        _attention,
        "What a run's layers attend to.",
        '"Two men are talking." --run runs/en-de --of cross --layer -1 -o cross.png',
    )
    parser.add_argument("text", type=sentence, metavar="TEXT", help="source sentence")
    parser.add_argument(
        "--run",
        type=Path,
        required=True,
        dest="model",
        metavar="RUN",
        help="directory of the training run",
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


def _attention(options):
    if not is_run(options.model):
        raise ValueError(
            "`plot attention` needs the directory of a training run. Received: "
            f"--run {options.model}"
        )
    plots = load_module("plots")
    seen = plots.sentence_attention(
        load_run(options), options.text, options.translation
    )
    weights, queries, keys = seen.of(options.of, options.layer)
    number = range(len(getattr(seen, options.of)))[options.layer]
    title, head = f"{options.of} attention, layer {number}", options.head
    if head is None:
        return plots.attention_heads(weights, queries, keys, title=title)
    title = f"{title}, head {head}"
    return plots.attention(weights, queries, keys, head=head, title=title)


def _add_mask(kinds):
    parser = _add_kind(
        kinds,
        "mask",
        _mask,
        "The mask of a decoder.",
        "--length 10 --valid-length 7 -o mask.svg",
    )
    parser.add_argument(
        "--length", type=int, default=10, help="positions (default: 10)"
    )
    parser.add_argument(
        "--valid-length", type=int, help="positions that are not padding (default: all)"
    )


def _mask(options):
    _check_positive(options, "length")
    masks = load_module("masks")
    allowed = masks.causal_mask(options.length)
    if options.valid_length is not None:
        if not 0 <= options.valid_length <= options.length:
            raise ValueError(
                "`--valid-length` must be from 0 to `--length`. Received: "
                f"--valid-length {options.valid_length}, --length {options.length}"
            )
        lengths = [options.valid_length]
        allowed = allowed & masks.valid_length_mask(lengths, options.length)
    return load_module("plots").mask(allowed)


def _add_positions(kinds):
    parser = _add_kind(
        kinds,
        "positions",
        _positions,
        "The paper's position vectors.",
        "--view dimensions --d-model 64 -o positions.png",
    )
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


def _positions(options):
    import numpy as np

    _check_positive(options, "length", "d_model")
    layers, plots = load_module("layers"), load_module("plots")
    vectors = layers.sinusoidal_encoding(np.arange(options.length), options.d_model)
    if options.view == "dimensions":
        return plots.position_dimensions(vectors, options.dimensions)
    if options.view == "similarity":
        return plots.position_similarity(vectors)
    return plots.positional_encoding(vectors)


def _check_positive(options, *names):
    for name in names:
        value = getattr(options, name)
        if value < 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"`{flag}` must be at least 1. Received: {flag} {value}")


def _add_learning_rate(kinds):
    parser = _add_kind(
        kinds,
        "learning-rate",
        _learning_rate,
        "The paper's learning rate.",
        "--d-model 256 512 --warmup-steps 4000 8000 -o rate.png",
    )
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


def _learning_rate(options):
    schedule = load_module("schedules").TransformerSchedule
    pairs = itertools.product(options.d_model, options.warmup_steps)
    schedules = [schedule(*pair, scale=options.scale) for pair in pairs]
    return load_module("plots").learning_rate(schedules, options.steps)


def _add_training(kinds):
    parser = _add_kind(
        kinds,
        "training",
        _training,
        "Loss and scores of a training run.",
        "runs/en-de --metrics loss val_loss -o training.png",
    )
    parser.add_argument("log", type=Path, metavar="RUN", help="directory, or log.csv")
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help="such as loss bleu (default: all)"
    )


def _training(options):
    return load_module("plots").training_curves(options.log, options.metrics)
