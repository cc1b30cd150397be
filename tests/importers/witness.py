"""An imported translator's logits and texts, in the numbers of the other system."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from keras import ops


def shared_data(name):
    """The path of a data set kept beside the checkout, or `None`."""
    for parent in Path(__file__).parents:
        if (parent / "shared/data" / name).exists():
            return parent / "shared/data" / name
    return None


def ids_of(tokenizer):
    """Our ids by the names of the pieces."""
    size = tokenizer.vocabulary_size
    return {piece: i for i, piece in enumerate(tokenizer.pieces(range(size)))}


def logits_of(translator, sources, targets, source_pieces, target_pieces):
    """Our logits [B, T, V] in the order of their pieces.

    Args:
        translator: An imported `Translator`.
        sources: Lists of their ids, without the end.
        targets: Lists of their ids, of one length T.
        source_pieces: Their pieces by their ids.
        target_pieces: Likewise.
    """
    ids = ids_of(translator.tokenizers.source)
    ours = [ids[piece] for piece in source_pieces]
    width = max(map(len, sources)) + 1
    source = np.zeros((len(sources), width), "int32")
    for i, row in enumerate(sources):
        source[i, : len(row) + 1] = [ours[id] for id in row] + [2]
    ids = ids_of(translator.tokenizers.target)
    order = [ids[piece] for piece in target_pieces]
    target = np.array([[1] + [order[id] for id in row[:-1]] for row in targets])
    logits = translator.model((source, target.astype("int32")))
    logits = ops.convert_to_numpy(logits)
    return logits[..., order], logits


def log_softmax(logits):
    """Log-probabilities over the last axis, float64."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
