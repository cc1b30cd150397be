"""The verb `playground`."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.cli.flags import add_flags, add_verb, given
from keras_transformer.cli.loading import load_module
from keras_transformer.playground.config import PlaygroundConfig


def add_verbs(verbs):
    """Adds the verb to what `add_subparsers` of the parser returned."""
    parser = add_verb(
        verbs,
        "playground",
        _playground,
        "Open a page on this machine to try one model, or two side by side.",
        "Serve a page on this machine: it translates while one types, shows other "
        "translations with their scores, and what each word looks at.",
        examples=(
            "playground runs/en-de --languages en de",
            "playground saved_models/en-de",
            "playground runs/en-de runs/en-de-2 --port 9000",
        ),
        reports=False,
    )
    parser.add_argument(
        "models",
        type=Path,
        nargs="+",
        metavar="MODEL",
        help="directory of a training run, or a SavedModel: saved_models/NAME, its "
        "latest version, or saved_models/NAME/VERSION; two stand side by side",
    )
    parser.add_argument(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="languages that the page names, such as en de",
    )
    add_flags(parser, {"playground": PlaygroundConfig})


def _playground(options):
    config = PlaygroundConfig(**given(options, "playground"))
    playground = load_module("playground")
    playground.check_models(options.models)
    load_module("playground.models")  # Brings TensorFlow; its messages are hidden.
    playground.play(options.models, config, options.languages)
