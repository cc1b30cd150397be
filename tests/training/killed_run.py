"""`keras-transformer` in a process that dies as by kill -9 within the save of a state.

Run by tests as `python -m tests.training.killed_run STEP train ...`: the state after
STEP batches is written, and never gets its name.
"""

from __future__ import annotations

import os
import signal
import sys

from keras_transformer.cli import main


def die_at(step):
    replace = os.replace

    def replace_or_die(source, target, **options):
        if str(target).endswith(f"step-{step:09d}.npz"):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target, **options)

    os.replace = replace_or_die


if __name__ == "__main__":
    die_at(int(sys.argv.pop(1)))
    sys.exit(main())
