"""What every contender trains on: sizes, settings and the batches themselves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from workload import END_ID, PAD_ID, START_ID, UNKNOWN_ID, Size

DROPOUT_RATE = 0.1
LABEL_SMOOTHING = 0.1
LEARNING_RATE = 1e-4
_BUCKET = 8  # lengths of a bucket: both sides are padded to its longest
_LENGTH_NOISE = 3  # most tokens between a source's length and its target's

SIZES = {
    "tiny": Size(4, 128, 256, 4, vocabulary_size=10000),
    "small": Size(3, 256, 1024, 4, vocabulary_size=8000),
    "base": Size(6, 512, 2048, 8, vocabulary_size=32000),
    # Tells in a minute whether every contender runs; its speeds mean nothing.
    "toy": Size(1, 16, 32, 2, vocabulary_size=50),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One table: which model, and what batches.

    A batch of a bucket of lengths has as many pairs as fit into `target_tokens`,
    padding counted; every batch of the bucket has the same shape.
    """

    name: str
    size: str
    shortest: int  # tokens of the shortest sentence, the end token counted
    longest: int  # tokens of the longest
    target_tokens: int  # of a batch
    num_batches: int  # of a turn

    @property
    def longest_padded(self) -> int:
        """Positions of the longest bucket, and so of any batch."""
        return math.ceil(self.longest / _BUCKET) * _BUCKET

    @property
    def tokens(self) -> int:
        """Source and target tokens of a turn, padding left out."""
        lengths = self.lengths()
        return sum(int(source.sum() + target.sum()) for source, target in lengths)

    def lengths(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Tokens of the sources and of the targets of each batch, each of shape [B].

        Target lengths are uniform; a source is up to three tokens shorter or longer.
        Batches stand in a random order, the same for everyone.
        """
        random = np.random.default_rng(seed=3)
        batches = []
        for bucket, number in self._batches_of_buckets().items():
            shortest = max(self.shortest, bucket - _BUCKET + 1)
            longest = min(self.longest, bucket)
            for _ in range(number):
                rows = max(1, self.target_tokens // bucket)
                target = random.integers(shortest, longest + 1, rows)
                noise = random.integers(-_LENGTH_NOISE, _LENGTH_NOISE + 1, rows)
                source = np.clip(target + noise, self.shortest, longest)
                batches.append((source, target))
        return [batches[i] for i in random.permutation(len(batches))]

    def _batches_of_buckets(self):
        """Number of batches of each bucket, in the ratio of the tokens it has."""
        last = self.longest_padded
        buckets = range(math.ceil(self.shortest / _BUCKET) * _BUCKET, last + 1, _BUCKET)
        shares = {
            bucket: (
                min(self.longest, bucket) - max(self.shortest, bucket - _BUCKET + 1) + 1
            )
            * bucket
            for bucket in buckets
        }
        total = sum(shares.values())
        return {
            bucket: max(1, round(self.num_batches * share / total))
            for bucket, share in shares.items()
        }


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("tiny", "tiny", 5, 40, target_tokens=4096, num_batches=12),
        Setting("small", "small", 32, 32, target_tokens=64 * 32, num_batches=12),
        Setting("base", "base", 32, 32, target_tokens=32 * 32, num_batches=4),
        # As many tokens as keep a GPU busy; about those of the paper's batches.
        Setting("base-gpu", "base", 64, 64, target_tokens=384 * 64, num_batches=20),
        Setting("toy", "toy", 5, 13, target_tokens=64, num_batches=2),
    )
}
MEASURED = ("tiny", "small", "base")


def batches(setting: Setting) -> list[tuple]:
    """Random ids in the shape that `model.fit` takes.

    Args:
        setting: Sizes of the batches.

    Returns:
        `((source, target_in), target_out)` for each batch, int32, each of shape [B, S]
        with S the longest length of the bucket. Sources and targets end with the end
        id, `target_in` is `target_out` after the start id, padding stands at the end.
    """
    random = np.random.default_rng(seed=5)
    vocabulary_size = SIZES[setting.size].vocabulary_size
    result = []
    for source_lengths, target_lengths in setting.lengths():
        longest = max(source_lengths.max(), target_lengths.max())
        width = math.ceil(longest / _BUCKET) * _BUCKET
        source = _rows(random, source_lengths, width, vocabulary_size)
        target_out = _rows(random, target_lengths, width, vocabulary_size)
        target_in = np.roll(target_out, 1, axis=1)
        target_in[target_in == END_ID] = PAD_ID
        target_in[:, 0] = START_ID
        result.append(((source, target_in), target_out))
    return result


def _rows(random, lengths, width, vocabulary_size):
    ids = random.integers(
        UNKNOWN_ID + 1, vocabulary_size, (len(lengths), width), np.int32
    )
    positions = np.arange(width)
    ids[positions == lengths[:, None] - 1] = END_ID
    ids[positions >= lengths[:, None]] = PAD_ID
    return ids


def check(result: Mapping[str, float]):
    """Raises an error if a contender did not train.

    Args:
        result: "loss", the mean of a turn in nats a token, for a contender. The
            machine's peaks, which have none, pass.

    Raises:
        ValueError: If the loss is not a number that training can have.
    """
    loss = result.get("loss", 1.0)
    if not 0 < loss < 100:
        raise ValueError(
            f"The loss must be a positive number of nats. Received: loss={loss}"
        )
