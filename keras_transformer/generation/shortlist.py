"""The target pieces that a batch of sources suggests, so that a search scores few."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from keras import ops

from keras_transformer.types import Tensor, TensorLike

_SPECIAL = 4  # Ids of padding, start, end and the unknown piece come first.
_NONE = np.iinfo("int32").max


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

    def candidates(self, *ids: TensorLike) -> Tensor:
        """Returns the ids (K,), ascending, that sources (B, S) and prefixes suggest."""
        source, *prefixes = ids
        found = [self.frequent, ops.take(self.table, source, axis=0), *prefixes]
        flat = [ops.reshape(ops.cast(part, "int32"), (-1,)) for part in found]
        every = ops.sort(ops.concatenate(flat))
        # As `ops.unique`, whose result has a fixed size.
        before = ops.concatenate([ops.full((1,), -1, "int32"), every[:-1]])
        is_new = every != before
        every = ops.sort(ops.where(is_new, every, _NONE))
        return every[: ops.sum(ops.cast(is_new, "int32"))]

    def places(self, candidates: TensorLike, ids: TensorLike) -> Tensor:
        """Returns the places of ids (B, P) among the candidates (K,)."""
        # As `ops.searchsorted`, which LiteRT lacks.
        is_less = ops.expand_dims(candidates, 0) < ops.expand_dims(ids, -1)
        return ops.sum(ops.cast(is_less, "int32"), axis=-1)


def learn_shortlist(
    pairs: Iterable[tuple[TensorLike, TensorLike]], source_size: int, target_size: int,
    best: int = 50, frequent: int = 100, iterations: int = 5,
) -> Shortlist:  # fmt: skip
    """Learns a shortlist from pairs of ids, by IBM Model 1.

    t(y | x), the probability that the source piece x is translated to y, is estimated
    by expectation maximisation (Brown et al., 1993, section 4.1,
    https://aclanthology.org/J93-2003). The table has the `best` most probable pieces.

    Args:
        pairs: Arrays (S,) and (T,) of source and target ids.
        source_size: Pieces of the source vocabulary.
        target_size: Pieces of the target vocabulary.
        best: Target pieces of each source piece, C.
        frequent: Most frequent target pieces, F.
        iterations: Steps of expectation maximisation.
    """
    # Every source token x beside every target token y: its key, and which y it is of.
    keys, owners, count = [], [], 0
    seen = np.zeros(target_size, np.int64)
    for source, target in pairs:
        source, target = np.unique(source).astype(np.int64), np.asarray(target)
        np.add.at(seen, target, 1)
        keys.append((source * target_size + target[:, None]).ravel())
        owners.append(np.repeat(np.arange(count, count + len(target)), len(source)))
        count += len(target)
    keys, owners = np.concatenate(keys), np.concatenate(owners)
    keys, places = np.unique(keys, return_inverse=True)
    sources = keys // target_size
    chance = np.ones(len(keys))
    for _ in range(iterations):
        share = chance[places]
        share /= np.bincount(owners, share)[owners]
        chance = np.bincount(places, share)
        chance /= np.bincount(sources, chance)[sources]
    # By source, the most probable first.
    order = np.lexsort((-chance, sources))
    sources = sources[order]
    starts = np.searchsorted(sources, np.arange(source_size))
    rank = np.arange(len(order)) - starts[sources]
    kept = rank < best
    table = np.zeros((source_size, best), np.int32)
    table[sources[kept], rank[kept]] = (keys % target_size)[order][kept]
    return Shortlist(table, np.argsort(-seen, kind="stable")[:frequent])
