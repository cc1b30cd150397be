"""The properties of a machine that decide how sums are rounded."""

from __future__ import annotations

import importlib
import os
import platform
import re
from pathlib import Path

import keras
import tensorflow as tf
from rich.console import Console

from keras_transformer.exact_training.cores import available_cores, num_parts
from keras_transformer.kernels.execution import has_gpu
from keras_transformer.training.distribution import Distribution


def machine(distribution: Distribution) -> dict[str, str | int]:
    """Returns what must stay the same for a run to end with the same bits.

    The order in which numbers are summed, and so their last digits, depends on it. Each
    part of a batch and each replica also has its own random numbers for dropout.

    Args:
        distribution: The devices of the run.

    Returns:
        The "backend" with its version; the name of the "processor", or GPU; the numbers
        of "threads" that share an operation, "parts" of a batch and "replicas".
    """
    backend = keras.backend.backend()
    version = importlib.import_module(backend).__version__
    return {
        "backend": f"{backend} {version}",
        "processor": "GPU" if has_gpu() else _processor(),
        "threads": _num_threads(backend),
        "parts": num_parts(),
        "replicas": distribution.num_replicas,
    }


def differences(before: dict, now: dict) -> list[str]:
    """Returns a phrase for each known property in which two machines differ."""
    return [
        f"{name} {value} (before: {before[name]})"
        for name, value in now.items()
        if name in before and before[name] != value
    ]


def report_other_machine(console: Console, before: dict, distribution: Distribution):
    """Warns if a run cannot end with the same bits as an uninterrupted one.

    Args:
        console: Where the warning is printed.
        before: The machine that saved the state.
        distribution: The devices on which the run continues.
    """
    found = differences(before, machine(distribution))
    if found:
        console.print(
            f"warning: going on with {'; '.join(found)}: the result is that of an "
            "uninterrupted run to rounding only, and dropout may draw other numbers",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _num_threads(backend):
    if backend == "torch":
        import torch

        return torch.get_num_threads()
    if backend == "tensorflow":
        if chosen := tf.config.threading.get_intra_op_parallelism_threads():
            return chosen
        chosen = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
        if chosen.isdecimal() and int(chosen):
            return int(chosen)
    return available_cores()


def _processor():
    """Returns the name of the processor, which decides the width of its vectors."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()
