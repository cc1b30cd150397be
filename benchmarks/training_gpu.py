"""Training speed of ours beside PyTorch and KerasHub, made for a GPU.

Ours and KerasHub train with `model.fit` in mixed bfloat16 on arrays of ids; PyTorch,
eager with `nn.Transformer` and compiled with fused attention, the same size on the same
batches. Needs neither TensorFlow nor KerasHub: their contenders are left out without.
Each has a process of its own, one after another, because each takes the whole GPU's
memory.
requirements_gpu.txt lists what must be installed; this package need not be.

    python benchmarks/training_gpu.py
    python benchmarks/training_gpu.py --only toy --repeats 1  # runs without a GPU too
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import runner
import training_floor
import training_workload
from figures import best_of_rounds
from training_report import Group, peaks_of, speed_table, turns_of
from worker import MACHINE, Contender

CONTENDERS = {
    MACHINE: Contender("peers.device_peak", "peaks"),
    "ours-jax": Contender(
        "peers.ours_training", "bfloat16-xla", {"KERAS_BACKEND": "jax"}
    ),
    "ours-torch": Contender(
        "peers.ours_training", "bfloat16", {"KERAS_BACKEND": "torch"}
    ),
    "ours-tensorflow": Contender(
        "peers.ours_training", "bfloat16-xla", {"KERAS_BACKEND": "tensorflow"}
    ),
    "ours-tensorflow-graph": Contender(
        "peers.ours_training", "bfloat16", {"KERAS_BACKEND": "tensorflow"}
    ),
    "ours-jax-fused": Contender(
        "peers.ours_training", "bfloat16-xla-fused", {"KERAS_BACKEND": "jax"}
    ),
    "ours-torch-fused": Contender(
        "peers.ours_training", "bfloat16-fused", {"KERAS_BACKEND": "torch"}
    ),
    "pytorch": Contender("peers.torch_training", "bfloat16"),
    "pytorch-fused": Contender("peers.torch_fused", "bfloat16-compile"),
    "kerashub-jax": Contender(
        "peers.kerashub_training", "bfloat16-xla", {"KERAS_BACKEND": "jax"}
    ),
}


def main() -> int:
    """Reads the command line, measures, and writes the results.

    Returns:
        The exit status: 1 if a contender had to be left out.
    """
    benchmark = runner.Benchmark(
        name="training_gpu",
        workload=training_workload,
        contenders=CONTENDERS,
        groups=[(name,) for name in CONTENDERS],
        summarise=summarise,
        tables=tables,
    )
    parser = runner.parser(benchmark, __doc__, ["base-gpu"])
    parser.set_defaults(threads=os.cpu_count())
    return runner.main(benchmark, parser.parse_args())


def summarise(setting_name: str, groups: Sequence[Group]) -> dict:
    """All figures of a setting.

    Args:
        setting_name: A key of `training_workload.SETTINGS`.
        groups: Of each contender alone; see `training_report`.

    Returns:
        The keys "contenders", "limit" (tokens a second in "bfloat16") and "peaks".
    """
    setting = training_workload.SETTINGS[setting_name]
    size = training_workload.SIZES[setting.size]
    peaks = peaks_of(groups)
    limit = {}
    if peaks:
        best = best_of_rounds(peaks)["bfloat16_flops"]
        limit["bfloat16"] = training_floor.limit(size, setting, best)
    return {"contenders": turns_of(setting, groups), "limit": limit, "peaks": peaks}


def tables(settings: Mapping[str, Mapping]) -> str:
    """Markdown: speed and share of the limit, a table for each setting.

    Args:
        settings: What `summarise` returned, for each setting.
    """
    names = {"bfloat16": list(CONTENDERS)}
    return "\n\n".join(
        f"{name}\n\n{speed_table(summary, names)}" for name, summary in settings.items()
    )


if __name__ == "__main__":
    sys.exit(main())
