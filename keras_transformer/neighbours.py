"""Which pieces of a vocabulary a trained model holds for alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from keras import ops

from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.text.tokenizer import Subwords
from keras_transformer.translator import Translator


class Neighbour(NamedTuple):
    """A piece of the vocabulary, and how near it is."""

    piece: str
    similarity: float  # cosine, -1 to 1


class PieceVectors:
    """The embedding of a trained model, searched by cosine similarity.

    A model learns a vector for each piece of its vocabulary; pieces that occur in like
    places get like vectors. `neighbours` finds the nearest of a word, `analogy` those
    of a - b + c (Mikolov et al., 2013, https://aclanthology.org/N13-1090). Both look at
    pieces alone: a word that is cut into several has no vector of its own. Special
    pieces, single bytes, and the words that were given are never among what is found;
    without that last rule the nearest to a - b + c is mostly a or c itself.

    Args:
        vectors: Float array (V, D), the vector of each id.
        tokenizer: What cuts text into those ids.

    Raises:
        ValueError: If there are not as many vectors as ids.

    Example:
        >>> vectors = PieceVectors.of(Translator.load("runs/en-de"))
        >>> vectors.neighbours("dog", 2)
        [Neighbour(piece='▁dogs', similarity=0.61), ...]
    """

    def __init__(self, vectors: np.ndarray, tokenizer: Subwords) -> None:
        vectors = np.asarray(vectors, np.float32)
        if vectors.ndim != 2 or len(vectors) != tokenizer.vocabulary_size:
            raise ValueError(
                "`vectors` must have a row for each piece of the tokenizer. Received: "
                f"shape {vectors.shape}, {tokenizer.vocabulary_size} pieces"
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
        self._tokenizer = tokenizer
        self.pieces = tokenizer.pieces(range(len(vectors)))
        special = {tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id}
        special.add(tokenizer.unknown_id)
        self._is_answer = np.array(
            [
                id not in special and not _is_byte(piece)
                for id, piece in enumerate(self.pieces)
            ]
        )

    @classmethod
    def of(cls, translator: Translator, side: str = "source") -> Self:
        """Takes the embedding of one side of a translator.

        With a joint vocabulary and a shared matrix both sides are the same, and words
        of both languages are each other's neighbours.

        Args:
            translator: What holds a model and its tokenizers.
            side: "source" or "target".

        Raises:
            TypeError: If the model is an ensemble, which has several embeddings.
            ValueError: If `side` is neither.
        """
        if side not in ("source", "target"):
            raise ValueError(
                f'`side` must be "source" or "target". Received: side={side!r}'
            )
        if not isinstance(translator.model, Seq2Seq):
            raise TypeError(
                "`translator` must have one model: give a member of an ensemble. "
                f"Received: {type(translator.model).__name__}"
            )
        embedding = getattr(translator.model, f"{side}_embedding")
        tokenizer = getattr(translator.tokenizers, side)
        vectors = embedding.token_embedding(ops.arange(tokenizer.vocabulary_size))
        vectors = ops.convert_to_numpy(ops.cast(vectors, "float32"))
        return cls(vectors, tokenizer)

    def id_of(self, word: str) -> int:
        """Returns the id of a word.

        Raises:
            ValueError: If the word is unknown or cut into several pieces, and which.
        """
        (ids,) = self._tokenizer.tokenize([word]).to_list()
        names = " ".join(self.pieces[id] for id in ids)
        if not ids or self._tokenizer.unknown_id in ids:
            raise ValueError(
                "A word must be one piece of the vocabulary. Received: "
                f"{word!r}, of which it lacks a part"
            )
        if len(ids) > 1:
            raise ValueError(
                "A word must be one piece of the vocabulary. Received: "
                f"{word!r}, which is cut into {len(ids)}: {names}"
            )
        return ids[0]

    def neighbours(self, word: str, count: int = 10) -> list[Neighbour]:
        """Returns the pieces nearest to a word, the nearest first.

        Args:
            word: A word that is one piece, as it stands within a sentence.
            count: Pieces to return.

        Raises:
            ValueError: As `id_of`; or if `count` is below 1.
        """
        id = self.id_of(word)
        return self._nearest(self._directions[id], [id], count)

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[Neighbour]:
        """Returns the pieces nearest to a - b + c: what is to c as a is to b.

        The three vectors are brought to length 1 before they are added.

        Args:
            a: A word, as "king".
            b: A word, as "man".
            c: A word, as "woman".
            count: Pieces to return.

        Raises:
            ValueError: As `id_of`; or if `count` is below 1.
        """
        ids = [self.id_of(word) for word in (a, b, c)]
        of_a, of_b, of_c = self._directions[ids]
        return self._nearest(of_a - of_b + of_c, ids, count)

    def _nearest(
        self, vector: np.ndarray, given: Sequence[int], count: int
    ) -> list[Neighbour]:
        if count < 1:
            raise ValueError(f"`count` must be at least 1. Received: count={count}")
        length = max(np.linalg.norm(vector), np.finfo(np.float32).tiny)
        similarities = self._directions @ (vector / length)
        allowed = self._is_answer.copy()
        allowed[list(given)] = False
        ids = np.flatnonzero(allowed)
        best = ids[np.argsort(-similarities[ids], kind="stable")][:count]
        return [Neighbour(self.pieces[i], float(similarities[i])) for i in best]


def _is_byte(piece):
    """Whether a piece is one byte of what SentencePiece has no piece for."""
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
