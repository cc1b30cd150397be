"""Batches with hidden tokens, for a `MaskedLanguageModel`."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from keras_transformer.config.options import check_number
from keras_transformer.nn.kernels.ids import check_ids
from keras_transformer.nn.layers.arguments import check_size

# Shares of the chosen tokens.
MASKED = 0.8
REPLACED = 0.1


def mask_tokens(
    ids: np.ndarray,
    generator: np.random.Generator,
    mask_id: int,
    first_id: int,
    vocabulary_size: int,
    rate: float = 0.15,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids with some tokens hidden, and their targets, 0 where not chosen."""
    chosen = (generator.random(ids.shape) < rate) & (ids >= first_id)
    lot = generator.random(ids.shape)
    random_ids = generator.integers(first_id, vocabulary_size, ids.shape, ids.dtype)
    shown = np.where(chosen & (lot < MASKED), mask_id, ids)
    is_replaced = chosen & (lot >= MASKED) & (lot < MASKED + REPLACED)
    shown = np.where(is_replaced, random_ids, shown).astype(ids.dtype)
    return shown, np.where(chosen, ids, 0)


class MaskedTokens(keras.utils.PyDataset):
    """Batches with hidden tokens, in a new order and with new masks every epoch.

    Each token is chosen with probability `rate`. Of the chosen tokens 80 % are replaced
    by the mask and 10 % by a random token: section 3.1 and appendix A.1 of Devlin et
    al., 2019, https://arxiv.org/abs/1810.04805. The targets are the chosen tokens, and
    0 elsewhere, which `MaskedCrossentropy` ignores.

    Args:
        ids: Integer array (texts, S), 0 for padding.
        batch_size: Rows of a batch; the last one may have fewer.
        mask_id: Id of the mask.
        first_id: First id that is not special; lower ones are never chosen or drawn.
        vocabulary_size: Number of ids.
        rate: Share of the tokens to be predicted, in (0, 1].
        seed: Seed of the order and the masks.
        **kwargs: See `keras.utils.PyDataset`.
    Raises:
        ValueError: If `rate` is outside (0, 1], `batch_size` is not positive, the ids
            are not 0 < `mask_id` < `first_id` < `vocabulary_size`, or one of `ids` is
            not below that.

    Example:
        >>> batches = MaskedTokens(ids, 32, mask_id=4, first_id=5, vocabulary_size=99)
        >>> shown, targets = batches[0]  # (32, S) each
    """

    def __init__(
        self,
        ids: np.ndarray,
        batch_size: int,
        mask_id: int,
        first_id: int,
        vocabulary_size: int,
        rate: float = 0.15,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_size("batch_size", batch_size)
        for name, id in (
            ("mask_id", mask_id),
            ("first_id", first_id),
            ("vocabulary_size", vocabulary_size),
        ):
            check_number(name, id, int)
        check_number("rate", rate, rule="a number in (0, 1]", above=0, maximum=1)
        check_number("seed", seed, int, minimum=0)
        if not 0 < mask_id < first_id < vocabulary_size:
            raise ValueError(
                "The ids must be 0 < `mask_id` < `first_id` < `vocabulary_size`. "
                f"Received: mask_id={mask_id}, first_id={first_id}, "
                f"vocabulary_size={vocabulary_size}"
            )
        self.ids = np.asarray(ids)
        check_ids("ids", self.ids, vocabulary_size)
        self.batch_size = batch_size
        self.masking = (mask_id, first_id, vocabulary_size, rate)
        self.seed = seed
        self.epoch = -1
        self.on_epoch_end()

    def __len__(self):
        return math.ceil(len(self.ids) / self.batch_size)

    def __getitem__(self, index):
        # Any worker makes the same batch of a number.
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        generator = np.random.default_rng((self.seed, self.epoch, index))
        return mask_tokens(self.ids[rows], generator, *self.masking)

    def on_epoch_end(self) -> None:
        """Draws the order and the masks of the next epoch."""
        self.epoch += 1
        generator = np.random.default_rng((self.seed, self.epoch))
        self._order = generator.permutation(len(self.ids))
