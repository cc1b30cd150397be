"""One interval of a run: `fit` from one saved state to the next.

Every interval first restores the state at the end of the one before, so interrupted and
uninterrupted runs end with the same weights.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TrainingConfig
from keras_transformer.models.exact_training import ExactTraining
from keras_transformer.nn.kernels.keras_private import inner_optimizer, loss_tracker
from keras_transformer.terminal import plural, say, warn
from keras_transformer.training.report import TrainingBar
from keras_transformer.training.run import Run, fit_to_minutes
from keras_transformer.training.state import (
    State,
    rank,
    save_checkpoint,
    without_progress,
)
from keras_transformer.training.validation import Validation

# Most batches of an interval without `save_every`.
_LONGEST = 1000
# Batches skipped in a row after which no other is expected to be good.
_HOPELESS = 16
# Batches, or seconds, between two readings of a figure, which wait for the device.
_READ_EVERY = 16
_READ_SECONDS = 1.0
# Share of `max_minutes` after which is decided for how many updates they are enough.
# Some intervals with their validations are then part of what was measured.
_MEASURED_SHARE = 0.05
# Share of its validation score by which the first interval may worsen what it began
# with, before that is said.
_MUCH = 0.1


def end_of_interval(options: TrainingConfig, num_batches: int, step: int) -> int:
    """Returns where the interval of a step ends, at most at the end of its epoch."""
    begin = step // num_batches * num_batches
    equal_parts = math.ceil(num_batches / math.ceil(num_batches / _LONGEST))
    every = options.save_every or equal_parts
    return min(begin + ((step - begin) // every + 1) * every, begin + num_batches)


def train_interval(run: Run, callbacks: RunCallbacks) -> dict[str, float] | None:
    """Fits to where the next checkpoint is due, or to a limit; returns the figures.

    Returns `None` if a signal ended it before: the next process does the rest.
    """
    num_batches = run.training.num_batches
    end = end_of_interval(run.config.training, num_batches, run.state.step)
    figures = {}
    if is_over(run, callbacks):  # Lower limits than before end it in an interval.
        run.model.optimizer.finalize_variable_values(run.model.trainable_weights)
    else:
        figures = _fit(run, callbacks, end)
        callbacks.plan_by_minutes()
    has_ended = is_over(run, callbacks)
    check_not_hopeless(run.state, num_batches, has_ended)
    return figures if has_ended or run.state.step >= end else None


def keep_initial(run: Run, callbacks: RunCallbacks, validation: Validation):
    """Validates the weights that a run begins with, and keeps them as a checkpoint."""
    figures = validation.figures(callbacks)
    if run.distribution.is_chief:
        save_checkpoint(run.model, run.checkpoints, 0)
    run.state.history.append({"step": 0, "epoch": 0, "updates": 0, **figures})


def close_interval(
    run: Run, callbacks: RunCallbacks, validation: Validation, figures: dict[str, float]
):
    """Validates, keeps a checkpoint, and ends the run where a limit is reached."""
    options = run.config.training
    state = run.state
    has_ended = is_over(run, callbacks)
    epochs = state.step / run.training.num_batches
    row = {
        "step": state.step,
        "epoch": int(epochs) if epochs.is_integer() else epochs,
        "updates": state.updates,
    }
    if keras.backend.backend() == "jax":
        # JAX's steps reuse the memory of weights, which may be the moving average's.
        for weight in run.model.trainable_variables:
            weight.assign(ops.copy(weight.value))
    figures = figures | validation.figures(callbacks)
    if run.distribution.is_chief:
        save_checkpoint(run.model, run.checkpoints, state.step)
    callbacks.restore(state)  # `fit` left the moving average of the weights.
    callbacks.end_interval(figures)
    row |= {name: float(value) for name, value in figures.items()}
    run.model.reset_metrics()
    # A user's callback may have changed a rate or a weight.
    run.state = state = callbacks.captured(state.step, state.seconds, state.skipped)
    state.history.append(row)
    initial, *rows = state.history
    if not initial["step"] and len(rows) == 1:
        _warn_of_harm(run, initial, row)
    if options.patience is not None and not has_ended:
        waited = without_progress(state.history, options)
        has_ended = waited >= options.patience
        if has_ended:
            say(
                run.console,
                f"val_{options.monitor} has not improved for "
                f"{plural(waited, 'interval')}: the training ends",
            )
    if has_ended or callbacks.stopped_by_user:
        state.finished = run.limits


def _warn_of_harm(run, initial, row):
    """Warns if the first interval made the initial weights much worse."""
    options = run.config.training
    before, after = rank(initial, options), rank(row, options)
    if after < before - _MUCH * abs(before):
        score = f"val_{options.monitor}"
        warn(
            run.console,
            f"the first interval took {score} from {initial[score]:.4f} to "
            f"{row[score]:.4f}. Likely causes: `learning_rate` "
            f"({row['learning_rate']:.2g}) is too high for these weights, or they were "
            f"trained with less dropout (`dropout_rate` is "
            f"{run.config.model.dropout_rate:g})",
        )


def is_over(run: Run, callbacks: RunCallbacks) -> bool:
    """Returns whether a limit of the training is reached."""
    options = run.config.training
    state = run.state
    return (
        callbacks.stopped_by_user
        or state.step >= options.epochs * run.training.num_batches
        or state.updates >= (options.max_updates or math.inf)
        or state.seconds >= 60 * (options.max_minutes or math.inf)
    )


def _fit(run: Run, callbacks: RunCallbacks, end: int) -> dict[str, float]:
    """Fits from the run's state to `end`, or to a signal, limit or callback's stop.

    Returns the figures. The model then has the moving average of its weights, if any.
    """
    options = run.config.training
    state = run.state
    steps = end - state.step
    if options.max_updates is not None:
        # Skipped batches make no update; another `fit` then follows.
        missing = options.max_updates - state.updates
        missing *= options.gradient_accumulation_steps
        steps = min(steps, missing - state.accumulated)
    data = run.distribution.dataset(run.training.batches(state.step, steps))
    run.model.fit(data, shuffle=False, verbose=0, callbacks=callbacks)
    if callbacks.skipped:
        warn(
            run.console,
            f"skipped {plural(callbacks.skipped, 'batch')} whose loss or gradient was "
            "not finite",
        )
    return callbacks.figures


def check_not_hopeless(state: State, num_batches: int, is_over: bool):
    """Raises `FloatingPointError` if a run skips one batch after another.

    That is `_HOPELESS` batches in a row, or an epoch of at least two, or all of a run
    that is over. A single bad batch may be all of an interval, and ends no run.
    """
    most = max(2, min(_HOPELESS, num_batches))
    is_all = is_over and state.skipped == state.step > 0
    if is_all or state.skipped >= most:
        raise FloatingPointError(
            f"Each of {plural(state.skipped, 'batch')} was skipped, one after another, "
            "because its loss or gradient was not finite. Start again with a lower "
            "`learning_rate`, a longer `warmup_steps` or `global_clipnorm`."
        )


def capture(model: ExactTraining, **fields: Any) -> State:
    """Returns the state of a compiled model; `fields` are the rest of the `State`."""
    model.sync_variables()
    return State(
        updates=model.updates,
        accumulated=model.accumulated_batches,
        values=[np.array(ops.convert_to_numpy(v)) for v in training_variables(model)],
        **fields,
    )


def restore(model: keras.Model, state: State):
    """Restores all variables of a compiled model, or raises `ValueError`."""
    variables = training_variables(model)
    found = [(tuple(variable.shape), variable.dtype) for variable in variables]
    if found != [(value.shape, value.dtype.name) for value in state.values]:
        raise ValueError(
            f"The state after {state.step} batches belongs to another model: it has "
            f"{len(state.values)} variables and this one {len(found)}, or their shapes "
            "differ."
        )
    for variable, value in zip(variables, state.values, strict=True):
        # JAX may share the memory of an array, and its steps reuse it.
        variable.assign(np.array(value))


def training_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns all variables of model, optimizer and metrics, each once."""
    every = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return list({id(variable): variable for variable in every}.values())


class Waits:
    """Steps that trace a graph, once for all shapes, or let XLA compile one of each."""

    def __init__(self, corpus, is_compiled):
        self.seconds = 0.0
        self._corpus = corpus
        self._is_compiled = is_compiled
        self._seen = set()
        self._began = None

    def begin(self, step: int) -> str | None:
        """Returns what a step that begins will wait for, if anything."""
        kind = self._corpus.bucket(step) if self._is_compiled else None
        self._began = None if kind in self._seen else time.monotonic()
        if self._began is None:
            return None
        self._seen.add(kind)
        if not self._is_compiled:
            return "tracing the step"
        return f"compiling shape {len(self._seen)} of {len(self._corpus.shapes)}"

    def end(self):
        """Notes that the step has ended."""
        if self._began is not None:
            self.seconds += time.monotonic() - self._began


class RunCallbacks(keras.callbacks.CallbackList):
    """The callback list of `fit` in each interval, with the user's callbacks.

    For those a run is one `fit` and an interval an epoch: `on_train_begin` is called
    once in a process, and `on_epoch_end` receives the figures of the validation.
    """

    figures: dict[str, float]  # of the interval
    skipped: int  # batches of the interval whose loss or gradient was not finite
    stopped_by_user = False  # whether a callback has ended the training

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        run: Run,
        signals: StopSignals,
        bar: TrainingBar,
    ):
        self._run = run
        self._signals = signals
        self._bar = bar
        self._options = run.config.training
        self._distribution = run.distribution
        super().__init__(
            list(callbacks),
            add_history=True,
            model=run.model,
            epochs=self._options.epochs,
            steps=run.training.num_batches,
            verbose=0,
        )
        self._remembering = [
            callback
            for callback in self.callbacks
            if hasattr(callback, "state") and hasattr(callback, "restore")
        ]
        self._interval = None
        self._waits = Waits(run.training, run.model.jit_compile)
        self._since = time.monotonic() - run.state.seconds
        seconds = 60 * (self._options.max_minutes or math.inf)
        self._until = self._since + seconds
        self._measured_at = self._since + _MEASURED_SHARE * seconds
        self._reads_every_batch = any(map(_reads_every_batch, self.callbacks))

    def begin_run(self):
        """Calls `on_train_begin` of the user's callbacks."""
        super().on_train_begin()

    def end_run(self):
        """Calls `on_train_end` of the user's callbacks."""
        super().on_train_end()

    def end_interval(self, figures: dict[str, float]):
        """Calls `on_epoch_end` of the user's callbacks, which may add figures."""
        self.model.stop_training = False
        for callback in self.callbacks:
            callback.on_epoch_end(_num_closed(self._run.state), figures)
        self.stopped_by_user |= self.model.stop_training

    def _is_measured(self):
        """Whether it can be said how many updates `max_minutes` are enough for."""
        is_due = self._measured_at <= time.monotonic() < self._until
        is_new = not self._run.state.planned_updates
        return is_due and is_new and self._bar.speed is not None

    def plan_by_minutes(self):
        """Plans a run by its speed, once that is known; all processes together."""
        if not self._distribution.any(not self._is_measured()):
            fit_to_minutes(self._run, self._distribution.mean(self._bar.speed))

    def captured(self, step: int = 0, seconds: float = 0.0, skipped: int = 0) -> State:
        """Returns the state of the model and of the user's callbacks."""
        run = self._run
        return capture(
            self.model,
            step=step,
            skipped=skipped,
            planned_updates=run.state.planned_updates,
            seconds=seconds,
            history=[*run.state.history],
            callbacks=[[type(c).__name__, c.state()] for c in self._remembering],
            machine=run.machine,
            facts=run.facts,
        )

    def restore(self, state: State):
        """Restores a state of the model and of the user's callbacks."""
        restore(self.model, state)
        memories = [*state.callbacks]
        for callback in self._remembering:  # Some may be new or gone.
            own = (m for m in memories if m[0] == type(callback).__name__)
            if memory := next(own, None):
                memories.remove(memory)
                callback.restore(memory[1])

    # `fit` calls what follows. `begin_run` and `end_run` replace these two.

    def on_train_begin(self, logs=None):
        pass

    def on_train_end(self, logs=None):
        pass

    def on_epoch_begin(self, epoch, logs=None):
        # Keras has just reset the metrics, whose sums are in the state.
        self.restore(self._run.state)
        self._done = 0
        self._is_interrupted = False
        self._skipped_before = self.model.nonfinite_batches
        self._began = self._read = time.monotonic()
        self._waited = self._waits.seconds
        interval = _num_closed(self._run.state)
        if interval != self._interval:  # Several `fit` may make one.
            self._interval = interval
            super().on_epoch_begin(interval)

    def on_train_batch_begin(self, batch, logs=None):
        if keras.backend.backend() == "torch":
            # Dropout uses PyTorch's own generator, which is not in the state.
            import torch

            place = [self._options.seed, self._run.state.step + batch]
            (seed,) = np.random.SeedSequence(place).generate_state(1, np.uint64)
            torch.manual_seed(int(seed))
        step = self._run.state.step + batch
        reason = self._waits.begin(step)
        if reason is not None:
            self._bar.wait(reason)
        super().on_train_batch_begin(batch)

    def on_train_batch_end(self, batch, logs=None):
        self._done = batch + 1
        self._waits.end()
        # All processes must wait and stop after the same batches.
        is_alone = self._distribution.num_processes == 1
        is_due = self._done % _READ_EVERY == 0
        is_late = is_alone and time.monotonic() - self._read >= _READ_SECONDS
        if self._reads_every_batch or is_due or is_late:
            # This waits for the device. One tensor, because each transfer waits.
            values = [ops.reshape(ops.cast(v, "float32"), ()) for v in logs.values()]
            values = ops.convert_to_numpy(ops.stack(values))
            figures = dict(zip(logs, map(float, values), strict=True))
            if self._reads_every_batch:
                for callback in self.callbacks:
                    callback.on_train_batch_end(batch, figures)
            if self._options.nonfinite == "stop" and self.model.held_batches:
                self.model.stop_training = self._is_interrupted = True
            self._read = time.monotonic()
            step = self._run.state.step + self._done
            self._bar.show(step, figures["loss"], self._waits.seconds)
        if is_alone or is_due:
            is_over = time.monotonic() >= self._until
            is_asked = self._signals.received is not None
            if self._distribution.any(is_over or is_asked or self._is_measured()):
                self.model.stop_training = self._is_interrupted = True

    def on_epoch_end(self, epoch, logs=None):
        if self._options.nonfinite == "stop" and self.model.held_batches:
            return  # `fit` raises the error.
        self.figures = {name: np.ravel(value).item() for name, value in logs.items()}
        self.model.sync_variables()
        if not ops.convert_to_numpy(loss_tracker(self.model).count):
            # Of nothing Keras' mean is 0, which would look like the best of losses.
            self.figures = dict.fromkeys(self.figures, math.nan)
        self.stopped_by_user |= self.model.stop_training and not self._is_interrupted
        corpus = self._run.training
        step = self._run.state.step + self._done
        tokens = self._done * corpus.num_tokens / corpus.num_batches  # on average
        waited = self._waits.seconds - self._waited
        seconds = max(time.monotonic() - self._began - waited, 1e-9)
        self.figures["tokens_per_second"] = tokens / seconds
        rate = inner_optimizer(self.model.optimizer).learning_rate
        self.figures["learning_rate"] = float(ops.convert_to_numpy(rate))
        # Keras replaces the weights by their moving average after this.
        seconds = self._distribution.mean(time.monotonic() - self._since)
        self.skipped = self.model.nonfinite_batches - self._skipped_before
        are_all = self.skipped == self._done
        in_a_row = self._run.state.skipped + self.skipped if are_all else 0
        self._run.state = self.captured(step, seconds, in_a_row)


def _num_closed(state):
    """Returns the number of closed intervals. Initial weights have a row, at step 0."""
    return sum(row["step"] > 0 for row in state.history)


def _reads_every_batch(callback):
    """Whether a callback has a method of its own for the end of a batch."""
    base = keras.callbacks.Callback
    # A `LambdaCallback` has functions in place of the methods.
    ends = getattr(callback.on_train_batch_end, "__func__", None)
    old_ends = getattr(callback.on_batch_end, "__func__", None)
    return ends is not base.on_train_batch_end or old_ends is not base.on_batch_end


class StopSignals:
    """Records SIGTERM, SIGHUP (a closed terminal) and the first SIGINT (Ctrl-C)."""

    def __init__(self):
        self.received: signal.Signals | None = None
        self._previous = {}

    def __enter__(self):
        # Python allows handlers only here.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                handler = signal.getsignal(number)
                # `nohup` ignores SIGHUP, and that must stay.
                if number == signal.SIGHUP and handler == signal.SIG_IGN:
                    continue
                # That of a program around Python, which Python cannot put back.
                if handler is None:
                    continue
                self._previous[number] = handler
                signal.signal(number, self._note)
        return self

    def __exit__(self, *exception):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number, frame):
        self.received = signal.Signals(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        elif number == signal.SIGHUP:
            # Printing to a closed terminal would end the run before its state is saved:
            # outputs without a reader are redirected to the null device.
            outputs = select.poll()
            for descriptor in (1, 2):
                outputs.register(descriptor, 0)  # A closed end is always reported.
            for descriptor, _ in outputs.poll(0):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)

    def stop(self):
        """Ends the program with the status of its signal, or of another process's."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        # As a shell reports it: 129 for SIGHUP, 143 for SIGTERM.
        raise SystemExit(128 + (self.received or signal.SIGTERM))
