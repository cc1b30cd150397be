"""The compiled model of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
from rich.console import Console

from keras_transformer.config import RunConfig, TrainingConfig, TransformerConfig
from keras_transformer.models.batch_step import (
    available_cores,
    split_batches_over_cores,
)
from keras_transformer.models.own_model import OwnModel
from keras_transformer.models.transformer import Seq2Seq, Transformer
from keras_transformer.nn.kernels.execution import has_gpu
from keras_transformer.nn.kernels.keras_private import build_for, layers_within
from keras_transformer.nn.losses import MaskedAccuracy, MaskedCrossentropy, Perplexity
from keras_transformer.nn.optimizers import Adam, TransformerSchedule, WarmupSchedule
from keras_transformer.terminal import say
from keras_transformer.text.corpus import BATCH_TOKENS, Corpus

# Two cores were measured; with many, the parts become small and the graph large.
_MOST_CORES = 4
# The paper's batches, in few shapes: with 6, padding is 1.4 % more of Multi30k's tokens
# than with one shape for each length bucket.
_GPU_BATCH_TOKENS = 25000
_COMPILED_SHAPES = 6
# Updates for each shape that repay XLA. With TensorFlow on one H200 it took up to a
# minute for a shape, and a compiled step was 3.3 to 5.2 times as fast. A plain step of
# `base` took about 0.1 s, so 1,000 updates save about a minute. They are of the plan,
# because a clock would decide otherwise in a resumed run.
_REPAYING_UPDATES = 1000
_PLAIN_UPDATES_A_MINUTE = 600
_THREADS = {"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"}


def compiled_model(
    config: RunConfig,
    optimizer: keras.optimizers.Optimizer | None = None,
    loss: Any = None,
    make_model: Callable[[TransformerConfig], keras.Model] | None = None,
) -> keras.Model:
    """Returns a new model, compiled with optimizer, loss and metrics of a run.

    The optional arguments replace the optimizer of the options, `MaskedCrossentropy`
    and `Transformer`; `make_model` is a function of `config.model`.

    Raises:
        ValueError: If the model of `make_model` has another float type, or `freeze`
            names no part.
    """
    options = with_device_defaults(config).training
    half = options.mixed_precision
    dtype = "float32" if half == "none" else f"mixed_{half}"
    if make_model is None:
        model = Transformer(config.model, dtype=dtype)
    else:
        model = make_model(config.model)
        if model.dtype_policy.name != dtype:
            raise ValueError(
                f"The model must have the dtype policy {dtype}, that of "
                f"`mixed_precision`. Received: {model.name!r} of "
                f"{model.dtype_policy.name}"
            )
        if not isinstance(model, Seq2Seq):
            model = OwnModel(model)
    freeze(model, options.freeze)
    pad_id = config.model.pad_id
    optimizer = optimizer or make_optimizer(options, config.model.d_model)
    if options.global_clipnorm is not None:
        optimizer.global_clipnorm = options.global_clipnorm
    model.compile(
        optimizer=optimizer,
        loss=loss or MaskedCrossentropy(options.label_smoothing, pad_id),
        metrics=[MaskedAccuracy(pad_id), Perplexity(pad_id)],
        jit_compile=options.jit_compile,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        nonfinite=options.nonfinite,
    )
    return model


def check_initial(model: keras.Model):
    """Raises `ValueError` unless a run can begin with the weights of a model."""
    if type(model) is not Transformer:
        raise ValueError(
            "The model of `init` must be a `Transformer`; train others with "
            f"`model.fit`. Received: a {type(model).__name__}"
        )
    if any(layer.quantization_mode for layer in layers_within(model)):
        raise ValueError(
            "The model of `init` must not be quantised: use the one from before "
            "`quantize`."
        )


def build_training_variables(model: keras.Model):
    """Makes the variables that Keras would make for the first batch."""
    # Any known sizes will do; JAX's attention in blocks needs known ones.
    ids = keras.KerasTensor((2, 3), "int32")
    build_for(model, ((ids, ids), ids))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def make_optimizer(options: TrainingConfig, d_model: int) -> keras.optimizers.Optimizer:
    """Returns a run's optimizer with its learning-rate schedule.

    "adam" has the constants of the paper's section 5.3 (beta_1 0.9, beta_2 0.98,
    epsilon 1e-9), "adamw" those of Keras. The paper's schedule depends on `d_model`.
    """
    constants = {}
    if options.weight_decay is not None:
        constants["weight_decay"] = options.weight_decay
    if options.ema_decay is not None:
        constants |= {"use_ema": True, "ema_momentum": options.ema_decay}
    rate = make_schedule(options, d_model)
    if options.optimizer == "adamw":
        return keras.optimizers.AdamW(rate, **constants)
    return Adam(rate, beta_1=0.9, beta_2=0.98, epsilon=1e-9, **constants)


def make_schedule(
    options: TrainingConfig, d_model: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Returns a run's learning-rate schedule."""
    peak = options.learning_rate
    warmup = options.warmup_steps
    if options.schedule == "paper":
        scale = 1.0 if peak is None else peak * (d_model * warmup) ** 0.5
        return TransformerSchedule(d_model, warmup, scale)
    later = None
    if options.schedule == "cosine":
        later = keras.optimizers.schedules.CosineDecay(peak, options.decay_steps)
    return WarmupSchedule(peak, warmup, later)


def with_device_defaults(config: RunConfig, corpus: Corpus | None = None) -> RunConfig:
    """Returns the options with defaults for the device in place of `None`.

    On a GPU `mixed_precision` is bfloat16 and `batch_tokens` the paper's (section 5.1).
    `jit_compile` is on with JAX, and with TensorFlow on one GPU if the updates planned
    for the corpus repay it. Where XLA may compile, `batch_shapes` limits how often.
    """
    on_gpu = has_gpu()
    options = config.training
    compiles = may_compile = options.jit_compile
    if compiles is None:
        backend = keras.backend.backend()
        compiles = may_compile = backend == "jax"
        if backend == "tensorflow" and on_gpu and options.distribute == "none":
            may_compile = True
            if corpus is not None:
                updates = options.planned_updates(corpus.num_batches)
                if options.max_minutes is not None:
                    most = _PLAIN_UPDATES_A_MINUTE * options.max_minutes
                    updates = min(updates, most)
                compiles = updates >= _REPAYING_UPDATES * len(corpus.shapes)
    chosen = {
        "mixed_precision": "bfloat16" if on_gpu else "none",
        "jit_compile": compiles,
        "batch_tokens": _GPU_BATCH_TOKENS if on_gpu else BATCH_TOKENS,
        "batch_shapes": _COMPILED_SHAPES if may_compile else None,
    }
    given = vars(options) | vars(config.data)
    return config.with_options(**{n: x for n, x in chosen.items() if given[n] is None})


def split_by_default(options: TrainingConfig, console: Console):
    """Splits batches over the processor cores where that is faster.

    It is with TensorFlow on 2 to 4 cores, without XLA and `tf.distribute`, unless the
    environment sets the number of threads. TensorFlow must have computed nothing yet.
    """
    if keras.backend.backend() != "tensorflow" or _THREADS & set(os.environ):
        return
    alone = options.distribute == "none" and not options.jit_compile
    if alone and 1 < available_cores() <= _MOST_CORES:
        try:
            split_batches_over_cores()
        except RuntimeError:
            say(
                console,
                "batches are not split over the cores, which is faster, because this "
                "program has computed before: call `split_batches_over_cores` first",
            )


def freeze(model: Seq2Seq, names: str | None):
    """Makes the weights of parts and layers untrainable; call it before `compile`.

    They keep their values to the bit. Dropout stays on. With `tied_embeddings`, shared
    matrices are frozen together.
    """
    if names is None:
        return
    tied = model.config.tied_embeddings
    embedding = model.target_embedding
    is_tied = tied != "none"
    parts = {
        "encoder": model.layers_of("encoder"),
        "decoder": model.layers_of("decoder"),
        "embeddings": [model.source_embedding, embedding],
        "output": [embedding.token_embedding if is_tied else model.output_dense],
    }
    for name in map(str.strip, names.split(",")):
        # A weight's path is MODEL/LAYER/.../LAYER/WEIGHT.
        found = [v for v in model.weights if f"/{name}/" in v.path]
        if name in parts:
            found = [v for layer in parts[name] for v in layer.weights]
        if name == "output" and model.output_bias is not None:
            found.append(model.output_bias)
        if not found:
            layers = [v.path.split("/")[1:-1] for v in model.weights]
            outer = dict.fromkeys(path[0] for path in layers if path)
            inner = dict.fromkeys(layer for path in layers for layer in path[1:])
            raise ValueError(
                f"`freeze` must name parts ({', '.join(parts)}) or layers: "
                f"{', '.join(outer)}; or layers in them: {', '.join(inner)}. Received: "
                f"{name!r}"
            )
        for variable in found:
            variable.trainable = False
    if not model.trainable_variables:
        matrix = f", whose output matrix is tied ({tied})" if is_tied else ""
        raise ValueError(
            f"`freeze` must leave weights to train. Received: freeze={names!r}, all "
            f"weights of the model{matrix}"
        )
