"""Two workers, one of them killed: the same commands again end the same run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer import RunConfig, open_pairs, train
from tests import tiny_run

ROOT = Path(__file__).parents[2]
SECONDS = 600  # Longest wait for anything.
PROGRAM = "-c", "import sys; from keras_transformer.cli import main; sys.exit(main())"


def write_config(folder, config=tiny_run.CONFIG, **options):
    path = folder / "config.json"
    training = config.training.replace(**options)
    path.write_text(config.replace(training=training).to_json(), "utf-8")
    return path


def start_workers(folder, text, config, *options, program=PROGRAM):
    """Starts `keras-transformer train` on two workers; returns the processes."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    command = [
        sys.executable, *program, "train", "--train", text,
        "--run", folder / "run", "--config", config, "--distribute", "multi_worker",
        "--preset", "tiny",
        *options,
    ]  # fmt: skip
    workers = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        cluster = json.dumps({"cluster": {"worker": addresses}, "task": task})
        log = open(folder / f"worker-{index}.log", "ab")
        with log:
            worker = subprocess.Popen(
                list(map(str, command)), cwd=ROOT, stdout=log, stderr=log,
                env=os.environ | {"TF_CONFIG": cluster},
            )  # fmt: skip
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


@pytest.mark.slow
def test_workers_that_are_killed_go_on_and_train_as_one_process(tmp_path):
    model = tiny_run.CONFIG.model
    rates = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
    plain = tiny_run.CONFIG.replace(model=model.replace(**dict.fromkeys(rates, 0.0)))
    config = write_config(tmp_path, plain, epochs=1, save_every=1)
    text = tiny_run.write_pairs(tmp_path / "train.tsv")
    killed = "-m", "tests.training.killed_run", "3"
    chief, other = workers = start_workers(tmp_path, text, config, program=killed)
    try:
        assert chief.wait(SECONDS) == -signal.SIGKILL, logs(tmp_path)
        other.kill()  # It waits for the chief.
        workers += start_workers(tmp_path, text, config)
        finish(workers[2:], tmp_path)
    finally:
        for worker in workers:
            worker.kill()
    assert "resuming after 2 updates" in logs(tmp_path)
    expected = train(open_pairs(text), tmp_path / "one", RunConfig.load(config))
    found = keras.saving.load_model(tmp_path / "run" / "model.keras", compile=False)
    for value, wanted in zip(
        found.get_weights(), expected.model.get_weights(), strict=True
    ):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=2e-4)


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
    found, expected = (
        keras.saving.load_model(folder / "run" / "model.keras", compile=False)
        for folder in (broken, whole)
    )
    for value, wanted in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_what_the_chief_does_alone_keeps_the_workers_in_step(tmp_path):
    text = tiny_run.write_pairs(tmp_path / "train.tsv")
    options = {"monitor": "bleu", "average": "best"}
    options |= {"ema_decay": 0.9, "gradient_accumulation_steps": 2}
    config = write_config(tmp_path, epochs=2, **options)
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
