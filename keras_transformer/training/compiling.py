"""The compiled model of a run, made from its options."""

from __future__ import annotations

import os

import keras
import tensorflow as tf

from keras_transformer.config import RunConfig, TrainingConfig
from keras_transformer.exact_training.row_parts import (
    available_cores,
    split_batches_over_cores,
)
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models.families import make_model
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.optimizers import Adam
from keras_transformer.schedules import TransformerSchedule

# Two were measured; with many, the parts become small and the graph large.
_MOST_CORES = 4
_THREADS = {"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"}


def compiled_model(config: RunConfig) -> Seq2Seq:
    """Returns a new model, compiled with the run's optimizer, loss and metrics."""
    options = with_device_defaults(config.training)
    model = make_model(
        config.model, dtype="mixed_bfloat16" if options.mixed_precision else "float32"
    )
    pad_id = config.model.pad_id
    model.compile(
        optimizer=make_optimizer(options, config.model.d_model),
        loss=MaskedCrossentropy(options.label_smoothing, pad_id),
        metrics=[MaskedAccuracy(pad_id), Perplexity(pad_id)],
        jit_compile=options.jit_compile,
        steps_per_execution=options.steps_per_execution,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        global_clipnorm=options.global_clipnorm,
        nonfinite=options.nonfinite,
    )
    return model


def with_device_defaults(options: TrainingConfig) -> TrainingConfig:
    """Returns the options with `mixed_precision` and `jit_compile` chosen.

    Unless given, `mixed_precision` is on with a GPU. `jit_compile` follows Keras: on
    with JAX, off with PyTorch, and with TensorFlow on with a GPU, except under
    `tf.distribute`, whose step XLA cannot compile.
    """
    backend = keras.backend.backend()
    on_gpu = has_gpu(backend)
    compiles = on_gpu and options.distribute == "none"
    chosen = {
        "mixed_precision": on_gpu,
        "jit_compile": {"tensorflow": compiles, "jax": True, "torch": False}[backend],
    }
    return options.replace(
        **{name: on for name, on in chosen.items() if getattr(options, name) is None}
    )


def has_gpu(backend: str) -> bool:
    """Returns whether a Keras backend computes on a GPU here."""
    if backend == "jax":
        import jax

        return jax.default_backend() == "gpu"
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    return bool(tf.config.list_physical_devices("GPU"))


def split_by_default(options: TrainingConfig):
    """Splits batches over the processor cores where that is faster.

    That is the case with TensorFlow on a few cores without XLA and `tf.distribute`. A
    number of threads set in the environment is left alone. Call it before TensorFlow
    computes anything.

    Args:
        options: Options of the training.
    """
    if keras.backend.backend() != "tensorflow" or _THREADS & set(os.environ):
        return
    alone = options.distribute == "none" and not options.jit_compile
    if alone and 1 < available_cores() <= _MOST_CORES:
        split_batches_over_cores()


def make_optimizer(options: TrainingConfig, d_model: int) -> keras.optimizers.Optimizer:
    """Returns the run's optimizer with the paper's learning-rate schedule.

    "adam" has the paper's beta_1 0.9, beta_2 0.98 and epsilon 1e-9 (section 5.3),
    "momentum" is stochastic gradient descent with momentum 0.9.

    Args:
        options: Name of the optimizer, scale and warm-up of the schedule, and factor
            of the weights' moving average.
        d_model: Width of the model, for the schedule.

    Returns:
        A Keras optimizer.
    """
    rate = TransformerSchedule(
        d_model, options.warmup_steps, options.learning_rate_scale
    )
    optimizers = keras.optimizers
    makers = {
        "adam": (Adam, {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}),
        "sgd": (optimizers.SGD, {}),
        "momentum": (optimizers.SGD, {"momentum": 0.9}),
        "adagrad": (optimizers.Adagrad, {}),
        "rmsprop": (optimizers.RMSprop, {}),
    }
    make, constants = makers[options.optimizer]
    if options.ema_decay is not None:
        constants |= {"use_ema": True, "ema_momentum": options.ema_decay}
    return make(rate, **constants)
