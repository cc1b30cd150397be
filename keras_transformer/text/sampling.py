"""Random pieces of training texts, by a seed alone.

SentencePiece draws pieces too, but salts its random numbers anew in every process, so
that a run that goes on would see others.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import random
import re
from collections.abc import Iterable, Sequence

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text.sentencepiece_model import UNKNOWN_ID, Piece

_BPE = sentencepiece_model_pb2.TrainerSpec.BPE


class Sampler:
    """Cuts texts, given as ids, into other pieces of a SentencePiece model at random.

    `rate` is the share of the byte-pair merges left out, or of a unigram model the
    exponent of the probabilities.
    """

    def __init__(self, model: bytes, rate: float):
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        normal = {id: p for id, p in enumerate(proto.pieces) if p.type == Piece.NORMAL}
        self._texts = {id: p.piece for id, p in normal.items()}
        self._ids = {p.piece: id for id, p in normal.items()}
        self._scores = {p.piece: p.score for p in normal.values()}
        self._longest = max(map(len, self._scores))
        self._rate = rate
        # A word is cut alone, unless a piece has a space elsewhere than at its start.
        has_inner_space = any("▁" in text[1:].lstrip("▁") for text in self._ids)
        self._words = re.compile("(?s).+" if has_inner_space else "▁*[^▁]+|▁+")
        is_bpe = proto.trainer_spec.model_type == _BPE
        self._cut = self._merged if is_bpe else self._drawn
        self._lattice = functools.lru_cache(1 << 18)(self._new_lattice)

    def sample(self, rows: Iterable[Sequence[int]], seed: int) -> list[np.ndarray]:
        """Cuts texts, given as ids, anew by `seed`; ids of bytes and the like stay."""
        rng = random.Random(seed)
        return [np.array(list(self._new_ids(row, rng)), np.int32) for row in rows]

    def _new_ids(self, ids, rng):
        for is_text, run in itertools.groupby(ids, self._texts.__contains__):
            if not is_text:
                yield from run
                continue
            for word in self._words.findall("".join(map(self._texts.__getitem__, run))):
                for piece in self._cut(word, rng):
                    yield self._ids.get(piece, UNKNOWN_ID)

    def _merged(self, word, rng):
        """The pieces of a word after byte-pair merges, some of them left out."""
        pieces, score, never = list(word), self._scores.get, -math.inf
        scores = [score(a + b, never) for a, b in itertools.pairwise(pieces)]
        while scores and (best := max(scores)) > never:
            i = scores.index(best)
            if rng.random() < self._rate:
                scores[i] = never
                continue
            pieces[i] += pieces.pop(i + 1)
            del scores[i]
            if i > 0:
                scores[i - 1] = score(pieces[i - 1] + pieces[i], never)
            if i < len(scores):
                scores[i] = score(pieces[i] + pieces[i + 1], never)
        return pieces

    def _drawn(self, word, rng):
        """The pieces of a word by their probabilities, drawn from its end on."""
        lattice = self._lattice(word)
        pieces, end = [], len(word)
        while end:
            starts, shares = lattice[end]
            start = starts[bisect.bisect(shares, rng.random() * shares[-1])]
            pieces.append(word[start:end])
            end = start
        return pieces[::-1]

    def _new_lattice(self, word):
        """The starts of pieces that end at each place of a word, and their shares.

        Shares are cumulated; each has all ways to cut what is before a piece.
        """
        sums, lattice = {0: 0.0}, {}
        for end in range(1, len(word) + 1):
            weights = {
                start: sums[start] + self._rate * self._scores[word[start:end]]
                for start in range(max(0, end - self._longest), end)
                if start in sums and word[start:end] in self._scores
            }
            if weights:
                top = max(weights.values())
                shares = [math.exp(weight - top) for weight in weights.values()]
                lattice[end] = list(weights), list(itertools.accumulate(shares))
                sums[end] = top + math.log(sum(shares))
        return lattice
