"""A training run, from text and options to a directory with a trained translator."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
from keras import ops
from rich.console import Console

from keras_transformer.config import RunConfig, TransformerConfig
from keras_transformer.export.model_card import SUMMARY
from keras_transformer.files import replacing
from keras_transformer.terminal import say
from keras_transformer.training.averages import (
    checkpoint_path,
    checkpoints_in,
    load_average,
    save_checkpoint,
)
from keras_transformer.training.intervals import (
    RunCallbacks,
    StopSignals,
    end_of_interval,
    fit_interval,
)
from keras_transformer.training.report import Log, TrainingBar, plural
from keras_transformer.training.run import Run
from keras_transformer.training.state import KEPT_STATES
from keras_transformer.training.validation import (
    Validation,
    rows_to_average,
    without_progress,
)
from keras_transformer.translator import Translator


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
    model: Callable[[TransformerConfig], keras.Model] | None = None,
) -> Translator:
    """Learns a vocabulary, trains a model with `model.fit`, and saves everything.

    The directory then holds config.json, data.json, tokenizer/, its digests in
    tokenizer.sha256, corpus/, states/, checkpoints/, log.csv, tensorboard/, the
    translator, whose weights are the mean of the checkpoints (model.keras and
    decoding.json), and summary.json: what was trained on what, how long, and the last
    scores. `Translator.load(directory)` reads it.

    A run is a chain of intervals of `save_every` batches. Each is a `fit` that begins
    with the state at the end of the one before; then the model is validated, its
    weights are kept as a checkpoint, and its state is saved.

    An interrupted run goes on from its last state when this is called again with the
    same text and options; options that say when to stop may differ (where one ended it
    within an interval, there is a row and a checkpoint more). On the same kind and
    number of processor cores it ends with exactly the weights of an uninterrupted run;
    on others they differ by rounding, and a warning is printed. A finished run is only
    loaded, unless its limits now allow more training. SIGTERM, SIGHUP (a closed
    terminal), or Ctrl-C once, ends it after the current batch with its state saved.

    Args:
        text: Training pairs, as `open_pairs` returns or takes them.
        directory: Directory of the run: new, empty, or that of a run to continue.
        config: All options; the vocabulary sizes are those of the tokenizers. Default
            `default_config(directory, init)`.
        validation: Pairs whose loss, accuracy and perplexity are logged every interval.
        console: Where progress goes; default the terminal.
        tokenizers: A `TokenizerPair`, or one tokenizer for both sides as
            `TokenizerPair.of` takes it, or a tuple of two; default a vocabulary learned
            from `text`. Several workers need files: TensorFlow must do nothing before.
        callbacks: Keras callbacks, for which an interval is an epoch. They are called
            before the logs are written, so the figures that they add are logged. With
            an `on_train_batch_end` the run waits for the device after every batch. A
            run that goes on calls `on_train_begin` anew. It is exact if they remember
            nothing, or have methods `state()`, whose result JSON can hold, and
            `restore(state)`, which are called around each interval.
        optimizer: A new Keras optimizer in place of that of the options `optimizer`,
            `schedule`, `learning_rate` and so on. Its variables are in the states.
        loss: A Keras loss that is a mean over targets, in place of a
            `MaskedCrossentropy` with `label_smoothing`.
        init: A `Translator`, or a directory that `Translator.load` takes, whose weights
            and tokenizers the run begins with (fine-tuning); default random weights.
            The optimizer and its schedule are new. The options `model`, but for the
            dropout rates, and `tokenizer` must be those of `init`: `default_config`
            has them. A run that has a state goes on without.
        model: Function of `config.model` that returns the model to train: of a subclass
            of `Transformer`, or any Keras model that `Translator` takes. Default
            `Transformer`. Going on needs it again; register its class with Keras.

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
    run = Run(directory)
    with run.opened(
        text, config, validation, console, tokenizers, init, optimizer, loss, model
    ) as is_finished:
        if is_finished:
            return Translator.load(directory)
        _train_to_the_end(run, callbacks)
        return _finish(run)


def dry_run(
    text: Any,
    directory: str | Path,
    config: RunConfig | None = None,
    validation: Any = None,
    console: Console | None = None,
    *,
    tokenizers: Any = None,
    init: Translator | str | Path | None = None,
) -> dict[str, Any]:
    """Says what `train` would do with these arguments, and does none of it.

    That is its data and bad lines, the device and the float type, and the parameters.
    It reads the text, learns the vocabulary and makes the model, and writes nothing.
    The arguments and errors are those of `train`.

    Returns:
        The same as numbers, under "model" and "data".

    Example:
        >>> dry_run(open_pairs("train.en", "train.de"), "runs/en-de")
    """
    run = Run(directory)
    with run.opened(text, config, validation, console, tokenizers, init, is_dry=True):
        say(run.console, "nothing was trained or written: this was a dry run")
        return {name: run.facts[name] for name in ("model", "data")}


def _is_over(run: Run, callbacks: RunCallbacks) -> bool:
    options, state = run.config.training, run.state
    return (
        callbacks.stopped
        or state.step >= options.epochs * run.training.num_batches
        or state.updates >= (options.max_updates or math.inf)
        or state.seconds >= 60 * (options.max_minutes or math.inf)
    )


def _train_to_the_end(run: Run, given: Sequence[keras.callbacks.Callback]):
    """Trains interval by interval, until a limit is reached."""
    options, is_chief = run.config.training, run.distribution.is_chief
    bar = TrainingBar(run.console, run.training.num_batches, options, run.state)
    log = Log(run) if is_chief else None
    validation = Validation(run)
    with bar, StopSignals() as signals:
        callbacks = RunCallbacks(given, run, signals, bar)
        callbacks.restore(run.state)
        callbacks.begin_run()
        if not run.state.step:  # A callback may have changed a weight.
            run.state = callbacks.captured(0, 0.0)
        try:
            while run.state.finished != run.limits():
                if _is_over(run, callbacks) and run.state.has_row:
                    run.state.finished = run.limits()  # The limits were lowered.
                else:
                    _train_on(run, callbacks, validation)
                    if log and run.state.has_row:
                        log.add(run.state.history, run.state.seconds)
                run.states.save(run.state)
                if is_chief:
                    _remove_checkpoints(run)
                if run.distribution.any(signals.received is not None):
                    name = "a signal to another process"
                    if signals.received is not None:
                        name = signals.received.name
                    after = plural(run.state.updates, "update")
                    words = "the same command goes on from there"
                    say(run.console, f"stopped by {name} after {after}; {words}")
                    signals.stop()
        finally:
            callbacks.end_run()


def _train_on(run: Run, callbacks: RunCallbacks, validation: Validation):
    """Fits one interval, validates, keeps the weights and the state at the end.

    After a signal there is only the state: the next `fit` trains the rest.
    """
    options, num_batches = run.config.training, run.training.num_batches
    end, figures = end_of_interval(options, num_batches, run.state.step), {}
    if _is_over(run, callbacks):  # The limits were lowered, within an interval.
        run.model.optimizer.finalize_variable_values(run.model.trainable_weights)
    else:
        figures = fit_interval(run, callbacks, end)
    state, is_over = run.state, _is_over(run, callbacks)
    if state.step < end and not is_over:
        return
    epochs = state.step / num_batches
    epochs = int(epochs) if epochs.is_integer() else epochs
    row = {"step": state.step, "epoch": epochs, "updates": state.updates}
    if keras.backend.backend() == "jax":
        # The steps of JAX take over the memory of weights, which may be the average's.
        for weight in run.model.trainable_variables:
            weight.assign(ops.copy(weight.value))
    figures |= validation.figures(callbacks)
    if run.distribution.is_chief:
        save_checkpoint(run.model, run.path / "checkpoints", state.step)
    # From the average of the weights back to the weights themselves.
    callbacks.restore(state)
    callbacks.end_interval(figures)
    row |= {name: float(value) for name, value in figures.items()}
    run.model.reset_metrics()
    # A callback of the program may have changed a rate, or a weight.
    run.state = state = callbacks.captured(state.step, state.seconds)
    state.history.append(row)
    if options.patience is not None:
        waited = without_progress(state.history, options)
        if waited >= options.patience and not is_over:
            is_over = True
            say(
                run.console,
                f"val_{options.monitor} has not been better for "
                f"{plural(waited, 'interval')}: the training ends",
            )
    if is_over or callbacks.stopped:
        state.finished = run.limits()


def _remove_checkpoints(run: Run, num_states: int = KEPT_STATES):
    """Keeps the checkpoints that the newest states need to end with."""
    options, history, needed = run.config.training, run.state.history, []
    for back in range(num_states):
        needed += rows_to_average(history[: max(len(history) - back, 0)], options)
    kept = {checkpoint_path(run.path / "checkpoints", row["step"]) for row in needed}
    for path in checkpoints_in(run.path / "checkpoints"):
        if path not in kept:
            path.unlink(missing_ok=True)


def _finish(run: Run) -> Translator:
    """Makes the final model from the checkpoints, saves it and returns it."""
    state = run.state
    if run.distribution.is_chief:
        folder = run.path / "checkpoints"
        rows = rows_to_average(state.history, run.config.training)
        load_average(run.model, [checkpoint_path(folder, row["step"]) for row in rows])
        _remove_checkpoints(run, num_states=1)
        run.translator.save(run.path)
        last = {
            name: value for name, value in state.history[-1].items() if name != "step"
        }
        summary = run.facts | {
            "machine": state.machine,
            "updates": state.updates,
            "epochs": last["epoch"],
            "seconds": state.seconds,
            "last_epoch": last,  # Before checkpoints were averaged.
            "averaged_checkpoints": len(rows),
        }
        with replacing(run.path / SUMMARY) as temporary:
            temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    # All processes wait until it is written.
    run.distribution.any(False)
    return run.translator if run.distribution.is_chief else Translator.load(run.path)
