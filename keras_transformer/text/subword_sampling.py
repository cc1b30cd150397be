"""Random segmentations of training text, exactly repeatable.

SentencePiece's own sampling cannot be repeated: its generator mixes in a salt that
every process draws anew, so that one seed gives other pieces after a restart. The two
methods are therefore here, word by word (no piece spans two words), over its
vocabulary: BPE-dropout as SentencePiece does it, and sampling from the lattice of a
unigram vocabulary.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

_SPACE = "▁"
# A word is what SentencePiece writes between two spaces, the first one included.
_WORD = re.compile(f"{_SPACE}?[^{_SPACE}]+|{_SPACE}")
# Words, or segmentations of them, kept ready (some hundred bytes each).
_CACHED = 1 << 17
# What SentencePiece takes off the lowest score for an unknown character.
_UNKNOWN_PENALTY = 10.0


class SubwordSampler:
    """Cuts texts into random pieces of a SentencePiece vocabulary.

    For a BPE vocabulary each merge that could be made is left out with the probability
    `rate` (Provilkov et al., 2020, https://arxiv.org/abs/1910.13267; as SentencePiece
    does it, each possible merge is drawn once, when its turn comes). For a unigram
    vocabulary a segmentation x is drawn with a probability proportional to
    P(x)^`rate`, over all of them (Kudo, 2018, https://arxiv.org/abs/1804.10959,
    section 3.3, whose alpha this is): near 0 all are equally likely.

    Args:
        model: Serialised SentencePiece model, of type BPE or unigram.
        rate: Share of the merges left out, or alpha; above 0 and below 1.

    Raises:
        ValueError: If `rate` is out of range, or the model is of another type or has
            pieces that span words.
    """

    def __init__(self, model: bytes, rate: float):
        if not 0 < rate < 1:
            raise ValueError(
                f"`rate` must be above 0 and below 1. Received: rate={rate}"
            )
        self.rate = rate
        self._normalizer = sentencepiece.SentencePieceProcessor()
        self._normalizer.LoadFromSerializedProto(model)
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        self._vocabulary = _Vocabulary(proto)
        kinds = sentencepiece_model_pb2.TrainerSpec
        words = {kinds.BPE: _BpeWords, kinds.UNIGRAM: _UnigramWords}
        if proto.trainer_spec.model_type not in words:
            raise ValueError("Sub-word sampling needs a BPE or unigram vocabulary.")
        self._words = words[proto.trainer_spec.model_type](self._vocabulary, rate)

    def sample(self, texts: Sequence[str], seed: Sequence[int]) -> list[np.ndarray]:
        """Draws a segmentation of each text.

        Args:
            texts: Sentences.
            seed: Whole numbers; with `texts` they determine the result, in any process.

        Returns:
            int32 ids of each text, without start and end.
        """
        # Python promises that a string seeds the same sequence in every version.
        uniforms = iter(random.Random(repr(tuple(map(int, seed)))).random, None)
        cut = self._words.cutter(uniforms)
        rows = []
        for text in self._normalizer.normalize(list(texts)):
            ids = itertools.chain.from_iterable(map(cut, _WORD.findall(text)))
            rows.append(self._vocabulary.joined(np.fromiter(ids, np.int32)))
        return rows


class _Vocabulary:
    """The pieces of a SentencePiece model, and how it spells what has none."""

    def __init__(self, proto):
        kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
        self.ids, self.scores, self._bytes = {}, {}, {}
        for id, piece in enumerate(proto.pieces):
            if piece.type == kinds.BYTE:
                self._bytes[int(piece.piece[1:-1], 16)] = id
            elif piece.type == kinds.UNKNOWN:
                self._unknown_id = id
            elif piece.type == kinds.NORMAL:
                self.ids[piece.piece] = id
                self.scores[piece.piece] = piece.score
            elif piece.type != kinds.CONTROL:
                raise ValueError(
                    "Sub-word sampling needs a vocabulary without user-defined or "
                    f"unused pieces. Received: {piece.piece!r}"
                )
            if _SPACE in piece.piece[1:]:
                raise ValueError(
                    "Sub-word sampling needs a vocabulary whose pieces end with the "
                    f"word. Received: {piece.piece!r}"
                )
        self.longest = max(map(len, self.ids))
        self.unknown_score = min(self.scores.values()) - _UNKNOWN_PENALTY

    def spelled(self, piece):
        """Returns the ids of a piece, or of a character that is none."""
        if piece in self.ids:
            return (self.ids[piece],)
        if self._bytes:
            return tuple(self._bytes[byte] for byte in piece.encode("utf-8"))
        return (self._unknown_id,)

    def joined(self, ids):
        """Returns ids with each run of unknown characters as one, as in tokenizing."""
        unknown = ids == self._unknown_id
        unknown[1:] &= unknown[:-1].copy()
        unknown[:1] = False
        return ids[~unknown]


class _BpeWords:
    """Segmentations of words with merges left out at random."""

    def __init__(self, vocabulary, rate):
        self._vocabulary = vocabulary
        self._log_kept = math.log1p(-rate)
        self._segmented = functools.lru_cache(_CACHED)(self._segment)

    def cutter(self, uniforms: Iterator[float]):
        """Returns a function from a word to its ids, which draws from `uniforms`."""
        # Which turns of merges are left out is one sequence over all words: the number
        # of turns until the next is geometric. Most words then cost one look-up.
        segmented, log_kept = self._segmented, self._log_kept

        def gap():
            return int(math.log1p(-next(uniforms)) / log_kept)

        until_drop = gap()

        def cut(word):
            nonlocal until_drop
            dropped = ()
            ids, turns = segmented(word, dropped)
            while until_drop < turns:
                dropped += (until_drop,)
                until_drop += 1 + gap()
                ids, turns = segmented(word, dropped)
            until_drop -= turns
            return ids

        return cut

    def _segment(self, word, dropped):
        """Returns the ids of a word and the turns that merges had.

        `dropped` are the numbers of the turns whose merge is left out.
        """
        parts = list(word)
        scores = self._vocabulary.scores
        after = [*range(1, len(parts)), None]
        before = [None, *range(len(parts) - 1)]
        agenda = []

        def propose(left, right):
            if left is not None and right is not None:
                merged = parts[left] + parts[right]
                if merged in scores:
                    heapq.heappush(agenda, (-scores[merged], left, right, merged))

        for left in range(len(parts) - 1):
            propose(left, left + 1)
        turns = 0
        while agenda:
            _, left, right, merged = heapq.heappop(agenda)
            if after[left] != right or parts[left] + parts[right] != merged:
                continue  # One of the two has been merged with another meanwhile.
            turns += 1
            if turns - 1 in dropped:
                continue
            parts[left], parts[right] = merged, ""
            after[left] = after[right]
            if after[left] is not None:
                before[after[left]] = left
            propose(before[left], left)
            propose(left, after[left])
        spelled = (self._vocabulary.spelled(part) for part in parts if part)
        return tuple(itertools.chain.from_iterable(spelled)), turns


class _UnigramWords:
    """Segmentations of words drawn by their probability to the power of the rate.

    Forward filtering, backward sampling: `table[end]` has the pieces that end at `end`
    and the running sums of their weights, each weight that of all segmentations up to
    there whose last piece it is.
    """

    def __init__(self, vocabulary, rate):
        self._vocabulary = vocabulary
        self._rate = rate
        self._table = functools.lru_cache(_CACHED // 8)(self._make_table)

    def cutter(self, uniforms: Iterator[float]):
        """Returns a function from a word to its ids, which draws from `uniforms`."""

        def cut(word):
            table, end, drawn = self._table(word), len(word), []
            while end:
                starts, pieces, sums = table[end]
                last = bisect.bisect_right(sums, next(uniforms) * sums[-1])
                # Rounding may lift the product to the sum itself.
                last = min(last, len(sums) - 1)
                drawn.append(pieces[last])
                end = starts[last]
            return itertools.chain.from_iterable(reversed(drawn))

        return cut

    def _make_table(self, word):
        vocabulary, table = self._vocabulary, [None]
        log_totals = [0.0]  # Of all segmentations of the first characters.
        for end in range(1, len(word) + 1):
            starts, pieces, logs = [], [], []
            for start in range(max(0, end - vocabulary.longest), end):
                score = vocabulary.scores.get(word[start:end])
                if score is None and start == end - 1:
                    score = vocabulary.unknown_score
                if score is not None:
                    starts.append(start)
                    pieces.append(vocabulary.spelled(word[start:end]))
                    logs.append(log_totals[start] + self._rate * score)
            highest = max(logs)
            weights = (math.exp(log - highest) for log in logs)
            sums = list(itertools.accumulate(weights))
            log_totals.append(highest + math.log(sums[-1]))
            table.append((starts, pieces, sums))
        return table
