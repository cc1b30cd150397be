"""Time and memory of the attentions on long sequences are measured."""

from pathlib import Path

import pytest

from tests.test_why import load  # noqa: F401


def test_peak_of_memory_rises_and_stays(load):  # noqa: F811
    program = load("long_range_cost")
    Path("/proc/self/clear_refs").write_text("5")  # Earlier tests' peak is forgotten.
    before = program.peak()
    block = bytearray(b"x" * 2**28)
    risen = program.peak()
    del block
    assert before < risen <= program.peak()


@pytest.mark.slow
def test_cost_of_a_step(load):  # noqa: F811
    program = load("long_range_cost")
    shares = program.times(["full", "linear"], 32, 1, turns=1)
    assert shares[0] == 1.0 and shares[1] > 0
    # A process cannot have had more than all that it has now taken and given back.
    assert 0 <= program.memory("linear", 32, 1) < program.peak()
