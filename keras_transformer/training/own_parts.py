"""What a program gives a run beside its options, and whether it goes together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras

from keras_transformer.config import RunConfig
from keras_transformer.training.run_callback import check_names
from keras_transformer.training.selection import check_selection
from keras_transformer.translator import Translator


class Own(NamedTuple):
    """What a program gives a run beside its options.

    Attributes:
        tokenizers: As `train` takes it.
        callbacks: Keras callbacks.
        optimizer: A Keras optimizer, or `None` for that of the options.
        loss: A Keras loss, or `None` for that of the options.
        init: What `train` takes as `init`.
    """

    tokenizers: Any = None
    callbacks: Sequence[keras.callbacks.Callback] = ()
    optimizer: keras.optimizers.Optimizer | None = None
    loss: Any = None
    init: Translator | str | Path | None = None


def check_given(config: RunConfig, own: Own, validated: bool):
    """Raises `ValueError` if what is given does not go together."""
    check_selection(config.training, validated)
    check_names(own.callbacks)
    if own.optimizer is not None and own.optimizer.built:
        raise ValueError(
            "`optimizer` must be new: one that has updated a model keeps its moments. "
            f"Received: a {type(own.optimizer).__name__} that is built"
        )
    if own.optimizer is not None and config.training.ema_decay is not None:
        raise ValueError(
            "`ema_decay` belongs to the options' optimizer, in place of which "
            "`optimizer` was given: leave one of them out. Received: "
            f"ema_decay={config.training.ema_decay}"
        )
