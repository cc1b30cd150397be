"""What a run computes on, and who may take the GPUs."""

from __future__ import annotations

import io
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf
from rich.console import Console

from keras_transformer.training import devices, report

on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's own list"
)


def reported(dtype="float32"):
    stream = io.StringIO()
    report.report_devices(Console(file=stream, width=80), dtype)
    return stream.getvalue()


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(report, "gpu_names", lambda: [])
    monkeypatch.setattr(report, "available_cores", lambda: 2)


def test_the_processor_is_named(no_gpu, monkeypatch):
    monkeypatch.setattr(report, "has_nvidia_gpu", lambda: False)
    backend = keras.backend.backend()
    assert reported() == f"computing in float32 with {backend} on 2 processor cores\n"


def test_a_gpu_is_named(monkeypatch):
    monkeypatch.setattr(report, "gpu_names", lambda: ["Tesla T4"])
    assert reported("bfloat16").endswith("on 1 GPU, Tesla T4\n")
    monkeypatch.setattr(report, "gpu_names", lambda: ["Tesla T4"] * 2)
    assert reported("bfloat16").endswith("on 2 GPUs, Tesla T4\n")


@on_tensorflow
def test_a_gpu_that_cannot_be_used_is_a_warning_with_the_remedy(no_gpu, monkeypatch):
    monkeypatch.setattr(report, "has_nvidia_gpu", lambda: True)
    _, warning = reported().splitlines()
    assert warning == (
        "warning: tensorflow cannot use the NVIDIA GPU of this machine: install "
        "keras-transformer-seq2seq[gpu], and see docs/gpu.md"
    )


def test_a_gpu_of_the_driver_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "Path", lambda _: tmp_path / "gpus")
    assert not devices.has_nvidia_gpu()
    (tmp_path / "gpus").mkdir()
    assert not devices.has_nvidia_gpu()
    (tmp_path / "gpus" / "0000:01:00.0").mkdir()
    assert devices.has_nvidia_gpu()


@on_tensorflow
def test_tensorflows_gpus_are_listed_by_name(monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["a", "b"])
    monkeypatch.setattr(
        tf.config.experimental,
        "get_device_details",
        lambda device: {"device_name": "Tesla T4"} if device == "a" else {},
    )
    assert devices.gpu_names() == ["Tesla T4", "GPU"]


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_gpus_are_hidden_from_tensorflow_for_another_backend(backend, monkeypatch):
    hidden = []
    monkeypatch.setattr(
        devices,
        "keras",
        SimpleNamespace(backend=SimpleNamespace(backend=lambda: backend)),
    )
    monkeypatch.setattr(
        tf.config,
        "set_visible_devices",
        lambda found, kind: hidden.append((found, kind)),
    )
    devices.leave_gpus_to_backend()
    assert hidden == ([] if backend == "tensorflow" else [([], "GPU")])


def test_it_is_too_late_once_tensorflow_has_computed(monkeypatch):
    tf.constant(1) + 1
    monkeypatch.setattr(
        devices,
        "keras",
        SimpleNamespace(backend=SimpleNamespace(backend=lambda: "jax")),
    )
    devices.leave_gpus_to_backend()  # TensorFlow raises RuntimeError: no error here.
