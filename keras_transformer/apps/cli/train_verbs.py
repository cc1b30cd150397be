"""The verbs that make a run: `quickstart`, `train`, `average` and `import`."""

from __future__ import annotations

import dataclasses

from keras_transformer.apps.cli.flags import given, load_module, load_pairs, prepare_xla
from keras_transformer.config import RunConfig
from keras_transformer.files import check_absent, creating_directory
from keras_transformer.search.run_directory import check_new_directory
from keras_transformer.terminal import print_result, say


def quickstart(options):
    """Runs the built-in example from its sentences to a SavedModel."""
    run = options.run
    prepare_xla(run)
    module = load_module("apps.quickstart")
    scores = module.quickstart(
        run, options.saved_models, _console_of(options), command=options.command
    )
    if options.quiet:
        for line in str(scores).splitlines():
            print_result(line)
    exports = options.saved_models / module.NAME
    saved_model = load_module("formats.versions").latest_version(exports)
    values = dataclasses.asdict(scores)
    return {"run": run, "saved_model": saved_model, "scores": values}


def _training():
    """Returns `keras_transformer.training`, loaded without TensorFlow's messages."""
    load_module("training.train")
    return load_module("training")


def _console_of(options):
    """Returns the Rich console of a verb."""
    from rich.console import Console

    return Console(quiet=options.quiet)


def train(options):
    """Trains, or with `--dry-run` says what it would do."""
    prepare_xla(options.run)
    weights = options.train_weights or [1] * len(options.train)
    if len(weights) != len(options.train):
        raise ValueError(
            "`--train-weights` must have a number for each `--train`. Received: "
            f"{len(weights)} and {len(options.train)}"
        )
    tokenizers = options.tokenizer and tuple(options.tokenizer)
    if tokenizers and len(tokenizers) > 2:
        raise ValueError(
            "`--tokenizer` takes one file for both sides, or one for each. Received: "
            f"{len(tokenizers)} files"
        )
    corpora = [load_pairs(files, options) for files in options.train]
    pairs = load_module("text").mixed_pairs(zip(corpora, weights, strict=True))
    validation = options.valid and load_pairs(options.valid, options)
    training = _training()
    console = _console_of(options)
    config = _run_config(options, pairs, console)
    run = options.run
    arguments = {"console": console, "init": options.init, "tokenizers": tokenizers}
    if options.dry_run:
        return training.dry_run(pairs, run, config, validation, **arguments)
    arguments["command"] = options.command
    training.train(pairs, run, config, validation, **arguments)
    summary = training.read_summary(run)
    for line in training.summary_lines(summary, run):
        say(console, line)
    return {"run": run} | summary


def _run_config(options, pairs, console):
    """Returns a run's options: flags override `--config`, which overrides a preset.

    Without `--preset` they are those of `default_config`.
    """
    sections = RunConfig.given_in(options.config) if options.config else {}
    chosen = {name: x for part in sections.values() for name, x in part.items()}
    if options.preset:
        config = RunConfig.preset(options.preset)
    else:
        training = _training()
        config = training.default_config(options.run, options.init, pairs, console)
    return config.with_options(**chosen | given(options))


def average(options):
    """Makes a run of the mean of checkpoints."""
    check_new_directory(options.output)
    paths = _training().average_run(options.model, options.output, options.last)
    names = ", ".join(path.name for path in paths)
    print_result(f"{options.output}: the mean of {names}")
    return {"run": options.output, "checkpoints": paths}


def import_foreign(options):
    """Makes a run of another system's translator."""
    check_absent(options.output)
    importers = load_module("formats.importers")
    name = options.format or importers.format_of(options.path)
    translator = importers.IMPORTERS[name](options.path)
    with creating_directory(options.output) as temporary:
        translator.save(temporary)
    print_result(options.output)
    return {"run": options.output, "format": name}
