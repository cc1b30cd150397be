"""`keras-transformer` in a process that dies as by kill -9 within the save of a state.

Run by tests as `python -m tests.training.killed_run UPDATE train ...`: the state after
UPDATE updates is written, and never gets its name.
"""

from __future__ import annotations

import os
import signal
import sys

from keras_transformer.cli import main


def die_at(update):
    replace = os.replace

    def replace_or_die(source, target, **options):
        if f"update-{update:09d}" in str(target):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target, **options)

    os.replace = replace_or_die


if __name__ == "__main__":
    die_at(int(sys.argv.pop(1)))
    sys.exit(main())
