"""What every tokenizer here offers: text to ids and back, special ids 0 to 3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_transformer.files import replacing

PAD_ID, START_ID, END_ID, UNKNOWN_ID = 0, 1, 2, 3


class Subwords:
    """Base class of the tokenizers.

    The ids 0, 1, 2 and 3 are padding, start, end and unknown; no text is ever cut into
    the first three. A subclass has the file that it is made from (`content`, `suffix`)
    and cuts and joins texts (`_tokenize`, `_detokenize`, `pieces`).

    Attributes:
        graph_problem: Why the tokenizer cannot be part of a TensorFlow graph that is
            saved, or `None` if it can.
        suffix: End of the name of its file.
        content: Content of its file, bytes.
    """

    pad_id, start_id, end_id, unknown_id = PAD_ID, START_ID, END_ID, UNKNOWN_ID
    graph_problem: str | None = None
    suffix: str
    content: bytes

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones counted."""
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer's file, whole or not at all."""
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(self.content)

    def tokenize(self, texts: str | Sequence[str] | tf.Tensor) -> tf.RaggedTensor:
        """Cuts texts into pieces, without start and end.

        Args:
            texts: Strings, shape [B]; bytes that are not UTF-8 count as U+FFFD.

        Returns:
            Ragged int32 ids, shape [B, None].
        """
        return self._tokenize(texts)

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> list[np.ndarray]:
        """Cuts training texts into random pieces.

        Raises:
            ValueError: If this kind of tokenizer has no random pieces.
        """
        raise ValueError(
            "Only a SentencePiece model cuts text into random pieces: leave "
            f"`subword_sampling` 0. Received: a {type(self).__name__}"
        )

    def detokenize(
        self, ids: tf.Tensor | tf.RaggedTensor | Sequence[Sequence[int]]
    ) -> tf.Tensor:
        """Joins pieces into texts.

        Args:
            ids: Ids, a dense or ragged integer tensor of shape [B, T]. Padding, start
                ids and everything from the first end id of a row on are dropped.

        Returns:
            Strings, shape [B].
        """
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(self.pad_id)
        ids = tf.cast(ids, tf.int32)
        ended = tf.cumsum(tf.cast(ids == self.end_id, tf.int32), axis=1) > 0
        special = (ids == self.pad_id) | (ids == self.start_id)
        kept = tf.ragged.boolean_mask(ids, ~(ended | special))
        return self._detokenize(kept)

    def piece_strings(
        self, ids: tf.Tensor | tf.RaggedTensor | Sequence[Sequence[int]]
    ) -> tf.Tensor:
        """Returns the piece of each id, as `pieces` does, inside a graph.

        Args:
            ids: Integer tensor of any shape.

        Returns:
            Strings of the same shape, "" for padding.
        """
        pieces = self.pieces(range(self.vocabulary_size))
        pieces[self.pad_id] = ""
        return tf.gather(tf.constant(pieces), ids)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the piece of each id, for plots and debugging."""
        raise NotImplementedError

    def _tokenize(self, texts):
        raise NotImplementedError

    def _detokenize(self, ids):
        """Joins ragged int32 ids [B, None] without the ids 0, 1 and 2."""
        raise NotImplementedError


def as_utf8(texts) -> tf.Tensor:
    """Returns strings whose bytes that are not UTF-8 have become U+FFFD."""
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
