"""The verbs of the command line and what each of them takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from keras_transformer.cli.flags import SECTIONS, add_family_flags, add_flags
from keras_transformer.cli.plot_parser import add_plot, sentence
from keras_transformer.config import DecodingConfig, TransformerConfig
from keras_transformer.serving.config import ServingConfig
from keras_transformer.terminal import printable

_PAIRS_HELP = (
    "two aligned text files, one file of source<TAB>target lines, gzipped or not, or "
    "tfds:NAME"
)
# Options of signatures that an export has and `evaluate` and `translate` do not use.
_OF_EXPORTS = {"n_best", "top_k", "top_p", "alignment_layer"}


class _Parser(argparse.ArgumentParser):
    """One whose complaints can be printed: a name that `*` gave may be a stranger's."""

    def error(self, message):
        super().error(printable(message))


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser; `verb` of what it parses is the verb's name."""
    parser = _Parser(
        prog="keras-transformer",
        description="Train a Transformer on pairs of sentences and serve it.",
    )
    parser.add_argument(
        "--traceback", action="store_true", help="show where an error came from"
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="verb")
    _add_quickstart(verbs)
    _add_train(verbs)
    _add_average(verbs)
    _add_evaluate(verbs)
    _add_translate(verbs)
    _add_export(verbs)
    _add_serve(verbs)
    add_plot(verbs)
    return parser


def _add_verb(verbs, name, help, description=None):
    return verbs.add_parser(name, help=help, description=description or help)


def _add_quickstart(verbs):
    parser = _add_verb(
        verbs,
        "quickstart",
        "Train on built-in, generated sentences, evaluate, export, translate.",
    )
    parser.add_argument(
        "--language",
        choices=("de", "fr"),
        default="de",
        help="target language, from English (default: de)",
    )
    parser.add_argument(
        "--run",
        type=Path,
        dest="directory",
        help="run directory: new, empty, or that of a run to go on with",
    )
    parser.add_argument(
        "--saved-models",
        type=Path,
        default=Path("saved_models"),
        help="where the SavedModel goes",
    )


def _add_train(verbs):
    parser = _add_verb(verbs, "train", "Train a Transformer on pairs of sentences.")
    parser.add_argument(
        "--train", nargs="+", required=True, metavar="FILE", help=_PAIRS_HELP
    )
    parser.add_argument(
        "--valid", nargs="+", metavar="FILE", help="validation pairs, given alike"
    )
    parser.add_argument(
        "--run",
        type=Path,
        required=True,
        dest="directory",
        help="run directory: new, empty, or that of a run to go on with",
    )
    parser.add_argument(
        "--preset", choices=tuple(TransformerConfig.PRESETS), help="model sizes"
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="JSON file of options, such as a run's config.json; flags go before it",
    )
    add_flags(parser, SECTIONS)
    add_family_flags(parser)


def _add_average(verbs):
    parser = _add_verb(
        verbs,
        "average",
        "Make a new run of the mean of a run's checkpoints.",
        "Make a new run of the mean of a run's checkpoints, finished or not, for "
        "`evaluate`, `translate` and `export`.",
    )
    parser.add_argument("--run", type=Path, required=True, help="run directory")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--last",
        type=int,
        metavar="K",
        help="take the last K checkpoints (default: all that the run keeps)",
    )
    chosen.add_argument(
        "--checkpoints",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="take these .weights.h5 files",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="run directory to write (new or empty)",
    )


def _add_evaluate(verbs):
    parser = _add_verb(
        verbs, "evaluate", "Translate a test set and score it (sacreBLEU)."
    )
    _add_model(parser)
    parser.add_argument(
        "--test", nargs="+", required=True, metavar="FILE", help=_PAIRS_HELP
    )
    parser.add_argument("--output", type=Path, help="file for the translations")
    _add_decoding_flags(parser, without=_OF_EXPORTS)


def _add_translate(verbs):
    parser = _add_verb(
        verbs,
        "translate",
        "Translate arguments, a file or standard input, one sentence a line.",
    )
    _add_model(parser)
    parser.add_argument(
        "texts", nargs="*", type=sentence, metavar="TEXT", help="sentences"
    )
    parser.add_argument(
        "--input",
        type=Path,
        help="file of sentences, gzipped or not, of any size (default: standard input)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="file for the translations; after an interruption the same command goes "
        "on where it ended",
    )
    parser.add_argument(
        "--ray-workers",
        type=int,
        metavar="N",
        help="translate on N processes or machines with Ray (extra `ray`); for a "
        "SavedModel and files",
    )
    _add_decoding_flags(parser, without=_OF_EXPORTS)


def _add_export(verbs):
    parser = _add_verb(
        verbs,
        "export",
        "Write a SavedModel for TensorFlow Serving.",
        "Write a SavedModel for TensorFlow Serving, its warm-up requests, and beside "
        "the versions a docker-compose.yml.",
    )
    parser.add_argument(
        "--run",
        type=Path,
        required=True,
        dest="model",
        help="directory of the training run",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="such as saved_models/NAME/1"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="type of the weights and of the computation; bfloat16 takes half the "
        "memory and is faster on processors that have it (default: float32)",
    )
    parser.add_argument(
        "--jit-compile",
        action="store_true",
        help="compile with XLA: faster, but the first request of each new shape takes "
        "many seconds; TensorFlow Serving must be started with "
        "--xla_cpu_compilation_enabled",
    )
    _add_decoding_flags(parser)


def _add_serve(verbs):
    parser = _add_verb(
        verbs,
        "serve",
        "Serve a SavedModel on this machine, to try it out (REST).",
        "Serve a SavedModel on this machine with TensorFlow Serving's REST interface, "
        "to try it out. The production server is TensorFlow Serving itself: the "
        "docker-compose.yml beside the versions starts it.",
    )
    parser.add_argument(
        "directory",
        type=Path,
        metavar="MODEL",
        help="directory of the versions, saved_models/NAME; the highest is served, new "
        "ones as they appear",
    )
    add_flags(parser, {"serving": ServingConfig})


def _add_model(parser):
    parser.add_argument(
        "--model", type=Path, required=True, help="run directory or SavedModel"
    )


def _add_decoding_flags(parser, without=()):
    sections = {"decoding": DecodingConfig}
    add_flags(parser, sections, default="as the run has it", without=without)
