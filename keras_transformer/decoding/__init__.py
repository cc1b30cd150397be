"""Search over a step function; no model is known here."""

from keras_transformer.decoding.beam_search import beam_search, greedy_search
from keras_transformer.decoding.result import (
    DecodingResult,
    SpecialIds,
    length_penalty,
)

__all__ = [
    "DecodingResult",
    "SpecialIds",
    "beam_search",
    "greedy_search",
    "length_penalty",
]
