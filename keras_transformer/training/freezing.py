"""Weights that a run leaves as they are, by the names of parts and layers."""

from __future__ import annotations

from collections.abc import Iterator

import keras

from keras_transformer.models.seq2seq import Seq2Seq

# Names that stand for more than one layer, or for none.
PARTS = ("encoder", "decoder", "embeddings", "output")


def freeze(model: Seq2Seq, names: str | None):
    """Makes weights of a model untrainable; call it before `compile`.

    A frozen weight keeps its value to the bit: no optimizer, weight decay or moving
    average changes it. Dropout stays on in frozen layers.

    | name         | weights                                                      |
    |--------------|--------------------------------------------------------------|
    | "encoder"    | its layers and last norm, without the embedding              |
    | "decoder"    | the same                                                     |
    | "embeddings" | both embeddings, with learned positions                      |
    | "output"     | the output matrix, and its bias if it has one                |
    | a layer      | every layer of that name, or at the end of whose path it is, |
    |              | such as "encoder_layer_0", "decoder_layer_1/cross_attention" |
    |              | or "self_attention", and the layers within                   |

    Matrices that the model shares are frozen as one: with `tied_embeddings`, the
    embedding of the target freezes the output matrix, and the reverse.

    Args:
        model: The model.
        names: Names with commas between, or `None`.

    Raises:
        ValueError: If there is no such layer, or nothing is left to train.
    """
    if names is None:
        return
    for name in split_names(names):
        for variable in _variables_of(model, name):
            variable.trainable = False
    if not model.trainable_variables:
        raise ValueError(
            f"`freeze` must leave weights to train. Received: freeze={names!r}, which "
            f"are all weights of the model{_tied(model)}"
        )


def split_names(names: str) -> list[str]:
    """Returns the names in the option `freeze`."""
    return [name.strip() for name in names.split(",")]


def shares_frozen_output(model: Seq2Seq, names: str | None) -> bool:
    """Whether a shared matrix is frozen under one of its two names alone."""
    given = set() if names is None else set(split_names(names))
    matrices = {id(v) for v in _variables_of(model, "output")}
    matrices &= {id(v) for v in _variables_of(model, "embeddings")}
    is_frozen = any(id(v) in matrices and not v.trainable for v in model.weights)
    return is_frozen and not {"embeddings", "output"} <= given


def _variables_of(model, name) -> list[keras.Variable]:
    """Returns the weights that a name stands for."""
    if name in ("encoder", "decoder"):
        return [v for layer in model.layers_of(name) for v in layer.weights]
    embeddings = (model.source_embedding, model.target_embedding)
    if name == "embeddings":
        return [v for layer in embeddings for v in layer.weights]
    if name == "output":
        bias = [] if model.output_bias is None else [model.output_bias]
        if model.config.tied_embeddings == "none":
            return [*model.output_dense.weights, *bias]
        return [*model.target_embedding.token_embedding.weights, *bias]
    return _of_layers(model, name)


def _of_layers(model, name):
    """Returns the weights of the layers of a name."""
    words = name.split("/")
    found = [
        variable
        for variable, layers in _paths(model)
        for start in range(len(layers))
        if layers[start : start + len(words)] == words
    ]
    if found:
        return found
    paths = [layers for _, layers in _paths(model) if layers]
    outer = dict.fromkeys(layers[0] for layers in paths)
    inner = dict.fromkeys(word for layers in paths for word in layers[1:])
    raise ValueError(
        f"`freeze` must name parts ({', '.join(PARTS)}) or layers: {', '.join(outer)}; "
        f"or layers in them: {', '.join(inner)}. Received: {name!r}"
    )


def _paths(model) -> Iterator[tuple[keras.Variable, list[str]]]:
    """Yields each weight, and the names of the layers that it is in."""
    for variable in model.weights:
        # The model's own name comes first, the weight's last.
        yield variable, variable.path.split("/")[1:-1]


def _tied(model):
    tied = model.config.tied_embeddings
    return "" if tied == "none" else f", whose output matrix is tied ({tied})"
