"""Signals that ask a run to stop, kept until it has saved its state."""

from __future__ import annotations

import signal
import threading


class StopSignals:
    """Notes SIGTERM and the first SIGINT while the block runs.

    A second SIGINT (Ctrl-C) interrupts at once, as it does elsewhere. Outside of the
    main thread, where Python allows no handlers, nothing is noted.

    Attributes:
        received: The signal, or `None`.

    Example:
        >>> with StopSignals() as signals:
        ...     while signals.received is None:
        ...         train_a_batch()
    """

    def __init__(self):
        self.received: signal.Signals | None = None
        self._previous = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number, frame):
        self.received = signal.Signals(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def stop(self):
        """Ends the program as the signal asks, after the state has been saved.

        Raises:
            KeyboardInterrupt: After SIGINT.
            SystemExit: After SIGTERM, or one that another process got, with status
                143, which is 128 + 15: a shell's for a program that SIGTERM ended.
        """
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + signal.SIGTERM)
