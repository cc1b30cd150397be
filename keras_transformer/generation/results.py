"""What a `Translator` returns, made from the outputs of a `Pipeline`.

A row is what one text gets: a dictionary of its part of each output.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Translation(NamedTuple):
    """A translation and its score: log-probability over length penalty, nats."""

    text: str
    score: float

    @classmethod
    def from_row(cls, row):
        """Makes it from a row of `complete` or `sample`."""
        return cls(row["translation"].decode("utf-8"), float(row["score"]))

    @classmethod
    def several_from_row(cls, row):
        """Makes a list from a row of `nbest`; if no place is filled, of score -inf."""
        rows = zip(row["translations"], row["scores"], strict=True)
        found = [cls(x.decode("utf-8"), float(s)) for x, s in rows if np.isfinite(s)]
        return found or [cls("", float("-inf"))]


class Score(NamedTuple):
    """The log-probability of a given translation."""

    log_probability: float  # nats, of all tokens, the end token included
    tokens: list[str]  # T pieces
    token_log_probabilities: np.ndarray  # (T,) float32, nats

    @classmethod
    def from_row(cls, row):
        """Makes it from a row of `score`."""
        tokens = _without_padding(row["tokens"])
        scores = row["token_log_probabilities"][: len(tokens)]
        return cls(float(row["log_probability"]), tokens, scores)


class Alignment(NamedTuple):
    """A translation, and what each of its tokens looked at."""

    translation: str
    source_tokens: list[str]  # S pieces
    target_tokens: list[str]  # T pieces
    attention: np.ndarray  # (T, S) float32, or (H, T, S) with all heads

    @classmethod
    def from_row(cls, row):
        """Makes it from a row of `align`."""
        source = _without_padding(row["source_tokens"])
        target = _without_padding(row["target_tokens"])
        attention = row["attention"][..., : len(target), : len(source)]
        return cls(row["translation"].decode("utf-8"), source, target, attention)


def _without_padding(tokens):
    return [token.decode("utf-8") for token in tokens if token]
