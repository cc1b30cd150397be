"""The words that pieces make up, whatever marks a piece as the start of a word.

SentencePiece writes the space before a word as "▁", byte-level BPE as "Ġ", and
WordPiece marks what continues a word with "##".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_BYTE = re.compile("<0x([0-9A-F]{2})>")
# Ends, unknown pieces and languages, such as "</s>", "[SEP]" and ">>fra<<".
_SPECIAL = re.compile(r"</?[A-Za-z]+>|\[[A-Z]+\]|>>.+<<")
_CLOSING = set(".,;:!?…»”)]")


def byte_characters() -> list[str]:
    """Returns the visible character by which byte-level BPE writes each byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(b if b in visible else next(others)) for b in range(256)]


class Word(NamedTuple):
    """A word and how many pieces it is made of."""

    text: str
    pieces: int


def words_of(pieces: Sequence[str]) -> list[Word]:
    """Returns the words of pieces, in order.

    Special pieces, and a closing mark that ends a word, are words of their own.

    Args:
        pieces: Pieces of one text, its special ones included.

    Example:
        >>> words_of(["▁Two", "▁m", "en", ".", "</s>"])
        [Word('Two', 1), Word('men', 2), Word('.', 1), Word('</s>', 1)]
    """
    mark = next((m for m in "▁Ġ" if any(m in piece for piece in pieces)), None)
    groups: list[list[str]] = []
    for place, piece in enumerate(pieces):
        if not groups or _begins(pieces, place, mark):
            groups.append([])
        groups[-1].append(piece)
    return [Word(_text(group, mark), len(group)) for group in groups]


def _begins(pieces, place, mark):
    """Whether the piece at a place begins a word; it is not the first."""
    piece = pieces[place]
    if _SPECIAL.fullmatch(piece) or _SPECIAL.fullmatch(pieces[place - 1]):
        return True
    if mark is None:
        return not piece.startswith("##")
    if piece.startswith(mark):
        return True
    rest = pieces[place:]
    following = next((p for p in rest if not set(p) <= _CLOSING), mark)
    ends = following.startswith(mark) or _SPECIAL.fullmatch(following) is not None
    return set(piece) <= _CLOSING and ends


def _text(group, mark):
    """The pieces of a word joined, the bytes among them decoded."""
    if mark == "Ġ":
        codes = {character: byte for byte, character in enumerate(byte_characters())}
        joined = "".join(group)
        if all(character in codes for character in joined):
            content = bytes(codes[character] for character in joined)
            return content.decode("utf-8", "replace").strip() or " "
    content = b"".join(_bytes(piece) for piece in group)
    text = content.decode("utf-8", "replace").replace("▁", " ").strip()
    if mark is None and len(group) > 1:
        text = group[0] + "".join(piece.removeprefix("##") for piece in group[1:])
    return text or " "


def _bytes(piece):
    found = _BYTE.fullmatch(piece)
    return bytes([int(found[1], 16)]) if found else piece.encode("utf-8")
