"""What a reader of another system's files hands on: sizes, weights, vocabularies."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass
class Vocabulary:
    """The pieces of one side of a model, and what cuts a text into them.

    Args:
        pieces: Names of the pieces by the rows of the model's matrix.
        end: Row of the end of a sentence.
        unknown: Row of unknown pieces.
        start: Row that decoding begins with, or `None` for a vector of zeros.
        pad: Row of padding, or `None`.
        model: Content of a SentencePiece model, or `None` if texts have spaces between
            their pieces.
        banned: Rows that the other system's search gives no share of the probability.
    """

    pieces: list[str]
    end: int
    unknown: int
    start: int | None = None
    pad: int | None = None
    model: bytes | None = None
    banned: tuple[int, ...] = ()


@dataclasses.dataclass
class Description:
    """A translator of another system, in this package's terms.

    Args:
        origin: Name of the model's file, for errors.
        model: Options of a `TransformerConfig`, without the vocabularies' sizes and
            how matrices are tied.
        layers: Weights of the layers, float32, by their paths in a `Transformer`.
        source_embeddings: Rows (V_source, D), before the product with sqrt(D).
        target_embeddings: Rows (V_target, D).
        output_rows: Rows (V_target, D) of the output matrix.
        output_bias: (V_target,), or `None`.
        source: Pieces of the source.
        target: Pieces of the target.
        decoding: Options of a `DecodingConfig`.
        scaled: Whether embeddings are multiplied by sqrt(D).
    """

    origin: str
    model: dict[str, Any]
    layers: dict[str, np.ndarray]
    source_embeddings: np.ndarray
    target_embeddings: np.ndarray
    output_rows: np.ndarray
    output_bias: np.ndarray | None
    source: Vocabulary
    target: Vocabulary
    decoding: dict[str, Any] = dataclasses.field(default_factory=dict)
    scaled: bool = True
