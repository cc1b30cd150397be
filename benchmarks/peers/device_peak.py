"""The peak of matrix products in bfloat16, on a GPU where PyTorch sees one."""

from __future__ import annotations

import time

import torch
from training_workload import Setting
from workload import Size

_SIDES = {"cuda": (4096, 8192), "cpu": (512, 1024)}  # of the square matrices
_SECONDS = 0.5  # for each side
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Peer:
    """Measures the peak; see `worker.Contender`."""

    versions = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if _DEVICE == "cuda" else _DEVICE,
    }

    def __init__(self, size: Size, variant: str, threads: int, folder: str):
        torch.set_num_threads(threads)

    def prepare(self, setting: Setting):
        """Nothing: the device decides."""

    def run(self) -> dict[str, float]:
        """FLOP/s of the fastest product."""
        return {"bfloat16_flops": max(map(_product, _SIDES[_DEVICE]))}

    def result(self, output) -> dict[str, float]:
        """The peak itself."""
        return output


def _product(side):
    """Floating-point operations a second of a square matrix times itself."""
    square = torch.randn(side, side, device=_DEVICE, dtype=torch.bfloat16)
    shortest, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        _wait()
        start = time.perf_counter()
        square @ square
        _wait()
        shortest = min(shortest, time.perf_counter() - start)
    return 2 * side**3 / shortest


def _wait():
    if _DEVICE == "cuda":
        torch.cuda.synchronize()
