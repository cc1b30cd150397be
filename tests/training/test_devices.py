"""Many devices and hosts train as one process does: the same losses and weights."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.models import batch_step as step
from keras_transformer.training import devices
from keras_transformer.training.devices import (
    Distribution,
    distribution_scope,
    machine,
    pad_rows,
)

ROOT = Path(__file__).parents[2]
HARD = {"steps": 2, "clipnorm": 0.3}


def started(path, backend="tensorflow", environment=None, **options):
    """Starts `distributed_run`, which will write `path`."""
    command = [
        sys.executable, "-m", "tests.training.distributed_run", path,
        json.dumps(options),
    ]  # fmt: skip
    environment = os.environ | {"KERAS_BACKEND": backend} | (environment or {})
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )


def finished(process, path):
    """What a run that was started has written."""
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors[-6000:]
    return json.loads(path.read_text("utf-8"))


def run(path, **options):
    """The result of `distributed_run`."""
    return finished(started(path, **options), path)


def free_addresses(count):
    """Addresses on loopback that nobody uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def workers_of_tensorflow(count):
    """The environment of each of `count` workers."""
    cluster = {"worker": free_addresses(count)}
    tasks = [{"type": "worker", "index": index} for index in range(count)]
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks
    ]


def run_workers(folder, environments, **options):
    """The results of processes that train together, the chief's first."""
    processes = {}
    for index, environment in enumerate(environments):
        path = folder / f"worker-{index}.json"
        processes[path] = started(path, environment=environment, **options)
    try:
        return [finished(process, path) for path, process in processes.items()]
    finally:
        for process in processes.values():
            process.kill()


def assert_same_run(result, expected):
    """The same losses to 1e-5, and weights as near as Adam leaves them."""
    assert result["updates"] == expected["updates"]
    assert result["history"].keys() == expected["history"].keys()
    for name, values in expected["history"].items():
        np.testing.assert_allclose(result["history"][name], values, rtol=1e-5)
    np.testing.assert_allclose(
        result["batch_losses"], expected["batch_losses"], rtol=1e-5
    )
    weights, wanted = result["weights"], expected["weights"]
    assert weights.keys() == wanted.keys()
    for path in weights:
        # The softmax does not see the bias of a key: its gradient is the rounding of
        # zero, and Adam makes steps of full length of it.
        if not path.endswith("key_dense/bias"):
            values = weights[path], wanted[path]
            # Both runs have the same mistakes, so nothing may be no number.
            np.testing.assert_allclose(*values, rtol=0, atol=2e-4, equal_nan=False)


FOUR = {
    "plain": {},
    "accumulated and clipped": HARD,
    "with a bad batch": {"poison": 2},
    "clipped by the optimizer": {"sgd": {"clipnorm": 0.02, "loss_scale_factor": 8.0}},
    "accumulated and clipped twice": {"sgd": {"clipvalue": 2e-3}, **HARD},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", FOUR.values(), ids=FOUR)
def test_four_mirrored_devices_train_as_one(tmp_path, options):
    expected = run(tmp_path / "one.json", **options)
    result = run(tmp_path / "four.json", distribute="mirrored", devices=4, **options)
    assert (expected["replicas"], result["replicas"]) == (1, 4)
    assert_same_run(result, expected)
    # One batch of five in both epochs.
    bad = 2 if "poison" in options else 0
    assert result["updates"] == (10 - bad) // options.get("steps", 1)
    assert result["nonfinite_batches"] == expected["nonfinite_batches"] == bad


@pytest.mark.slow
def test_replicas_drop_the_same_units_in_the_next_run(tmp_path):
    options = {"distribute": "mirrored", "devices": 2, "dropout": 0.3}
    result = run(tmp_path / "first.json", **options)
    again = run(tmp_path / "second.json", **options)
    assert result["batch_losses"] == again["batch_losses"]
    # Ten batches, in each of which the tied embedding drops units of the source and of
    # the target.
    assert result["draws"] == [20, 20]


@pytest.mark.slow
@pytest.mark.parametrize("tied", ["three-way", "none"])
def test_four_jax_devices_train_as_one(tmp_path, tied):
    options = {"backend": "jax", "tied_embeddings": tied}
    expected = run(tmp_path / "one.json", **options)
    options |= {"distribute": "data_parallel", "devices": 4}
    result = run(tmp_path / "four.json", **options)
    assert_same_run(result, expected)
    assert result["replicas"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, HARD], ids=["plain", "hard"])
def test_two_workers_train_as_one_process(tmp_path, options):
    expected = run(tmp_path / "one.json", **options)
    environments = workers_of_tensorflow(2)
    options = {"distribute": "multi_worker", **options}
    workers = run_workers(tmp_path, environments, **options)
    assert [worker["replicas"] for worker in workers] == [2, 2]
    assert [worker["chief"] for worker in workers] == [True, False]
    for worker in workers:
        assert_same_run(worker, expected)


def test_one_device_changes_nothing():
    data = tf.data.Dataset.from_tensors(tf.ones((3, 2)))
    with distribution_scope() as one:
        assert one.dataset(data) is data
        assert one.is_chief
        assert one.num_replicas == one.num_processes == 1
        assert one.any(True) is True
        assert one.any(False) is False
        assert one.mean(0.3) == 0.3


def test_rows_of_padding_fill_up_to_a_multiple():
    pair = (tf.ones((3, 2)), tf.ones((3,)))
    data = tf.data.Dataset.from_tensors((pair, tf.ones((3, 4, 5))))
    ((first, second), third) = next(iter(pad_rows(data, 4)))
    assert (first.shape, second.shape, third.shape) == ((4, 2), (4,), (4, 4, 5))
    np.testing.assert_array_equal(first, [[1, 1], [1, 1], [1, 1], [0, 0]])
    assert next(iter(pad_rows(data, 3)))[1].shape == (3, 4, 5)
    alone = tf.data.Dataset.from_tensors(tf.ones((3, 2)))
    assert next(iter(pad_rows(alone, 2))).shape == (4, 2)


BAD_CLUSTER = r"TF_CONFIG, such as .*Received: {"
# The environment, what is asked for, and what is said.
REFUSED = [
    ({}, "all", "must be one of none, mirrored, multi_worker"),
    ({}, "data_parallel", "set KERAS_BACKEND=jax"),
    ({}, "multi_worker", "needs the environment variable TF_CONFIG"),
    ({"TF_CONFIG": "{bad"}, "multi_worker", BAD_CLUSTER),
    ({"TF_CONFIG": "{}"}, "multi_worker", BAD_CLUSTER),
    ({"TF_CONFIG": '{"cluster": {"worker": []}}'}, "multi_worker", BAD_CLUSTER),
    # Hosts that were named; and joined.
    (
        {"KERAS_DISTRIBUTION_NUM_PROCESSES": "2", "KERAS_BACKEND": "jax"},
        "data_parallel", "one host.*'multi_worker'. Received: 2 processes",
    ),
    ({"KERAS_BACKEND": "jax"}, "data_parallel", "one host.*Received: 2 processes"),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "distribute", "message"), REFUSED)
def test_bad_distribution_is_refused(monkeypatch, environment, distribute, message):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if "KERAS_BACKEND" in environment:
        jax = pytest.importorskip("jax")
        monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
        if len(environment) == 1:
            monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=message), distribution_scope(distribute):
        pass


def test_a_machine_goes_through_json_and_names_its_threads(monkeypatch):
    here = machine(Distribution())
    assert json.loads(json.dumps(here)) == here
    assert here["backend"].split()[0] == keras.backend.backend()
    assert here["replicas"] == 1
    if keras.backend.backend() != "tensorflow":
        return
    monkeypatch.setattr(step, "_num_parts", 3)
    monkeypatch.setattr(devices, "available_cores", lambda: 5)
    for value, expected in (("7", 7), ("", 5)):
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", value)
        found = machine(Distribution())
        assert (found["threads"], found["parts"]) == (expected, 3)


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_gpus_are_hidden_from_tensorflow_for_another_backend(backend, monkeypatch):
    hidden, hide = [], lambda found, kind: hidden.append((found, kind))
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    monkeypatch.setattr(tf.config, "set_visible_devices", hide)
    with distribution_scope():
        assert hidden == ([] if backend == "tensorflow" else [([], "GPU")])
