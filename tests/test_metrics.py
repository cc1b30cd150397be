"""Accuracy and perplexity over batches of different sizes, against NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedAccuracy, MaskedCrossentropy, Perplexity
from tests.reference import numpy_transformer as reference
from tests.test_losses import MODES, in_mode, on_tensorflow

VOCABULARY_SIZE = 7
# 5, 1 and 3 tokens that count, so that a mean of means is another number.
BATCHES = (
    np.array([[3, 6, 1], [4, 2, 0]], "int32"),
    np.array([[5, 0, 0, 0, 0]], "int32"),
    np.array([[1, 2], [6, 0], [0, 0]], "int32"),
)
METRICS = {
    "accuracy": (MaskedAccuracy, reference.masked_accuracy),
    "perplexity": (Perplexity, reference.perplexity),
}


@pytest.fixture(params=METRICS)
def metric_and_reference(request):
    metric_class, function = METRICS[request.param]
    return metric_class(), function


@pytest.fixture
def logits(rng):
    """Logits of each batch; half of the tokens are predicted right."""
    batches = []
    for targets in BATCHES:
        batch = rng.normal(size=(*targets.shape, VOCABULARY_SIZE)).astype("float32")
        right = rng.random(targets.shape) < 0.5
        batch += 9.0 * right[..., None] * np.eye(VOCABULARY_SIZE)[targets]
        batches.append(batch.astype("float32"))
    return batches


def value(metric):
    return float(ops.convert_to_numpy(metric.result()))


def flat(arrays, width=()):
    """The tokens of all batches in one row."""
    return np.concatenate([a.reshape(-1, *width) for a in arrays])[None]


def of_all_tokens(function, logits, pad_id=0):
    return function(flat(logits, (VOCABULARY_SIZE,)), flat(BATCHES), pad_id=pad_id)


def updated(metric, logits):
    for targets, batch in zip(BATCHES, logits, strict=True):
        metric.update_state(targets, batch)
    return metric


def test_three_words_by_hand():
    """Probabilities 1/2, 1/4, 1/4; the targets are word 0, word 1 and padding (2)."""
    logits = np.log(np.array([[[4.0, 2.0, 2.0]] * 3]))
    targets = np.array([[0, 1, 2]])
    accuracy, perplexity = MaskedAccuracy(pad_id=2), Perplexity(pad_id=2)
    accuracy.update_state(targets, logits)
    perplexity.update_state(targets, logits)
    assert value(accuracy) == 0.5
    # exp((log 2 + log 4) / 2) = sqrt 8
    assert value(perplexity) == pytest.approx(np.sqrt(8), rel=1e-6)


@on_tensorflow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("pad_id", (0, 6))
def test_mean_over_the_tokens_of_all_batches(name, mode, pad_id, logits):
    metric_class, function = METRICS[name]
    metric, expected = metric_class(pad_id), of_all_tokens(function, logits, pad_id)
    update = in_mode(metric.update_state, mode)
    for _ in range(2):  # Once more after a reset, which forgets.
        metric.reset_state()
        for targets, batch in zip(BATCHES, logits, strict=True):
            update(ops.convert_to_tensor(targets), ops.convert_to_tensor(batch))
        np.testing.assert_allclose(value(metric), expected, rtol=1e-5)
    of_batches = [function(b, t, pad_id) for t, b in zip(BATCHES, logits, strict=True)]
    assert pad_id or abs(np.mean(of_batches) - expected) > 1e-2


@pytest.mark.parametrize("garbage", (1e30, np.inf, -np.inf, np.nan))
def test_logits_at_padding_change_nothing(metric_and_reference, logits, garbage):
    metric, _ = metric_and_reference
    expected = value(updated(metric, logits))
    metric.reset_state()
    for targets, batch in zip(BATCHES, logits, strict=True):
        batch[targets == 0] = garbage
    assert value(updated(metric, logits)) == expected


def test_nothing_counted_yet(logits):
    """No token: accuracy 0, perplexity exp(0), and no NaN."""
    accuracy, perplexity = MaskedAccuracy(), Perplexity()
    assert (value(accuracy), value(perplexity)) == (0.0, 1.0)
    for metric in (accuracy, perplexity):
        metric.update_state(np.zeros_like(BATCHES[0]), logits[0])
    assert (value(accuracy), value(perplexity)) == (0.0, 1.0)


WEIGHTS = {
    "of rows": np.array([2.0, 0.5]),
    "of rows, as a column": np.array([[2.0], [0.5]]),
    "of tokens": np.array([[1.0, 0.0, 3.0], [2.0, 0.5, 9.0]]),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_sample_weights_make_a_weighted_mean(rng, kind):
    targets, weights = BATCHES[0], WEIGHTS[kind]
    logits = rng.normal(size=(*targets.shape, VOCABULARY_SIZE))
    logits[1] += 9.0 * np.eye(VOCABULARY_SIZE)[targets[1]]
    of_token = weights[:, None] if weights.ndim == 1 else weights
    of_token = of_token * (targets != 0)
    log_p = reference.log_softmax(logits)
    log_p = np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    correct = logits.argmax(axis=-1) == targets
    expected = {
        MaskedAccuracy: (correct * of_token).sum() / of_token.sum(),
        Perplexity: np.exp(-(log_p * of_token).sum() / of_token.sum()),
    }
    for metric_class, mean in expected.items():
        metric = metric_class()
        metric.update_state(targets, logits, sample_weight=weights)
        np.testing.assert_allclose(value(metric), mean, rtol=1e-6)


def test_half_precision_logits_are_summed_in_float32(metric_and_reference, logits):
    metric, function = metric_and_reference
    rounded = [ops.cast(batch, "bfloat16") for batch in logits]
    exact = [ops.convert_to_numpy(ops.cast(batch, "float32")) for batch in rounded]
    expected = of_all_tokens(function, exact)
    result = updated(metric, rounded).result()
    assert keras.backend.standardize_dtype(result.dtype) == "float32"
    np.testing.assert_allclose(float(result), expected, rtol=1e-6)


@pytest.fixture
def compiled_model():
    inputs = keras.Input((None,), dtype="int32")
    outputs = keras.layers.Embedding(VOCABULARY_SIZE, VOCABULARY_SIZE, "normal")(inputs)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer="sgd",
        loss=MaskedCrossentropy(),
        metrics=[MaskedAccuracy(), Perplexity()],
    )
    return model


def test_evaluate_gives_the_mean_of_all_tokens(compiled_model):
    """Five rows with 9 tokens in batches of 2, the last one smaller."""
    targets = np.array([[3, 6, 1], [0, 0, 0], [5, 0, 0], [1, 2, 4], [6, 0, 0]])
    results = compiled_model.evaluate(
        targets, targets, batch_size=2, verbose=0, return_dict=True
    )
    logits = compiled_model.predict(targets, verbose=0)
    for name, (_, function) in METRICS.items():
        np.testing.assert_allclose(
            results[name], function(logits, targets), rtol=1e-5, err_msg=name
        )


def test_saved_model_keeps_its_metrics(compiled_model, tmp_path):
    targets = BATCHES[0]
    expected = compiled_model.evaluate(targets, targets, verbose=0, return_dict=True)
    compiled_model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    results = loaded.evaluate(targets, targets, verbose=0, return_dict=True)
    assert results == expected
    assert set(results) == {"loss", "accuracy", "perplexity"}
    for metric in (MaskedAccuracy(pad_id=6), Perplexity(pad_id=6)):
        assert type(metric).from_config(metric.get_config()).pad_id == 6
