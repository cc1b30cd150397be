"""The words that pieces make up, whatever marks a piece as the start of a word.

SentencePiece writes the space before a word as "▁", byte-level BPE as "Ġ", and
WordPiece marks what continues a word with "##".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_BYTE = re.compile("<0x([0-9A-F]{2})>")
# Ends, unknown pieces and languages, such as "</s>", "[SEP]" and ">>fra<<".
_SPECIAL = re.compile(r"</?[A-Za-z]+>|\[[A-Z]+\]|>>.+<<")
_CLOSING = set(".,;:!?…»”)]")
# The characters with which byte-level BPE writes bytes (Radford et al., 2019).
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _VISIBLE]
_BYTES = {chr(byte): byte for byte in _VISIBLE} | {
    chr(256 + place): byte for place, byte in enumerate(_OTHERS)
}


def words_of(pieces: Sequence[str]) -> list[tuple[str, int]]:
    """Returns the words of a text's pieces, each with the number of its pieces.

    Special pieces, and a closing mark that ends a word, are words of their own.
    """
    mark = next((m for m in "▁Ġ" if any(m in piece for piece in pieces)), None)
    groups: list[list[str]] = []
    for place, piece in enumerate(pieces):
        if not groups or _begins(pieces, place, mark):
            groups.append([])
        groups[-1].append(piece)
    return [(_text(group, mark), len(group)) for group in groups]


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
    if mark is None:
        return group[0] + "".join(piece.removeprefix("##") for piece in group[1:])
    joined = "".join(group)
    if mark == "Ġ" and set(joined) <= set(_BYTES):
        content = bytes(_BYTES[character] for character in joined)
    else:
        content = b"".join(map(_content, group))
    return content.decode("utf-8", "replace").strip() or " "


def _content(piece):
    if byte := _BYTE.fullmatch(piece):
        return bytes([int(byte[1], 16)])
    return piece.replace("▁", " ").encode("utf-8")
