"""A training run: text and options in, a directory with a trained translator out."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf
from rich.console import Console

from keras_transformer.config import RunConfig
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.terminal import say
from keras_transformer.text import (
    Corpus,
    ParallelText,
    TokenizerPair,
    learn_tokenizers,
)
from keras_transformer.training.callbacks import (
    NonfiniteBatches,
    ProgressReport,
    StopAtLimit,
    TokenRate,
)
from keras_transformer.training.checkpoints import load_average
from keras_transformer.training.compiling import compiled_model, with_device_defaults
from keras_transformer.training.distribution import Distribution, distribution_scope
from keras_transformer.training.ema import averaged_weights
from keras_transformer.training.logs import EpochLog, TensorBoardLog
from keras_transformer.training.machine import report_other_machine
from keras_transformer.training.run_directory import RunDirectory, fingerprints
from keras_transformer.training.saving import SaveState, limits
from keras_transformer.training.selection import (
    Selection,
    check_selection,
    make_selection,
)
from keras_transformer.training.state import (
    StateFiles,
    TrainingState,
    build_training_variables,
    capture,
    restore,
    restore_callbacks,
)
from keras_transformer.training.stop_signals import StopSignals
from keras_transformer.translator import Translator


class Run(NamedTuple):
    """What a training needs, made from text and options.

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


def train(
    text: ParallelText,
    directory: str | Path,
    config: RunConfig | None = None,
    validation: ParallelText | None = None,
    console: Console | None = None,
) -> Translator:
    """Learns a vocabulary, trains a model with `model.fit`, keeps everything.

    The directory then holds config.json, data.json, tokenizer/, its digests in
    tokenizer.sha256, states/, checkpoints/, log.csv, tensorboard/, and the translator
    made of the mean of the checkpoints: model.keras and decoding.json.
    `Translator.load(directory)` reads it.

    A run that was interrupted, at whatever moment, goes on from its last state when it
    is called again with the same text and options; options that say when to stop may
    be others. On as many processor cores of the same kind it ends with the weights of
    an uninterrupted run, to the bit; on others to rounding, and says so. A finished run
    is only loaded, unless it may train for longer now.

    SIGTERM, SIGHUP (a closed terminal), or Ctrl-C once, ends the run after the current
    batch with its state saved.

    Args:
        text: Training pairs, as `open_pairs` returns.
        directory: Directory of the run: new, empty, or that of a run to go on with.
        config: All options; the vocabulary sizes are set to those learned.
        validation: Pairs whose loss, accuracy and perplexity are logged every epoch.
        console: Where progress goes; default the terminal.

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
            from those of the run in `directory`.

    Example:
        >>> pairs = open_pairs("train.en", "train.de")
        >>> train(pairs, "runs/en-de", RunConfig())(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """
    config = RunConfig() if config is None else config
    console = Console() if console is None else console
    check_selection(config.training, validated=validation is not None)
    directory = RunDirectory(directory)
    with contextlib.ExitStack() as stack:
        kind = config.training.distribute
        distribution = stack.enter_context(distribution_scope(kind))
        if distribution.is_chief:
            stack.enter_context(directory.locked())
            directory.remove_temporary_files()
        else:
            console = Console(quiet=True)
        keras.utils.set_random_seed(config.training.seed)
        data = fingerprints(text, validation)
        config, tokenizers = _begun_or_new(directory, config, data, text, console)
        keep, path = config.training.keep_states, directory.path
        states = StateFiles(path / "states", keep, writes=distribution.is_chief)
        state = _state_to_go_on_from(states, path, console)
        if _is_finished(path, state, config):
            say(
                console,
                f"{path} is finished: {state.updates:,} updates. To train on, raise "
                "`epochs`, `max_updates`, `max_minutes` or `patience`.",
            )
            return Translator.load(path)
        # All that can be wrong with options and data shows here, before it is kept.
        with distribution.scope():
            model = compiled_model(config)
            build_training_variables(model)
        corpora = _corpora(text, validation, tokenizers, config)
        if distribution.is_chief:
            if directory.is_set_up:
                directory.save_config(config)
            else:
                directory.set_up(config, data, tokenizers)
        translator = Translator(model, tokenizers, config.decoding)
        selection = make_selection(
            config, path, translator, validation, console, distribution.is_chief
        )
        run = Run(
            path, config, model, *corpora, selection, states, distribution, console
        )
        with StopSignals() as signals:
            state = _train_to_the_end(run, state, signals)
        return _finish(run, state, translator)


def _begun_or_new(directory, config, data, text, console):
    """Returns options and vocabularies of the run: its own, or new ones."""
    if directory.is_set_up:
        config = directory.config_to_go_on(config, data)
        return config, TokenizerPair.load(directory.path / "tokenizer")
    say(console, "learning the vocabulary")
    tokenizers = learn_tokenizers(text, config.tokenizer, config.data.bad_line_budget)
    sizes = {
        "source_vocabulary_size": tokenizers.source.vocabulary_size,
        "target_vocabulary_size": tokenizers.target.vocabulary_size,
    }
    return config.replace(model=config.model.replace(**sizes)), tokenizers


def _state_to_go_on_from(states, path, console):
    """Returns the last state, or `None` where a run that is lost lost nothing."""
    state = states.latest(console)
    if state is None and states.damaged() and any((path / "checkpoints").glob("*")):
        raise ValueError(
            f"No state in {states.directory} can be read, so the run cannot go on. Its "
            "checkpoints are whole: `keras-transformer average` makes a model of them. "
            f"To begin anew, remove {path} or choose another directory."
        )
    return state


def _is_finished(path, state, config):
    """Whether the run ended with the limits that it has now, and left its model."""
    ended = state is not None and state.finished == limits(config.training)
    return ended and all((path / n).exists() for n in ("model.keras", "decoding.json"))


def _corpora(text, validation, tokenizers: TokenizerPair, config: RunConfig):
    """Returns the training corpus and the validation corpus or `None`."""
    options = {"static_shapes": with_device_defaults(config.training).jit_compile}
    training = Corpus(
        text, tokenizers, config.data, seed=config.training.seed, **options
    )
    if validation is None:
        return training, None
    return training, Corpus(validation, tokenizers, config.data, **options)


def _train_to_the_end(
    run: Run, state: TrainingState | None, signals: StopSignals
) -> TrainingState:
    """Trains from a state, or from the beginning, until a limit ends it.

    An epoch that was broken off is gone on with in a `fit` of its own, since Keras has
    no other way to begin within an epoch; the next one starts from the state at its
    end, just as another process would.
    """
    _report_data(run)
    if state is None:
        say(run.console, f"training {run.model.count_params():,} parameters")
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


def _report_data(run):
    for name, corpus in (("training", run.training), ("validation", run.validation)):
        if corpus is not None:
            say(
                run.console,
                f"{name} data: {corpus.num_pairs:,} pairs, {corpus.num_batches:,} "
                f"batches, {corpus.bad_lines}",
            )


def _fit(run: Run, state: TrainingState, signals: StopSignals) -> TrainingState:
    """Runs `model.fit` from a state, to the end of its epoch if it is within one.

    Returns:
        The state that the training has come to.
    """
    options, distribution = run.config.training, run.distribution
    limit = StopAtLimit(options.max_updates, options.max_minutes, distribution)
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
    batches = run.training.dataset(first_epoch=state.epoch, first_batch=state.batch)
    validation = run.validation and run.validation.dataset(shuffle=False)
    try:
        run.model.fit(
            distribution.dataset(batches),
            validation_data=validation and distribution.dataset(validation),
            initial_epoch=state.epoch,
            epochs=state.epoch + 1 if state.batch else options.epochs,
            callbacks=callbacks,
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
    """Raises the error, if there was one, that TensorFlow told in its own words."""
    for corpus in (run.training, run.validation):
        if corpus is not None and corpus.failure is not None:
            raise corpus.failure from None


def _callbacks(run: Run, limit: StopAtLimit, state: TrainingState) -> list:
    """Returns the callbacks of a `fit`, in order, but for the last, `SaveState`.

    Those of the selection come after what may stop the run and before the logs, to
    which they add. Only the chief of several processes writes files.
    """
    options, is_chief = run.config.training, run.distribution.is_chief
    stop = options.nonfinite_batches == "stop"
    callbacks = [
        NonfiniteBatches(
            run.training, run.path / "nonfinite", stop, run.console, state.batch,
            is_chief,
        ),
        limit,
        TokenRate(run.training, state.batch),
    ]  # fmt: skip
    if not is_chief:
        return callbacks + run.selection.callbacks
    logs = [EpochLog(run.path / "log.csv"), TensorBoardLog(run.path / "tensorboard")]
    if not state.callbacks:
        # What is there was written before the first state that was saved.
        for log in logs:
            log.restore({})
    progress = ProgressReport(run.training, run.console, options.epochs, state.batch)
    return callbacks + run.selection.callbacks + logs + [progress]


def _finish(run: Run, state: TrainingState, translator: Translator) -> Translator:
    """Makes the final model of the checkpoints and writes it; returns it."""
    checkpoints = run.selection.checkpoints
    if run.distribution.is_chief:
        restore_callbacks([checkpoints], state.callbacks_at_end)
        if checkpoints.paths():
            load_average(run.model, checkpoints.paths())
        if not state.batch:
            # Within an epoch, a run that goes on may need those before it again.
            checkpoints.prune()
        # A mean of checkpoints has another average of its weights than the run had.
        with contextlib.ExitStack() as stack:
            if not checkpoints.paths():
                stack.enter_context(averaged_weights(run.model))
            translator.save(run.path)
    # Nobody reads before it is written.
    run.distribution.any(False)
    return translator if run.distribution.is_chief else Translator.load(run.path)
