"""The options of training."""

from __future__ import annotations

import dataclasses

from keras_transformer.config.options import Config, option


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Config):
    """How a model is trained; the defaults are the paper's (section 5)."""

    epochs: int = option(20, "passes over the corpus", minimum=1)
    max_updates: int | None = option(
        None,
        "stop after this many weight updates; with `steps_per_execution` above 1 the "
        "last call may make a few more",
        minimum=1,
    )
    max_minutes: float | None = option(
        None, "stop at the first update after this time (minutes)", above=0.0
    )
    optimizer: str = option(
        "adam",
        "Keras optimizer",
        choices=("adam", "sgd", "momentum", "adagrad", "rmsprop"),
    )
    learning_rate_scale: float = option(
        1.0, "factor on the paper's schedule", above=0.0
    )
    warmup_steps: int = option(4000, "linear warm-up (updates)", minimum=1)
    label_smoothing: float = option(
        0.1, "probability mass spread over the vocabulary", minimum=0.0, below=1.0
    )
    global_clipnorm: float | None = option(
        None, "scale gradients down to this norm, all weights together", above=0.0
    )
    gradient_accumulation_steps: int = option(
        1, "batches whose gradients make one weight update", minimum=1
    )
    nonfinite: str = option(
        "stop",
        "on a loss or gradient that is not finite: stop the run, or skip the batch; "
        "its update is never made",
        choices=("stop", "skip"),
        formerly="nonfinite_batches",
    )
    steps_per_execution: int = option(
        1, "batches per call of the compiled step", minimum=1
    )
    checkpoint_updates: int | None = option(
        None, "save a state to resume from every so many updates", minimum=1
    )
    checkpoint_minutes: float | None = option(
        10.0, "save a state to resume from at this interval (minutes)", above=0.0
    )
    keep_states: int = option(2, "how many states to resume from are kept", minimum=1)
    average_checkpoints: int = option(
        5, "checkpoints averaged into the final model; 1 averages none", minimum=1
    )
    average: str = option(
        "last",
        "which checkpoints are averaged: the last, or the best by `monitor`",
        choices=("last", "best"),
    )
    monitor: str = option(
        "loss",
        "what makes a checkpoint best on validation pairs: loss or BLEU",
        choices=("loss", "bleu"),
    )
    patience: int | None = option(
        None, "stop after so many epochs in a row without a better `monitor`", minimum=1
    )
    bleu_updates: int | None = option(
        None, "translate validation pairs for BLEU every so many updates", minimum=1
    )
    bleu_sentences: int = option(
        200, "validation pairs to translate for BLEU", minimum=1
    )
    ema_decay: float | None = option(
        None,
        "decay of an exponential moving average of the weights, which is then what is "
        "validated and saved",
        above=0.0,
        below=1.0,
    )
    export_best: bool = option(
        False, "export a SavedModel each time `monitor` reaches a new best"
    )
    mixed_precision: bool | None = option(
        None, "compute in bfloat16, keep float32 weights; default where it is faster"
    )
    jit_compile: bool | None = option(
        None, "compile the training step with XLA; default where it is faster"
    )
    distribute: str = option(
        "none",
        "devices to train on: one (none); all of this host (mirrored); all of several "
        "hosts (multi_worker); with JAX, all with a copy of the model each "
        "(data_parallel) or with its matrices split among them (model_parallel)",
        choices=("none", "mirrored", "multi_worker", "data_parallel", "model_parallel"),
    )
    seed: int = option(1, "seed of weights, dropout and shuffling", minimum=0)

    def __post_init__(self):
        super().__post_init__()
        if self.jit_compile and self.distribute in ("mirrored", "multi_worker"):
            raise ValueError(
                "XLA cannot compile a step of several replicas: leave `jit_compile` "
                "out, or `distribute`. Received: jit_compile=True, "
                f"distribute={self.distribute!r}"
            )
