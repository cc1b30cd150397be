"""Large requests cut into batches that take turns."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from keras_transformer.serving import batching
from keras_transformer.serving.batching import Batcher, Workers
from keras_transformer.serving.errors import RequestError

LONG = 60.0  # A wait (seconds) that a test which passes never ends.


class Run:
    """A signature that keeps what it was called with; a negative row fails a run."""

    def __init__(self):
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, inputs):
        self.calls.append(inputs["x"].tolist())
        assert self.gate.wait(LONG)
        if (inputs["x"] < 0).any():
            raise ValueError(f"negative: {inputs['x'].min():g}")
        return {"twice": inputs["x"] * 2}


def rows(*values):
    return {"x": np.array(values, "float64")}


def ask(run, *requests, **options):
    """Answers of concurrent requests, in order; an error is an answer."""

    async def main():
        batcher = Batcher(run, Workers(1), **{"max_batch_size": 3, **options})
        async with asyncio.timeout(LONG / 6):
            calls = (batcher(request) for request in requests)
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(main())


def test_a_request_of_up_to_a_batch_runs_whole():
    run = Run()
    answers = ask(run, rows(1), rows(2, 3, 4))
    assert run.calls == [[1], [2, 3, 4]]
    assert [answer["twice"].tolist() for answer in answers] == [[2], [4, 6, 8]]


def test_a_larger_request_is_cut_and_answered_in_order():
    run = Run()
    [answer] = ask(run, rows(*range(8)))
    assert run.calls == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert answer["twice"].tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_batches_of_several_requests_take_turns():
    run = Run()
    ask(run, rows(*range(9)), rows(*range(10, 17)), rows(20))
    first, second = [0, 1, 2], [10, 11, 12]
    assert run.calls == [first, [20], second, [3, 4, 5], [13, 14, 15], [6, 7, 8], [16]]


def test_large_requests_leave_a_worker_to_the_others():
    run = Run()
    run.gate.clear()

    async def main():
        batcher = Batcher(run, Workers(2), 3)
        large = [asyncio.create_task(batcher(rows(*[n] * 6))) for n in (1, 2)]
        while not run.calls:
            await asyncio.sleep(0.001)
        small = asyncio.create_task(batcher(rows(3)))
        while len(run.calls) < 2:
            await asyncio.sleep(0.001)
        run.gate.set()
        await asyncio.gather(small, *large)

    asyncio.run(main())
    assert run.calls[:2] == [[1, 1, 1], [3]]
    assert run.calls[2:] == [[2, 2, 2], [1, 1, 1], [2, 2, 2]]


def test_a_large_request_that_was_given_up_keeps_its_turn_to_the_end_of_a_run():
    run = Run()
    run.gate.clear()

    async def main():
        batcher = Batcher(run, Workers(2), 3)
        gone, waits = (asyncio.create_task(batcher(rows(*[n] * 4))) for n in (1, 2))
        while not run.calls:
            await asyncio.sleep(0.001)
        gone.cancel()
        await asyncio.sleep(0.01)
        assert run.calls == [[1, 1, 1]]
        run.gate.set()
        await waits

    asyncio.run(main())
    assert run.calls == [[1, 1, 1], [2, 2, 2], [2]]


def test_all_inputs_are_cut_alike():
    calls = []

    def run(inputs):
        calls.append({name: array.tolist() for name, array in inputs.items()})
        return {"sum": inputs["x"].sum(axis=1) + inputs["y"]}

    inputs = {"x": np.array([[1, 2], [3, 4], [5, 6]]), "y": np.array([10, 20, 30])}
    [answer] = ask(run, inputs, max_batch_size=2)
    assert calls == [
        {"x": [[1, 2], [3, 4]], "y": [10, 20]},
        {"x": [[5, 6]], "y": [30]},
    ]
    assert answer["sum"].tolist() == [13, 27, 41]


def test_sizes_that_the_longest_row_sets_are_padded_to_the_longest_batch():
    def run(inputs):
        """Each number n as n letters, n ones and an n by n table of truths."""
        counts = inputs["x"].astype(int)
        longest = counts.max()
        inside = np.arange(longest) < counts[:, None]
        return {
            "letters": np.where(inside, b"a", b"").astype(object),
            "ones": inside.astype("float32"),
            "square": inside[:, :, None] & inside[:, None, :],
        }

    numbers = rows(1, 2, 3, 1, 1, 4, 2)
    [cut], [whole] = ask(run, numbers), ask(run, numbers, max_batch_size=7)
    assert cut["square"].shape == (7, 4, 4)
    for name, expected in whole.items():
        assert cut[name].dtype == expected.dtype
        np.testing.assert_array_equal(cut[name], expected)


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.zeros([0])},
        {"x": np.zeros([])},
        {"x": np.zeros([2]), "y": np.zeros([3])},
        {},
    ],
)
def test_inputs_without_a_common_number_of_rows_run_whole(inputs):
    [answer] = ask(lambda received: received, inputs, max_batch_size=1)
    assert answer is inputs


def test_a_signature_without_a_batch_axis_runs_whole():
    run = Run()
    ask(run, rows(1, 2, 3, 4), has_rows=False)
    assert run.calls == [[1, 2, 3, 4]]


@pytest.mark.parametrize("output", [np.float64(3), np.zeros(5)])
def test_a_signature_without_rows_in_its_outputs_is_cut_no_more(output):
    calls = []

    def run(inputs):
        calls.append(len(inputs["x"]))
        return {"y": output}

    async def main():
        batcher = Batcher(run, Workers(1), 3)
        for _ in range(2):
            assert (await batcher(rows(1, 2, 3, 4)))["y"] is output

    asyncio.run(main())
    assert calls == [3, 4, 4]


def test_a_batch_that_fails_fails_its_request_alone_and_ends_it():
    run = Run()
    answers = ask(run, rows(0, 1, 2, -3, 4, 5, 6), rows(10, 11, 12, 13))
    assert str(answers[0]) == "negative: -3"
    assert answers[1]["twice"].tolist() == [20, 22, 24, 26]
    assert run.calls == [[0, 1, 2], [10, 11, 12], [-3, 4, 5], [13]]


def test_a_request_that_was_given_up_runs_no_further(caplog):
    run = Run()
    run.gate.clear()

    async def main():
        batcher = Batcher(run, Workers(1), 3)
        gone = asyncio.create_task(batcher(rows(-1, 2, 3, 4, 5, 6)))
        waits = asyncio.create_task(batcher(rows(7)))
        while not run.calls:
            await asyncio.sleep(0.001)
        gone.cancel()
        await asyncio.sleep(0.01)
        # Its run goes on and keeps its turn.
        assert len(run.calls) == 1
        run.gate.set()
        return await waits

    assert asyncio.run(main())["twice"].tolist() == [14]
    assert run.calls == [[-1, 2, 3], [7]]
    assert not caplog.records


def test_runs_are_limited_to_the_workers():
    most, now, lock = 0, 0, threading.Lock()

    def run(inputs):
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.01)
        with lock:
            now -= 1
        return inputs

    async def main():
        batcher = Batcher(run, Workers(2), 1)
        await asyncio.gather(*(batcher(rows(n)) for n in range(8)))

    asyncio.run(main())
    assert most == 2


def test_an_answer_that_grows_too_large_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(batching, "_MOST_VALUES", 20)
    calls = []

    def run(inputs):
        calls.append(inputs["x"].tolist())
        size = int(inputs["x"].max())
        return {"table": np.ones([len(inputs["x"]), size])}

    # 6 rows of 3 fit, 9 rows do not; 3 rows of 3 and 3 of 4 are 6 of 4, once padded.
    small, many, wide = ask(
        run, rows(*[3] * 6), rows(*[3] * 12), rows(3, 3, 3, 4, 4, 4)
    )
    assert small["table"].shape == (6, 3)
    for error in (many, wide):
        assert isinstance(error, RequestError)
        assert (error.status, error.message) == (
            400,
            "The answer would hold more than 20 values: ask for fewer instances at a "
            "time",
        )
    assert calls.count([3, 3, 3]) == 6
