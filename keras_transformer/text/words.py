"""Pieces and words as a reader knows them, whatever marks the start of a word.

SentencePiece writes the space before a word as "▁", byte-level BPE as "Ġ", and
WordPiece marks what continues a word with "##".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_BYTE = re.compile("<0x([0-9A-F]{2})>")
# Ends, unknown pieces and languages, such as "</s>", "[SEP]" and ">>fra<<".
_SPECIAL = re.compile(r"</?[A-Za-z]+>|\[[A-Z]+\]|>>.+<<")
# What those of them are called that a model reads or writes at every text.
_NAMES = {
    "<s>": "(start)",
    "[CLS]": "(start)",
    "</s>": "(end)",
    "[SEP]": "(end)",
    "<unk>": "(unknown)",
    "[UNK]": "(unknown)",
}
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
    mark = _mark_of(pieces)
    groups: list[list[str]] = []
    for place, piece in enumerate(pieces):
        if not groups or _begins(pieces, place, mark):
            groups.append([])
        groups[-1].append(piece)
    return [(_text(group, mark), len(group)) for group in groups]


def labels_of(pieces: Sequence[str]) -> list[str]:
    """Returns the pieces of a text without the marks of their vocabulary."""
    mark = _mark_of(pieces)
    return [_text([piece], mark) for piece in pieces]


def _mark_of(pieces):
    """Returns the character that begins a word's first piece, or `None`."""
    return next((m for m in "▁Ġ" if any(m in piece for piece in pieces)), None)


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
    if name := _NAMES.get(group[0]):
        return name
    if mark is None:
        return "".join(piece.removeprefix("##") for piece in group)
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
