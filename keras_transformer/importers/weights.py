"""A description of a model as a `Transformer` with its weights: the one place for all.

Rows of a vocabulary change their order on the way: our special ids are 0 to 3.
"""

from __future__ import annotations

import math

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.importers.description import Description
from keras_transformer.importers.vocabularies import Rows
from keras_transformer.models.transformer import Transformer

# A logit so low takes an id out of a float32 softmax, its share is exactly 0, and
# every sum with it stays finite.
_NEVER = -1000.0


def transformer_of(description: Description, source: Rows, target: Rows) -> Transformer:
    """Builds the model of a description.

    Args:
        description: What a reader found, every array of its right shape.
        source: Rows of the source's pieces.
        target: Rows of the target's pieces.

    Raises:
        ValueError: If an option is out of its range, or a layer lacks a weight.
    """
    matrices = _matrices(description, source, target)
    bias = _output_bias(description, target)
    options = description.model | {"output_bias": bias is not None}
    layers, tied = dict(description.layers), _tied(matrices)
    if tied == "three-way" and not _take_one_embedding(layers):
        tied = "two-way"
    config = TransformerConfig(
        source_vocabulary_size=len(source.theirs),
        target_vocabulary_size=len(target.theirs),
        tied_embeddings=tied,
        **options,
    )
    model = Transformer(config)
    table = "embedding/token_embedding/embeddings"
    values = layers | {f"target_{table}": matrices["target_embedding"]}
    if tied != "three-way":
        values[f"source_{table}"] = matrices["source_embedding"]
    if tied == "none":
        values["output/kernel"] = matrices["output"].T
    if bias is not None:
        values["output_bias"] = bias
    _assign(model, values, description.origin)
    return model


def _matrices(description, source, target):
    """Returns the rows of the three matrices in our order."""
    width = description.target_embeddings.shape[1]
    # Ours are multiplied by the root of the width, theirs perhaps not.
    factor = np.float32(1.0 if description.scaled else 1 / math.sqrt(width))
    matrices = {
        "source_embedding": _rows(description.source_embeddings, source),
        "target_embedding": _rows(description.target_embeddings, target),
    }
    matrices = {name: matrix * factor for name, matrix in matrices.items()}
    return matrices | {"output": _rows(description.output_rows, target)}


def _rows(matrix, rows):
    """Returns rows (V, ...) of a matrix or a vector, zeros where there is none."""
    found = matrix[np.maximum(rows.theirs, 0)]
    found[rows.theirs < 0] = 0.0
    return found


def _output_bias(description, target):
    """Returns the bias (V,) of the logits, or `None`."""
    if description.output_bias is None and not target.banned.any():
        return None
    bias = np.zeros(len(target.theirs), np.float32)
    if description.output_bias is not None:
        bias = _rows(description.output_bias, target)
    return np.where(target.banned, np.float32(_NEVER), bias)


def _take_one_embedding(layers):
    """Leaves one side's norm and positions of embeddings; `False` if the sides differ.

    Embeddings that are one here share them.
    """
    names = [name for name in layers if name.startswith("source_embedding/")]
    ours = {name: name.replace("source", "target", 1) for name in names}
    if not all(np.array_equal(layers[a], layers[b]) for a, b in ours.items()):
        return False
    for name in names:
        del layers[name]
    return True


def _tied(matrices):
    """Returns which matrices are one, as `TransformerConfig.tied_embeddings` has it."""
    source, target, output = matrices.values()
    if not np.array_equal(target, output):
        return "none"
    return "three-way" if np.array_equal(source, target) else "two-way"


def _assign(model, values, origin):
    """Sets every weight of a model by its path below the model's name."""
    weights = {weight.path.split("/", 1)[1]: weight for weight in model.weights}
    for name in sorted(weights.keys() ^ values.keys()):
        fault = "a weight of the model has no" if name in weights else "no weight for"
        raise ValueError(f"{origin}: {fault} {name}")
    for name, weight in weights.items():
        if tuple(weight.shape) != values[name].shape:
            raise ValueError(
                f"{origin}: {name} must have the shape {tuple(weight.shape)}. "
                f"Received: {values[name].shape}"
            )
        weight.assign(values[name])
