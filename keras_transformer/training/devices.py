"""The devices that a run computes on."""

from __future__ import annotations

import contextlib
from pathlib import Path

import keras
import tensorflow as tf

from keras_transformer.kernels.execution import has_gpu


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


def has_nvidia_gpu() -> bool:
    """Returns whether NVIDIA's driver for Linux has a GPU, usable or not."""
    gpus = Path("/proc/driver/nvidia/gpus")
    return gpus.is_dir() and any(gpus.iterdir())


def leave_gpus_to_backend():
    """Hides the GPUs from TensorFlow if Keras computes with another backend.

    TensorFlow then only reads text, but would take the whole memory of each GPU. Call
    it before TensorFlow computes anything; afterwards it does nothing.
    """
    if keras.backend.backend() != "tensorflow":
        with contextlib.suppress(RuntimeError):  # TensorFlow has them already.
            tf.config.set_visible_devices([], "GPU")
