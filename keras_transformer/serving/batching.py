"""Large requests cut into batches, which take turns with those of other requests.

However many rows a request has, at most `max_batch_size` of them run at a time, which
bounds the memory of a run. A request queues again for each of its batches, and large
requests leave one worker free, so that small ones do not wait for them. Unlike
TensorFlow Serving, this server does not join the requests of several clients.

A request can be cut only where its rows do not depend on each other. Where the longest
row sets the size of an output's axis, as for alignments, batches differ in that size:
the shorter ones are padded with "", 0 or false.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Iterator

import numpy as np

from keras_transformer.serving.errors import bad_request

Arrays = dict[str, np.ndarray]

# Numbers and strings of one answer, enough for the alignments of 32 texts of 360
# tokens: an answer is written whole in memory.
_MOST_VALUES = 2**22


class Workers:
    """Threads that run signatures, first come, first served.

    Args:
        count: Runs at a time.
    """

    def __init__(self, count: int):
        self.running = 0
        # A semaphore serves those who wait for it in their order.
        self._turns = asyncio.Semaphore(count)
        self._turns_of_large = asyncio.Semaphore(max(1, count - 1))
        self._threads = concurrent.futures.ThreadPoolExecutor(count, "signature")

    async def call(self, function: Callable, *arguments, is_large: bool = False):
        """Returns the result of a call in a thread; large calls leave one free."""
        with contextlib.ExitStack() as turns:
            for turn in (self._turns_of_large, self._turns)[not is_large :]:
                await turn.acquire()
                turns.callback(turn.release)
            loop = asyncio.get_running_loop()
            run = loop.run_in_executor(self._threads, function, *arguments)
            self.running += 1
            # Nothing can stop a thread: it keeps its turn even if its caller is gone.
            run.add_done_callback(functools.partial(self._end, turns.pop_all()))
        return await asyncio.shield(run)

    def _end(self, turns, run):
        self.running -= 1
        turns.close()
        if not run.cancelled():
            run.exception()  # asyncio logs an exception that nobody asks for.


class Batcher:
    """Calls a signature, batch by batch.

    Args:
        run: The signature, called in a worker thread.
        workers: The threads.
        max_batch_size: Most rows of a run.
        has_rows: Whether `run` has a batch axis in every input and output. Without
            one every request runs whole.
    """

    def __init__(
        self,
        run: Callable[[Arrays], Arrays],
        workers: Workers,
        max_batch_size: int,
        has_rows: bool = True,
    ):
        self._run = run
        self._workers = workers
        self._max_batch_size = max_batch_size
        self._has_rows = has_rows

    async def __call__(self, inputs: Arrays) -> Arrays:
        """Returns the outputs of these inputs.

        Raises:
            RequestError: If the outputs are too large for an answer.
            Exception: What the signature raised.
        """
        parts = []
        for size, batch in self._cut(inputs):
            outputs = await self._workers.call(self._run, batch, is_large=size > 0)
            if size and any(value.shape[:1] != (size,) for value in outputs.values()):
                self._has_rows = False
                return await self(inputs)
            parts.append(outputs)
            _check_size(parts)
        [first, *others] = parts
        if not others:
            return first
        return {name: _stack([part[name] for part in parts]) for name in first}

    def _cut(self, inputs) -> Iterator[tuple[int, Arrays]]:
        """Yields rows and inputs of each batch; 0 rows if it is the whole request."""
        sizes = {value.shape[:1] for value in inputs.values()}
        can_be_cut = self._has_rows and len(sizes) == 1 and () not in sizes
        rows, most = sizes.pop()[0] if can_be_cut else 0, self._max_batch_size
        if rows <= most:
            yield 0, inputs
            return
        for start in range(0, rows, most):
            batch = {
                name: value[start : start + most] for name, value in inputs.items()
            }
            yield min(most, rows - start), batch


def _check_size(parts):
    values = sum(
        np.prod(_stacked_shape([part[name] for part in parts]), dtype=np.int64)
        for name in parts[0]
    )
    if values > _MOST_VALUES:
        raise bad_request(
            f"The answer would hold more than {_MOST_VALUES} values: ask for fewer "
            "instances at a time"
        )


def _stacked_shape(arrays):
    """Returns the shape that holds all arrays, one below the other."""
    [first, *others] = arrays
    if not others:
        return first.shape
    inner = np.max([array.shape[1:] for array in arrays], axis=0)
    return (sum(map(len, arrays)), *(int(size) for size in inner))


def _stack(arrays):
    padding = b"" if arrays[0].dtype == object else 0
    stacked = np.full(_stacked_shape(arrays), padding, arrays[0].dtype)
    start = 0
    for array in arrays:
        inside = tuple(slice(size) for size in array.shape[1:])
        stacked[(slice(start, start + len(array)), *inside)] = array
        start += len(array)
    return stacked
