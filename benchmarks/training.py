"""Training speed of ours and of other systems, in one run on one machine.

Every contender trains a Transformer of one size on the same batches: forward, backward
and update with Adam, dropout 0.1, label smoothing 0.1, in a process of its own that is
loaded once. Source and target tokens that are not padding count.

    python benchmarks/training.py --repeats 5 --only tiny --contenders machine \\
        ours-bfloat16 kerashub-bfloat16
"""

from __future__ import annotations

import sys

import runner
import training_report
import training_workload
from training_contenders import CONTENDERS, GROUPS


def main() -> int:
    """Reads the command line, measures, and writes the results.

    Returns:
        The exit status: 1 if a contender had to be left out.
    """
    benchmark = runner.Benchmark(
        name="training",
        workload=training_workload,
        contenders=CONTENDERS,
        groups=GROUPS,
        summarise=training_report.summarise,
        tables=training_report.tables,
    )
    parser = runner.parser(benchmark, __doc__, training_workload.MEASURED)
    return runner.main(benchmark, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
