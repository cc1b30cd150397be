"""Trains the tiny run with XLA on the backend that is set, after a dry run of it.

    python -m tests.training.compiled_run FOLDER

FOLDER gets what the dry run said, dry_run.txt, and XLA's files of each module that it
compiled in the training.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
# XLA reads it when it is loaded.
os.environ["XLA_FLAGS"] = f"--xla_dump_to={FOLDER} --xla_dump_hlo_as_text"

from rich.console import Console  # noqa: E402

from keras_transformer import train  # noqa: E402
from keras_transformer.training import dry_run  # noqa: E402
from tests.tiny_run import CONFIG, TRAIN, VALID  # noqa: E402


def main():
    config = CONFIG.replace(
        data=CONFIG.data.replace(batch_shapes=2, batch_tokens=64),
        training=CONFIG.training.replace(jit_compile=True, epochs=2),
    )
    with open(FOLDER / "dry_run.txt", "w", encoding="utf-8") as file:
        dry_run(TRAIN, FOLDER / "run", config, VALID, Console(file=file, width=200))
    assert not (FOLDER / "run").exists()
    train(TRAIN, FOLDER / "run", config, VALID, Console(quiet=True))


if __name__ == "__main__":
    main()
