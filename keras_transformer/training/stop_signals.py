"""Signals that ask a run to stop, noted until it has saved its state."""

from __future__ import annotations

import os
import select
import signal
import threading


class StopSignals:
    """Notes SIGTERM, SIGHUP and the first SIGINT while the block runs.

    A closed terminal sends SIGHUP; if it is ignored, as under `nohup`, it stays
    ignored. A second SIGINT (Ctrl-C) interrupts at once, as usual. Outside the main
    thread, where Python allows no handlers, nothing is noted.

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
            numbers = [signal.SIGTERM, signal.SIGINT]
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                numbers.append(signal.SIGHUP)
            for number in numbers:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number, frame):
        self.received = signal.Signals(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        elif number == signal.SIGHUP:
            _discard_what_nobody_reads()

    def stop(self):
        """Ends the program as the signal asks; call it after saving the state.

        Raises:
            KeyboardInterrupt: After SIGINT.
            SystemExit: After the others, or if another process got the signal, with
                the status that a shell reports for such a signal: 129, that is 128 + 1,
                for SIGHUP, otherwise SIGTERM's 143.
        """
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + (self.received or signal.SIGTERM))


def _discard_what_nobody_reads():
    """Redirects standard output and error to nowhere if their reader has gone.

    A line that cannot be printed would end the run before its state is saved.
    """
    outputs = select.poll()
    for descriptor in (1, 2):
        outputs.register(descriptor, 0)  # A closed end is always reported.
    for descriptor, _ in outputs.poll(0):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
