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
from collections.abc import Sequence

from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

from keras_transformer.text.sentencepiece_model import UNKNOWN_ID

_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece
_BPE = sentencepiece_model_pb2.TrainerSpec.BPE


class Sampler:
    """Cuts texts into pieces of a SentencePiece model at random.

    A word is cut without regard to the others if no piece has a space but at its start.
    What does not depend on chance is kept for each word.

    Args:
        model: Serialised model.
        rate: Share of the byte-pair merges left out; of a unigram model the exponent
            of the probabilities.
    """

    def __init__(self, model: bytes, rate: float):
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        kinds = (_Piece.NORMAL, _Piece.USER_DEFINED)
        self._scores = {p.piece: p.score for p in proto.pieces if p.type in kinds}
        kinds += (_Piece.BYTE, _Piece.UNUSED)
        self._ids = {p.piece: i for i, p in enumerate(proto.pieces) if p.type in kinds}
        self._longest = max(map(len, self._scores))
        # What SentencePiece gives a character of no piece.
        self._unknown = min(self._scores.values()) - 10.0
        self._rate = rate
        self._processor = SentencePieceProcessor(model_proto=model)
        has_inner_space = any("▁" in piece[1:].lstrip("▁") for piece in self._scores)
        self._words = re.compile(".+" if has_inner_space else "▁*[^▁]*", re.DOTALL)
        is_bpe = proto.trainer_spec.model_type == _BPE
        self._cut = self._merged if is_bpe else self._drawn
        self._plan = functools.lru_cache(1 << 18)(
            self._merge if is_bpe else self._lattice
        )

    def sample(self, texts: Sequence[str], seed: int) -> list[list[int]]:
        """Returns the ids of some texts; `seed` alone determines them."""
        rng = random.Random(seed)
        rows = []
        for text in self._processor.normalize(list(texts)):
            words = filter(None, self._words.findall(text))
            pieces = itertools.chain.from_iterable(self._cut(w, rng) for w in words)
            row = []
            for is_known, run in itertools.groupby(pieces, self._scores.__contains__):
                run = list(run)
                if is_known:
                    row += [self._ids[piece] for piece in run]
                else:
                    row += self._ids_of_unknown("".join(run))
            rows.append(row)
        return rows

    def _ids_of_unknown(self, text):
        """SentencePiece has one piece for all unknown characters in a row, or bytes."""
        names = [text]
        if "<0x00>" in self._ids and text not in self._ids:
            names = [f"<0x{byte:02X}>" for byte in text.encode()]
        return [self._ids.get(name, UNKNOWN_ID) for name in names]

    def _merged(self, word, rng):
        """The pieces of a word after byte-pair merges, some of them left out."""
        made_between = ()
        while True:
            pieces, number = self._plan(word, made_between)
            # The merges that are made before the next that is left out.
            made = int(math.log(1.0 - rng.random()) / math.log(1.0 - self._rate))
            if made >= number:
                return pieces
            made_between += (made,)

    def _merge(self, word, made_between):
        """The pieces of a word if a merge is left out after some were made, and so on.

        And the number of the merges that were made after the last that was left out.
        """
        scores, left_out = self._scores, set()
        ends = list(range(len(word) + 1))  # Of the pieces, after a 0.
        number, made_between = 0, list(made_between)
        while True:
            best, place = None, 0
            for i, span in enumerate(zip(ends, ends[1:], ends[2:], strict=False), 1):
                score = scores.get(word[span[0] : span[2]])
                if score is not None and (best is None or score > best):
                    if span not in left_out:
                        best, place = score, i
            if best is None:
                return [word[a:b] for a, b in itertools.pairwise(ends)], number
            if made_between[:1] == [number]:
                left_out.add(tuple(ends[place - 1 : place + 2]))
                number, made_between = 0, made_between[1:]
            else:
                del ends[place]
                number += 1

    def _drawn(self, word, rng):
        """The pieces of a word by their probabilities, drawn from its end on."""
        before = self._plan(word)
        pieces, end = [], len(word)
        while end:
            starts, shares = before[end]
            start = starts[bisect.bisect(shares, rng.random() * shares[-1])]
            pieces.append(word[start:end])
            end = start
        return pieces[::-1]

    def _lattice(self, word):
        """The starts of pieces that end at each place of a word, and their shares.

        Shares are cumulated; each has all ways to cut what is before a piece.
        """
        sums, before = [0.0], [None]
        for end in range(1, len(word) + 1):
            starts, weights = [], []
            for start in range(max(0, end - self._longest), end):
                score = self._scores.get(word[start:end])
                if score is None and start == end - 1:
                    score = self._unknown
                if score is not None:
                    starts.append(start)
                    weights.append(sums[start] + self._rate * score)
            top = max(weights)
            shares = list(itertools.accumulate(math.exp(w - top) for w in weights))
            sums.append(top + math.log(shares[-1]))
            before.append((starts, shares))
        return before
