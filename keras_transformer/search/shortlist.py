"""The target pieces that a batch of sources suggests, so that a search scores few."""

from __future__ import annotations

import math
from collections.abc import Iterable

import keras
import numpy as np
from keras import ops

from keras_transformer.models.transformer import Seq2Seq
from keras_transformer.types import Tensor, TensorLike

_CHUNK = 10_000  # Pairs that are held as cells of a matrix at once.
# So many pairs are all used; a later one only if one of its source pieces was used less
# often than the second number.
_PAIRS = 100_000
_TIMES = 10
_SPECIAL = 4  # Ids of padding, start, end and the unknown piece come first.
_LEAST = 1024  # candidates of a search with fixed shapes
NO_PIECE = np.iinfo("int32").max


class Shortlist:
    """A table of the target pieces that each source piece is translated to.

    A search scores only the pieces that the sources of its batch suggest, and the most
    frequent ones. The others have no share of the softmax.

    Args:
        table: Integer array (V, C), target pieces of each source piece; 0 for none.
        frequent: Integer array (F,), target pieces that are always scored.

    Example:
        >>> shortlist = Shortlist([[0], [0], [0], [0], [9], [7]], frequent=[5])
        >>> shortlist.candidates([[5, 4, 2]])  # 0, 1, 2, 3, 5, 7, 9
    """

    def __init__(self, table: TensorLike, frequent: TensorLike):
        self.table = np.asarray(table, "int32")
        always = [*range(_SPECIAL), *np.asarray(frequent).tolist()]
        self.frequent = np.array(sorted(set(always)), "int32")

    def check_fit(self, model: keras.Model, beam_size: int) -> None:
        """Raises `ValueError` if a search with a model cannot use the shortlist."""
        sizes = model.config
        most = max(self.table.max(), self.frequent.max())
        special = max(sizes.pad_id, sizes.start_id, sizes.end_id)
        if not isinstance(model, Seq2Seq) or special >= _SPECIAL:
            raise ValueError(
                "A shortlist needs a `Transformer` whose special ids are below "
                f"{_SPECIAL}. Received: {model!r}"
            )
        needed = beam_size + _SPECIAL
        if (
            len(self.table) != sizes.source_vocabulary_size
            or most >= sizes.target_vocabulary_size
            or len(self.frequent) < needed
        ):
            raise ValueError(
                f"The shortlist must have a row for each of the model's "
                f"{sizes.source_vocabulary_size} source pieces, target pieces below "
                f"{sizes.target_vocabulary_size}, and at least {needed} frequent ones, "
                f"special ones counted. Received: {len(self.table)} rows, pieces up to "
                f"{most}, and {len(self.frequent)} frequent ones"
            )

    def candidates(self, *ids: TensorLike, size: int | None = None) -> Tensor:
        """Returns the ids (K,), ascending, that sources (B, S) and prefixes suggest.

        With a `size` of `size_for` or more, for XLA, `NO_PIECE` fills the rest.
        """
        source, *prefixes = ids
        found = [self.frequent, ops.take(self.table, source, axis=0), *prefixes]
        flat = [ops.reshape(ops.cast(part, "int32"), (-1,)) for part in found]
        every = ops.sort(ops.concatenate(flat))
        # As `ops.unique`, whose result has a fixed size.
        before = ops.concatenate([ops.full((1,), -1, "int32"), every[:-1]])
        is_new = every != before
        every = ops.sort(ops.where(is_new, every, NO_PIECE))
        count = ops.sum(ops.cast(is_new, "int32")) if size is None else size
        return every[:count]

    def size_for(self, source: np.ndarray, *prefixes: np.ndarray) -> int:
        """Returns one of a few sizes that hold all candidates, a power of four."""
        found = [self.frequent, self.table[source], *prefixes]
        count = len(np.unique(np.concatenate([part.ravel() for part in found])))
        return max(_LEAST, 4 ** math.ceil(math.log(count, 4)))

    def places(self, candidates: TensorLike, ids: TensorLike) -> Tensor:
        """Returns the places of ids (B, P) among the candidates (K,)."""
        # As `ops.searchsorted`, which LiteRT lacks.
        is_less = ops.expand_dims(candidates, 0) < ops.expand_dims(ids, -1)
        return ops.sum(ops.cast(is_less, "int32"), axis=-1)


def learn_shortlist(
    pairs: Iterable[tuple[TensorLike, TensorLike]],
    source_size: int,
    target_size: int,
    joint: bool = False,
    best: int = 50,
    frequent: int = 100,
    iterations: int = 5,
) -> Shortlist:
    """Learns a shortlist from pairs of ids, by IBM Model 1.

    t(y | x), the probability that the source piece x is translated to y, is estimated
    by expectation maximisation (Brown et al., 1993, section 4.1,
    https://aclanthology.org/J93-2003). The table has the `best` most probable pieces.
    After 100,000 pairs only those with a source piece used less than 10 times are used.

    Args:
        pairs: Arrays (S,) and (T,) of source and target ids, in random order.
        source_size: Pieces of the source vocabulary.
        target_size: Pieces of the target vocabulary.
        joint: Whether both have the same pieces. Each piece then suggests itself too,
            which helps with names that the pairs lack.
        best: Target pieces of each source piece, C.
        frequent: Most frequent target pieces, F.
        iterations: Steps of expectation maximisation.
    """
    used = []
    times = np.zeros(source_size, np.int64)
    for source, target in pairs:
        pieces = np.unique(source).astype(np.int64)
        if len(used) < _PAIRS or np.any(times[pieces] < _TIMES):
            times[pieces] += 1
            used.append((pieces, np.asarray(target)))
    chunks = [used[at : at + _CHUNK] for at in range(0, len(used), _CHUNK)]
    keys = [np.unique(_cells(chunk, target_size)[0]) for chunk in chunks]
    keys = np.unique(np.concatenate(keys))
    parts = []
    for chunk in chunks:
        cells, sizes = _cells(chunk, target_size)
        parts.append((np.searchsorted(keys, cells).astype(np.int32), sizes))
    sources = keys // target_size
    chance = np.ones(len(keys))
    for _ in range(iterations):
        counts = np.zeros(len(keys))
        for places, sizes in parts:
            owners = np.repeat(np.arange(len(sizes)), sizes)
            share = chance[places]
            share /= np.bincount(owners, share)[owners]
            counts += np.bincount(places, share, len(keys))
        chance = counts / np.bincount(sources, counts)[sources]
    # By source, the most probable first.
    order = np.lexsort((-chance, sources))
    firsts = np.searchsorted(sources, np.arange(source_size))
    rank = np.arange(len(order)) - firsts[sources]
    kept = rank < best
    table = np.zeros((source_size, best), np.int32)
    table[sources[kept], rank[kept]] = (keys % target_size)[order][kept]
    if joint:
        table = np.column_stack([table, np.arange(source_size)])
    seen = np.bincount(np.concatenate([y for _, y in used]), minlength=target_size)
    return Shortlist(table, np.argsort(-seen, kind="stable")[:frequent])


def _cells(pairs, target_size):
    """Returns keys of all pairs of a source piece and a target token.

    And for each target token the number of its keys.
    """
    keys = [(y[:, None] + x * target_size).ravel() for x, y in pairs]
    sizes = [np.full(len(y), len(x)) for x, y in pairs]
    return np.concatenate(keys), np.concatenate(sizes)
