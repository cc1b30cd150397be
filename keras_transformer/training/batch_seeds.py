"""Random numbers of a batch that do not depend on when a run was interrupted."""

from __future__ import annotations

import keras
import numpy as np

from keras_transformer.training.run_callback import RunCallback


class BatchSeeds(RunCallback):
    """Seeds PyTorch's own generator before each call of the training step.

    On PyTorch dropout draws from that generator, which no state of a run holds; on the
    other backends a layer's variable says which numbers come next. The seed is one of
    the run's seed, the epoch and the batch, so a run that goes on drops what one that
    was not interrupted drops.

    Args:
        seed: Seed of the run.
    """

    wants_every_batch = False

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        import torch

        place = [self.seed, self._epoch, self.first_batch + batch]
        (seed,) = np.random.SeedSequence(place).generate_state(1, np.uint64)
        torch.manual_seed(int(seed))


def batch_seeds(seed: int) -> list[BatchSeeds]:
    """Returns the callbacks that a run needs for its random numbers.

    Args:
        seed: Seed of the run.
    """
    return [BatchSeeds(seed)] if keras.backend.backend() == "torch" else []
