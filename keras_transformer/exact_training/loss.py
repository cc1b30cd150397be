"""The loss of a batch, without the logits where no metric needs them."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.exact_training.counted_targets import check_targets
from keras_transformer.kernels.execution import num_replicas
from keras_transformer.kernels.keras_private import compiled_metrics, loss_weights
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import takes_scores


def loss_and_scores(model, x, y, sample_weight, training):
    """Computes the loss of a batch and what the metrics are computed from.

    Args:
        model: An `ExactTraining` model, compiled.
        x: Inputs of the batch.
        y: Targets of the batch.
        sample_weight: As for the loss, or `None`.
        training: Whether dropout is applied and the gradient will be needed.

    Returns:
        The mean loss of this replica's targets, a float32 scalar, nats per token; and
        the metrics' `y_pred`: the model's output or, where it suffices, `TokenScores`.
    """
    rows = model.output_rows() if scores_suffice(model) else None
    if rows is None:
        y_pred = model(x, training=training)
        loss = model.compute_loss(x, y, y_pred, sample_weight, training=training)
        # Keras divides every loss by the number of replicas, because it adds up their
        # gradients, and multiplies back for its logs. Here each replica is weighted by
        # its number of targets instead.
        loss = loss * num_replicas()
        if training:
            check_targets(model, y, y_pred)
    else:
        states = model(x, training=training, return_states=True)
        bias = model.output_bias
        bias = bias if bias is None else ops.convert_to_tensor(bias)
        loss, y_pred = model.loss.from_states(
            y, states, rows, sample_weight, training, bias
        )
        (weight,) = loss_weights(model)
        if weight is not None:
            loss = loss * weight
        loss = sum(model.losses, loss)
    return loss, y_pred


def scores_suffice(model):
    """Whether the compiled loss and metrics can do without the logits."""
    # A subclass that overrides these may need them.
    own = ("compute_loss", "compute_metrics")
    if any(getattr(type(model), n) is not getattr(keras.Model, n) for n in own):
        return False
    if type(model.loss) is not MaskedCrossentropy:
        return False
    # Keras raises the error for any other number of weights.
    weights = loss_weights(model)
    if weights is None or len(weights) != 1:
        return False
    metrics = compiled_metrics(model)
    return all(takes_scores(metric, model.loss.pad_id) for metric in metrics)
