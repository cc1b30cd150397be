"""Beam search and sampling over any step function."""

from keras_transformer.decoding.sampling import sample
from keras_transformer.decoding.search import FIRST_ROOM, beam_search, reordering
from keras_transformer.decoding.tokens import (
    Constraints,
    DecodingResult,
    SpecialIds,
    length_penalty,
)

__all__ = [
    "FIRST_ROOM",
    "Constraints",
    "DecodingResult",
    "SpecialIds",
    "beam_search",
    "length_penalty",
    "reordering",
    "sample",
]
