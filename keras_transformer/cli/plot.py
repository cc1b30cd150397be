"""The verb `plot`: the kinds of pictures, and what each takes and draws."""

from __future__ import annotations

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
        "Draw what a run attends to, or its training.",
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
    _add_training(kinds)


def _plot(options):
    """Draws a picture and writes it, whole or not at all."""
    check_not_directory(options.output)
    load_module("plots")  # Which says if matplotlib is missing.
    ending = _ending(options.output)
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
