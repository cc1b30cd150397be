"""The pieces of another system's model as our tokenizers, and its rows in our order."""

from __future__ import annotations

import dataclasses

import numpy as np

from keras_transformer.config import TokenizerConfig
from keras_transformer.importers.description import Vocabulary
from keras_transformer.text.sentencepiece_model import (
    cut_pieces,
    fitted,
    is_language,
    loaded,
    of_words,
    special_ids,
)
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.tokenizer_pair import TokenizerPair

_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
# How SentencePiece writes a space; a piece that has it comes from such a model.
_SPACE = "\u2581"


@dataclasses.dataclass
class Rows:
    """The rows of our matrices, by the other system's.

    Args:
        theirs: (V,) int, the row of each of ours in theirs, -1 for zeros.
        banned: (V,) bool, whether the other system cannot produce what the row stands
            for, so that it has no share of the probability.
    """

    theirs: np.ndarray
    banned: np.ndarray


def of_sentencepiece(content: bytes, origin: str) -> Vocabulary:
    """Returns the vocabulary of a model whose rows are a SentencePiece model's ids.

    Raises:
        ValueError: If it is no SentencePiece model, or has no end or no unknown.
    """
    processor = loaded(content, origin)
    _, _, end, unknown = special_ids(processor)
    if end < 0 or unknown < 0:
        raise ValueError(
            f"{origin}: a vocabulary must have an end and an unknown piece"
        )
    count = processor.get_piece_size()
    pieces = [processor.id_to_piece(i) for i in range(count)]
    return Vocabulary(pieces, end, unknown, model=content)


def tokenizers_of(
    source: Vocabulary, target: Vocabulary
) -> tuple[TokenizerPair, Rows, Rows]:
    """Makes the tokenizers of two sides, with our ids.

    Padding, start, end and unknown become 0 to 3, the other pieces follow in their
    order. Then come the pieces that a SentencePiece model cuts text into and the
    vocabulary lacks: they are unknown.

    Args:
        source: Pieces of the source.
        target: Pieces of the target; the same pieces are one joint vocabulary.

    Returns:
        The tokenizers, and the rows of the source and of the target.

    Raises:
        ValueError: If a vocabulary and its SentencePiece model do not go together.
    """
    for side in (source, target):
        _check_names(side.pieces)
    is_joint = source.pieces == target.pieces
    cut = [cut_pieces(side.model) if side.model else [] for side in (source, target)]
    if is_joint:
        cut = [cut[0] + cut[1]] * 2  # One vocabulary numbers what either cuts.
    sides = zip((source, target), cut, strict=True)
    names, rows = zip(*(_ordered(side, pieces) for side, pieces in sides), strict=True)
    languages = set(filter(is_language, names[0]))
    contents = [
        _content(source, names[0], languages), _content(target, names[1], set())
    ]  # fmt: skip
    first = Tokenizer(contents[0])
    second = first if contents[0] == contents[1] else Tokenizer(contents[1])
    config = TokenizerConfig(max(8, len(names[0])), joint_vocabulary=is_joint)
    return TokenizerPair(first, second, config), *rows


def _check_names(pieces):
    """Checks that every piece has a name of its own."""
    if len(set(pieces)) < len(pieces) or "" in pieces:
        twice = next(p for p in pieces if not p or pieces.count(p) > 1)
        raise ValueError(
            f"a vocabulary's pieces must differ. Received twice: {twice!r}"
        )


def _ordered(side, cut):
    """Returns the names of a side's pieces by our ids, and their rows.

    Args:
        side: A `Vocabulary`.
        cut: Pieces that SentencePiece models cut text into.
    """
    # A start that is the end or padding has their vector, but is never produced.
    real = {2: side.end, 3: side.unknown}
    for ours, row in ((0, side.pad), (1, side.start)):
        if row is not None and row not in real.values():
            real[ours] = row
    special = (side.pad, side.start, side.end, side.unknown)
    theirs = [-1 if row is None else row for row in special]
    added = [ours not in real for ours in range(4)]
    names = _special_names(side, theirs, added)
    banned = [ours not in real or real[ours] in side.banned for ours in range(4)]
    rest = [row for row in range(len(side.pieces)) if row not in real.values()]
    names += [side.pieces[row] for row in rest]
    there = set(names)
    lacking = [piece for piece in dict.fromkeys(cut) if piece not in there]
    theirs += rest + [side.unknown] * len(lacking)
    banned += [False] * len(rest) + [True] * len(lacking)
    return names + lacking, Rows(np.array(theirs), np.array(banned))


def _special_names(side, theirs, banned):
    """Returns the names of padding, start, end and unknown; each name comes once."""
    pieces = set(side.pieces)
    names = []
    for row, is_added, name in zip(theirs, banned, _SPECIAL, strict=True):
        if not is_added:
            names.append(side.pieces[row])
            continue
        while name in pieces or name in names:
            name += "_"
        names.append(name)
    return names


def _content(side, names, hidden):
    """Returns the SentencePiece model that cuts a side's texts with these ids."""
    if side.model is not None:
        return fitted(side.model, names, hidden)
    spaced = [name for name in names if _SPACE in name or " " in name]
    if spaced:
        raise ValueError(
            f"a SentencePiece model must be given: the vocabulary has {spaced[0]!r}, "
            "a piece of one"
        )
    return of_words(names)
