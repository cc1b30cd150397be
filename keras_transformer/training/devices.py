"""Where a run trains: one device, the devices of this host, or several hosts.

A global batch is the batch that one process would train on. Its rows are split among
the replicas of the model, after rows of padding, without any token, have made their
number a multiple of the replicas. So every batch has the same gradient and loss as on
one device.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config.options import check_choice
from keras_transformer.exact_training.cores import available_cores, num_parts
from keras_transformer.kernels.execution import has_gpu

# The kinds beside "none", with the backend that each needs.
_BACKENDS = {
    "mirrored": "tensorflow",
    "multi_worker": "tensorflow",
    "data_parallel": "jax",
    "model_parallel": "jax",
}
# Names how many hosts train together, for `keras.distribution.initialize()`.
_HOSTS_OF_JAX = "KERAS_DISTRIBUTION_NUM_PROCESSES"
# How `model_parallel` splits the weights, by their whole path: "model" names the axis
# of the matrix that is spread over the devices (Shoeybi et al., 2019, section 3,
# https://arxiv.org/abs/1909.08053). The others have a copy on each device.
TRANSFORMER_LAYOUT = {
    r".*attention/(query|key|value)/kernel": (None, "model"),
    r".*attention/(query|key|value)/bias": ("model",),
    r".*attention/output/kernel": ("model", None),
    r".*feed_forward/hidden/kernel": (None, "model"),
    r".*feed_forward/hidden/bias": ("model",),
    r".*feed_forward/output/kernel": ("model", None),
    r".*embedding/embeddings": ("model", None),
    r"[^/]*/output/kernel": (None, "model"),
}


class Distribution:
    """One device; the base of the kinds that `distribution_scope` makes.

    Attributes:
        num_replicas: Parts that the rows of a global batch are split into.
        num_processes: Processes that train together.
        is_chief: Whether this process writes the run's files; of several workers only
            the first does.
    """

    num_replicas = 1
    num_processes = 1
    is_chief = True

    def scope(self):
        """Returns the context in which to make and compile the model, and only that.

        Saving, which the chief does alone and for which Keras makes variables, belongs
        outside, and so does `fit`: all processes must make the same variables inside.
        """
        return contextlib.nullcontext()

    def dataset(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Returns what `model.fit` and `model.evaluate` take on these devices.

        `batches` are global, the same in every process: nested structures of tensors
        whose first axis is the rows and in which 0 is padding.
        """
        return batches

    def any(self, flag: bool) -> bool:
        """Returns whether `flag` is true in any process; all must call it together.

        If one process alone notices a signal or a limit of time, all must act on it
        after the same batch: otherwise they would wait for that process for ever.
        """
        return self.mean(float(flag)) > 0

    def mean(self, value: float) -> float:
        """Returns the mean of the processes' values; all must call it together."""
        return value


class ReplicatedOnTensorFlow(Distribution):
    """Copies of the model, kept in step by a `tf.distribute` strategy."""

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


class SpreadOnJax(Distribution):
    """Data and weights spread over JAX devices by a `keras.distribution`."""

    def __init__(self, distribution):
        import jax

        mesh = distribution.device_mesh
        self.num_replicas = mesh.shape[mesh.axis_names.index("batch")]
        self.num_processes = jax.process_count()
        self.is_chief = jax.process_index() == 0

    def dataset(self, batches):
        # Each process reads every batch and keeps its rows; JAX joins them again.
        import jax

        def share(tensor):
            rows = tf.shape(tensor)[0] // self.num_processes
            return tensor[jax.process_index() * rows :][:rows]

        return pad_rows(batches, self.num_replicas, share)

    def mean(self, value):
        if self.num_processes == 1:
            return value
        from jax.experimental import multihost_utils

        return float(multihost_utils.process_allgather(np.float32(value)).mean())


class TransformerParallel(keras.distribution.ModelParallel):
    """`ModelParallel` by `TRANSFORMER_LAYOUT`; what devices cannot share stays whole.

    `model_devices` share one copy of the model.

    Raises:
        ValueError: If they do not divide the number of devices.
    """

    def __init__(self, model_devices: int):
        devices = keras.distribution.list_devices()
        if len(devices) % model_devices:
            raise ValueError(
                "`model_devices` must divide the number of devices. Received: "
                f"model_devices={model_devices}, {len(devices)} devices"
            )
        shape = (len(devices) // model_devices, model_devices)
        mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
        layout_map = keras.distribution.LayoutMap(mesh)
        for pattern, axes in TRANSFORMER_LAYOUT.items():
            layout_map[pattern] = axes
        super().__init__(
            layout_map=layout_map, batch_dim_name="batch", auto_shard_dataset=False
        )
        self.model_devices = model_devices

    def get_variable_layout(self, variable):
        layout = super().get_variable_layout(variable)
        for size, axis in zip(variable.shape, layout.axes, strict=True):
            if axis is not None and size % self.model_devices:
                whole = [None] * len(variable.shape)
                return keras.distribution.TensorLayout(whole, self.device_mesh)
        return layout


@contextlib.contextmanager
def distribution_scope(
    distribute: str = "none", model_devices: int | None = None
) -> Iterator[Distribution]:
    """Sets up the devices of a run; train and use the model inside.

    With "multi_worker", call it before anything else that uses TensorFlow. It needs the
    environment variable TF_CONFIG, and every worker runs the same program. So does
    every host with "data_parallel", after `keras.distribution.initialize`.

    Args:
        distribute: "none"; "mirrored", all GPUs of this host, or all its logical CPU
            devices; "multi_worker", those of all hosts in TF_CONFIG; with the JAX
            backend "data_parallel", a copy of the model on each device, or
            "model_parallel", its matrices spread over them.
        model_devices: For "model_parallel": devices that share one copy of the model;
            default all.

    Yields:
        A `Distribution`.

    Raises:
        ValueError: If `distribute` is unknown, needs another backend or TF_CONFIG, or
            cannot use several hosts.

    Example:
        >>> with distribution_scope("mirrored") as distribution:
        ...     with distribution.scope():
        ...         model = compiled_model(config)
        ...     model.fit(distribution.dataset(corpus.dataset()), shuffle=False)
    """
    if keras.backend.backend() != "tensorflow":
        # TensorFlow only reads text, but would take the whole memory of each GPU.
        with contextlib.suppress(RuntimeError):  # It has them already.
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
        # Without it TensorFlow would train on this host alone.
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

        if _HOSTS_OF_JAX in os.environ and not jax.distributed.is_initialized():
            raise ValueError(
                f"With {_HOSTS_OF_JAX} call `keras.distribution.initialize()` first: "
                "each host would train alone. `keras-transformer train` takes one host"
            )
        spread = keras.distribution.DataParallel(auto_shard_dataset=False)
        if distribute == "model_parallel":
            if jax.process_count() > 1:
                raise ValueError(
                    "`distribute` 'model_parallel' spreads the matrices over the "
                    "devices of one host: use 'data_parallel' on several. Received: "
                    f"{jax.process_count()} processes"
                )
            devices = model_devices or len(keras.distribution.list_devices())
            spread = TransformerParallel(devices)
        with spread.scope():
            yield SpreadOnJax(spread)


def pad_rows(
    batches: tf.data.Dataset,
    multiple: int,
    keep: Callable[[tf.Tensor], tf.Tensor] = lambda tensor: tensor,
) -> tf.data.Dataset:
    """Returns batches with rows of zeros at the end, up to a multiple of `multiple`.

    `keep` then takes the rows of this process from each tensor.
    """

    def padded(tensor):
        rows = -tf.shape(tensor)[0] % multiple
        return keep(tf.pad(tensor, [[0, rows]] + [[0, 0]] * (len(tensor.shape) - 1)))

    def padded_batch(*parts):
        return tf.nest.map_structure(padded, parts if len(parts) > 1 else parts[0])

    return batches.map(padded_batch, num_parallel_calls=tf.data.AUTOTUNE)


def gpu_names() -> list[str]:
    """Returns the name of each GPU that Keras' backend can compute on here."""
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

    The order in which numbers are summed, and so their last digits, depends on it. Each
    core's part of a batch and each replica also has its own numbers for dropout.
    """
    backend, threads = keras.backend.backend(), available_cores()
    if backend == "torch":
        threads = importlib.import_module("torch").get_num_threads()
    if backend == "tensorflow":
        chosen = tf.config.threading.get_intra_op_parallelism_threads()
        wanted = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
        threads = chosen or (wanted.isdecimal() and int(wanted)) or threads
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
