"""A training run, from text and options to a directory with a trained translator."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
from keras import ops
from rich.console import Console

from keras_transformer.config import RunConfig, TrainingConfig
from keras_transformer.export.model_card import SUMMARY
from keras_transformer.files import replacing
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
    run_facts,
)
from keras_transformer.training.run import RunDirectory, default_config, plan_run
from keras_transformer.training.state import KEPT_STATES, State, StateFiles, capture
from keras_transformer.training.validation import (
    Validation,
    check_validated,
    rows_to_average,
    without_progress,
)
from keras_transformer.translator import Translator


class Run(NamedTuple):
    """A run that is ready to train, from a state."""

    path: Path
    config: RunConfig
    model: Transformer
    translator: Translator
    training: Corpus
    validation: Corpus | None
    states: StateFiles
    state: State
    distribution: Distribution
    console: Console
    facts: dict[str, Any]


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
    with _opened(
        text, directory, config, validation, console, tokenizers, init, optimizer, loss
    ) as run:
        if run is None:  # It is finished.
            return Translator.load(directory)
        return _finish(run, _train_to_the_end(run, callbacks))


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
    with _opened(
        text, directory, config, validation, console, tokenizers, init, is_dry=True
    ) as run:
        say(run.console, "nothing was trained or written: this was a dry run")
        return {name: run.facts[name] for name in ("model", "data")}


@contextlib.contextmanager
def _opened(
    text, directory, config, validation, console, tokenizers, init, optimizer=None,
    loss=None, is_dry=False,
) -> Iterator[Run | None]:  # fmt: skip
    """Yields a run, new or to go on with; or `None` if it is finished."""
    console = plain_console() if console is None else console
    config = default_config(directory, init) if config is None else config
    check_validated(config.training, validation is not None)
    if optimizer is not None and (optimizer.built or config.training.ema_decay):
        raise ValueError(
            "`optimizer` must be new: one that has updated a model keeps its moments. "
            "It must have a moving average of its own in place of `ema_decay`. Received"
            f": built={optimizer.built}, ema_decay={config.training.ema_decay}"
        )
    made = {}
    if optimizer is not None:
        made["optimizer"] = keras.optimizers.serialize(optimizer)
    if loss is not None:
        made["loss"] = keras.losses.serialize(loss)
    folder = RunDirectory(directory)
    path = folder.path
    with contextlib.ExitStack() as stack:
        kind = config.training.distribute
        distribution = stack.enter_context(distribution_scope(kind))
        if keras.backend.backend() == "jax" and distribution.num_processes > 1:
            # The first host alone averages the checkpoints, for which JAX needs all.
            raise ValueError(
                "A run trains on one host with JAX: on several, call `model.fit` "
                "within `distribution_scope`, or train with TensorFlow and "
                f"`multi_worker`. Received: {distribution.num_processes} processes"
            )
        writes = distribution.is_chief and not is_dry
        if writes:
            stack.enter_context(folder.locked())
        if not distribution.is_chief:
            console = Console(quiet=True)
        states = StateFiles(path / "states", writes)
        state = states.latest(console)
        plan = plan_run(
            folder, config, text, validation, console, tokenizers, init,
            state is not None, made,
        )  # fmt: skip
        has_ended = state is not None and state.finished == _limits(config.training)
        # The summary is written last.
        files = [path / n for n in ("model.keras", "decoding.json", SUMMARY)]
        if has_ended and all(file.exists() for file in files) and not is_dry:
            say(
                console,
                f"{path} is finished: {plural(state.updates, 'update')}. To train on, "
                "raise `epochs`, `max_updates`, `max_minutes` or `patience`.",
            )
            yield None
            return
        # Bad options and data raise errors here, before anything is saved.
        plan, training, corpus = _corpora(plan, None if is_dry else path, console)
        options = plan.config.training
        keras.utils.set_random_seed(options.seed)
        with distribution.scope():
            model = compiled_model(plan.config, optimizer, loss)
            build_training_variables(model)
        if plan.init is not None:
            model.take_weights_of(plan.init.model)
            say(console, f"beginning with the weights of {plan.data['init']}")
        if writes:
            # Until the run ends anew, a model that is there is that of fewer updates.
            (path / SUMMARY).unlink(missing_ok=True)
            folder.save(plan)
        report_data(console, training, corpus)
        report_devices(console, model.compute_dtype)
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
        translator = Translator(model, plan.tokenizers, plan.config.decoding)
        run = Run(
            path, plan.config, model, translator, training, corpus, states, state,
            distribution, console, run_facts(model, training, corpus),
        )  # fmt: skip
        del plan  # The memory of a model that is no longer needed.
        yield run


def _corpora(plan, directory, console):
    """Returns the plan with a schedule that fits the corpus, and both corpora."""
    config, data = plan.config, plan.data
    static_shapes = with_device_defaults(config.training).jit_compile

    def corpus(text, name, **options):
        place = directory and directory / "corpus" / name
        options |= {"static_shapes": static_shapes, "console": console}
        return Corpus(text, plan.tokenizers, config.data, directory=place, **options)

    training = corpus(plan.text, "training", seed=config.training.seed)
    if "planned_updates" not in data:
        planned = config.training.planned_updates(training.num_batches)
        plan = plan._replace(
            config=config.fitted_to(planned), data=data | {"planned_updates": planned}
        )
        before, now = (c.training.warmup_steps for c in (config, plan.config))
        if now < before and "optimizer" not in data:
            say(
                console,
                f"the learning rate rises for {plural(now, 'update')}, not {before:,}: "
                "a warm-up is at most a fifth of the training",
            )
    if plan.validation is None:
        return plan, training, None
    validation = corpus(plan.validation, "validation", boundaries=training.boundaries)
    return plan, training, validation


def _limits(options: TrainingConfig) -> dict[str, Any]:
    """Returns the options that say when a training ends."""
    names = ("epochs", "max_updates", "max_minutes", "patience")
    return {name: getattr(options, name) for name in names}


def _is_over(run: Run, callbacks: RunCallbacks, state: State) -> bool:
    options = run.config.training
    return (
        callbacks.stopped
        or state.step >= options.epochs * run.training.num_batches
        or state.updates >= (options.max_updates or math.inf)
        or state.seconds >= 60 * (options.max_minutes or math.inf)
    )


def _train_to_the_end(run: Run, given: Sequence[keras.callbacks.Callback]) -> State:
    """Trains interval by interval, until a limit is reached."""
    options, state, is_chief = run.config.training, run.state, run.distribution.is_chief
    bar = TrainingBar(run.console, run.training.num_batches, options, state)
    log = Log(run.path, run.console, options.epochs, state.rows) if is_chief else None
    validation = Validation(run)
    with bar, StopSignals() as signals:
        callbacks = RunCallbacks(given, run, signals, bar)
        callbacks.restore(state)
        callbacks.begin_run()
        if not state.step:  # A callback of the program may have changed a weight.
            state = callbacks.captured(0, 0.0)
        try:
            while state.finished != _limits(options):
                has_row = state.rows and state.rows[-1]["step"] == state.step
                if _is_over(run, callbacks, state) and has_row:
                    state.finished = _limits(options)  # The limits were lowered.
                else:
                    state = _next_state(run, callbacks, validation, state)
                    if log and state.rows and state.rows[-1]["step"] == state.step:
                        log.add(state.rows)
                run.states.save(state)
                if is_chief:
                    _remove_old_checkpoints(run, state)
                if run.distribution.any(signals.received is not None):
                    name = "a signal to another process"
                    if signals.received is not None:
                        name = signals.received.name
                    say(
                        run.console,
                        f"stopped by {name} after {plural(state.updates, 'update')}; "
                        "the same command goes on from there",
                    )
                    signals.stop()
        finally:
            callbacks.end_run()
    return state


def _next_state(
    run: Run, callbacks: RunCallbacks, validation: Validation, state: State
) -> State:
    """Fits one interval, validates, keeps the weights; returns the state at the end.

    An interval that ends early has a row only if the training ends there. Otherwise the
    next `fit` trains the rest.
    """
    options, num_batches = run.config.training, run.training.num_batches
    end, figures = end_of_interval(options, num_batches, state.step), {}
    if _is_over(run, callbacks, state):  # The limits were lowered, within an interval.
        run.model.optimizer.finalize_variable_values(run.model.trainable_weights)
    else:
        state, figures = fit_interval(run, callbacks, state, end)
    is_whole, is_over = state.step == end, _is_over(run, callbacks, state)
    if not (is_whole or is_over):
        return state
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
    rows = [*state.history, row]
    if is_whole:
        # A callback of the program may have changed a rate, or a weight.
        state = callbacks.captured(state.step, state.seconds)
        state.history = rows
    else:
        state.last = row
    if options.patience is not None:
        waited = without_progress(rows, options)
        if waited >= options.patience and not is_over:
            is_over = True
            say(
                run.console,
                f"val_{options.monitor} has not been better for "
                f"{plural(waited, 'interval')}: the training ends",
            )
    if is_over or callbacks.stopped:
        state.finished = _limits(options)
    return state


def _remove_old_checkpoints(run: Run, state: State):
    """Keeps the checkpoints that a saved state needs to go on or to end with."""
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
        last = {name: value for name, value in state.rows[-1].items() if name != "step"}
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
