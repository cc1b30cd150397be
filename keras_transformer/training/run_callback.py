"""The base of a run's callbacks: their place in an epoch, what they remember."""

from __future__ import annotations

from collections.abc import Iterable

import keras


class RunCallback(keras.callbacks.Callback):
    """A callback that continues where an interrupted run stopped.

    Saved states name callbacks by their class: a new name would lose what is saved.

    Attributes:
        first_batch: Batch of the epoch that this `fit` begins with; set when a state
            is restored.
        wants_every_batch: Whether `on_train_batch_end` needs the logs of every batch,
            for each of which the run then waits. If not, it gets `None` in place of
            most logs.
    """

    first_batch = 0
    wants_every_batch = True

    def batches_done(self, batch: int) -> int:
        """Returns how many batches of the epoch are done.

        Args:
            batch: As `on_train_batch_end` takes it. One call of the training step may
                run several batches: see `steps_per_execution`.
        """
        return self.first_batch + batch + 1

    def state(self) -> dict | None:
        """Returns what `restore` needs, as JSON can hold it; `None` if nothing."""
        return None

    def restore(self, state: dict):
        """Continues from what `state` returned."""


def check_names(callbacks: Iterable[keras.callbacks.Callback]):
    """Checks that a state can tell the callbacks of a program apart, by their classes.

    Args:
        callbacks: The program's own callbacks of a run.

    Raises:
        ValueError: If two of those that remember something have the same name, or one
            and a callback of the package, which a run may have.
    """
    own = __name__.partition(".")[0]
    names = {
        kind.__name__
        for kind in _kinds_within(RunCallback)
        if kind.__module__.partition(".")[0] == own and _remembers(kind)
    }
    for kind in map(type, callbacks):
        if not issubclass(kind, RunCallback) or not _remembers(kind):
            continue
        if kind.__name__ in names:
            raise ValueError(
                "`callbacks` that have a `state` must be of classes of different "
                "names, other than those of keras_transformer: the run's states know "
                f"them by these. Received: two of the name {kind.__name__!r}"
            )
        names.add(kind.__name__)


def _remembers(kind):
    return kind.state is not RunCallback.state


def _kinds_within(kind):
    """Yields all classes that inherit from one."""
    for inner in kind.__subclasses__():
        yield inner
        yield from _kinds_within(inner)
