"""Keras models on any backend: what ours and the Keras peers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

import keras
from keras import ops
from training_workload import LABEL_SMOOTHING, LEARNING_RATE, Setting, batches
from workload import PAD_ID, Size

ADAM = {"learning_rate": LEARNING_RATE, "beta_2": 0.98, "epsilon": 1e-9}


class KerasPeer(ABC):
    """One `model.fit` of an epoch is a turn; see `worker.Contender`.

    `variant` is "float32" or "bfloat16" (Keras' mixed precision), with "-xla" to
    compile the step, and "-fused" for a model that fused attention can train.
    """

    versions = {
        "keras": keras.__version__,
        keras.backend.backend(): __import__(keras.backend.backend()).__version__,
    }

    def __init__(self, size: Size, variant: str, threads: int, folder: str):
        self._size = size
        dtype, *ways = variant.split("-")
        self.jit_compile, self.is_fused = "xla" in ways, "fused" in ways
        keras.config.set_dtype_policy(
            "float32" if dtype == "float32" else f"mixed_{dtype}"
        )
        keras.utils.set_random_seed(3)
        self._model, self._data = None, None

    @abstractmethod
    def make_model(self, size: Size, longest: int) -> keras.Model:
        """Returns a model of source and target ids that gives logits [B, T, V]."""

    def make_optimizer(self) -> keras.optimizers.Optimizer:
        """Returns Adam with the paper's constants."""
        return keras.optimizers.Adam(**ADAM)

    def make_loss(self):
        """Returns the loss: the form that is faster for the way it is compiled."""
        return compiled_crossentropy if self.jit_compile else graph_crossentropy

    def prepare(self, setting: Setting):
        """Makes and compiles the model, and the batches, which stay in memory."""
        self._model = self.make_model(self._size, setting.longest_padded)
        self._model.compile(
            self.make_optimizer(), loss=self.make_loss(), jit_compile=self.jit_compile
        )
        make_data = _DATA.get(keras.backend.backend(), InMemory)
        self._data = make_data(batches(setting))

    def run(self):
        """Trains for an epoch: Keras' history."""
        return self._model.fit(self._data, shuffle=False, verbose=0)

    def result(self, output) -> dict[str, float]:
        """The mean loss of the epoch, in nats a token."""
        return {"loss": float(output.history["loss"][-1])}


class InMemory(keras.utils.PyDataset):
    """Batches for the backends that need no TensorFlow.

    Args:
        items: What `training_workload.batches` returned.
    """

    def __init__(self, items: list[tuple]):
        super().__init__()
        self._items = items

    def __len__(self):
        return len(self._items)

    def __getitem__(self, index):
        return self._items[index]


def tensorflow_data(items: list[tuple]):
    """The same as a `tf.data.Dataset` of unknown shapes: one graph for all of them.

    Args:
        items: What `training_workload.batches` returned.
    """
    import tensorflow as tf

    ids = tf.TensorSpec([None, None], tf.int32)
    data = tf.data.Dataset.from_generator(
        lambda: iter(items), output_signature=((ids, ids), ids)
    )
    # Without a known number Keras warns at the end of an epoch.
    number = tf.data.experimental.assert_cardinality(len(items))
    options = tf.data.Options()
    # The tuning thread sleeps 10 ms, 20 ms, 40 ms, ...; the end of an epoch stops it,
    # and sometimes waits until it wakes: as long again as the epoch took.
    options.autotune.enabled = False
    return data.apply(number).prefetch(2).with_options(options)


_DATA = {"tensorflow": tensorflow_data}


def graph_crossentropy(targets, logits):
    """Smoothed cross-entropy of the tokens that are not padding, nats a token.

    Keras' own loss, from one-hot targets: with TensorFlow's fused operation 1.4 times
    faster in a graph than `compiled_crossentropy`.

    Args:
        targets: Integer tensor [B, T].
        logits: Float tensor [B, T, V].
    """
    one_hot = ops.one_hot(targets, logits.shape[-1])
    losses = keras.losses.categorical_crossentropy(
        one_hot,
        ops.cast(logits, "float32"),
        from_logits=True,
        label_smoothing=LABEL_SMOOTHING,
    )
    return _mean_without_padding(losses, targets)


def compiled_crossentropy(targets, logits):
    """As `graph_crossentropy`, no one-hot: 1.4 times faster when XLA compiles."""
    logits = ops.cast(logits, "float32")
    indices = ops.cast(targets, "int32")[..., None]
    true_logits = ops.take_along_axis(logits, indices, axis=-1)[..., 0]
    mean_logits = ops.mean(logits, axis=-1)
    expected = (1 - LABEL_SMOOTHING) * true_logits + LABEL_SMOOTHING * mean_logits
    return _mean_without_padding(ops.logsumexp(logits, axis=-1) - expected, targets)


def _mean_without_padding(losses, targets):
    counted = ops.cast(ops.not_equal(targets, PAD_ID), losses.dtype)
    return ops.sum(losses * counted) / ops.sum(counted)
