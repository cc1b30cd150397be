"""`compile` and `fit` for every optimizer, kind of data and precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import RunConfig, TrainingConfig, TransformerConfig
from keras_transformer.training import compiled_model
from tests.reference import numpy_transformer as reference

MODEL = TransformerConfig(
    source_vocabulary_size=11, target_vocabulary_size=11, num_encoder_layers=1,
    num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2, dropout_rate=0.0,
    attention_dropout_rate=0.0, activation_dropout_rate=0.0,
)  # fmt: skip
START, END = MODEL.start_id, MODEL.end_id


def copy_task(rows=12, length=5):
    """Sentences of 2 to `length` words from 4 to 10, to be copied."""
    rng = np.random.default_rng(7)
    source = np.zeros((rows, length + 1), "int32")
    target_in, target_out = np.zeros_like(source), np.zeros_like(source)
    for row in range(rows):
        words = rng.integers(4, 11, size=rng.integers(2, length + 1))
        source[row, : len(words) + 1] = [*words, END]
        target_in[row, : len(words) + 1] = [START, *words]
        target_out[row, : len(words) + 1] = [*words, END]
    return (source, target_in), target_out


INPUTS, TARGETS = copy_task()


def model_for(model=MODEL, **training):
    """A compiled model; the same options give the same weights."""
    keras.utils.set_random_seed(11)
    options = {"warmup_steps": 10} | training
    return compiled_model(RunConfig(model=model, training=TrainingConfig(**options)))


def losses_of(model, data=None, epochs=1, **options):
    """The loss of each epoch; by default the whole copy task is one batch."""
    if data is None:
        options = {"batch_size": len(TARGETS), **options}
        data = (INPUTS, TARGETS)
    arguments = data if isinstance(data, tuple) else (data,)
    history = model.fit(*arguments, epochs=epochs, shuffle=False, verbose=0, **options)
    return history.history["loss"]


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_every_optimizer_lowers_the_loss_by_the_schedule(optimizer):
    model = model_for(optimizer=optimizer)
    losses = losses_of(model, epochs=12)
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.95 * losses[0]
    expected = reference.learning_rate(13, MODEL.d_model, 10)
    rate = float(model.optimizer.learning_rate)
    np.testing.assert_allclose(rate, expected, rtol=1e-6)


class Batches(keras.utils.PyDataset):
    """The copy task in batches of `size`."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def __len__(self):
        return len(TARGETS) // self.size

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return tuple(x[rows] for x in INPUTS), TARGETS[rows]


def test_arrays_datasets_and_py_datasets_give_equal_losses():
    """Three batches an epoch, in the same order."""
    dataset = tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS)).batch(4)
    of_arrays = losses_of(model_for(), (INPUTS, TARGETS), 2, batch_size=4)
    of_dataset = losses_of(model_for(), dataset, 2)
    of_py_dataset = losses_of(model_for(), Batches(4), 2)
    np.testing.assert_allclose(of_dataset, of_arrays, rtol=1e-6)
    np.testing.assert_allclose(of_py_dataset, of_arrays, rtol=1e-6)
    assert of_arrays[1] < of_arrays[0]


def test_batches_of_different_lengths_train_one_model():
    def batches():
        for length in (3, 6, 4):
            yield tuple(x[:, :length] for x in INPUTS), TARGETS[:, :length]

    ids = tf.TensorSpec((None, None), "int32")
    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=((ids, ids), ids)
    )
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(3))
    model = model_for()
    losses = losses_of(model, dataset, 2)
    assert losses[1] < losses[0]
    assert int(model.optimizer.iterations.numpy()) == 6


def test_mixed_precision_trains_with_float32_weights_and_loss():
    model = model_for(mixed_precision="bfloat16")
    logits = model(INPUTS)
    assert logits.dtype == "bfloat16"
    assert model.compute_loss(y=TARGETS, y_pred=logits).dtype == "float32"
    losses = losses_of(model, epochs=12)
    assert losses[-1] < 0.9 * losses[0]
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert keras.config.dtype_policy().name == "float32"
