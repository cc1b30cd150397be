"""Waiting for compilers: how long a run has waited, and when XLA repays the wait.

With TensorFlow on a GPU a step compiled by XLA is several times as fast as a graph that
runs its operations one by one, but XLA takes up to a minute for each shape of a batch.
A run therefore begins with the graph, and goes over to XLA at a save.
"""

from __future__ import annotations

import time

from keras_transformer.text import Corpus

# Measured on one H200 with 2+2 layers of width 64 and with `base`: a compiled step was
# 3.3 to 5.2 times as fast. XLA took 1.4 times as long for a shape as TensorFlow for the
# graph, which it traces again.
_SPEEDUP = 3.3
_COMPILES = 1.4
_TRACES = 1.0
# What XLA must save for each second of the wait.
_REPAID = 3.0


class Waits:
    """Steps of a process in which something was traced or compiled.

    A plain graph is traced once for all shapes. XLA compiles the step for each length
    bucket when it first comes.
    """

    def __init__(self, corpus: Corpus):
        self.seconds = 0.0  # of all these steps
        self._graph = 0.0  # of tracing the plain graph
        self._corpus = corpus
        self._seen = set()
        self._began = None

    def begin(self, step: int, is_compiled: bool) -> str | None:
        """Notes that a step begins; returns what it will wait for, if anything."""
        kind = self._corpus.bucket(step) if is_compiled else None
        self._began = None if kind in self._seen else time.monotonic()
        if self._began is None:
            return None
        self._seen.add(kind)
        if not is_compiled:
            return "tracing the step"
        number = len(self._seen - {None})
        return f"compiling shape {number} of {len(self._corpus.shapes)}"

    def end(self):
        """Notes that the step has ended."""
        if self._began is None:
            return
        took = time.monotonic() - self._began
        self.seconds += took
        self._graph = self._graph or took

    def are_repaid(self, batches: float, batch_seconds: float) -> bool:
        """Returns whether XLA would repay its wait in the batches that are left."""
        shapes = len(self._corpus.shapes)
        wait = self._graph * (_TRACES + _COMPILES * shapes)
        saved = batches * batch_seconds * (1 - 1 / _SPEEDUP)
        return saved >= _REPAID * wait
