"""Training without the logits is training with them, and used where it may be."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedAccuracy, MaskedCrossentropy, Perplexity
from keras_transformer import Transformer as PlainTransformer
from keras_transformer.exact_training.step import loss_and_scores
from keras_transformer.kernels.crossentropy import TokenScores
from tests.exact_training.test_exact_training import (
    CONFIG,
    assert_same,
    change_of,
    make_batches,
)


class WithLogits(PlainTransformer):
    """Makes its logits in a method of its own."""

    trains_without_logits = False

    def logits(self, states):
        return super().logits(states)


class AnyPadding(PlainTransformer):
    """Does not say which id pads its targets."""

    target_pad_id = None


class LowerCase(Perplexity):
    """Computes other values than its parent."""

    def values(self, y_true, y_pred):
        return super().values(y_true, y_pred) * 2


def make_model(kind=PlainTransformer, tied="three-way", loss=None, **options):
    keras.utils.set_random_seed(8)
    model = kind(CONFIG.replace(tied_embeddings=tied))
    options.setdefault("metrics", [MaskedAccuracy(), Perplexity()])
    loss = MaskedCrossentropy(0.1) if loss is None else loss
    model.compile(keras.optimizers.SGD(32.0), loss, jit_compile=False, **options)
    return model


def y_pred_of(model):
    inputs, targets, _ = make_batches()[0]
    inputs = [ops.convert_to_tensor(i) for i in inputs]
    return loss_and_scores(model, inputs, ops.convert_to_tensor(targets), None, False)[
        1
    ]


@pytest.mark.one_case
@pytest.mark.parametrize("tied", ["three-way", "none"])
def test_it_trains_and_evaluates_as_with_the_logits(tied, monkeypatch):
    monkeypatch.setattr("keras_transformer.kernels.crossentropy.CHUNK_TOKENS", 8)
    batches, changes, results = make_batches(), [], []
    for kind in (PlainTransformer, WithLogits):
        model = make_model(
            kind,
            tied,
            weighted_metrics=[Perplexity(name="weighted")],
            gradient_accumulation_steps=3,
        )
        inputs, targets, weights = batches[0]
        results.append(
            model.evaluate(inputs, targets, sample_weight=weights, verbose=0)
        )
        changes.append(change_of(model, batches, weighted=True))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
    assert_same(*changes)


def test_no_logits_where_the_loss_and_the_metrics_need_none():
    assert isinstance(y_pred_of(make_model()), TokenScores)
    assert isinstance(y_pred_of(make_model(metrics=None)), TokenScores)


@pytest.mark.parametrize(
    "options",
    [
        {"kind": WithLogits},
        {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        {"metrics": ["accuracy"]},
        {"kind": AnyPadding, "metrics": [MaskedAccuracy(pad_id=1)]},
        {"metrics": [LowerCase()]},
        {"weighted_metrics": [LowerCase()]},
    ],
)
def test_all_logits_where_something_asks_for_them(options):
    assert not isinstance(y_pred_of(make_model(**options)), TokenScores)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("weights", [10.0, [10.0], 0.0])
def test_a_weight_of_the_loss_counts_as_with_the_logits(weights, steps):
    batches, changes, losses = make_batches(), [], []
    for kind, given in (
        (PlainTransformer, weights), (WithLogits, weights), (PlainTransformer, None)
    ):  # fmt: skip
        model = make_model(
            kind,
            loss_weights=given,
            metrics=None,
            gradient_accumulation_steps=steps,
        )
        inputs, targets, _ = batches[0]
        losses.append(model.evaluate(inputs, targets, verbose=0))
        changes.append(change_of(model, batches[: 3 if steps > 1 else 1]))
    factor = keras.tree.flatten(weights)[0]
    np.testing.assert_allclose(losses[:2], np.full(2, factor * losses[2]), rtol=1e-5)
    for change, with_logits, one in zip(*changes, strict=True):
        largest = np.abs(factor * one).max()
        for expected in (with_logits, factor * one):
            np.testing.assert_allclose(change, expected, rtol=0, atol=1e-4 * largest)


def test_weights_that_are_not_one_are_refused_by_keras():
    inputs, targets, _ = make_batches()[0]
    model = make_model(loss_weights=[1.0, 2.0], metrics=None)
    with pytest.raises(ValueError, match="must match the number of losses"):
        model.fit(inputs, targets, verbose=0)


class WithPenalty(PlainTransformer):
    """Adds a loss of its own in each call."""

    def encode(self, source, training=None):
        self.add_loss(ops.convert_to_tensor(0.25))
        return super().encode(source, training)


def test_added_losses_count():
    inputs, targets, _ = make_batches()[0]
    losses = [
        make_model(kind, metrics=None).evaluate(inputs, targets, verbose=0)
        for kind in (WithPenalty, PlainTransformer)
    ]
    np.testing.assert_allclose(losses[0] - losses[1], 0.25, rtol=1e-5)


def test_added_losses_count_once_in_each_of_several_replicas(monkeypatch):
    """Keras divides its losses by the replicas; these it never sees."""
    inputs, targets, _ = make_batches()[0]
    inputs = [ops.convert_to_tensor(i) for i in inputs]
    batch = inputs, ops.convert_to_tensor(targets), None, False
    expected, y_pred = loss_and_scores(make_model(WithPenalty), *batch)
    assert isinstance(y_pred, TokenScores)
    for module in ("losses", "exact_training.step"):
        monkeypatch.setattr(f"keras_transformer.{module}.num_replicas", lambda: 3)
    loss, _ = loss_and_scores(make_model(WithPenalty), *batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
