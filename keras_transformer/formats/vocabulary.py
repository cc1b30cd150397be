"""Tokenizers from the pieces of another system, and the order of their rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_transformer.formats.contents import content_of, described, read_options
from keras_transformer.text.sentencepiece_model import (
    SPECIAL_NAMES,
    cut_pieces,
    fitted,
)
from keras_transformer.text.tokenizer import (
    Tokenizer,
    is_language,
    loaded,
    special_ids,
)
from keras_transformer.text.tokenizer_pair import TokenizerPair


@dataclasses.dataclass
class Vocabulary:
    """The pieces of one side of a model, and its SentencePiece model."""

    pieces: list[str]  # by the rows of the model's matrices
    model: bytes  # content of the SentencePiece model
    end: int  # row of the end of a sentence
    unknown: int
    start: int | None = None  # without one, decoding begins with a vector of zeros
    pad: int | None = None
    banned: tuple[int, ...] = ()  # rows whose probability is 0


class Rows(NamedTuple):
    """Their row for each row of our matrices, and whether it is never produced."""

    theirs: np.ndarray  # (V,) int, -1 for zeros
    banned: np.ndarray  # (V,) bool


def sentencepiece_vocabulary(path: Path) -> Vocabulary:
    """Returns the vocabulary of a SentencePiece model whose ids are the rows."""
    content = content_of(path)
    processor = loaded(content, str(path))
    _, _, end, unknown = special_ids(processor)
    if min(end, unknown) < 0:
        raise ValueError(f"{path}: a vocabulary must have an end and an unknown piece")
    count = processor.get_piece_size()
    pieces = [processor.id_to_piece(i) for i in range(count)]
    return Vocabulary(pieces, content, end, unknown)


def numbered_pieces(path: Path, *needed: str) -> list[str]:
    """Returns the pieces of a file that numbers them from 0, in order."""
    ids = read_options(path, as_text=True).values
    with described(f"{path} must number its pieces from 0", (ValueError, KeyError)):
        numbers = {int(number): piece for piece, number in ids.items()}
        pieces = [numbers[i] for i in range(len(ids))]
    if not ids.keys() >= set(needed):
        raise ValueError(f"{path} must have {' and '.join(needed)}")
    return pieces


def tokenizers_of(
    source: Vocabulary, target: Vocabulary
) -> tuple[TokenizerPair, Rows, Rows]:
    """Returns the tokenizers of two sides with our ids, and the rows of each."""
    sides = source, target
    is_joint = source.pieces == target.pieces
    cut = [cut_pieces(side.model) for side in sides]
    if is_joint:
        cut = [cut[0] + cut[1]] * 2  # One vocabulary has the pieces of both.
    ordered = [_ordered(*both) for both in zip(sides, cut, strict=True)]
    (source_names, source_rows), (target_names, target_rows) = ordered
    # A source may begin with the language to translate into.
    languages = set(filter(is_language, source_names))
    first = Tokenizer(fitted(source.model, source_names, languages))
    second = Tokenizer(fitted(target.model, target_names))
    if second.content == first.content:
        second = first
    return TokenizerPair(first, second), source_rows, target_rows


def _ordered(side, cut):
    """Returns the names of a side's pieces by our ids, and their `Rows`."""
    # Special pieces, the others, then pieces of `cut` without a row, which are unknown.
    pieces = side.pieces
    if len(set(pieces)) < len(pieces) or "" in pieces:
        twice = next(p for p in pieces if not p or pieces.count(p) > 1)
        raise ValueError(
            f"the pieces of a vocabulary must differ. Received twice: {twice!r}"
        )
    theirs = [side.pad, side.start, side.end, side.unknown]
    # A start that is also the end or padding has its vector, but is never produced.
    owners = {side.start: 1, side.pad: 0, side.unknown: 3, side.end: 2}
    names = []
    banned = []
    for ours, (row, name) in enumerate(zip(theirs, SPECIAL_NAMES, strict=True)):
        is_own = row is not None and owners[row] == ours
        if is_own:
            name = pieces[row]
        while not is_own and (name in pieces or name in names):
            name += "_"
        names.append(name)
        banned.append(not is_own or row in side.banned)
    rest = [row for row in range(len(pieces)) if row not in theirs]
    names += [pieces[row] for row in rest]
    there = set(names)
    lacking = [piece for piece in dict.fromkeys(cut) if piece not in there]
    rows = [-1 if row is None else row for row in theirs] + rest
    rows += [side.unknown] * len(lacking)
    banned += [False] * len(rest) + [True] * len(lacking)
    return names + lacking, Rows(np.array(rows), np.array(banned))
