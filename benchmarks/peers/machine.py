"""The machine's own peaks: products with PyTorch and TensorFlow, and reading memory.

Measured in turn with the contenders, so that a machine that slows down during the run
slows its limit down with them.
"""

from __future__ import annotations

import time

import floor
import tensorflow as tf
import torch
from workload import Setting, Size

_SIDES = (1024, 2048)  # rows and columns of the square matrices
_SECONDS = 0.15  # for each single figure


class Peer:
    """Measures peaks; see `worker.Contender`."""

    versions = {"torch": torch.__version__, "tensorflow": tf.__version__}

    def __init__(self, size: Size, variant: str, threads: int, folder: str):
        torch.set_num_threads(threads)
        self._weights = floor.decoder_weights(size)
        random = torch.Generator().manual_seed(3)
        self._squares = [torch.randn(n, n, generator=random) for n in _SIDES]

    def prepare(self, setting: Setting):
        """Nothing: the size decides."""

    def run(self) -> dict[str, float]:
        """FLOP/s of products and bytes/s of reading a step's weights, for each type."""
        measured = {}
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            # They bring different libraries for products: the better counts.
            squares = [square.to(dtype) for square in self._squares]
            squares += [tf.cast(square.numpy(), name) for square in self._squares]
            measured[f"{name}_flops"] = max(map(_product, squares))
            measured[f"{name}_bandwidth"] = _read(self._weights * dtype.itemsize)
        return measured

    def result(self, output) -> dict[str, float]:
        """The peaks themselves."""
        return output


def _product(square) -> float:
    """Floating-point operations a second of `square` times itself."""
    return 2 * len(square) ** 3 / _shortest(lambda: square @ square)


def _read(size: int) -> float:
    """Bytes a second of summing `size` bytes: from cache, if they fit into it."""
    numbers = torch.ones(size // 4)
    return size / _shortest(numbers.sum)


def _shortest(call) -> float:
    """Seconds of the fastest of some calls."""
    shortest, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest
