"""The verbs `serve` and `playground`: servers on this machine."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.cli.flags import add_verb
from keras_transformer.cli.loading import load_module


def add_verbs(verbs):
    """Adds the verbs to what `add_subparsers` of the parser returned."""
    parser = add_verb(
        verbs,
        "serve",
        _serve,
        "Serve a SavedModel on this machine, to try it out (REST).",
        "Serve a SavedModel on this machine with TensorFlow Serving's REST interface, "
        "to try it out. The production server is TensorFlow Serving itself: the "
        "docker-compose.yml beside the versions starts it.",
        examples=("serve saved_models/en-de", "serve saved_models/en-de --port 9000"),
        reports=False,
    )
    parser.add_argument(
        "directory",
        type=Path,
        metavar="MODEL",
        help="directory of the versions, saved_models/NAME; the highest is served",
    )
    _add_address(parser, 8501)
    parser = add_verb(
        verbs,
        "playground",
        _playground,
        "Open a page on this machine to try a training run.",
        "Serve a page on this machine: it translates while one types, shows other "
        "translations with their scores, and what each word looks at.",
        examples=("playground runs/en-de --languages en de",),
        reports=False,
    )
    parser.add_argument(
        "directory", type=Path, metavar="RUN", help="directory of a training run"
    )
    parser.add_argument(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="languages that the page names, such as en de",
    )
    _add_address(parser, 8600)


def _add_address(parser, port):
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=port,
        help=f"port to listen on; 0 picks a free one (default: {port})",
    )


def _serve(options):
    load_module("serving").serve(options.directory, options.host, options.port)


def _playground(options):
    play = load_module("playground").play
    play(options.directory, options.host, options.port, options.languages)
