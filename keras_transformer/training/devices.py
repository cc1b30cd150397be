"""The devices of a run: one, all of this host, or with TensorFlow several hosts.

The rows of a global batch are split among the replicas of the model, after rows of
padding have made their number a multiple of the replicas. So a batch has the same loss
and gradient as on one device.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config.options import check_choice
from keras_transformer.models.batch_step import available_cores, num_parts
from keras_transformer.nn.kernels.execution import has_gpu

# The kinds other than "none", with the backend that each needs.
_BACKENDS = {
    "mirrored": "tensorflow",
    "multi_worker": "tensorflow",
    "data_parallel": "jax",
}
# Number of hosts, from which `keras.distribution.initialize()` reads it.
_HOSTS_OF_JAX = "KERAS_DISTRIBUTION_NUM_PROCESSES"


class Distribution:
    """One device; the base class of what `distribution_scope` yields."""

    num_replicas = 1  # parts of a global batch
    num_processes = 1  # that train together
    is_chief = True  # whether this process writes the files of the run

    def scope(self):
        """Returns the context in which to make and compile the model.

        Call `fit` and `save` outside: all processes must make the same variables in it.
        """
        return contextlib.nullcontext()

    def dataset(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a dataset for `model.fit` and `model.evaluate` on these devices.

        `batches` are the global ones, equal in every process: nested structures of
        tensors with rows as their first axis and 0 as padding.
        """
        return batches

    def any(self, flag: bool) -> bool:
        """Returns whether `flag` is true in any process; all must call it together."""
        return self.mean(float(flag)) > 0

    def mean(self, value: float) -> float:
        """Returns the mean of `value` over processes; all must call it together."""
        return value

    def wait(self) -> None:
        """Waits until all processes have called it."""
        self.any(False)


class ReplicatedOnTensorFlow(Distribution):
    """Copies of the model, synchronised by a `tf.distribute` strategy."""

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.num_replicas = strategy.num_replicas_in_sync
        resolver = strategy.cluster_resolver
        if resolver is not None and resolver.task_type is not None:
            workers = resolver.cluster_spec().as_dict()
            kinds = [kind for kind in ("chief", "worker") if kind in workers]
            self.num_processes = sum(len(workers[kind]) for kind in kinds)
            self.is_chief = (resolver.task_type, resolver.task_id) == (kinds[0], 0)

    def scope(self):
        return self.strategy.scope()

    def dataset(self, batches):
        # Each worker reads every batch and keeps its rows.
        options = tf.data.Options()
        policy = tf.data.experimental.AutoShardPolicy.DATA
        options.experimental_distribute.auto_shard_policy = policy
        return pad_rows(batches, self.num_replicas).with_options(options)

    def mean(self, value):
        if self.num_processes == 1:
            return value
        values = self.strategy.run(lambda: tf.constant(value, tf.float32))
        return float(self.strategy.reduce("MEAN", values, axis=None))


class ReplicatedOnJax(Distribution):
    """Copies of the model on the JAX devices of a host, by a `keras.distribution`."""

    def __init__(self, distribution: keras.distribution.DataParallel):
        (self.num_replicas,) = distribution.device_mesh.shape

    def dataset(self, batches):
        return pad_rows(batches, self.num_replicas)


@contextlib.contextmanager
def distribution_scope(distribute: str = "none") -> Iterator[Distribution]:
    """Sets up the devices for training; make, train and use the model inside.

    With "multi_worker", call it before TensorFlow computes anything, set the
    environment variable TF_CONFIG, and run the same program on every worker.

    Args:
        distribute: "none"; "mirrored", all GPUs of this host, or all its logical CPU
            devices; "multi_worker", those of all hosts in TF_CONFIG; with JAX
            "data_parallel", a copy of the model on each device of this host.

    Yields:
        A `Distribution`.

    Raises:
        ValueError: If `distribute` is unknown, or needs another backend, TF_CONFIG, or
            a single host.

    Example:
        >>> with distribution_scope("mirrored") as distribution:
        ...     with distribution.scope():
        ...         model = compiled_model(config)
        ...     model.fit(distribution.dataset(corpus.dataset()), shuffle=False)
    """
    if keras.backend.backend() != "tensorflow":
        # TensorFlow only reads text, but would reserve the memory of each GPU.
        with contextlib.suppress(RuntimeError):  # It has done so already.
            tf.config.set_visible_devices([], "GPU")
    check_choice("distribute", distribute, ("none", *_BACKENDS))
    found = keras.backend.backend()
    if (needed := _BACKENDS.get(distribute, found)) != found:
        raise ValueError(
            f"`distribute` {distribute!r} needs the {needed} backend: set "
            f"KERAS_BACKEND={needed}. Received: {found}"
        )
    if distribute == "none":
        yield Distribution()
    elif distribute == "mirrored":
        devices = tf.config.list_logical_devices("GPU")
        devices = devices or tf.config.list_logical_devices("CPU")
        names = [device.name for device in devices]
        yield ReplicatedOnTensorFlow(tf.distribute.MirroredStrategy(names))
    elif distribute == "multi_worker":
        # Without TF_CONFIG TensorFlow would train on this host only.
        cluster = os.environ.get("TF_CONFIG", "none")
        try:
            described = json.loads(cluster)
            described["cluster"]["worker"][0], described["task"]["index"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(
                "`distribute` 'multi_worker' needs the environment variable TF_CONFIG, "
                'such as {"cluster": {"worker": ["host1:12345", "host2:12345"]}, '
                f'"task": {{"type": "worker", "index": 0}}}}. Received: {cluster}'
            ) from error
        yield ReplicatedOnTensorFlow(tf.distribute.MultiWorkerMirroredStrategy())
    else:
        import jax

        if _HOSTS_OF_JAX in os.environ or jax.process_count() > 1:
            raise ValueError(
                f"`distribute` {distribute!r} uses the devices of one host: on several "
                "train with TensorFlow and 'multi_worker'. Received: "
                f"{os.environ.get(_HOSTS_OF_JAX, jax.process_count())} processes"
            )
        spread = keras.distribution.DataParallel(auto_shard_dataset=False)
        with spread.scope():
            yield ReplicatedOnJax(spread)


def pad_rows(batches: tf.data.Dataset, multiple: int) -> tf.data.Dataset:
    """Returns batches with rows of zeros at the end, up to a multiple of `multiple`."""

    def padded(tensor):
        rows = -tf.shape(tensor)[0] % multiple
        return tf.pad(tensor, [[0, rows]] + [[0, 0]] * (len(tensor.shape) - 1))

    def padded_batch(*parts):
        return tf.nest.map_structure(padded, parts if len(parts) > 1 else parts[0])

    return batches.map(padded_batch, num_parallel_calls=tf.data.AUTOTUNE)


def gpu_names() -> list[str]:
    """Returns the name of each GPU of Keras' backend."""
    if not has_gpu():
        return []
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return [device.device_kind for device in jax.devices()]
    if backend == "torch":
        import torch

        return list(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    gpus = tf.config.get_visible_devices("GPU")
    details = map(tf.config.experimental.get_device_details, gpus)
    return [each.get("device_name", "GPU") for each in details]


def machine(distribution: Distribution) -> dict[str, Any]:
    """Returns what must stay the same for a run to end with the same bits.

    It determines the order of sums, and the random numbers of dropout.
    """
    backend = keras.backend.backend()
    threads = available_cores()
    if backend == "torch":
        threads = importlib.import_module("torch").get_num_threads()
    if backend == "tensorflow":
        chosen = tf.config.threading.get_intra_op_parallelism_threads()
        wanted = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
        if chosen:
            threads = chosen
        elif wanted.isdecimal() and int(wanted):
            threads = int(wanted)
    cpu = Path("/proc/cpuinfo")
    text = cpu.read_text(encoding="utf-8") if cpu.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "backend": f"{backend} {importlib.import_module(backend).__version__}",
        "processor": named[1].strip() if named else platform.machine(),
        "gpus": gpu_names(),
        "threads": threads,
        "parts": num_parts(),
        "replicas": distribution.num_replicas,
    }
