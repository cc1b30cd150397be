"""Byte-level BPE, as GPT-2's and many after it, in the TensorFlow graph.

SentencePiece's operation does the merging: it joins the two neighbours whose piece has
the best score, and the score of a piece is the rank of its merge. The rest, bytes as
visible characters and the cut at words, numbers and spaces, is TensorFlow's own. So the
graph holds no table that grows, and any text comes back byte by byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.text.operations import tensorflow_text
from keras_transformer.text.sentencepiece_model import Piece, made_of
from keras_transformer.text.special_names import special_names
from keras_transformer.text.subwords import UNKNOWN_ID, Subwords, as_utf8

# Radford et al., 2019: spaces go with the word after them. RE2 knows no look-ahead, so
# a mark, which no text holds, first separates a word's space from those before it.
_MARK = "\uffff"
# White space in Unicode; RE2's own class is that of ASCII.
_SPACE = (
    r"\t\n\x0b\f\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}"
    r"\x{205f}\x{3000}"
)
_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^" + _SPACE + r"\p{L}\p{N}]+"
    r"|[" + _SPACE + r"]+"
)


def byte_characters() -> list[str]:
    """Returns the visible character that stands for each of the 256 bytes."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in visible)
    stands_for = {byte: chr(byte) for byte in visible}
    stands_for |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [stands_for[byte] for byte in range(256)]


class BytePairTokenizer(Subwords):
    """A byte-level BPE vocabulary with our special ids.

    Ids 0 to 3 are padding, start, end and unknown; the other pieces follow in the order
    of their own ids. Every byte is a piece, so no text is unknown. (A zero byte, at
    which TensorFlow's operations would end the text, becomes U+FFFD.)

    Neighbours that are no merge are joined too if together they are a piece, which
    GPT-2 does not do: of the merges (a, b), (b, c) and (a, bc) it makes "ab", "c" of
    "abc", and this class "abc". `TokenizerPair.of` compares the two on many texts, and
    takes another class where they differ.

    Args:
        vocabulary: Pieces and their ids, bytes as `byte_characters`.
        merges: Pairs of pieces that are joined, the first first.
        add_prefix_space: Whether the first word of a text is cut like the others.

    Raises:
        ValueError: If a byte or the piece of a merge is missing.
    """

    suffix = ".json"

    def __init__(
        self,
        vocabulary: dict[str, int],
        merges: Sequence[tuple[str, str]],
        add_prefix_space: bool = False,
    ):
        merges = [tuple(pair) for pair in merges]
        needed = {*byte_characters(), *map("".join, merges)}
        if missing := sorted(needed - set(vocabulary)):
            raise ValueError(
                "`vocabulary` must have all 256 bytes and the pieces of all merges. "
                f"Received: {len(missing)} missing, such as {missing[0]!r}"
            )
        self.add_prefix_space = add_prefix_space
        self._spec = {
            "vocabulary": vocabulary,
            "merges": merges,
            "add_prefix_space": add_prefix_space,
        }
        names = special_names(vocabulary)
        rank = {}
        for number, pair in enumerate(merges):
            rank.setdefault("".join(pair), number)
        order = sorted(vocabulary, key=vocabulary.get)
        pieces = [
            Piece(piece=piece, score=-rank.get(piece, len(merges)))
            for piece in order
            if piece not in names
        ]
        self._pieces = [*names, *(piece.piece for piece in pieces)]
        self._model = made_of(
            pieces, "bpe", names, name="identity", add_dummy_prefix=False,
            remove_extra_whitespaces=False, escape_whitespaces=False,
        )  # fmt: skip

    @property
    def content(self) -> bytes:
        """What `given.as_tokenizer` reads: JSON."""
        return json.dumps({"byte_pair": self._spec}, ensure_ascii=False).encode()

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones and the bytes counted."""
        return len(self._pieces)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the piece of each id, bytes as visible characters."""
        return [self._pieces[int(id)] for id in ids]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def _tokenize(self, texts):
        texts = tf.strings.regex_replace(as_utf8(texts), rf"[{_MARK}\x00]", "\ufffd")
        if self.add_prefix_space:
            # As Hugging Face's: none before a space, and none alone.
            texts = tf.strings.regex_replace(texts, rf"^([^{_SPACE}])", r" \1")
        words = _words(texts)
        flat = words.flat_values
        cut = tensorflow_text.SentencepieceTokenizer(model=self._model).tokenize(
            _visible(flat)
        )
        splits = tf.gather(cut.row_splits, words.row_splits)
        return tf.RaggedTensor.from_row_splits(cut.values, splits, validate=False)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def _detokenize(self, ids):
        # An unknown piece has no text: the model may give one, a text never has one.
        ids = tf.ragged.boolean_mask(ids, ids > UNKNOWN_ID)
        pieces = tf.ragged.map_flat_values(self.piece_strings, ids)
        codes = tf.strings.unicode_decode(tf.strings.reduce_join(pieces, -1), "UTF-8")
        texts = tf.strings.reduce_join(
            tf.ragged.map_flat_values(_bytes_of_codes, codes), axis=-1
        )
        if self.add_prefix_space:
            texts = tf.strings.regex_replace(texts, "^ ", "")
        return as_utf8(texts)


def _words(texts):
    """Cuts texts [B] into ragged words [B, None]; nothing is lost."""
    marked = tf.strings.regex_replace(
        texts, rf"([{_SPACE}])([^{_SPACE}])", _MARK + r"\1\2"
    )
    parts = tensorflow_text.regex_split(marked, _MARK)  # (B, parts)
    words = tensorflow_text.regex_split(parts.flat_values, _WORDS, _WORDS)
    splits = tf.gather(words.row_splits, parts.row_splits)
    return tf.RaggedTensor.from_row_splits(words.values, splits, validate=False)


def _visible(words):
    """Writes each byte of some strings as its visible character."""
    split = tf.strings.bytes_split(words)
    codes = tf.cast(tf.io.decode_raw(split.values, tf.uint8), tf.int32)
    visible = tf.gather(tf.constant(byte_characters()), tf.reshape(codes, [-1]))
    return tf.strings.reduce_join(split.with_values(visible), axis=-1)


def _bytes_of_codes(codes):
    """Returns the byte that each visible character, a code point, stands for."""
    characters = byte_characters()
    table = np.full(max(map(ord, characters)) + 2, b"", object)
    for byte, character in enumerate(characters):
        table[ord(character)] = bytes([byte])
    # Characters of a special piece, which stand for nothing, are left out: the last
    # entry is that of all above.
    return tf.gather(tf.constant(table.tolist()), tf.minimum(codes, len(table) - 1))
