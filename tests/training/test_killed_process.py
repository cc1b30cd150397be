"""`keras-transformer train` in processes of its own, ended by signals."""

import csv
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from keras_transformer import RunConfig, train
from keras_transformer.training.state import StateFiles
from tests import tiny_run
from tests.tiny_run import assert_equal, last_state

# The command in a process that dies as by kill -9 within the save of a state: that
# after so many batches is written, and never gets its name.
DYING = """
import os, signal, sys
from keras_transformer.apps.cli import main
last, replace = f"step-{int(sys.argv.pop(1)):09d}.npz", os.replace

def replace_or_die(source, target, **options):
    if str(target).endswith(last):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target, **options)

os.replace = replace_or_die
sys.exit(main())
"""
CONFIG = tiny_run.CONFIG.with_options(batch_tokens=120, epochs=10, save_every=1)
BOTH = {"ema_decay": 0.9, "gradient_accumulation_steps": 2}
SETS = {
    "accumulation": {"gradient_accumulation_steps": 2},
    "moving average": {"ema_decay": 0.9},
    "BLEU": {"monitor": "bleu", "bleu_sentences": 4},
    "float16": {"mixed_precision": "float16"},
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
    states = [last_state(each.run) for each in (training, whole)]
    assert_equal(*(state.values for state in states))
    assert states[0].updates == states[1].updates
    assert training.log() == whole.log()
    runs = training.run, whole.run
    names = [sorted(p.name for p in (run / "checkpoints").iterdir()) for run in runs]
    assert names[0] == names[1]
    for name in (*(f"checkpoints/{name}" for name in names[0]), "model.keras"):
        assert_equal(*(weights(run / name) for run in runs))


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
    process = training.start([sys.executable, "-c", DYING, "4", *training.command[1:]])
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
def test_a_closed_terminal_ends_with_a_state(whole, tmp_path, of_a_terminal):
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


# Two workers, one of them killed: the same commands again end the same run.

SECONDS = 600  # Longest wait for anything.


def write_config(folder, **options):
    path = folder / "config.json"
    path.write_text(tiny_run.CONFIG.with_options(**options).to_json(), "utf-8")
    return path


def start_workers(folder, text, config, *options, program=()):
    """Starts `keras-transformer train` on two workers; returns the processes.

    `program` are words for Python in its place.
    """
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    script = Path(sys.executable).with_name("keras-transformer")
    command = [
        *(program or (script,)), "train", "--train", text,
        "--run", folder / "run", "--config", config, "--distribute", "multi_worker",
        "--preset", "tiny", *options,
    ]  # fmt: skip
    workers = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        cluster = json.dumps({"cluster": {"worker": addresses}, "task": task})
        with open(folder / f"worker-{index}.log", "ab") as log:
            worker = subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdout=log,
                stderr=log,
                env=os.environ | {"TF_CONFIG": cluster},
            )
        workers.append(worker)
    return workers


def logs(folder):
    return "".join(p.read_text("utf-8")[-3000:] for p in folder.glob("worker-*.log"))


def finish(workers, folder):
    for worker in workers:
        assert worker.wait(SECONDS) == 0, logs(folder)


def wait_for_state(folder, workers):
    """Waits until a state has been saved within the training."""
    end = time.monotonic() + SECONDS
    while not list((folder / "run" / "states").glob("*")):
        assert time.monotonic() < end, logs(folder)
        assert all(worker.poll() is None for worker in workers), logs(folder)
        time.sleep(0.05)


def assert_near(run, expected, bound):
    for value, wanted in zip(weights(run / "model.keras"), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=bound)


@pytest.mark.slow
def test_workers_that_are_killed_go_on_and_train_as_one_process(tmp_path):
    rates = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
    rates = dict.fromkeys(rates, 0.0)
    config = write_config(tmp_path, epochs=1, save_every=1, **rates)
    text = tiny_run.write_pairs(tmp_path / "train.tsv")
    program = ("-c", DYING, "3")
    chief, other = workers = start_workers(tmp_path, text, config, program=program)
    try:
        assert chief.wait(SECONDS) == -signal.SIGKILL, logs(tmp_path)
        other.kill()  # It waits for the chief.
        workers += start_workers(tmp_path, text, config)
        finish(workers[2:], tmp_path)
    finally:
        for worker in workers:
            worker.kill()
    assert "resuming after 2 updates" in logs(tmp_path)
    expected = train(text, tmp_path / "one", RunConfig.load(config))
    assert_near(tmp_path / "run", expected.model.get_weights(), 2e-4)


# The command as in a container, where its process id is 1; it says what it writes.
CONTAINED = """
import os, sys
from keras_transformer.apps.cli import main
replace, os.getpid = os.replace, lambda: 1

def told(source, target, **options):
    print("writes", target, flush=True)
    replace(source, target, **options)

os.replace = told
sys.exit(main())
"""


@pytest.mark.slow
def test_of_two_hosts_with_one_process_id_the_first_writes(tmp_path):
    text, config = tiny_run.write_pairs(tmp_path / "x.tsv"), write_config(tmp_path)
    program = ("-c", CONTAINED)
    workers = start_workers(tmp_path, text, config, "--valid", text, program=program)
    try:
        finish(workers, tmp_path)
    finally:
        for worker in workers:
            worker.kill()
    first, second = ((tmp_path / f"worker-{i}.log").read_text("utf-8") for i in (0, 1))
    for name in ("corpus/training/pairs.ids", "corpus/validation/pairs.ids"):
        assert first.count(f"writes {tmp_path / 'run' / name}") == 1
    assert "writes " not in second


@pytest.mark.slow
def test_a_killed_worker_is_started_again_and_the_run_goes_on(tmp_path):
    text = tiny_run.write_pairs(tmp_path / "train.tsv")
    config = write_config(tmp_path, epochs=20, save_every=3)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    finish(start_workers(whole, text, config), whole)

    workers = start_workers(broken, text, config)
    try:
        wait_for_state(broken, workers)
        workers[1].send_signal(signal.SIGKILL)
        # The chief cannot go on alone; a supervisor ends and restarts it too.
        workers[0].send_signal(signal.SIGKILL)
        for worker in workers:
            worker.wait(SECONDS)
        assert not (broken / "run" / "model.keras").exists()
        finish(start_workers(broken, text, config), broken)
    finally:
        for worker in workers:
            worker.kill()
    assert_near(broken / "run", weights(whole / "run" / "model.keras"), 1e-5)


@pytest.mark.slow
def test_what_the_chief_does_alone_keeps_the_workers_in_step(tmp_path):
    text = tiny_run.write_pairs(tmp_path / "train.tsv")
    options = {"ema_decay": 0.9, "gradient_accumulation_steps": 2}
    config = write_config(tmp_path, epochs=2, monitor="bleu", **options)
    workers = start_workers(tmp_path, text, config, "--valid", text)
    try:
        finish(workers, tmp_path)
    finally:
        for worker in workers:
            worker.kill()
    run = tmp_path / "run"
    assert (run / "model.keras").exists()
    # The name of an event file ends with host, process, a number and "v2".
    events = (run / "tensorboard").rglob("events.*")
    writers = {path.name.split(".")[-3] for path in events}
    assert writers == {str(workers[0].pid)}
