"""A training run, from text and options to a directory with a trained translator."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
from keras import ops
from rich.console import Console

from keras_transformer.config import RunConfig, TrainingConfig
from keras_transformer.export.model_card import RunFacts
from keras_transformer.models.transformer import Transformer
from keras_transformer.terminal import plain_console, say
from keras_transformer.text import Corpus
from keras_transformer.training.averages import (
    checkpoint_path,
    checkpoints_in,
    load_average,
    save_checkpoint,
)
from keras_transformer.training.devices import (
    Distribution,
    distribution_scope,
    gpu_names,
    machine,
)
from keras_transformer.training.intervals import (
    RunCallbacks,
    StopSignals,
    end_of_interval,
    fit_interval,
)
from keras_transformer.training.model import (
    build_training_variables,
    compiled_model,
    with_device_defaults,
)
from keras_transformer.training.report import (
    Log,
    TrainingBar,
    plural,
    report_data,
    report_devices,
    report_model,
    report_other_machine,
    report_warm_up,
    run_facts,
    write_summary,
)
from keras_transformer.training.run import (
    Plan,
    RunDirectory,
    begin,
    check_optimizer,
    made_of,
    plan_run,
)
from keras_transformer.training.state import KEPT_STATES, State, StateFiles, capture
from keras_transformer.training.validation import (
    Validation,
    check_validated,
    export_new_best,
    rows_to_average,
    without_progress,
)
from keras_transformer.translator import Translator


class Run(NamedTuple):
    """A run that trains."""

    path: Path
    config: RunConfig
    model: Transformer
    translator: Translator
    training: Corpus
    validation: Corpus | None
    states: StateFiles
    distribution: Distribution
    console: Console
    callbacks: RunCallbacks
    signals: StopSignals
    facts: RunFacts


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
    tokenizer.sha256, corpus/, states/, checkpoints/, log.csv, tensorboard/, the
    translator, whose weights are the mean of the checkpoints (model.keras and
    decoding.json), and summary.json: what was trained on what, how long, and the last
    scores. `Translator.load(directory)` reads it.

    A run is a chain of intervals of `save_every` batches. Each is a `fit` that begins
    with the state at the end of the one before; then the model is validated, its
    weights are kept as a checkpoint, and its state is saved.

    An interrupted run goes on from its last state when this is called again with the
    same text and options; options that say when to stop may differ. On the same kind
    and number of processor cores it ends with exactly the weights of an uninterrupted
    run; on others they differ by rounding, and a warning is printed. A finished run is
    only loaded, unless its limits now allow more training. SIGTERM, SIGHUP (a closed
    terminal), or Ctrl-C once, ends it after the current batch with its state saved.

    Args:
        text: Training pairs, as `open_pairs` returns or takes them.
        directory: Directory of the run: new, empty, or that of a run to continue.
        config: All options; the vocabulary sizes are those of the tokenizers.
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
            The optimizer and its schedule are new. `model`, `tokenizer` and `decoding`
            of `config` are those of `init` where they are the defaults. Others must be
            those of `init`, but for the search and the dropout rates:
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
    check_validated(config.training, validation is not None)
    check_optimizer(optimizer, config.training)
    directory = RunDirectory(directory)
    path = directory.path
    with contextlib.ExitStack() as stack:
        kind = config.training.distribute
        distribution = stack.enter_context(distribution_scope(kind))
        _check_hosts(distribution)
        if distribution.is_chief:
            stack.enter_context(directory.locked())
        else:
            console = Console(quiet=True)
        plan = plan_run(
            directory, config, text, validation, console, tokenizers, init,
            made_of(optimizer, loss),
        )  # fmt: skip
        states = StateFiles(path / "states", writes=distribution.is_chief)
        state = states.latest(console)
        if state is None and states.damaged() and checkpoints_in(path / "checkpoints"):
            raise ValueError(
                f"No state in {states.directory} can be read, so the run cannot go on. "
                "Its checkpoints are whole: `keras-transformer average` makes a model "
                f"of them. To begin again, remove {path} or choose another directory."
            )
        options = plan.config.training
        has_ended = state is not None and state.finished == _limits(options)
        files = [path / name for name in ("model.keras", "decoding.json")]
        if has_ended and all(file.exists() for file in files):
            say(
                console,
                f"{path} is finished: {plural(state.updates, 'update')}. To train on, "
                "raise `epochs`, `max_updates`, `max_minutes` or `patience`.",
            )
            return Translator.load(path)
        # Bad options and data raise errors in these two, before they are saved.
        plan, training, validation = _corpora(plan, path / "corpus", console)
        model = _new_model(plan.config, distribution, optimizer, loss)
        if state is None:
            begin(model, plan, console)
        if distribution.is_chief and directory.is_set_up:
            directory.save_config(plan.config)
        elif distribution.is_chief:
            directory.set_up(plan.config, plan.data, plan.tokenizers)
        report_data(console, training, validation)
        report_devices(console, model.compute_dtype)
        options = plan.config.training
        if state is None:
            report_model(console, model, options.freeze)
            state = capture(model)
        else:
            epoch, batch = divmod(state.step, training.num_batches)
            say(
                console,
                f"going on after {plural(state.updates, 'update')}, at batch "
                f"{batch + 1:,} of epoch {epoch + 1}",
            )
            report_other_machine(console, state.machine, machine(distribution))
        bar = TrainingBar(console, training.num_batches, options, state)
        stack.enter_context(bar)
        signals = stack.enter_context(StopSignals())
        run = Run(
            path, plan.config, model,
            Translator(model, plan.tokenizers, plan.config.decoding), training,
            validation, states, distribution, console,
            RunCallbacks(
                callbacks, model, training, options, distribution, signals, bar
            ),
            signals,
            RunFacts(
                plan.config, run_facts(model, training, validation), data=plan.data
            ),
        )  # fmt: skip
        del plan  # The memory of a model that is no longer needed.
        return _finish(run, _train_to_the_end(run, state))


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

    That is its data and bad lines, the device and the float type, the shapes of its
    batches, how often XLA compiles, and the parameters. It reads the text and learns
    the vocabulary as `train` does, makes the model, and writes nothing. The arguments
    are those of `train`.

    Returns:
        The same as numbers: "model", "data", and "shapes", the batches of each.

    Raises:
        FileExistsError: As `train`.
        OSError: As `train`.
        ValueError: As `train`.

    Example:
        >>> dry_run(open_pairs("train.en", "train.de"), "runs/en-de")
    """
    console = plain_console() if console is None else console
    config = RunConfig() if config is None else config
    check_validated(config.training, validation is not None)
    directory = RunDirectory(directory)
    with distribution_scope(config.training.distribute) as distribution:
        _check_hosts(distribution)
        plan = plan_run(
            directory, config, text, validation, console, tokenizers, init, {}
        )
        plan, training, validation = _corpora(plan, None, console)
        model = _new_model(plan.config, distribution)
        if not StateFiles(directory.path / "states").paths():
            begin(model, plan, console)
        report_data(console, training, validation)
        report_devices(console, model.compute_dtype)
        shapes = [
            {"rows": rows, "tokens": tokens, "batches": number}
            for (rows, tokens), number in training.shapes.items()
        ]
        words = ["{batches:,} of {rows} x {tokens}".format(**shape) for shape in shapes]
        say(console, f"batches (sentences x tokens): {', '.join(words)}")
        if with_device_defaults(plan.config.training).jit_compile:
            least = "at least " if plan.config.data.subword_sampling else ""
            words = f"the training step {least}{plural(len(shapes), 'time')}"
            if validation is not None:
                times = plural(len(validation.shapes), "time")
                words += f" and the validation step {times}"
            say(console, f"XLA compiles {words}")
        report_model(console, model, plan.config.training.freeze)
        facts = run_facts(model, training, validation)
    say(console, "nothing was trained or written: this was a dry run")
    return {"model": facts["model"], "data": facts["data"], "shapes": shapes}


def _check_hosts(distribution):
    """The first host alone averages the checkpoints, for which JAX needs all."""
    if keras.backend.backend() == "jax" and distribution.num_processes > 1:
        raise ValueError(
            "A run trains on one host with JAX: on several, call `model.fit` within "
            "`distribution_scope`, or train with TensorFlow and `multi_worker`. "
            f"Received: {distribution.num_processes} processes"
        )


def _corpora(plan: Plan, directory: Path | None, console: Console):
    """Returns the plan with a schedule that fits the corpus, and both corpora."""
    config, data = plan.config, plan.data
    static_shapes = with_device_defaults(config.training).jit_compile

    def corpus(text, name, **options):
        place = directory and directory / name
        options |= {"static_shapes": static_shapes, "console": console}
        return Corpus(text, plan.tokenizers, config.data, directory=place, **options)

    training = corpus(plan.text, "training", seed=config.training.seed)
    if "planned_updates" not in data:
        planned = config.training.planned_updates(training.num_batches)
        fitted, data = config.fitted_to(planned), data | {"planned_updates": planned}
        if "optimizer" not in data:
            report_warm_up(console, config, fitted)
        plan = plan._replace(config=fitted, data=data)
    if plan.validation is None:
        return plan, training, None
    validation = corpus(plan.validation, "validation", buckets=training.buckets)
    return plan, training, validation


def _new_model(config, distribution, optimizer=None, loss=None):
    with distribution.scope():
        model = compiled_model(config, optimizer, loss)
        build_training_variables(model)
    return model


def _limits(options: TrainingConfig) -> dict[str, Any]:
    """Returns the options that say when a training ends."""
    names = ("epochs", "max_updates", "max_minutes", "patience")
    return {name: getattr(options, name) for name in names}


def _is_over(run: Run, state: State) -> bool:
    options = run.config.training
    return (
        run.callbacks.stopped
        or state.step >= options.epochs * run.training.num_batches
        or state.updates >= (options.max_updates or float("inf"))
        or state.seconds >= 60 * (options.max_minutes or float("inf"))
    )


def _train_to_the_end(run: Run, state: State) -> State:
    """Trains from a state, interval by interval, until a limit is reached."""
    options = run.config.training
    log = Log(run.path, run.console, options.epochs)
    validation = Validation(
        run.translator, run.validation, run.config, run.distribution, run.console
    )
    if run.distribution.is_chief:
        log.begin(state.rows)
    run.callbacks.restore(state)
    run.callbacks.begin_run(state)
    if not state.step:  # A callback of the program may have changed a weight.
        state = run.callbacks.captured(0, 0.0)
    try:
        while state.finished != _limits(options):
            has_row = state.rows and state.rows[-1]["step"] == state.step
            if _is_over(run, state) and has_row:  # The limits were lowered.
                state.finished = _limits(options)
            else:
                state = _next_state(run, state, validation, log)
            run.states.save(state)
            _remove_old_checkpoints(run, state)
            if run.distribution.any(run.signals.received is not None):
                name = "a signal to another process"
                if run.signals.received is not None:
                    name = run.signals.received.name
                say(
                    run.console,
                    f"stopped by {name} after {plural(state.updates, 'update')}; the "
                    "same command goes on from there",
                )
                run.signals.stop()
    finally:
        run.callbacks.end_run()
    return state


def _next_state(run: Run, state: State, validation: Validation, log: Log) -> State:
    """Fits one interval, validates, keeps the weights; returns the state at the end.

    An interval that ends early has a row only if the training ends there. Otherwise the
    next `fit` trains the rest.
    """
    options, num_batches = run.config.training, run.training.num_batches
    end, figures = end_of_interval(options, num_batches, state.step), {}
    if _is_over(run, state):  # The limits were lowered, within an interval.
        run.model.optimizer.finalize_variable_values(run.model.trainable_weights)
    else:
        state, figures = fit_interval(run, state)
    is_whole, is_over = state.step == end, _is_over(run, state)
    if not (is_whole or is_over):
        return state
    epochs = state.step / num_batches
    epochs = int(epochs) if epochs.is_integer() else epochs
    row = {"step": state.step, "epoch": epochs, "updates": state.updates}
    if keras.backend.backend() == "jax":
        # The steps of JAX take over the memory of weights, which may be the average's.
        for weight in run.model.trainable_variables:
            weight.assign(ops.copy(weight.value))
    figures |= validation.figures(run.callbacks)
    rows = [*state.history, row | figures]
    if run.distribution.is_chief:
        save_checkpoint(run.model, run.path / "checkpoints", state.step)
        if options.export_best:
            _export(run, state, rows)
    # From the average of the weights back to the weights themselves.
    run.callbacks.restore(state)
    run.callbacks.end_interval(figures)
    rows[-1] = row | {name: float(value) for name, value in figures.items()}
    if is_whole:
        # A callback of the program may have changed a rate, or a weight.
        state = run.callbacks.captured(state.step, state.seconds)
        state.history = rows
    else:
        state.last = rows[-1]
    if options.patience is not None:
        waited = without_progress(rows, options)
        if waited >= options.patience and not is_over:
            is_over = True
            say(
                run.console,
                f"val_{options.monitor} has not been better for "
                f"{plural(waited, 'interval')}: the training ends",
            )
    if is_over or run.callbacks.stopped:
        state.finished = _limits(options)
    if run.distribution.is_chief:
        log.add(rows)
    return state


def _export(run, state, rows):
    directory = run.path / "export" / run.path.resolve().name
    facts = run.facts._replace(summary=_summary(run, state, rows))
    options = run.config.training
    if path := export_new_best(run.translator, directory, rows, options, facts):
        name = f"val_{options.monitor}"
        say(run.console, f"exported {path}: {name} {rows[-1][name]:.4f}")


def _summary(run, state, rows):
    """What a run has come to: summary.json, and a part of a model's card."""
    return run.facts.summary | {
        "machine": state.machine | {"gpus": gpu_names()},
        "updates": state.updates,
        "epochs": rows[-1]["epoch"],
        "seconds": state.seconds,
        # Before checkpoints were averaged.
        "last_epoch": {
            name: value for name, value in rows[-1].items() if name != "step"
        },
    }


def _remove_old_checkpoints(run: Run, state: State):
    """Keeps the checkpoints that a saved state needs to go on or to end with."""
    if not run.distribution.is_chief:
        return
    options, history = run.config.training, state.history
    needed = rows_to_average(state.rows, options)
    for back in range(KEPT_STATES):
        needed += rows_to_average(history[: max(len(history) - back, 0)], options)
    kept = {checkpoint_path(run.path / "checkpoints", row["step"]) for row in needed}
    for path in checkpoints_in(run.path / "checkpoints"):
        if path not in kept:
            path.unlink(missing_ok=True)


def _finish(run: Run, state: State) -> Translator:
    """Makes the final model from the checkpoints, saves it and returns it."""
    folder = run.path / "checkpoints"
    rows = rows_to_average(state.rows, run.config.training)
    if run.distribution.is_chief:
        paths = [checkpoint_path(folder, row["step"]) for row in rows]
        load_average(run.model, paths)
        if state.last is None:
            # A run that goes on within an interval may need older ones.
            for path in set(checkpoints_in(folder)) - set(paths):
                path.unlink(missing_ok=True)
        run.translator.save(run.path)
        summary = _summary(run, state, state.rows)
        write_summary(run.path, summary | {"averaged_checkpoints": len(rows)})
    # All processes wait until it is written.
    run.distribution.any(False)
    return run.translator if run.distribution.is_chief else Translator.load(run.path)
