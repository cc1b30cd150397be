"""Training from text and options to a directory with a trained translator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
from rich.console import Console

from keras_transformer.config import RunConfig, TrainingConfig, TransformerConfig
from keras_transformer.files import write_json
from keras_transformer.search.run_directory import SUMMARY
from keras_transformer.search.translator import Translator
from keras_transformer.terminal import plain_console, plural, say, warn
from keras_transformer.text import open_pairs
from keras_transformer.training.averages import checkpoints_in, load_average
from keras_transformer.training.intervals import (
    RunCallbacks,
    StopSignals,
    close_interval,
    is_over,
    train_interval,
)
from keras_transformer.training.job import Job, default_config
from keras_transformer.training.plan import check_directory
from keras_transformer.training.report import Log, TrainingBar, summary
from keras_transformer.training.run import Run, opened
from keras_transformer.training.state import KEPT_STATES, restore
from keras_transformer.training.validation import Validation, rank, rows_to_average


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
    command: str | None = None,
) -> Translator:
    """Learns a vocabulary, trains a model with `model.fit`, and saves everything.

    The directory then holds config.json, data.json, tokenizer/, tokenizer.sha256,
    corpus/, states/, checkpoints/, log.csv, tensorboard/, summary.json and the
    translator: decoding.json and model.keras. `Translator.load(directory)` loads it.

    The final weights are the mean of the last checkpoints (`average_checkpoints`). With
    `validation` pairs the mean is validated too, and the last checkpoint alone is taken
    if that is better by `monitor`. A run with `init` then takes the best checkpoints in
    place of the last, unless `average` says otherwise.

    Training proceeds in intervals of `save_every` batches. After each one the model is
    validated, and a checkpoint and the whole state are saved.

    Call this again with the same text and options to resume an interrupted run from its
    last state. Options that end the training may change; a limit that ended it within
    an interval leaves one checkpoint more. On the same kind and number of processor
    cores the final weights equal those of an uninterrupted run to the bit; on others
    they differ by rounding, and a warning is printed. A finished run is only loaded,
    unless its limits allow more training. SIGTERM, SIGHUP (a closed terminal) and the
    first Ctrl-C stop the run after the current batch and save its state.

    Args:
        text: Training pairs, as `open_pairs` returns or takes them.
        directory: Directory of the run: new, empty, or that of a run to resume.
        config: All options, except that the tokenizers determine the vocabulary sizes.
            Default `default_config(directory, init, text)`: those of an existing run,
            those for fine-tuning, or the preset for the number of pairs.
        validation: Pairs for the loss, accuracy and perplexity of every interval.
        console: Rich console for progress; default the terminal.
        tokenizers: A `TokenizerPair`, one tokenizer for both sides as
            `TokenizerPair.of` takes it, or a tuple of two; default learned from `text`.
            With several workers give files, because TensorFlow must not run before.
        callbacks: Keras callbacks, for which an interval is an epoch. Figures that they
            add to the logs are logged. An `on_train_batch_end` makes the run wait for
            the device after every batch. A resumed run calls `on_train_begin` again. It
            is exact if callbacks keep no state, or have methods `state()`, whose result
            JSON can hold, and `restore(state)`.
        optimizer: A new Keras optimizer in place of that of the options.
        loss: A Keras loss that is a mean over targets, in place of a
            `MaskedCrossentropy` with `label_smoothing`.
        init: A `Translator`, or its directory, whose weights and tokenizers the run
            begins with (fine-tuning); default random weights. The options `model`,
            except dropout rates, and `tokenizer` must be those of `init`, as in
            `default_config`. A resumed run does not need it.
        model: Function of `config.model` that returns the model to train: a subclass of
            `Transformer`, or any Keras model that `Translator` takes; default
            `Transformer`. A resumed run needs it again. Register its class with Keras.
        command: What resumes the run at a shell, for errors about an unfinished run.

    Returns:
        The trained `Translator`.

    Raises:
        BlockingIOError: If another process trains in `directory`.
        FileExistsError: If `directory` holds something other than a run.
        FloatingPointError: If a loss or gradient is not finite.
        KeyboardInterrupt: After Ctrl-C, with the state saved.
        OSError: If a file cannot be read.
        SystemExit: After SIGTERM (status 143) or SIGHUP (129), with the state saved.
        ValueError: If data or options are invalid, or differ from those of the run in
            `directory` or of `init`.

    Example:
        >>> pairs = open_pairs("train.en", "train.de")
        >>> train(pairs, "runs/en-de")(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """
    directory = Path(directory)
    job = _job(
        directory,
        text=text,
        config=config,
        validation=validation,
        console=console,
        tokenizers=tokenizers,
        init=init,
        optimizer=optimizer,
        loss=loss,
        model=model,
        command=command,
    )
    with opened(job, directory) as run:
        if run is None:
            return Translator.load(directory)
        validated = Validation(run)
        train_to_the_end(run, callbacks, validated)
        return finish(run, validated)


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
    """Prints what `train` would do with these arguments: data, device, parameters.

    It reads the text, learns the vocabulary and makes the model, but writes no files.
    It takes the arguments of `train`, raises the same errors, and returns the printed
    numbers, under "model" and "data".
    """
    directory = Path(directory)
    job = _job(
        directory,
        text=text,
        config=config,
        validation=validation,
        console=console,
        tokenizers=tokenizers,
        init=init,
    )
    with opened(job, directory, is_dry=True) as run:
        say(run.console, "nothing was trained or written: this was a dry run")
        return {name: run.facts[name] for name in ("model", "data")}


def _job(directory, *, text, config, validation, console, init, **others):
    """Returns the job of the arguments of `train`; opens the text that they name."""
    check_directory(directory)
    console = plain_console() if console is None else console
    text = open_pairs(text)
    if config is None:
        config = default_config(directory, init, text, console)
    return Job(
        text=text,
        config=config,
        validation=None if validation is None else open_pairs(validation),
        console=console,
        init=init,
        **others,
    )


def train_to_the_end(
    run: Run, given: Sequence[keras.callbacks.Callback], validation: Validation
):
    """Trains interval by interval, until a limit is reached."""
    options = run.config.training
    is_chief = run.distribution.is_chief
    bar = TrainingBar(run.console, run.training.num_batches, options, run.state)
    log = Log(run) if is_chief else None
    with bar, StopSignals() as signals:
        callbacks = RunCallbacks(given, run, signals, bar)
        if run.state.step:
            callbacks.restore(run.state)
        callbacks.begin_run()
        if not run.state.step:  # `on_train_begin` may have changed a weight.
            run.state = callbacks.captured()
        try:
            while run.state.finished != run.limits:
                if is_over(run, callbacks) and run.state.has_row:
                    run.state.finished = run.limits  # lower ones than before
                else:
                    figures = train_interval(run, callbacks)
                    if figures is not None:
                        close_interval(run, callbacks, validation, figures)
                        if log:
                            log.add(run.state.history, run.state.seconds)
                if is_chief:
                    run.states.save(run.state)
                    _remove_checkpoints(run)
                if run.distribution.any(signals.received is not None):
                    other = "a signal to another process"
                    name = signals.received.name if signals.received else other
                    after = plural(run.state.updates, "update")
                    words = "run the same command again to resume"
                    say(run.console, f"stopped by {name} after {after}; {words}")
                    signals.stop()
        finally:
            callbacks.end_run()


def _remove_checkpoints(run: Run, num_states: int = KEPT_STATES):
    """Removes the checkpoints that no kept state needs for its final model."""
    options = run.config.training
    history = run.state.history
    needed = []
    for back in range(num_states):
        needed += rows_to_average(history[: max(len(history) - back, 0)], options)
    kept = {run.checkpoint_of(row) for row in needed}
    for path in checkpoints_in(run.path / "checkpoints"):
        if path not in kept:
            path.unlink(missing_ok=True)


def finish(run: Run, validation: Validation) -> Translator:
    """Makes the final model from the checkpoints, saves it and returns it."""
    state = run.state
    is_chief = run.distribution.is_chief
    if is_chief or run.validation is not None:  # All processes validate together.
        rows, figures = _load_final(run, validation)
    if is_chief:
        _remove_checkpoints(run, num_states=1)
        run.translator.save(run.path)
        warmup = run.config.training.warmup_steps
        rises = run.job.optimizer is None and state.updates < warmup
        if rises:
            warn(
                run.console,
                f"the run ended after {plural(state.updates, 'update')} of a "
                f"warm-up of {warmup:,}, while the learning rate still rose: train "
                "longer, or shorten `warmup_steps`",
            )
        facts = summary(
            run.facts,
            state,
            state.history[-1],
            weights=_named(rows, run.config.training),
            averaged_checkpoints=len(rows),
            final=figures,
            rate_still_rose=rises,
        )
        write_json(run.path / SUMMARY, facts)
    run.distribution.any(False)  # All processes wait here until it is written.
    return run.translator if is_chief else Translator.load(run.path)


def _load_final(run: Run, validation: Validation) -> tuple[list[dict], dict]:
    """Loads the mean of checkpoints, or the last or best of them if that is better.

    Returns the rows of those that were loaded, and the figures of the validation.
    """
    options = run.config.training
    rows = _load_mean(run)
    if run.validation is None:
        return rows, {}
    if not rows:
        return rows, validation.figures()
    one = rows[-1]
    if options.average == "best":
        one = max(rows, key=lambda row: rank(row, options))
    figures = {name: x for name, x in one.items() if name.startswith("val_")}
    if len(rows) == 1:
        return rows, figures
    choices = [(rows, validation.figures()), ([one], figures)]
    if rank(one, options) > rank(choices[0][1], options):
        load_average(run.model, [run.checkpoint_of(one)])
        choices.reverse()
    score = f"val_{options.monitor}"
    taken, other = [
        f"{_named(chosen, options)} ({score} {found[score]:.4f})"
        for chosen, found in choices
    ]
    say(run.console, f"final weights: {taken}; not {other}")
    return choices[0]


def _load_mean(run: Run) -> list[dict]:
    """Gives the model the mean of its checkpoints; returns the rows of those.

    A file that cannot be read is left out; without any, the last state's weights stay.
    """
    rows = rows_to_average(run.state.history, run.config.training)
    try:
        load_average(run.model, [run.checkpoint_of(row) for row in rows])
        return rows
    except (FileNotFoundError, ValueError):
        readable = [row for row in rows if _can_load(run, run.checkpoint_of(row))]
    if readable:
        load_average(run.model, [run.checkpoint_of(row) for row in readable])
        return readable
    warn(run.console, "the final weights are those of the last state")
    restore(run.model, run.state)
    run.model.optimizer.finalize_variable_values(run.model.trainable_weights)
    return []


def _can_load(run, path):
    """Returns whether a checkpoint can be loaded, and warns if it cannot."""
    try:
        load_average(run.model, [path])
    except (FileNotFoundError, ValueError) as error:
        warn(run.console, f"the final weights do without it: {error}")
        return False
    return True


def _named(rows: Sequence[dict], options: TrainingConfig) -> str:
    """Returns what weights are, from the rows of their checkpoints."""
    if not rows:
        return "those of the last state"
    kind = "best" if options.average == "best" else "last"
    if len(rows) > 1:
        return f"the mean of the {kind} {len(rows)} checkpoints"
    return f"the {kind} checkpoint, of epoch {rows[0]['epoch']:g}"
