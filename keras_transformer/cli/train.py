"""The verbs that make a run: `quickstart`, `train` and `average`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from keras_transformer.cli.flags import (
    PAIRS_HELP,
    SECTIONS,
    add_columns_flag,
    add_flags,
    add_verb,
    run_config,
)
from keras_transformer.cli.loading import load_module, load_pairs
from keras_transformer.cli.results import console_of
from keras_transformer.config import TransformerConfig
from keras_transformer.terminal import print_result, say

# With the four of `_add_first`, the ten that a person thinks about first.
_FIRST = (
    "vocabulary_size", "batch_tokens", "epochs", "warmup_steps", "dropout_rate",
    "norm_first",
)  # fmt: skip
_EXAMPLES_OF_TRAIN = (
    "train --train train.en train.de --valid valid.en valid.de --run runs/en-de \\\n"
    "      --preset tiny --norm-first --epochs 20",
    "train --train pairs.csv --columns en de --run runs/en-de --dry-run",
    "train --init runs/en-de --train domain.tsv.gz --run runs/en-de-domain \\\n"
    "      --schedule constant --learning-rate 1e-4 --warmup-steps 100",
)
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
        examples=("quickstart", "quickstart --language fr --json"),
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
    name = quickstart.NAME.format(options.language)
    run = options.directory or Path("runs") / name
    scores = quickstart.quickstart(
        options.language, run, options.saved_models, console_of(options)
    )
    if options.quiet:
        for line in str(scores).splitlines():
            print_result(line)
    saved_model = load_module("export").latest_version(options.saved_models / name)
    return {
        "run": run, "saved_model": saved_model, "scores": dataclasses.asdict(scores)
    }  # fmt: skip


def _add_train(verbs):
    parser = add_verb(
        verbs,
        "train",
        _train,
        "Train a Transformer on pairs of sentences.",
        examples=_EXAMPLES_OF_TRAIN,
    )
    first = parser.add_argument_group("the ten options that matter first")
    _add_first(first)
    more = parser.add_argument_group("more about the data and the beginning")
    _add_pairs(more)
    _add_beginning(more)
    add_flags(parser, SECTIONS, first=(first, _FIRST))


def _add_first(parser):
    parser.add_argument(
        "--train",
        nargs="+",
        required=True,
        action="append",
        metavar="FILE",
        help=f"{PAIRS_HELP}; given several times, the pairs of all are mixed",
    )
    parser.add_argument(
        "--valid", nargs="+", metavar="FILE", help="validation pairs, in the same forms"
    )
    parser.add_argument(
        "--run", type=Path, required=True, dest="directory", help=_RUN_HELP
    )
    parser.add_argument(
        "--preset", choices=tuple(TransformerConfig.PRESETS), help="model sizes"
    )


def _add_pairs(parser):
    parser.add_argument(
        "--train-weights",
        nargs="+",
        type=int,
        metavar="N",
        help="for each --train, how many times an epoch has its pairs, such as 1 4 for "
        "many general pairs and few of a domain (default: 1 each)",
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


def _train(options):
    # Bad options are told before TensorFlow is loaded.
    config = None if options.init else run_config(options)
    training = load_module("training")
    if options.init:
        base = training.base_options(options.init) if options.init.exists() else None
        config = run_config(options, base)
    training.split_by_default(config.training)
    pairs = _training_pairs(options)
    validation = options.valid and load_pairs(options.valid, options.columns)
    given = _given_tokenizers(options.tokenizer)
    console = console_of(options)
    given |= {"console": console, "init": options.init}
    if options.dry_run:
        return training.dry_run(pairs, options.directory, config, validation, **given)
    training.train(pairs, options.directory, config, validation, **given)
    return _summary(options.directory, console)


def _summary(run, console):
    """Says how the training went and what may follow; returns it for `--json`."""
    training = load_module("training")
    summary = training.read_summary(run)
    for line in training.summary_lines(summary, run):
        say(console, line)
    return {"run": run} | summary


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
        examples=("average --run runs/en-de --last 3 --output runs/en-de-mean",),
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
    return {"run": options.output, "checkpoints": paths}
