"""A `Translator` from what a reader found in another system's files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import DecodingConfig, TransformerConfig
from keras_transformer.formats.vocabulary import Rows, Vocabulary, tokenizers_of
from keras_transformer.models.transformer import Transformer
from keras_transformer.search.translator import Translator

# A bias with which the probability of an id in float32 is exactly 0, and sums stay
# finite.
_NEVER = np.float32(-1000.0)
# Paths of the matrices in a `Transformer`.
_SOURCE = "source_embedding/token_embedding/embeddings"
_TARGET = "target_embedding/token_embedding/embeddings"


def translator_of(
    origin: Path,
    sizes: dict[str, Any],
    matrices: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None],
    weight_of: Callable[[str, tuple[int, ...]], np.ndarray],
    vocabularies: Sequence[Vocabulary],
    decoding: dict[str, Any],
    scaled: bool = True,
) -> Translator:
    """Builds a translator of options `sizes` and weights `weight_of(path, shape)`.

    `scaled` is whether the other system multiplies embeddings by sqrt(D).
    """
    # (V_source, D) and (V_target, D) before scaling, (V_target, D), (V_target,)
    source, target, output, bias = matrices
    for rows, vocabulary in zip((source, target), vocabularies, strict=True):
        if len(rows) != len(vocabulary.pieces):
            raise ValueError(
                f"{origin} must have a row for each of {len(vocabulary.pieces):,} "
                f"pieces. Received: a matrix of {len(rows):,} rows"
            )
    tokenizers, source_rows, target_rows = tokenizers_of(*vocabularies)
    # Our embeddings are multiplied by sqrt(D).
    factor = np.float32(1.0 if scaled else 1 / math.sqrt(target.shape[1]))
    source = _ordered(source, source_rows) * factor
    target = _ordered(target, target_rows) * factor
    output = _ordered(output, target_rows)
    weights = {_TARGET: target}
    if not np.array_equal(target, output):
        tied = "none"
        weights |= {_SOURCE: source, "output_dense/kernel": output.T}
    elif not np.array_equal(source, target):
        tied = "two-way"
        weights[_SOURCE] = source
    else:
        tied = "three-way"
    if bias is not None or target_rows.banned.any():
        bias = np.zeros(len(target)) if bias is None else _ordered(bias, target_rows)
        weights["output_bias"] = np.where(target_rows.banned, _NEVER, bias)
    config = TransformerConfig(
        source_vocabulary_size=len(source),
        target_vocabulary_size=len(target),
        tied_embeddings=tied,
        output_bias="output_bias" in weights,
        **sizes,
    )
    model = Transformer(config)
    for weight in model.weights:
        path = weight.path.split("/", 1)[1]
        shape = tuple(weight.shape)
        weight.assign(weights[path] if path in weights else weight_of(path, shape))
    return Translator(model, tokenizers, DecodingConfig(**decoding))


def renamed(path: str, names: dict[str, str]) -> str:
    """Returns a path with our names replaced by theirs, in order."""
    for ours, theirs in names.items():
        path = path.replace(ours, theirs)
    return path


def _ordered(array: np.ndarray, rows: Rows) -> np.ndarray:
    """Returns the rows (V, ...) of an array in our order, zeros for missing ones."""
    found = array[np.maximum(rows.theirs, 0)]
    found[rows.theirs < 0] = 0.0
    return found
