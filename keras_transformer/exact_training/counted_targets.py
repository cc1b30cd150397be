"""Which targets a loss counts, and errors where their number cannot be known."""

from __future__ import annotations

import functools

import keras
from keras import ops

from keras_transformer.kernels.execution import num_replicas
from keras_transformer.kernels.keras_private import compiled_losses
from keras_transformer.masks import carried_mask


def left_out_class(loss):
    """Returns the class whose targets a loss ignores, or `None`.

    Args:
        loss: As `compile` takes it.
    """
    losses = _losses(loss)
    return _left_out_class(losses[0]) if len(losses) == 1 else None


def _losses(loss):
    return [part for part in keras.tree.flatten(loss) if part is not None]


def _left_out_class(loss):
    if isinstance(loss, functools.partial):
        return loss.keywords.get("ignore_class")
    pad_id = getattr(loss, "pad_id", None)
    return getattr(loss, "ignore_class", None) if pad_id is None else pad_id


def check_is_counted(loss):
    """Raises `ValueError` unless a loss is a mean over a known number of targets.

    Args:
        loss: As `compile` takes it.
    """
    losses = _losses(loss)
    for part in losses:
        reduction = getattr(part, "reduction", "mean")
        if reduction not in ("mean", "sum_over_batch_size"):
            raise ValueError(
                "With accumulation or several replicas the `reduction` of a loss must "
                "be 'sum_over_batch_size' or 'mean', because each batch is weighted by "
                "its number of targets. Or override `loss_divisor`. Received: "
                f"reduction={reduction!r}"
            )
        if len(losses) > 1 and _left_out_class(part) is not None:
            raise ValueError(
                "With accumulation or several replicas only a single loss may leave "
                "out a class, because each batch is weighted by one number of targets. "
                f"Or override `loss_divisor`. Received: {len(losses)} losses, of which "
                f"{part!r} leaves out {_left_out_class(part)!r}"
            )


def check_targets(model, y, y_pred):
    """Raises `ValueError` if the batches of an update would get wrong weights.

    Args:
        model: An `ExactTraining` model, after it has computed its loss.
        y: Targets of the batch.
        y_pred: The model's output.
    """
    state = model._update_state
    weighed = model.gradient_accumulation_steps > 1 or num_replicas() > 1
    if state.targets_checked or not (weighed and model._counts_targets):
        return
    # Once is enough: on PyTorch the check computes the loss again.
    state.targets_checked = True
    check_is_counted(model.loss)
    # Keras' masks change what a loss counts, unless it has a `pad_id`.
    by_itself = getattr(model.loss, "pad_id", None) is not None
    losses = compiled_losses(model)
    if losses and not by_itself:
        _check_no_mask(model, losses, y, y_pred)


def _check_no_mask(model, losses, y, y_pred):
    masked = keras.tree.flatten(y_pred)
    if len(losses) == 1 and left_out_class(model.loss) is None:
        # Only the mask of the result is read; a graph drops the rest.
        loss = losses[0]
        pair = (keras.tree.flatten(tensors)[0] for tensors in (y, y_pred))
        masked.append(loss.call(*(ops.cast(tensor, loss.dtype) for tensor in pair)))
    if any(carried_mask(tensor) is not None for tensor in masked):
        raise ValueError(
            "With accumulation or several replicas no Keras mask may leave targets out "
            "of the loss, because each batch is weighted by its number of targets. Use "
            "`MaskedCrossentropy`, or `ignore_class` with an output without a mask, or "
            f"override `loss_divisor`. Received: loss={model.loss!r}"
        )
