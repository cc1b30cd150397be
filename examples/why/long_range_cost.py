"""Each kind of attention on long sequences: time and memory of a training step.

    python examples/why/long_range_cost.py --lengths 512 1024 2048

Times are shares of full attention's, medians of steps that the kinds take in turns.
Memory is by how much the peak of a process of its own rises (MiB, Linux).
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
import keras_transformer.quiet

import numpy as np
import report
from long_range import classifier
from long_range_tasks import TASKS

TASK = "retrieval"
KINDS = ("full", "local", "linear", "performer", "linformer", "lsh")


def peak():
    """Returns the most memory that this process has had (MiB)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(x.split()[1] for x in lines if x.startswith("VmHWM"))) / 1024


def step_of(kind, length, rows):
    """Returns a function that trains a model on one batch."""
    model = classifier(TASK, kind, length)
    batch = TASKS[TASK][0](rows, length, seed=1)
    return lambda: model.train_on_batch(*batch)


def memory(kind, length, rows):
    """Returns by how much two steps raise the peak (MiB), in this process."""
    step_of(kind, 64, 1)()  # What TensorFlow takes once.
    step, before = step_of(kind, length, rows), peak()
    for _ in range(2):
        step()
    return peak() - before


def times(kinds, length, rows, turns):
    """Returns the median time of a step of each kind, as a share of the first's."""
    steps = [step_of(kind, length, rows) for kind in kinds]
    for step in steps:
        step()
    seconds = np.zeros((turns, len(steps)))
    for turn in range(turns):
        for number, step in enumerate(steps):
            start = time.perf_counter()
            step()
            seconds[turn, number] = time.perf_counter() - start
    return np.median(seconds / seconds[:, :1], axis=0).tolist()


def main(arguments=None):
    sizes = {"lengths": (512, 1024, 2048), "kinds": KINDS, "rows": 4, "turns": 9}
    options = report.parser(__doc__, **sizes).parse_args(arguments)
    found = {}
    spawn = multiprocessing.get_context("spawn")
    report.show(["tokens", "attention", "time", "memory (MiB)"], [])
    for length in options.lengths:
        shares = times(options.kinds, length, options.rows, options.turns)
        for kind, share in zip(options.kinds, shares, strict=True):
            with ProcessPoolExecutor(1, spawn) as alone:
                used = alone.submit(memory, kind, length, options.rows).result()
            found[length, kind] = share, used
            report.show_rows([[length, kind, *found[length, kind]]])
    return found


if __name__ == "__main__":
    main()
