"""Whether losses and metrics leave out the id that pads a model's targets."""

from __future__ import annotations

import keras

from keras_transformer.kernels.keras_private import compiled_metrics


class OtherPadding(ValueError):
    """A loss or metric takes another id for padding than the model does."""


def check_pad_ids(model):
    """Compares the `pad_id` of the losses and metrics with the model's.

    With another one, padding would count as targets and the tokens of that id would
    not, and nothing would look wrong but the figures.

    Args:
        model: An `ExactTraining` model, compiled.

    Raises:
        OtherPadding: If one differs.
    """
    ours = model.target_pad_id
    for part in [*keras.tree.flatten(model.loss), *compiled_metrics(model)]:
        theirs = getattr(part, "pad_id", None)
        if None not in (ours, theirs) and ours != theirs:
            kind = type(part).__name__
            raise OtherPadding(
                "Losses and metrics must have the `pad_id` of the model: give "
                f"{kind}(pad_id={ours}) to `compile`. Received: pad_id={theirs} of "
                f"{kind}, pad_id={ours} of {type(model).__name__}"
            )
