"""The verb `serve`."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.cli.flags import add_flags, add_verb, given
from keras_transformer.cli.loading import load_module
from keras_transformer.serving.config import ServingConfig


def add_verbs(verbs):
    """Adds the verb to what `add_subparsers` of the parser returned."""
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
        help="directory of the versions, saved_models/NAME; the highest is served, and "
        "newer ones as they appear",
    )
    add_flags(parser, {"serving": ServingConfig})


def _serve(options):
    config = ServingConfig(**given(options, "serving"))
    serving = load_module("serving")
    serving.check_directory(options.directory)
    load_module("serving.served_model")  # Brings TensorFlow; its messages are hidden.
    serving.serve(options.directory, config)
