"""What the models of a playground have in common: what they offer and answer.

A run can search with any beam and tell what any translation looks at, by layer and
head. A SavedModel has its signatures: what it lacks is said in words.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

from keras_transformer.playground.questions import (
    AttentionQuestion,
    TranslationQuestion,
)
from keras_transformer.playground.words import words_of


@dataclasses.dataclass(frozen=True)
class Offer:
    """What a model can be asked for; the page shows the controls of these."""

    name: str  # as the command line named it
    kind: str  # "run" or "SavedModel"
    beam_size: int | None  # that of the search, where it can be changed
    several: bool  # more than one translation
    prefix: bool  # a beginning that a translation must have
    sampling: bool  # translations drawn at a temperature
    attention: str  # of "any" translation, of the "best" of a search, or of "none"
    layers: int  # that attention can be had of
    layer: int  # that is shown first, from 0
    heads: int  # that attention can be had of; 0 where only their mean is there
    missing: tuple[str, ...]  # sentences on what it cannot be asked for


class PlayedModel(Protocol):
    """A model to be asked, one question at a time."""

    offer: Offer

    def translate(self, question: TranslationQuestion) -> dict[str, Any]:
        """Returns `translations`, each with text, score, tokens; and `truncated`."""

    def attend(self, question: AttentionQuestion) -> dict[str, Any]:
        """Returns `weights` [T, S], and pieces and words of `source` and `target`."""


def translations_of(
    outputs: dict[str, np.ndarray], pad_id: int | None = None
) -> list[dict[str, Any]]:
    """Returns the translations of one text, best first, or one each of several draws.

    Where a search found fewer than it may, the places left have no finite score.

    Args:
        outputs: `translations` and `scores`, or `translation` and `score`; with a
            `pad_id` also `ids`.
        pad_id: Id that `ids` are padded with; given where their `tokens` are wanted.
    """
    texts = outputs.get("translations", outputs.get("translation")).reshape(-1)
    scores = outputs.get("scores", outputs.get("score")).reshape(-1)
    found = [
        {"text": text.decode("utf-8"), "score": float(score)}
        for text, score in zip(texts, scores, strict=True)
    ]
    if pad_id is not None:
        rows = outputs["ids"].reshape(len(texts), -1)
        for translation, row in zip(found, rows, strict=True):
            translation["tokens"] = row[row != pad_id].tolist()
    return [translation for translation in found if np.isfinite(translation["score"])]


def looked_at(row: dict[str, np.ndarray], weights: np.ndarray) -> dict[str, Any]:
    """Returns the answer to an `AttentionQuestion`.

    Args:
        row: `source_tokens` [S] and `target_tokens` [T] of a text, "" where padded.
        weights: Its attention [T, S].
    """
    sides = {}
    for side in ("source", "target"):
        pieces = [token.decode("utf-8") for token in row[f"{side}_tokens"] if token]
        words = [list(word) for word in words_of(pieces)]
        sides[side] = {"pieces": pieces, "words": words}
    source, target = (len(sides[side]["pieces"]) for side in ("source", "target"))
    kept = np.round(weights[:target, :source].astype("float64"), 4)
    return sides | {"weights": kept.tolist()}
