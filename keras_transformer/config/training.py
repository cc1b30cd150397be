"""The options of training."""

from __future__ import annotations

import dataclasses

from keras_transformer.config.options import Config, documented, option


@documented
@dataclasses.dataclass(frozen=True)
class TrainingConfig(Config):
    """How a model is trained; the defaults are the paper's (section 5)."""

    epochs: int = option(20, "passes over the corpus", minimum=1)
    max_updates: int | None = option(
        None, "stop after this many weight updates", minimum=1
    )
    max_minutes: float | None = option(
        None, "stop at the first update after this time (minutes)", above=0.0
    )
    optimizer: str = option("adam", "Keras optimizer", choices=("adam", "adamw"))
    weight_decay: float | None = option(
        None, "decay of the weights; default 0.004 with adamw, else none", minimum=0.0
    )
    schedule: str = option(
        "paper",
        "learning rate after the warm-up; the paper's falls with the inverse square "
        "root",
        choices=("paper", "constant", "cosine"),
    )
    learning_rate: float | None = option(
        None,
        "peak of the learning rate; default of the paper's schedule (d_model * "
        "warmup_steps)^-0.5",
        above=0.0,
    )
    decay_steps: int | None = option(
        None, "length of the cosine (updates); default the rest of the run", minimum=1
    )
    warmup_steps: int = option(
        4000, "linear warm-up (updates), at most a fifth of the run", minimum=1
    )
    label_smoothing: float = option(
        0.1, "probability mass spread over the vocabulary", minimum=0.0, below=1.0
    )
    global_clipnorm: float | None = option(
        None, "scale gradients down to this norm, all weights together", above=0.0
    )
    gradient_accumulation_steps: int = option(
        1, "batches whose gradients make one weight update", minimum=1
    )
    freeze: str | None = option(
        None,
        "parts whose weights stay as they are, with commas between: encoder, decoder, "
        "embeddings, output, or layers such as decoder_layer_1/self_attention",
    )
    nonfinite: str = option(
        "stop",
        "what to do where a loss or gradient is not finite: stop, or skip the batch",
        choices=("stop", "skip"),
    )
    save_every: int | None = option(
        None,
        "batches from one validation and saved state to the next, an interval; default "
        "an epoch, at most 1000",
        minimum=1,
    )
    average_checkpoints: int = option(
        5, "checkpoints, one an interval, that become the final model", minimum=1
    )
    average: str = option(
        "last", "checkpoints to average: last or best ones", choices=("last", "best")
    )
    monitor: str = option(
        "loss", "validation score that decides what is best", choices=("loss", "bleu")
    )
    patience: int | None = option(
        None, "stop after so many intervals without a better `monitor`", minimum=1
    )
    bleu_sentences: int = option(
        200, "validation pairs to translate for BLEU", minimum=1
    )
    ema_decay: float | None = option(
        None,
        "decay of a moving average of the weights, which is validated and saved",
        above=0.0,
        below=1.0,
    )
    mixed_precision: str | None = option(
        None,
        "compute in half precision, keep float32 weights; float16, with a scaled loss, "
        "is for GPUs without bfloat16; default bfloat16 on a GPU, else none",
        choices=("none", "bfloat16", "float16"),
    )
    jit_compile: bool | None = option(
        None, "compile the training step with XLA; default where it is faster"
    )
    distribute: str = option(
        "none",
        "devices to train on: one, all of this host (mirrored) or of many; with JAX, "
        "all with a copy of the model each, or with its matrices split among them",
        choices=("none", "mirrored", "multi_worker", "data_parallel", "model_parallel"),
    )
    seed: int = option(
        1, "seed of weights, dropout and shuffling", minimum=0, maximum=2**32 - 1
    )

    def __post_init__(self):
        super().__post_init__()
        if self.schedule != "paper" and self.learning_rate is None:
            raise ValueError(
                "`learning_rate` must be given unless `schedule` is 'paper'. Received: "
                f"schedule={self.schedule!r}, learning_rate=None"
            )
        if self.decay_steps is not None and self.schedule != "cosine":
            raise ValueError(
                "`decay_steps` goes with `schedule` 'cosine'. Received: "
                f"schedule={self.schedule!r}, decay_steps={self.decay_steps}"
            )
        if self.jit_compile and self.distribute in ("mirrored", "multi_worker"):
            raise ValueError(
                "XLA cannot compile a step of several replicas: leave `jit_compile` "
                "out, or `distribute`. Received: jit_compile=True, "
                f"distribute={self.distribute!r}"
            )

    def planned_updates(self, num_batches: int) -> int:
        """Returns how many weight updates a run of so many batches an epoch makes."""
        updates = self.epochs * num_batches // self.gradient_accumulation_steps
        return max(1, min(updates, self.max_updates or updates))
