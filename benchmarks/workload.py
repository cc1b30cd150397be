"""What every contender is asked for: sizes, settings and the sentences themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

SOURCE_LENGTH = 30  # tokens, the end token counted
TARGET_LENGTH = 30  # tokens, every one of them decoded: nothing may stop early
PAD_ID, START_ID, END_ID, UNKNOWN_ID = 0, 1, 2, 3
SPECIAL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of a Transformer with as many encoder as decoder layers."""

    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    vocabulary_size: int  # joint


SIZES = {
    "tiny": Size(4, 128, 256, 4, vocabulary_size=10000),
    "small": Size(3, 256, 1024, 4, vocabulary_size=8000),
    "base": Size(6, 512, 2048, 8, vocabulary_size=32000),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of the table: which model, how many sentences, which search."""

    size: str
    batch: int  # sentences a call
    beam: int  # hypotheses a sentence, 1 is greedy

    @property
    def name(self) -> str:
        """Such as "base-32-beam4" or "small-1-greedy"."""
        search = "greedy" if self.beam == 1 else f"beam{self.beam}"
        return f"{self.size}-{self.batch}-{search}"

    @property
    def tokens(self) -> int:
        """Output tokens of a call; those of the best hypothesis alone count."""
        return self.batch * TARGET_LENGTH


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("base", 32, 4),
        Setting("base", 32, 1),
        Setting("base", 1, 1),
        Setting("base", 1, 4),
        Setting("small", 32, 4),
        Setting("small", 32, 1),
        Setting("small", 1, 1),
        Setting("small", 1, 4),
    )
}


def source_ids(batch: int) -> np.ndarray:
    """Random sentences of `SOURCE_LENGTH` ids that end with the end id.

    Args:
        batch: Number of sentences, B.

    Returns:
        Int32 ids, shape [B, SOURCE_LENGTH]; the first sentences are always the same.
    """
    first = UNKNOWN_ID + 1
    random = np.random.default_rng(seed=3)
    # Of the smallest vocabulary, so that they fit every size.
    end = min(size.vocabulary_size for size in SIZES.values())
    ids = random.integers(first, end, (batch, SOURCE_LENGTH), np.int32)
    ids[:, -1] = END_ID
    return ids


def word(piece_id: int) -> str:
    """The word that stands for an id, lower-case letters only: "w" + base 26."""
    letters = ""
    for _ in range(4):
        piece_id, digit = divmod(piece_id, 26)
        letters = chr(ord("a") + digit) + letters
    return "w" + letters


def check(result: Sequence[int] | Mapping[str, float]):
    """Raises an error if a sentence ended early.

    Args:
        result: Tokens decoded for each sentence; the end token may be missing from
            the last. The machine's peaks, which have none, pass.

    Raises:
        ValueError: If a sentence has another length.
    """
    if isinstance(result, Mapping):
        return
    if not set(result) <= {TARGET_LENGTH - 1, TARGET_LENGTH}:
        raise ValueError(
            f"Every sentence must be decoded for {TARGET_LENGTH} tokens. "
            f"Received: lengths {sorted(set(result))}"
        )
