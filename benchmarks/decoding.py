"""Decoding speed of ours and of other systems, in one run on one machine.

Every contender decodes exactly 30 tokens for sentences of 30 tokens, with random
weights of one size, in a process of its own that is loaded once.

    python benchmarks/decoding.py --repeats 5 --only base-32-beam4 base-1-greedy
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import report
import runner
import workload
from contenders import CONTENDERS, OURS
from worker import MACHINE, WorkerError, last_line


def main() -> int:
    """Reads the command line, measures, and writes the results.

    Returns:
        The exit status: 1 if a contender had to be left out.
    """
    benchmark = runner.Benchmark(
        name="decoding",
        workload=workload,
        contenders=CONTENDERS,
        groups=[tuple(CONTENDERS)],
        summarise=_summarise,
        tables=report.tables,
        load=export_ours,
    )
    parser = runner.parser(benchmark, __doc__, list(workload.SETTINGS))
    return runner.main(benchmark, parser.parse_args())


def _summarise(name, groups):
    (replies,) = groups
    peaks = [reply["result"] for reply in replies.get(MACHINE, [])]
    seconds = {
        contender: [reply["seconds"] for reply in each]
        for contender, each in replies.items()
        if contender != MACHINE
    }
    return report.summarise(name, seconds, peaks)


def export_ours(contender: str, size: str, folder: Path, log: Path):
    """Writes our SavedModels in a process of its own, if the contender is ours.

    Raises:
        WorkerError: If that fails.
    """
    if contender not in OURS:
        return
    script = Path(__file__).with_name("export_ours.py")
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    variant = CONTENDERS[contender].variant
    with log.open("ab") as printed:
        done = subprocess.run(
            [sys.executable, str(script), size, variant, str(folder)],
            stdout=printed,
            stderr=printed,
            env=environment | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
    if done.returncode:
        raise WorkerError(last_line(log))


if __name__ == "__main__":
    sys.exit(main())
