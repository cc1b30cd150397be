"""BLEU of decoded validation sentences while a model is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
from rich.console import Console

from keras_transformer.evaluation import evaluate
from keras_transformer.terminal import say
from keras_transformer.training.ema import averaged_weights
from keras_transformer.training.run_callback import RunCallback
from keras_transformer.training.update_count import UpdateCount, next_multiple
from keras_transformer.translator import Translator


class ValidationBleu(RunCallback):
    """Translates validation sentences greedily and adds their BLEU to the logs.

    `val_bleu` is sacreBLEU's of detokenised, cased text, as `evaluate` computes it, and
    `val_bleu_lowercase` that of its tokens in lower case, as some papers report it.
    Both come after every epoch and every `updates` weight updates; beside the first a
    line says what was scored, with which search and by sacreBLEU's signatures. Greedy
    search ranks the states of a model much like a beam and takes a fraction of its
    time. One graph, traced for the first score, serves the whole run. No random numbers
    are drawn, so scoring does not change the training.

    Args:
        translator: A `Translator` of the model in training.
        pairs: Source and reference texts.
        updates: Weight updates between two scores, or `None` for the epochs' ends only.
        directory: TensorBoard directory for the scores between the epochs' ends, or
            `None`.
        console: Where those scores are printed.
    """

    wants_every_batch = False

    def __init__(
        self,
        translator: Translator,
        pairs: Sequence[tuple[str, str]],
        updates: int | None,
        directory: str | Path | None,
        console: Console,
    ):
        super().__init__()
        greedy = translator.config.replace(beam_size=1, n_best=None)
        self.translator = Translator(translator.model, translator.tokenizers, greedy)
        self.pairs = list(pairs)
        self.updates = updates
        self.console = console
        self._scored_at, self._bleu, self._lowercase_bleu = 0, None, None
        self._is_described = False
        self._directory, self._writer = directory, None

    def on_train_begin(self, logs=None):
        self._count = UpdateCount(self.model)

    def on_train_batch_end(self, batch, logs=None):
        if self.updates is None:
            return
        # A call of the training step may make several updates, or none: see
        # `steps_per_execution` and `gradient_accumulation_steps`.
        if self._count.has_reached(next_multiple(self._scored_at, self.updates), batch):
            updates = self.model.updates
            self._score(updates)
            self._write(updates)

    def on_epoch_end(self, epoch, logs=None):
        updates = self.model.updates
        if self._bleu is None or updates != self._scored_at:
            self._score(updates)
        logs["val_bleu"] = self._bleu
        logs["val_bleu_lowercase"] = self._lowercase_bleu

    def on_train_end(self, logs=None):
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _score(self, updates):
        self.model.sync_variables()
        with averaged_weights(self.model):
            scores = evaluate(self.translator, self.pairs)
        self._bleu, self._lowercase_bleu = scores.bleu, scores.lowercase_bleu
        self._scored_at = updates
        if not self._is_described:
            self._describe(scores)

    def _describe(self, scores):
        """Prints what the figures are, once in a training."""
        self._is_described = True
        say(
            self.console,
            f"val_bleu of {scores.sentences:,} sentences, greedy search: "
            f"{scores.bleu_signature}; val_bleu_lowercase: "
            f"{scores.lowercase_bleu_signature}",
        )

    def _write(self, updates):
        """Prints and logs a score within an epoch, for which Keras has no logs."""
        say(self.console, f"updates {updates}  val_bleu {self._bleu:.2f}")
        if self._directory is None:
            return
        if self._writer is None:
            path = Path(self._directory) / "validation"
            self._writer = tf.summary.create_file_writer(str(path))
        # Named like Keras' own figures of validations by update.
        with self._writer.as_default():
            tf.summary.scalar("evaluation_bleu_vs_iterations", self._bleu, step=updates)
        self._writer.flush()

    def state(self):
        return {
            "scored_at": self._scored_at,
            "bleu": self._bleu,
            "lowercase_bleu": self._lowercase_bleu,
        }

    def restore(self, state):
        self._scored_at, self._bleu = state["scored_at"], state["bleu"]
        self._lowercase_bleu = state.get("lowercase_bleu")
        if self._lowercase_bleu is None:
            self._bleu = None  # A state of an earlier version: both are scored again.
