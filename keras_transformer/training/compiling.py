"""Waiting for compilers: how long a process has waited, and for what."""

from __future__ import annotations

import time

from keras_transformer.text import Corpus


class Waits:
    """Steps of a process in which something was traced or compiled.

    A plain graph is traced once for all shapes. XLA compiles the step for each length
    bucket when it first comes.
    """

    def __init__(self, corpus: Corpus, is_compiled: bool):
        self.seconds = 0.0  # of all these steps
        self._corpus = corpus
        self._is_compiled = is_compiled
        self._seen = set()
        self._began = None

    def begin(self, step: int) -> str | None:
        """Notes that a step begins; returns what it will wait for, if anything."""
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
