"""The training loss: hand-worked values, the NumPy reference, Keras as a witness."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer import MaskedCrossentropy
from keras_transformer.kernels.crossentropy import smoothed_crossentropy
from tests.reference import numpy_transformer as reference

VOCABULARY_SIZE = 7
TARGETS = np.array([[3, 6, 1, 2, 5], [4, 2, 0, 0, 0], [1, 1, 2, 0, 0]], "int32")
PADDING = TARGETS == 0
RATES = (0.0, 0.1, 0.3)


def random_logits(rng):
    return rng.normal(0.0, 2.0, (*TARGETS.shape, VOCABULARY_SIZE))


def value(loss):
    return float(ops.convert_to_numpy(loss))


def gradient_of(loss, targets, logits):
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        result = loss(targets, logits)
    return tape.gradient(result, logits).numpy()


# Of three words, the first has the probability 1/2, the others 1/4.
THREE_WORDS = np.log(np.array([[[4.0, 2.0, 2.0]]]))


def test_three_words_without_smoothing():
    loss = MaskedCrossentropy()
    assert value(loss(np.array([[1]]), THREE_WORDS)) == pytest.approx(np.log(4))
    loss = MaskedCrossentropy(pad_id=2)
    assert value(loss(np.array([[0]]), THREE_WORDS)) == pytest.approx(np.log(2))


def test_three_words_with_smoothing():
    """e 0.3 gives each word 0.1 and the true one 0.7 more.

    True word 1: 0.1 log 2 + 0.8 log 4 + 0.1 log 4 = 1.9 log 2.
    True word 0: 0.8 log 2 + 0.1 log 4 + 0.1 log 4 = 1.2 log 2.
    """
    loss = MaskedCrossentropy(label_smoothing=0.3, pad_id=2)
    of_word_1 = value(loss(np.array([[1]]), THREE_WORDS))
    of_word_0 = value(loss(np.array([[0]]), THREE_WORDS))
    assert of_word_1 == pytest.approx(1.9 * np.log(2), rel=1e-6)
    assert of_word_0 == pytest.approx(1.2 * np.log(2), rel=1e-6)


def test_equal_logits_cost_the_log_of_the_vocabulary_size():
    for label_smoothing in RATES:
        loss = MaskedCrossentropy(label_smoothing)
        result = value(loss(TARGETS, np.zeros((*TARGETS.shape, VOCABULARY_SIZE))))
        assert result == pytest.approx(np.log(VOCABULARY_SIZE), rel=1e-6)


@pytest.mark.parametrize("label_smoothing", RATES)
def test_loss_agrees_with_the_reference(rng, label_smoothing):
    logits = random_logits(rng)
    expected = reference.label_smoothed_cross_entropy(logits, TARGETS, label_smoothing)
    result = MaskedCrossentropy(label_smoothing)(TARGETS, logits)
    np.testing.assert_allclose(value(result), expected, rtol=1e-6)


@pytest.mark.parametrize("label_smoothing", RATES)
def test_loss_of_each_token_agrees_with_the_reference(rng, label_smoothing):
    logits = random_logits(rng)
    smoothed = reference.smoothed_targets(TARGETS, VOCABULARY_SIZE, label_smoothing)
    expected = -(smoothed * reference.log_softmax(logits)).sum(axis=-1)
    result = ops.convert_to_numpy(
        smoothed_crossentropy(TARGETS, logits, label_smoothing)
    )
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_other_padding_id_agrees_with_the_reference(rng):
    logits = random_logits(rng)
    expected = reference.label_smoothed_cross_entropy(logits, TARGETS, 0.1, pad_id=2)
    result = MaskedCrossentropy(0.1, pad_id=2)(TARGETS, logits)
    np.testing.assert_allclose(value(result), expected, rtol=1e-6)


@pytest.mark.parametrize("label_smoothing", RATES)
def test_gradient_agrees_with_the_closed_form(rng, label_smoothing):
    logits = random_logits(rng).astype("float32")
    expected = reference.label_smoothed_cross_entropy_gradient(
        logits, TARGETS, label_smoothing
    )
    gradient = gradient_of(MaskedCrossentropy(label_smoothing), TARGETS, logits)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)
    assert not gradient[PADDING].any()


@pytest.mark.parametrize("label_smoothing", RATES)
def test_keras_agrees_on_one_hot_targets(rng, label_smoothing):
    logits = random_logits(rng).astype("float32")
    witness = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=label_smoothing, reduction="sum"
    )
    one_hot = np.eye(VOCABULARY_SIZE, dtype="float32")[TARGETS]
    expected = value(witness(one_hot, logits, ~PADDING)) / (~PADDING).sum()
    result = value(MaskedCrossentropy(label_smoothing)(TARGETS, logits))
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_smoothing_over_the_other_classes_converts_as_documented(rng):
    """e over the V - 1 wrong classes equals e' = e V / (V - 1) over all V."""
    logits = random_logits(rng)
    others = 0.1 / (VOCABULARY_SIZE - 1)
    distribution = np.full((*TARGETS.shape, VOCABULARY_SIZE), others)
    np.put_along_axis(distribution, TARGETS[..., None], 0.9, axis=-1)
    expected = -(distribution * reference.log_softmax(logits)).sum(axis=-1)
    converted = 0.1 * VOCABULARY_SIZE / (VOCABULARY_SIZE - 1)
    result = smoothed_crossentropy(TARGETS, logits, converted)
    np.testing.assert_allclose(ops.convert_to_numpy(result), expected, rtol=1e-6)


@pytest.mark.parametrize("garbage", (1e30, np.inf, -np.inf, np.nan))
def test_logits_at_padding_change_nothing(rng, garbage):
    logits = random_logits(rng).astype("float32")
    loss = MaskedCrossentropy(label_smoothing=0.1)
    expected = value(loss(TARGETS, logits))
    logits[PADDING] = garbage
    assert value(loss(TARGETS, logits)) == expected


def test_more_padding_changes_nothing(rng):
    logits = random_logits(rng)
    longer = np.concatenate([logits, rng.normal(size=(3, 4, VOCABULARY_SIZE))], axis=1)
    padded = np.pad(TARGETS, ((0, 0), (0, 4)))
    loss = MaskedCrossentropy(label_smoothing=0.1)
    expected = value(loss(TARGETS, logits))
    np.testing.assert_allclose(value(loss(padded, longer)), expected, rtol=1e-6)


def test_batch_of_padding_costs_nothing(rng):
    logits = random_logits(rng).astype("float32")
    loss = MaskedCrossentropy(label_smoothing=0.1)
    assert value(loss(np.zeros_like(TARGETS), logits)) == 0.0
    assert not gradient_of(loss, np.zeros_like(TARGETS), logits).any()


def test_keras_mask_of_the_logits_plays_no_part():
    """Decoder inputs of 0 are masked, their targets are not padding: all count."""
    embedding = keras.layers.Embedding(
        VOCABULARY_SIZE,
        VOCABULARY_SIZE,
        mask_zero=True,
        embeddings_initializer="normal",
    )
    logits = embedding(TARGETS)
    carried = ops.convert_to_numpy(logits._keras_mask)
    np.testing.assert_array_equal(carried, ~PADDING)
    targets = np.where(PADDING, 3, TARGETS)
    expected = reference.label_smoothed_cross_entropy(
        ops.convert_to_numpy(logits), targets, 0.1
    )
    result = MaskedCrossentropy(label_smoothing=0.1)(targets, logits)
    np.testing.assert_allclose(value(result), expected, rtol=1e-6)


WEIGHTS = {
    "of rows": np.array([2.0, 0.0, 0.5]),
    "of rows, as a column": np.array([[2.0], [0.0], [0.5]]),
    "of tokens": np.array(
        [[1.0, 0.5, 0.0, 2.0, 1.0], [3.0, 1.0, 9.0, 9.0, 9.0], [0.0, 1, 1, 9, 9]]
    ),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_sample_weights_scale_tokens_and_not_the_divisor(rng, kind):
    logits = random_logits(rng)
    weights = WEIGHTS[kind]
    smoothed = reference.smoothed_targets(TARGETS, VOCABULARY_SIZE, 0.1)
    of_token = -(smoothed * reference.log_softmax(logits)).sum(axis=-1)
    of_token *= weights[:, None] if weights.ndim == 1 else weights
    expected = of_token[~PADDING].sum() / (~PADDING).sum()
    result = MaskedCrossentropy(0.1)(TARGETS, logits, sample_weight=weights)
    np.testing.assert_allclose(value(result), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype, large", (("bfloat16", 1e30), ("float16", 6e4)))
def test_large_logits_in_half_precision_do_not_overflow(dtype, large):
    """Word 0 has the logit `large`, z; the others, the targets among them, have 0.

    The cost of a token is z - 0.1 z / V; summed in 16 bits it would be infinite.
    """
    of_words = ops.cast(large * np.eye(VOCABULARY_SIZE)[0], dtype)
    logits = ops.broadcast_to(of_words, (*TARGETS.shape, VOCABULARY_SIZE))
    rounded = value(ops.cast(of_words[0], "float32"))
    result = value(MaskedCrossentropy(label_smoothing=0.1)(TARGETS, logits))
    expected = rounded * (1 - 0.1 / VOCABULARY_SIZE)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_half_precision_logits_give_a_float32_loss(rng, dtype):
    rounded = ops.cast(random_logits(rng), dtype)
    loss = MaskedCrossentropy(label_smoothing=0.1)
    result = loss(TARGETS, rounded)
    assert result.dtype == "float32"
    exact = ops.convert_to_numpy(ops.cast(rounded, "float32"))
    expected = reference.label_smoothed_cross_entropy(exact, TARGETS, 0.1)
    np.testing.assert_allclose(value(result), expected, rtol=1e-6)


def test_graph_holds_no_one_hot_tensor():
    """With its gradient; a [B, T, V] one-hot is the memory that the loss saves."""

    @tf.function
    def loss_and_gradient(targets, logits):
        loss = MaskedCrossentropy(label_smoothing=0.1)(targets, logits)
        return loss, tf.gradients(loss, logits)

    graph = loss_and_gradient.get_concrete_function(
        tf.TensorSpec((None, None), "int32"),
        tf.TensorSpec((None, None, VOCABULARY_SIZE), "float32"),
    ).graph.as_graph_def()
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    operations = {node.op for body in bodies for node in body}
    assert "Sum" in operations
    assert not {name for name in operations if "OneHot" in name}


def test_config_round_trip():
    loss = MaskedCrossentropy(label_smoothing=0.2, pad_id=4, name="named")
    again = MaskedCrossentropy.from_config(loss.get_config())
    assert again.get_config() == {
        "label_smoothing": 0.2,
        "pad_id": 4,
        "name": "named",
    }
    serialized = keras.saving.serialize_keras_object(loss)
    by_name = keras.saving.deserialize_keras_object(serialized)
    assert isinstance(by_name, MaskedCrossentropy)
    assert by_name.get_config() == loss.get_config()


def test_saved_model_keeps_its_loss(rng, tmp_path):
    inputs = keras.Input((5,), dtype="int32")
    model = keras.Model(
        inputs, keras.layers.Embedding(VOCABULARY_SIZE, VOCABULARY_SIZE)(inputs)
    )
    loss = MaskedCrossentropy(label_smoothing=0.2, pad_id=2)
    model.compile(optimizer="sgd", loss=loss)
    expected = model.evaluate(TARGETS, TARGETS, verbose=0)
    logits = model.predict(TARGETS, verbose=0)
    np.testing.assert_allclose(
        expected,
        reference.label_smoothed_cross_entropy(logits, TARGETS, 0.2, pad_id=2),
        rtol=1e-5,
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.loss, MaskedCrossentropy)
    assert loaded.loss.get_config() == loss.get_config()
    assert loaded.evaluate(TARGETS, TARGETS, verbose=0) == expected


@pytest.mark.parametrize("label_smoothing", (-0.1, 1.0, 2, float("nan")))
def test_label_smoothing_out_of_range_is_refused(label_smoothing):
    message = (
        r"`label_smoothing` must be in \[0, 1\). Received: "
        f"label_smoothing={label_smoothing!r}"
    )
    with pytest.raises(ValueError, match=message):
        MaskedCrossentropy(label_smoothing)
