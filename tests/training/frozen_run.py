"""A run with frozen weights that is killed and goes on, for `test_freezing.py`.

Prints how many weights have the same bytes afterwards and how many have not.
"""

import importlib
import tempfile
from pathlib import Path

import keras
import numpy as np
from rich.console import Console

from keras_transformer import Translator, train
from tests import tiny_run

fit = importlib.import_module("keras_transformer.training.train")

OPTIONS = {
    "epochs": 2, "freeze": "encoder", "checkpoint_updates": 1, "ema_decay": 0.5,
    "gradient_accumulation_steps": 2, "global_clipnorm": 1.0, "optimizer": "adamw",
    "schedule": "constant", "learning_rate": 0.01, "warmup_steps": 1,
    "weight_decay": 0.1, "average_checkpoints": 2,
}  # fmt: skip


class Killed(Exception):
    """Stands for the end of the process."""


class Kill(keras.callbacks.Callback):
    """Ends the run in the second epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.updates) == 4:
            raise Killed


def run(directory, **training):
    training = tiny_run.CONFIG.training.replace(**OPTIONS | training)
    config = tiny_run.CONFIG.replace(
        training=training,
        data=tiny_run.CONFIG.data.replace(batch_tokens=100, batch_shapes=1),
    )
    return train(tiny_run.TRAIN, directory, config, console=Console(quiet=True))


def weights(model):
    return [np.array(keras.ops.convert_to_numpy(weight)) for weight in model.weights]


def main(folder):
    first = []
    made = fit.begin_with

    def begin_with(init, model, *others):
        made(init, model, *others)
        for weight in model.weights:
            if not weight.trainable and len(weight.shape) == 1:
                weight.assign(np.full(weight.shape, -0.0))
        first.extend(weights(model))

    fit.begin_with = begin_with
    added = fit._callbacks
    fit._callbacks = lambda *a: [Kill(), *added(*a)]
    try:
        run(folder / "run")
    except Killed:
        pass
    else:
        raise AssertionError("it was not killed")
    fit._callbacks = added
    translator = run(folder / "run")
    assert int(translator.model.updates) > 4
    saved = Translator.load(folder / "run").model
    kept = [
        a.tobytes() == b.tobytes() for a, b in zip(first, weights(saved), strict=True)
    ]
    frozen = [not weight.trainable for weight in translator.model.weights]
    assert kept == frozen, [w.path for w in translator.model.weights]
    print(f"{sum(kept)} frozen, {len(kept) - sum(kept)} trained, resumed")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
