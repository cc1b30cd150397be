"""The loss of a batch, without the logits where nothing needs them."""

from __future__ import annotations

import itertools

import keras
from keras import ops

from keras_transformer.exact_training import cores
from keras_transformer.kernels.crossentropy import TokenScores
from keras_transformer.kernels.execution import num_replicas
from keras_transformer.kernels.keras_private import (
    compiled_metrics,
    loss_tracker,
    loss_weights,
)
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity


def evaluate(model, data, training):
    """Returns the mean loss of this replica's targets, their number, and a function."""
    # That one updates the metrics by them and returns the logs.
    x, y, sample_weight = data = keras.utils.unpack_x_y_sample_weight(data)
    loss, y_pred = loss_and_scores(model, *data, training)
    targets = model.loss_divisor(y)

    def update_metrics():
        loss_tracker(model).update_state(loss, sample_weight=targets)
        return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    return loss, targets, update_metrics


def loss_and_scores(model, x, y, sample_weight, training):
    """Returns the mean loss of this replica's targets, and what the metrics take."""
    # That is the model's output or, where it trains without logits, `TokenScores`.
    if _needs_logits(model):
        y_pred = model(x, training=training)
        loss = model.compute_loss(x, y, y_pred, sample_weight, training=training)
        # Keras divides by the number of replicas, to add up their gradients. Here each
        # replica is weighted by its number of targets instead.
        return loss * num_replicas(), y_pred
    data, parts = (x, y, sample_weight), cores._num_parts
    if parts == 1 or model.jit_compile or num_replicas() > 1:
        return _without_logits(model, *data, training)
    cuts = [ops.shape(y)[0] * part // parts for part in range(parts + 1)]
    total, count, scores = 0.0, 0.0, []
    for first, end in itertools.pairwise(cuts):
        part = keras.tree.map_structure(
            lambda t, i=first, j=end: None if t is None else t[i:j], data
        )
        loss, found = _without_logits(model, *part, training)
        targets = model.loss_divisor(part[1])
        total, count = total + loss * targets, count + targets
        scores.append((found.crossentropy, found.correct))
    scores = map(ops.concatenate, zip(*scores, strict=True))
    return total / ops.maximum(count, 1.0), TokenScores(*scores)


def _without_logits(model, x, y, sample_weight, training):
    states = model(x, training=training, return_states=True)
    rows, bias = model.output_rows(), model.output_bias
    bias = None if bias is None else ops.convert_to_tensor(bias)
    options = sample_weight, training, bias
    loss, scores = model.loss.from_states(y, states, rows, *options)
    return sum(model.losses, loss), scores


def _needs_logits(model):
    """Whether the model, its loss or a metric needs the logits; a subclass may."""
    loss, takes_scores = model.loss, (MaskedAccuracy, Perplexity)
    if not model.trains_without_logits or type(loss) is not MaskedCrossentropy:
        return True
    if model.output_rows() is None or loss_weights(model) != [None]:
        return True  # The output matrix is quantised, or the loss has a factor.
    for metric in compiled_metrics(model):
        if type(metric) not in takes_scores or metric.pad_id != loss.pad_id:
            return True
    return False
