"""What the tests of runs share."""

import signal

import pytest


@pytest.fixture
def of_a_terminal():
    """Lets SIGHUP end a process: under `nohup` it is ignored from the start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
