"""`keras-transformer train` in a process of its own, ended by signals."""

from __future__ import annotations

import csv
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer.training.state import StateFiles
from tests import tiny_run

CONFIG = tiny_run.CONFIG.with_options(batch_tokens=120, epochs=10, save_every=1)
BOTH = {"ema_decay": 0.9, "gradient_accumulation_steps": 2}
SETS = {
    "accumulation": {"gradient_accumulation_steps": 2},
    "moving average": {"ema_decay": 0.9},
    "BLEU": {"monitor": "bleu", "average": "best", "bleu_sentences": 4},
    "sampled pieces": {"subword_sampling": 0.1},
    "fine-tuning": {"freeze": "encoder"},
}


class Training:
    """The command, and the directory of its run."""

    def __init__(self, folder, options=BOTH, first=None):
        folder.mkdir(exist_ok=True)
        text = tiny_run.write_pairs(folder / "train.tsv")
        valid = tiny_run.write_pairs(folder / "valid.tsv", tiny_run.VALID)
        self.run, config = folder / "run", folder / "config.json"
        config.write_text(CONFIG.with_options(**options).to_json(), "utf-8")
        files = ["--train", text, "--valid", valid, "--run", self.run]
        files += ["--config", config]
        files += ["--preset", "tiny"] if first is None else ["--init", first]
        script = Path(sys.executable).with_name("keras-transformer")
        self.command = [script, "train", *map(str, files)]

    def start(self, command=None, **options):
        # Without the tests' number of threads: each core has a part of a batch.
        names = [name for name in os.environ if not name.startswith("TF_NUM_")]
        outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(
            self.command if command is None else command,
            text=True,
            env={name: os.environ[name] for name in names},
            **(outputs | options),
        )

    def finish(self):
        process = self.start()
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    def states(self):
        return [path.name for path in StateFiles(self.run / "states").paths()]

    def final(self):
        return StateFiles(self.run / "states").latest(Console(quiet=True))

    def log(self):
        with open(self.run / "log.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [row.pop("tokens_per_second") and row for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    training = Training(tmp_path_factory.mktemp("whole"))
    training.finish()
    return training


def assert_same(training, whole):
    for found, expected in zip(
        training.final().values, whole.final().values, strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert training.final().updates == whole.final().updates
    assert training.log() == whole.log()
    names = [sorted(p.name for p in (t.run / "checkpoints").iterdir())
             for t in (training, whole)]  # fmt: skip
    assert names[0] == names[1]
    for name in names[0]:
        paths = [t.run / "checkpoints" / name for t in (training, whole)]
        assert_same_weights(*paths)
    assert_same_weights(*(t.run / "model.keras" for t in (training, whole)))


def assert_same_weights(path, other):
    for a, b in zip(weights(path), weights(other), strict=True):
        np.testing.assert_array_equal(a, b)


def weights(path):
    if path.suffix == ".keras":
        return keras.models.load_model(path, compile=False).get_weights()
    arrays = []

    def add(_, item):
        if isinstance(item, h5py.Dataset):
            arrays.append(item[()])

    with h5py.File(path) as file:
        file.visititems(add)
    return arrays


@pytest.mark.slow
def test_kill_9_within_a_save_changes_nothing(whole, tmp_path):
    training = Training(tmp_path)
    program = [sys.executable, "-m", "tests.training.killed_run", "4"]
    command = program + training.command[1:]
    process = training.start(command, cwd=Path(__file__).parents[2])
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    half, *states = sorted(path.name for path in (training.run / "states").iterdir())
    assert half.startswith(".partial-")
    assert states == ["step-000000002.npz", "step-000000003.npz"]
    training.finish()
    assert_same(training, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_kill_9_at_three_random_moments_changes_nothing(name, whole, tmp_path):
    first = whole.run if name == "fine-tuning" else None
    reference = Training(tmp_path / "whole", SETS[name], first)
    reference.finish()
    training = Training(tmp_path / "killed", SETS[name], first)
    rng, process, seen = random.Random(name), training.start(), set()
    for _ in range(3):
        # A state is written after every update, so that a moment in the time between
        # two of them is within a step, a state, or an epoch's end.
        before, patience = training.states(), rng.randrange(1, 7)
        changes = 0
        while process.poll() is None and changes < patience:
            if (now := training.states()) != before:
                before, changes = now, changes + 1
        time.sleep(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        seen.add(training.states()[-1])
        process = training.start()
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert len(seen) == 3
    assert_same(training, reference)


@pytest.mark.slow
def test_kill_9_while_it_is_set_up_changes_nothing(whole, tmp_path):
    training = Training(tmp_path)
    for name in (".", "tokenizer", "data.json", "config.json"):
        process = training.start()
        while process.poll() is None and not (training.run / name).exists():
            pass
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    training.finish()
    assert_same(training, whole)


@pytest.mark.slow
def test_sigterm_ends_with_a_state_and_a_line(whole, tmp_path):
    training = Training(tmp_path)
    process = training.start()
    while process.poll() is None and len(training.states()) < 2:
        pass
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 143
    # The progress bar may end with an empty line after it.
    line = output.strip().splitlines()[-1]
    stopped = r"stopped by SIGTERM after \d updates?; run the same command again .*"
    assert re.fullmatch(stopped, line), output
    assert "resuming after" in training.finish()
    assert_same(training, whole)


@pytest.mark.slow
def test_a_closed_terminal_ends_with_a_state(whole, tmp_path):
    training = Training(tmp_path)
    master, terminal = os.openpty()
    # The first terminal that the leader of a session opens is the one it is told of.
    script = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(terminal)]
    process = training.start(
        script + training.command, start_new_session=True, stdout=None, stderr=None
    )
    while process.poll() is None and len(training.states()) < 2:
        # A terminal that nobody reads would make the run wait.
        if select.select([master], [], [], 0.01)[0]:
            os.read(master, 4096)
    os.close(terminal)
    os.close(master)
    assert process.wait() == 129
    assert "resuming after" in training.finish()
    assert_same(training, whole)
