"""The loss of a batch, without the logits where nothing needs them."""

from __future__ import annotations

from keras import ops

from keras_transformer.kernels.execution import num_replicas
from keras_transformer.kernels.keras_private import compiled_metrics, loss_weights
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import takes_scores


def loss_and_scores(model, x, y, sample_weight, training):
    """Returns the mean loss of this replica's targets, and what the metrics take.

    That is the model's output or, where it trains without logits, `TokenScores`.
    """
    if needs_logits(model):
        y_pred = model(x, training=training)
        loss = model.compute_loss(x, y, y_pred, sample_weight, training=training)
        # Keras divides by the number of replicas, to add up their gradients. Here each
        # replica is weighted by its number of targets instead.
        return loss * num_replicas(), y_pred
    states = model(x, training=training, return_states=True)
    bias = model.output_bias
    bias = None if bias is None else ops.convert_to_tensor(bias)
    rows = model.output_rows()
    loss, y_pred = model.loss.from_states(
        y, states, rows, sample_weight, training, bias
    )
    (weight,) = loss_weights(model)
    loss = loss if weight is None else loss * weight
    return sum(model.losses, loss), y_pred


def needs_logits(model):
    """Whether the model, its compiled loss or a metric needs the logits."""
    if not model.trains_without_logits or type(model.loss) is not MaskedCrossentropy:
        return True
    # Keras raises the error for any other number of weights.
    if len(loss_weights(model)) != 1:
        return True
    pad_id = model.loss.pad_id
    return not all(takes_scores(metric, pad_id) for metric in compiled_metrics(model))
