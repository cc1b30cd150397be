"""The verbs that make a run: `quickstart`, `train` and `average`."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.cli.flags import (
    PAIRS_HELP,
    SECTIONS,
    add_columns_flag,
    add_family_flags,
    add_flags,
    add_verb,
    run_config,
)
from keras_transformer.cli.loading import load_module, load_pairs
from keras_transformer.config import TransformerConfig
from keras_transformer.terminal import print_result

_RUN_HELP = "run directory: new, empty, or that of a run to continue"


def add_verbs(verbs):
    """Adds the verbs to what `add_subparsers` of the parser returned."""
    _add_quickstart(verbs)
    _add_train(verbs)
    _add_average(verbs)


def _add_quickstart(verbs):
    parser = add_verb(
        verbs,
        "quickstart",
        _quickstart,
        "Train on built-in, generated sentences, evaluate, export, translate.",
    )
    parser.add_argument(
        "--language",
        choices=("de", "fr"),
        default="de",
        help="target language, from English (default: de)",
    )
    parser.add_argument("--run", type=Path, dest="directory", help=_RUN_HELP)
    parser.add_argument(
        "--saved-models",
        type=Path,
        default=Path("saved_models"),
        help="where the SavedModel goes (default: saved_models)",
    )


def _quickstart(options):
    quickstart = load_module("quickstart")
    load_module("training").split_by_default(quickstart.CONFIG.training)
    quickstart.quickstart(options.language, options.directory, options.saved_models)


def _add_train(verbs):
    parser = add_verb(
        verbs, "train", _train, "Train a Transformer on pairs of sentences."
    )
    _add_pairs(parser)
    _add_beginning(parser)
    parser.add_argument(
        "--run", type=Path, required=True, dest="directory", help=_RUN_HELP
    )
    parser.add_argument(
        "--preset", choices=tuple(TransformerConfig.PRESETS), help="model sizes"
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="JSON file of options, such as a run's config.json; flags override it",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be done: data, device, shapes of batches, compilations "
        "and memory; write nothing",
    )
    add_flags(parser, SECTIONS)
    add_family_flags(parser)


def _add_pairs(parser):
    parser.add_argument(
        "--train",
        nargs="+",
        required=True,
        action="append",
        metavar="FILE",
        help=f"{PAIRS_HELP}; given several times, the pairs of all are mixed",
    )
    parser.add_argument(
        "--train-weights",
        nargs="+",
        type=int,
        metavar="N",
        help="for each --train, how many times an epoch has its pairs, such as 1 4 for "
        "many general pairs and few of a domain (default: 1 each)",
    )
    parser.add_argument(
        "--valid", nargs="+", metavar="FILE", help="validation pairs, in the same forms"
    )
    add_columns_flag(parser)


def _add_beginning(parser):
    parser.add_argument(
        "--tokenizer",
        nargs="+",
        metavar="FILE",
        help="tokenizer to take in place of a learned vocabulary, or one for each "
        "side: a SentencePiece .model or a tokenizer.json of Hugging Face",
    )
    parser.add_argument(
        "--init",
        type=Path,
        metavar="RUN",
        help="directory of a trained run whose weights, vocabulary, sizes and search "
        "the new run begins with, to train them further on other data with a new "
        "schedule, such as --schedule constant --learning-rate 1e-4; dropout rates "
        "may be given anew",
    )


def _train(options):
    # Bad options are told before TensorFlow is loaded.
    config = None if options.init else run_config(options)
    training = load_module("training")
    base = training.base_options(options.directory, options.init)
    if base is not None:
        config = run_config(options, base)
    training.split_by_default(config.training)
    pairs = _training_pairs(options)
    validation = options.valid and load_pairs(options.valid, options.columns)
    given = _given_tokenizers(options.tokenizer)
    run = training.dry_run if options.dry_run else training.train
    run(pairs, options.directory, config, validation, init=options.init, **given)


def _training_pairs(options):
    """Returns the pairs of `--train`, mixed if it was given several times."""
    weights = options.train_weights
    if weights is not None and len(weights) != len(options.train):
        raise ValueError(
            "`--train-weights` must have a number for each `--train`. Received: "
            f"{len(weights)} and {len(options.train)}"
        )
    corpora = [load_pairs(files, options.columns) for files in options.train]
    if weights is None and len(corpora) == 1:
        return corpora[0]
    weights = weights or [1] * len(corpora)
    return load_module("text").mixed_pairs(zip(corpora, weights, strict=True))


def _given_tokenizers(files):
    """Returns the argument of `train` that `--tokenizer` gives, if it is given."""
    if files is None:
        return {}
    if len(files) > 2:
        raise ValueError(
            "`--tokenizer` takes one file for both sides, or one for each. Received: "
            f"{len(files)} files"
        )
    return {"tokenizers": tuple(files)}


def _add_average(verbs):
    parser = add_verb(
        verbs,
        "average",
        _average,
        "Make a new run of the mean of a run's checkpoints.",
        "Make a new run of the mean of a run's checkpoints, finished or not, for "
        "`evaluate`, `translate` and `export`.",
    )
    parser.add_argument(
        "--run", type=Path, required=True, help="directory of the training run"
    )
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


def _average(options):
    paths = load_module("training").average_run(
        options.run, options.output, options.last, options.checkpoints
    )
    names = ", ".join(path.name for path in paths)
    print_result(f"{options.output}: the mean of {names}")
