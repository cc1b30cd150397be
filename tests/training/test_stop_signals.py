"""Signals that are noted, and outputs that went with the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from keras_transformer.training import stop_signals
from keras_transformer.training.stop_signals import StopSignals


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_is_noted_and_becomes_the_status(number, status):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received == number
        with pytest.raises(SystemExit) as stopped:
            signals.stop()
    assert stopped.value.code == status
    assert signal.getsignal(number) is before


def test_a_run_under_nohup_outlives_the_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.received is None
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# The module alone: it needs nothing of the package, which takes seconds to import.
SCRIPT = f"""
import os, runpy, signal, sys
StopSignals = runpy.run_path({stop_signals.__file__!r})["StopSignals"]
with StopSignals() as signals:
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGHUP)
    print("to standard output", flush=True)
    print("to standard error", file=sys.stderr, flush=True)
    signals.stop()
"""


def after_hangup(close, stdout, stderr):
    """Runs the script, with `close` called before it gets the signal."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE, stdout=stdout, stderr=stderr,
    )  # fmt: skip
    close(process)
    process.stdin.write(b"\n")
    process.stdin.close()
    return process


def test_nothing_fails_that_is_printed_to_a_closed_terminal():
    master, terminal = os.openpty()

    def close(process):
        os.close(terminal)
        os.close(master)

    assert after_hangup(close, terminal, terminal).wait() == 129


def test_nor_to_a_reader_that_has_gone():
    def close(process):
        process.stdout.close()
        process.stderr.close()

    process = after_hangup(close, subprocess.PIPE, subprocess.PIPE)
    assert process.wait() == 129


def test_a_reader_that_is_there_gets_every_line(tmp_path):
    with open(tmp_path / "errors", "wb") as errors:
        process = after_hangup(lambda _: None, subprocess.PIPE, errors)
    with process.stdout as stdout:
        assert stdout.read() == b"to standard output\n"
    assert process.wait() == 129
    assert (tmp_path / "errors").read_text() == "to standard error\n"
