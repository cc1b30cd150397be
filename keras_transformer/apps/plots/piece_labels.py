"""Pieces as a reader knows them, whatever marks the start of a word.

SentencePiece writes the space before a word as "▁", byte-level BPE as "Ġ", and
WordPiece marks what continues a word with "##".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_BYTE = re.compile("<0x([0-9A-F]{2})>")
# What pieces are called that a model reads or writes at every text.
_NAMES = {
    "<s>": "(start)",
    "[CLS]": "(start)",
    "</s>": "(end)",
    "[SEP]": "(end)",
    "<unk>": "(unknown)",
    "[UNK]": "(unknown)",
}
# The characters with which byte-level BPE writes bytes (Radford et al., 2019).
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _VISIBLE]
_BYTES = {chr(byte): byte for byte in _VISIBLE} | {
    chr(256 + place): byte for place, byte in enumerate(_OTHERS)
}


def labels_of(pieces: Sequence[str]) -> list[str]:
    """Returns the pieces of a text without the marks of their vocabulary."""
    mark = next((m for m in "▁Ġ" if any(m in piece for piece in pieces)), None)
    return [_label(piece, mark) for piece in pieces]


def _label(piece, mark):
    """Returns a piece without `mark`, which begins a word; bytes are decoded."""
    if name := _NAMES.get(piece):
        return name
    if mark is None:
        return piece.removeprefix("##")
    if mark == "Ġ" and set(piece) <= set(_BYTES):
        content = bytes(_BYTES[character] for character in piece)
    elif byte := _BYTE.fullmatch(piece):
        content = bytes([int(byte[1], 16)])
    else:
        content = piece.replace("▁", " ").encode("utf-8")
    return content.decode("utf-8", "replace").strip() or " "
