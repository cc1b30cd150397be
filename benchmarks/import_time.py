"""How long the package takes to import, beside Keras and its backend alone.

Each program runs in a process of its own, and they take turns, after one round that
fills the disk's cache. Seconds are those of the whole process, Python's start included.

    python benchmarks/import_time.py
    KERAS_BACKEND=jax python benchmarks/import_time.py --rounds 9
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from figures import markdown, paired_ratios, quartiles, spread

ROOT = Path(__file__).resolve().parents[1]
KERAS = "import keras"
PROGRAMS = {
    "Python alone": "",
    KERAS: KERAS,
    "`import keras_transformer`": "import keras_transformer",
    "its command line": "import keras_transformer.apps.cli as c; c.make_parser()",
    "a layer": "from keras_transformer import EncoderLayer",
    "every layer and model": "import keras, keras_transformer",
    "`Translator`": "from keras_transformer import Translator",
}


def measure(programs: Mapping[str, str], rounds: int) -> dict[str, list[float]]:
    """Lets programs take turns.

    Args:
        programs: Python, by name.
        rounds: Turns of each that are measured.

    Returns:
        Seconds of each turn, by name.

    Raises:
        subprocess.CalledProcessError: If a program fails.
    """
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ | {"PYTHONPATH": path}
    seconds = {name: [] for name in programs}
    for turn in range(rounds + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            command = [sys.executable, "-c", program]
            subprocess.run(command, env=environment, check=True, capture_output=True)
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def table(seconds: Mapping[str, list[float]], beside: str) -> str:
    """Medians and quartiles, and the ratios to one program, round by round.

    Args:
        seconds: Of each turn, by name.
        beside: The program that the others are compared with.
    """
    rows = [
        [
            name,
            spread(quartiles(turns), ".2f"),
            spread(paired_ratios(turns, seconds[beside]), ".2f"),
        ]
        for name, turns in seconds.items()
    ]
    return markdown(("program", "seconds", f"beside `{beside}`"), rows)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each program")
    options = parser.parse_args(arguments)
    print(table(measure(PROGRAMS, options.rounds), KERAS))


if __name__ == "__main__":
    main()
