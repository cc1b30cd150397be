"""A training run, from text and options to a directory with a trained translator."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from rich.console import Console

from keras_transformer.config import RunConfig
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.terminal import plain_console, say
from keras_transformer.text import (
    Corpus,
    TokenizerPair,
    open_pairs,
)
from keras_transformer.training.batch_seeds import batch_seeds
from keras_transformer.training.beginning import (
    begin_with,
    begins_with,
    begun_or_new,
    open_init,
)
from keras_transformer.training.callback_list import RunCallbacks
from keras_transformer.training.callbacks import (
    NonfiniteBatches,
    ProgressReport,
    StopAtLimit,
    TokenRate,
)
from keras_transformer.training.checkpoints import load_average
from keras_transformer.training.compiling import (
    compiled_model,
    given_options,
    with_device_defaults,
)
from keras_transformer.training.distribution import (
    Distribution,
    check_hosts,
    distribution_scope,
)
from keras_transformer.training.ema import averaged_weights
from keras_transformer.training.expected_time import ExpectedTime
from keras_transformer.training.logs import EpochLog, TensorBoardLog
from keras_transformer.training.machine import machine, report_other_machine
from keras_transformer.training.own_parts import Own, check_given
from keras_transformer.training.report import (
    count_parameters,
    describe_model,
    report_data,
    report_devices,
    report_warm_up,
)
from keras_transformer.training.run_directory import (
    RunDirectory,
    compiled_with,
    fingerprints,
)
from keras_transformer.training.saving import SaveState, limits
from keras_transformer.training.selection import Selection, make_selection
from keras_transformer.training.state import (
    StateFiles,
    TrainingState,
    build_training_variables,
    capture,
    restore,
    restore_callbacks,
)
from keras_transformer.training.stop_signals import StopSignals
from keras_transformer.training.summary import FactsSoFar, write_summary
from keras_transformer.translator import Translator


class Run(NamedTuple):
    """Everything a training needs, made from text and options.

    Attributes:
        path: Directory of the run.
        config: All options, with the vocabulary sizes.
        model: The model, compiled.
        training: Training corpus.
        validation: Validation corpus, or `None`.
        selection: Callbacks that choose among the states.
        states: Files of the states to resume from.
        distribution: The devices.
        console: Where progress goes.
        own: What the program gave beside the options.
    """

    path: Path
    config: RunConfig
    model: Seq2Seq
    training: Corpus
    validation: Corpus | None
    selection: Selection
    states: StateFiles
    distribution: Distribution
    console: Console
    own: Own


def train(
    text: Any,
    directory: str | Path,
    config: RunConfig | None = None,
    validation: Any = None,
    console: Console | None = None,
    *,
    tokenizers: Any = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    optimizer: keras.optimizers.Optimizer | None = None,
    loss: Any = None,
    init: Translator | str | Path | None = None,
) -> Translator:
    """Learns a vocabulary, trains a model with `model.fit`, and saves everything.

    The directory then holds config.json, data.json, tokenizer/, its digests in
    tokenizer.sha256, states/, checkpoints/, log.csv, tensorboard/, the translator,
    whose weights are the mean of the checkpoints (model.keras and decoding.json), and
    summary.json: what was trained on what, how long, and the last scores.
    `Translator.load(directory)` reads it.

    An interrupted run continues from its last state when this is called again with the
    same text and options; options that say when to stop may differ. On the same kind
    and number of processor cores it ends with exactly the weights of an uninterrupted
    run; on others they differ by rounding, and a warning is printed. A finished run is
    only loaded, unless its limits now allow more training.

    SIGTERM, SIGHUP (a closed terminal), or Ctrl-C once, ends the run after the current
    batch with its state saved.

    Args:
        text: Training pairs, as `open_pairs` returns or takes them.
        directory: Directory of the run: new, empty, or that of a run to continue.
        config: All options; the vocabulary sizes are those of the tokenizers.
        validation: Pairs whose loss, accuracy and perplexity are logged every epoch.
        console: Where progress goes; default the terminal.
        tokenizers: A `TokenizerPair`, or one tokenizer for both sides as
            `TokenizerPair.of` takes it, or a tuple of two; default a vocabulary learned
            from `text`. Several workers need their files: TensorFlow must do nothing
            before the run joins them.
        callbacks: Keras callbacks, called before the logs are written, which have what
            they add. With an `on_train_batch_end` among them the run waits for the
            device after every batch: see `RunCallback.wants_every_batch`. A continued
            run calls `on_train_begin` anew, and once more after the rest of an epoch.
            It is exact if they remember nothing, or are `training.RunCallback`s with
            `state` and `restore`, each of a class of another name.
        optimizer: A new Keras optimizer in place of that of the options `optimizer`,
            `schedule`, `learning_rate` and so on. Its variables are in the states.
        loss: A Keras loss that is a mean over targets, in place of a
            `MaskedCrossentropy` with `label_smoothing`.
        init: A `Translator`, or a directory that `Translator.load` takes, whose weights
            and tokenizers the run begins with (fine-tuning); default random weights.
            The optimizer and its schedule are new. `model`, `tokenizer` and `decoding`
            of `config` are then those of `init` unless they are given. Where they are,
            the first two must be those of `init`, but for the dropout rates:
            `init.model.config.replace(dropout_rate=0.3)`. A run that has a state goes
            on without.

    Returns:
        The trained `Translator`.

    Raises:
        BlockingIOError: If another process trains in `directory`.
        FileExistsError: If `directory` holds something other than a run.
        FloatingPointError: If a loss or gradient is not finite.
        KeyboardInterrupt: After Ctrl-C, with the state saved.
        OSError: If a file cannot be read.
        SystemExit: After SIGTERM (status 143) or SIGHUP (129), with the state saved.
        ValueError: If the data or an option is bad, or they or the tokenizer differ
            from those of the run in `directory`, or the options of the model or the
            tokenizer from those of `init`.

    Example:
        >>> pairs = open_pairs("train.en", "train.de")
        >>> train(pairs, "runs/en-de", RunConfig())(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """
    console = plain_console() if console is None else console
    config = RunConfig() if config is None else config
    own = Own(tokenizers, tuple(callbacks), optimizer, loss, init)
    check_given(config, own, validated=validation is not None)
    validation = None if validation is None else open_pairs(validation)
    return _run(
        open_pairs(text), validation, RunDirectory(directory), config, console, own
    )


def _run(text, validation, directory, config, console, own) -> Translator:
    """Trains, or goes on training, in a directory."""
    with contextlib.ExitStack() as stack:
        kind = config.training.distribute
        distribution = stack.enter_context(distribution_scope(kind))
        check_hosts(distribution)
        config, tokenizers = given_options(config, own.tokenizers, own.init)
        if distribution.is_chief:
            stack.enter_context(directory.locked())
            directory.remove_temporary_files()
        else:
            console = Console(quiet=True)
        init = open_init(own.init, directory)  # It draws random numbers.
        keras.utils.set_random_seed(config.training.seed)
        data = fingerprints(text, validation)
        data |= compiled_with(own.optimizer, own.loss) | begins_with(init)
        config, tokenizers = begun_or_new(
            directory, config, data, text, console, tokenizers, init
        )
        path = directory.path
        states = StateFiles(path / "states", 2, writes=distribution.is_chief)
        state = _state_to_go_on_from(states, path, console)
        if _is_finished(path, state, config):
            return _load_finished(path, state, console)
        # Bad options and data raise errors in these two, before they are saved.
        corpora = make_corpora(text, validation, tokenizers, config)
        planned = config.training.planned_updates(corpora[0].num_batches)
        # Raising a limit later does not change the schedule.
        data["planned_updates"] = planned = directory.planned_updates or planned
        fitted = config.fitted_to(planned)
        if own.optimizer is None:
            report_warm_up(console, config, fitted, planned)
        translator = _new_translator(fitted, tokenizers, distribution, own)
        if state is None:
            begin_with(init, translator.model, directory, console)
        _save_options(directory, config, data, tokenizers, distribution)
        facts = FactsSoFar(config, data, *corpora, machine(distribution))
        selection = make_selection(
            config, path, translator, validation, console, distribution.is_chief, facts
        )
        run = Run(
            path, config, translator.model, *corpora, selection, states, distribution,
            console, own,
        )  # fmt: skip
        del init  # The memory of a model that is no longer needed.
        with StopSignals() as signals:
            state = _train_to_the_end(run, state, signals)
        return _finish(run, state, translator)


def _load_finished(path, state, console):
    say(
        console,
        f"{path} is finished: {state.updates:,} updates. To train on, raise "
        "`epochs`, `max_updates`, `max_minutes` or `patience`.",
    )
    return Translator.load(path)


def _save_options(directory, config, data, tokenizers, distribution):
    if not distribution.is_chief:
        return
    if directory.is_set_up:
        directory.save_config(config)
    else:
        directory.set_up(config, data, tokenizers)


def _new_translator(config, tokenizers, distribution, own):
    with distribution.scope():
        model = compiled_model(config, own.optimizer, own.loss)
        build_training_variables(model)
    return Translator(model, tokenizers, config.decoding)


def _state_to_go_on_from(states, path, console):
    """Returns the last state, or `None` if the run has to start from the beginning."""
    state = states.latest(console)
    if state is None and states.damaged() and any((path / "checkpoints").glob("*")):
        raise ValueError(
            f"No state in {states.directory} can be read, so the run cannot go on. Its "
            "checkpoints are whole: `keras-transformer average` makes a model of them. "
            f"To begin again, remove {path} or choose another directory."
        )
    return state


def _is_finished(path, state, config):
    """Whether the run ended with its present limits and saved its model."""
    ended = state is not None and state.finished == limits(config.training)
    return ended and all((path / n).exists() for n in ("model.keras", "decoding.json"))


def make_corpora(text, validation, tokenizers: TokenizerPair, config: RunConfig):
    """Returns the training corpus and the validation corpus or `None`."""
    options = {"static_shapes": with_device_defaults(config.training).jit_compile}
    training = Corpus(
        text, tokenizers, config.data, seed=config.training.seed, **options
    )
    if validation is None:
        return training, None
    options["buckets"] = training.buckets
    return training, Corpus(validation, tokenizers, config.data, **options)


def _train_to_the_end(
    run: Run, state: TrainingState | None, signals: StopSignals
) -> TrainingState:
    """Trains from a state, or from the beginning, until a limit is reached.

    The rest of an interrupted epoch is a `fit` of its own, since Keras has no other way
    to begin within an epoch. The next `fit` starts from the state at its end, just as
    another process would.
    """
    report_data(run.console, run.training, run.validation)
    report_devices(run.console, run.model.compute_dtype)
    if state is None:
        parameters = count_parameters(run.model, run.config.training.freeze)
        say(run.console, f"training a {describe_model(run.model)}; {parameters}")
        state = capture(run.model, epoch=0, batch=0)
    else:
        say(
            run.console,
            f"going on after {state.updates:,} updates, at batch {state.batch + 1:,} "
            f"of epoch {state.epoch + 1}",
        )
        report_other_machine(run.console, state.machine, run.distribution)
    if state.finished == limits(run.config.training):
        restore(run.model, state)  # It ended before, but left no model.
    while state.finished != limits(run.config.training):
        state = _fit(run, state, signals)
    return state


def _fit(run: Run, state: TrainingState, signals: StopSignals) -> TrainingState:
    """Runs `model.fit` from a state; from within an epoch only to the epoch's end.

    Returns:
        The state at the end.
    """
    options, distribution = run.config.training, run.distribution
    limit = StopAtLimit(options.max_updates, options.max_minutes, distribution)
    run.selection.facts.seconds = limit.seconds
    callbacks = _callbacks(run, limit, state)
    restore(run.model, state, callbacks)
    distribution.separate_dropout(run.model)
    if state.epoch >= options.epochs or limit.reached(state.updates):
        state.finished = limits(options)
        state.callbacks_at_end = state.callbacks_at_end or state.callbacks
        run.states.save(state)
        return state
    saver = SaveState(
        run.states, callbacks, options, run.training.num_batches, state, signals,
        distribution, run.console,
    )  # fmt: skip
    callbacks.append(saver)
    epochs = state.epoch + 1 if state.batch else options.epochs
    steps = run.training.num_batches - state.batch
    batches = run.training.dataset(first_epoch=state.epoch, first_batch=state.batch)
    validation = run.validation and run.validation.dataset(shuffle=False)
    try:
        run.model.fit(
            distribution.dataset(batches),
            validation_data=validation and distribution.dataset(validation),
            initial_epoch=state.epoch,
            epochs=epochs,
            callbacks=RunCallbacks(callbacks, run.model, epochs, steps, distribution),
            shuffle=False,  # The corpus shuffles.
            verbose=0,
        )
    except BaseException as error:
        # Keras leaves callbacks open after an error: a bar that runs, an unwritten log.
        for callback in callbacks:
            callback.on_train_end()
        if isinstance(error, tf.errors.OpError):
            _raise_failure_of_text(run)
        raise
    return saver.newest


def _raise_failure_of_text(run):
    """Raises the error of the text, if TensorFlow's error was caused by one."""
    for corpus in (run.training, run.validation):
        if corpus is not None and corpus.failure is not None:
            raise corpus.failure from None


def _callbacks(run: Run, limit: StopAtLimit, state: TrainingState) -> list:
    """Returns the callbacks of a `fit` in order, except the last, `SaveState`.

    The selection's and the program's own come after those that may stop the run, and
    before the logs, to which they add. Only the chief of several processes writes.
    """
    is_chief, own = run.distribution.is_chief, list(run.own.callbacks)
    callbacks = [
        NonfiniteBatches(run.training, run.path / "nonfinite", run.console, is_chief),
        limit,
        TokenRate(run.training),
        *batch_seeds(run.config.training.seed),
    ]
    if not is_chief:
        return callbacks + run.selection.callbacks + own
    logs = [EpochLog(run.path / "log.csv"), TensorBoardLog(run.path / "tensorboard")]
    if not state.callbacks:
        # The logs were written before the first state was saved.
        for log in logs:
            log.restore({})
    options = run.config.training
    reports = [
        ProgressReport(run.training, run.console, options.epochs),
        ExpectedTime(run.training.num_batches, options, limit, run.console),
    ]
    return callbacks + run.selection.callbacks + own + logs + reports


def _finish(run: Run, state: TrainingState, translator: Translator) -> Translator:
    """Makes the final model from the checkpoints, saves it and returns it."""
    checkpoints = run.selection.checkpoints
    if run.distribution.is_chief:
        restore_callbacks([checkpoints], state.callbacks_at_end)
        if checkpoints.paths():
            load_average(run.model, checkpoints.paths())
        if not state.batch:
            # A run that continues within an epoch may need older ones.
            checkpoints.prune()
        # With checkpoints the weights are their mean; the moving average is the run's.
        with contextlib.ExitStack() as stack:
            if not checkpoints.paths():
                stack.enter_context(averaged_weights(run.model))
            translator.save(run.path)
        number = len(checkpoints.paths())
        corpora = run.training, run.validation
        write_summary(run.path, run.model, *corpora, state, number)
    # All processes wait until it is written.
    run.distribution.any(False)
    return translator if run.distribution.is_chief else Translator.load(run.path)
