"""Options of training."""

from __future__ import annotations

import dataclasses

from keras_transformer.config.options import (
    RATE,
    Config,
    check_number,
    documented,
    option,
)


@documented
@dataclasses.dataclass(frozen=True)
class TrainingConfig(Config):
    """How a model is trained; the defaults are the paper's (section 5)."""

    epochs: int = option(20, "passes over the corpus", minimum=1)
    max_updates: int | None = option(None, "stop after this many updates", minimum=1)
    max_minutes: float | None = option(
        None,
        "stop at the first update after this time (minutes); the schedule then fits "
        "what can be done in it",
        above=0.0,
    )
    optimizer: str = option("adam", "Keras optimizer", choices=("adam", "adamw"))
    weight_decay: float | None = option(
        None, "decay of the weights; default 0.004 with adamw, else none", minimum=0.0
    )
    schedule: str = option(
        "paper",
        "learning rate after the warm-up; the paper's decays with the inverse square "
        "root of the update",
        choices=("paper", "constant", "cosine"),
    )
    learning_rate: float | None = option(
        None,
        "peak of the learning rate; default with the paper's schedule (d_model * "
        "warmup_steps)^-0.5",
        above=0.0,
    )
    decay_steps: int | None = option(
        None, "length of the cosine (updates); default to the end of the run", minimum=1
    )
    warmup_steps: int = option(
        4000, "linear warm-up (updates), at most a fifth of the run", minimum=1
    )
    label_smoothing: float = option(0.1, "probability spread over all classes", **RATE)
    robust: bool = option(
        True,
        "show a share of the training pairs as people write: in capitals, in title "
        "case, without the final mark, with a typo, with names and numbers to carry",
    )
    global_clipnorm: float | None = option(
        None, "largest norm of the gradient of all weights together", above=0.0
    )
    gradient_accumulation_steps: int = option(1, "batches per weight update", minimum=1)
    freeze: str | None = option(
        None,
        "parts not to train, separated by commas: encoder, decoder, embeddings, output "
        "or layers such as decoder_layer_1/self_attention",
    )
    nonfinite: str = option(
        "stop",
        "action on a loss or gradient that is not finite: stop, or skip the batch",
        choices=("stop", "skip"),
    )
    save_every: int | None = option(
        None,
        "interval between validations and saved states (batches); default an epoch, at "
        "most 1000",
        minimum=1,
    )
    average_checkpoints: int = option(
        5,
        "last checkpoints, one per interval, averaged for the final model; with "
        "validation other numbers and the best one are tried too",
        minimum=1,
    )
    monitor: str = option(
        "loss",
        "validation score that is best in the final weights",
        choices=("loss", "bleu", "chrf"),
    )
    patience: int | None = option(
        None, "stop after this many intervals without a better `monitor`", minimum=1
    )
    bleu_sentences: int = option(
        200, "validation pairs used for BLEU and chrF", minimum=1
    )
    hold_out: int | None = option(
        None,
        "pairs to take out of the training pairs for validation; default, without "
        "validation pairs, a hundredth, from 50 to 2000; a tenth of fewer than 500, "
        "and none of fewer than 100",
        minimum=0,
    )
    test_size: int = option(
        0,
        "pairs to hold out as a test set, test.tsv in the run, scored at the end",
        minimum=0,
    )
    ema_decay: float | None = option(
        None,
        "decay of a moving average of the weights, which is validated and saved",
        above=0.0,
        below=1.0,
    )
    mixed_precision: str | None = option(
        None,
        "compute in half precision with float32 weights; float16 scales the loss, for "
        "GPUs without bfloat16; default bfloat16 on a GPU, else none",
        choices=("none", "bfloat16", "float16"),
    )
    jit_compile: bool | None = option(
        None,
        "compile the training step with XLA; default with JAX, and with TensorFlow on "
        "one GPU if 1000 updates are planned for each shape of batches",
    )
    distribute: str = option(
        "none",
        "devices to train on: one, all of this host (mirrored) or of several hosts; on "
        "JAX all of this host (data_parallel)",
        choices=("none", "mirrored", "multi_worker", "data_parallel"),
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
                "`decay_steps` needs schedule='cosine'. Received: "
                f"schedule={self.schedule!r}, decay_steps={self.decay_steps}"
            )
        if self.jit_compile and self.distribute in ("mirrored", "multi_worker"):
            raise ValueError(
                "`jit_compile` must not be True with several replicas, whose step XLA "
                "cannot compile. Received: jit_compile=True, "
                f"distribute={self.distribute!r}"
            )

    def planned_updates(self, num_batches: int) -> int:
        """Returns the number of weight updates, from the batches per epoch."""
        check_number("num_batches", num_batches, int, minimum=0)
        updates = self.epochs * num_batches // self.gradient_accumulation_steps
        return max(1, min(updates, self.max_updates or updates))
