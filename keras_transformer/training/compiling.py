"""The compiled model of a run, made from its options."""

from __future__ import annotations

import os
from typing import Any

import keras

from keras_transformer.config import RunConfig, TrainingConfig
from keras_transformer.exact_training.cores import (
    available_cores,
    split_batches_over_cores,
)
from keras_transformer.kernels.execution import has_gpu
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models.transformer import Transformer
from keras_transformer.optimizers import Adam
from keras_transformer.schedules import TransformerSchedule, WarmupSchedule
from keras_transformer.text.corpus import BATCH_TOKENS
from keras_transformer.text.tokenizer_pair import TokenizerPair
from keras_transformer.training.freezing import freeze

# Two were measured; with many, the parts become small and the graph large.
_MOST_CORES = 4
# The paper's batches, and as few shapes as cost little padding: with 6, 1.4 % more of
# Multi30k's tokens are padding than with one for each length bucket.
_GPU_BATCH_TOKENS, _COMPILED_SHAPES = 25000, 6
_THREADS = {"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"}


def compiled_model(
    config: RunConfig,
    optimizer: keras.optimizers.Optimizer | None = None,
    loss: Any = None,
) -> Transformer:
    """Returns a new model, compiled with the run's optimizer, loss and metrics.

    Args:
        config: All options.
        optimizer: A Keras optimizer in place of the options' one.
        loss: A Keras loss in place of `MaskedCrossentropy`.
    """
    options = with_device_defaults(config.training)
    half = {True: "bfloat16"}.get(options.mixed_precision, options.mixed_precision)
    model = Transformer(config.model, dtype=f"mixed_{half}" if half else "float32")
    freeze(model, options.freeze)
    pad_id = config.model.pad_id
    model.compile(
        optimizer=optimizer or make_optimizer(options, config.model.d_model),
        loss=loss or MaskedCrossentropy(options.label_smoothing, pad_id),
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
    on_gpu = has_gpu()
    compiles = on_gpu and options.distribute == "none"
    chosen = {
        "mixed_precision": on_gpu,
        "jit_compile": {"tensorflow": compiles, "jax": True, "torch": False}[backend],
    }
    return options.replace(
        **{name: on for name, on in chosen.items() if getattr(options, name) is None}
    )


def with_data_defaults(config: RunConfig) -> RunConfig:
    """Returns the options of a new run with those of its batches chosen.

    Unless given, `batch_tokens` is the paper's on a GPU (section 5.1), and if XLA
    compiles the training step, `batch_shapes` bounds how often.
    """
    data, compiled = config.data, with_device_defaults(config.training).jit_compile
    chosen = {
        "batch_tokens": _GPU_BATCH_TOKENS if has_gpu() else BATCH_TOKENS,
        "batch_shapes": _COMPILED_SHAPES if compiled else None,
    }
    new = {name: n for name, n in chosen.items() if getattr(data, name) is None}
    return config.replace(data=data.replace(**new))


def given_options(
    config: RunConfig, tokenizers: Any, init: Any = None
) -> tuple[RunConfig, TokenizerPair | None]:
    """Returns the options and tokenizers for what `train` was given as such.

    Call it in `distribution_scope`: reading a tokenizer may start TensorFlow.

    Raises:
        ValueError: If the options need tokenizers of another kind.
    """
    if tokenizers is None:
        return config, None
    if not isinstance(tokenizers, TokenizerPair):
        sides = tokenizers if isinstance(tokenizers, tuple | list) else (tokenizers,)
        tokenizers = TokenizerPair.of(*sides)
    if config.training.export_best:
        tokenizers.check_in_graph()
    if rate := config.data.subword_sampling:
        for side in (tokenizers.source, tokenizers.target):
            side.sample([], rate, seed=0)  # Raises unless it can.
    if init is not None:
        return config, tokenizers  # They must be those of `init`, which has options.
    return config.replace(tokenizer=tokenizers.config), tokenizers


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
    """Returns the run's optimizer with its learning rate.

    "adam" has the paper's beta_1 0.9, beta_2 0.98 and epsilon 1e-9 (section 5.3),
    "momentum" is stochastic gradient descent with momentum 0.9; the others have the
    constants that Keras gives them.

    Args:
        options: Optimizer, learning rate and factor of the weights' moving average.
        d_model: Width of the model, for the paper's schedule.

    Returns:
        A Keras optimizer.
    """
    optimizers = keras.optimizers
    makers = {
        "adam": (Adam, {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}),
        "adamw": (optimizers.AdamW, {}),
        "lion": (optimizers.Lion, {}),
        "nadam": (optimizers.Nadam, {}),
        "adamax": (optimizers.Adamax, {}),
        "adafactor": (optimizers.Adafactor, {}),
        "lamb": (optimizers.Lamb, {}),
        "sgd": (optimizers.SGD, {}),
        "momentum": (optimizers.SGD, {"momentum": 0.9}),
        "adagrad": (optimizers.Adagrad, {}),
        "rmsprop": (optimizers.RMSprop, {}),
    }
    make, constants = makers[options.optimizer]
    if options.weight_decay is not None:
        constants |= {"weight_decay": options.weight_decay}
    if options.ema_decay is not None:
        constants |= {"use_ema": True, "ema_momentum": options.ema_decay}
    return make(make_schedule(options, d_model), **constants)


def make_schedule(
    options: TrainingConfig, d_model: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Returns the learning rate of each update.

    Args:
        options: Kind, peak and lengths.
        d_model: Width of the model, for the paper's schedule.
    """
    peak, warmup = options.learning_rate, options.warmup_steps
    if options.schedule == "paper":
        scale = options.learning_rate_scale
        if peak is not None:
            scale = peak * (d_model * warmup) ** 0.5
        return TransformerSchedule(d_model, warmup, scale)
    schedules, later = keras.optimizers.schedules, None
    if options.schedule == "cosine":
        later = schedules.CosineDecay(peak, options.decay_steps)
    elif options.schedule == "cosine_restarts":
        later = schedules.CosineDecayRestarts(peak, options.decay_steps)
    return WarmupSchedule(peak, warmup, later)
