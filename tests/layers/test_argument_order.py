"""Attention layers of files in which the key came before the value."""

from __future__ import annotations

import json
import zipfile

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    AdditiveAttention,
    LinearAttention,
    MultiHeadAttention,
)
from tests.layers.reference_weights import randomise

LAYERS = {
    "multi-head": lambda: MultiHeadAttention(2, 3),
    "linear": lambda: LinearAttention(2, 3),
    "additive": lambda: AdditiveAttention(5),
}


def older(path, rename):
    """Makes a file as version 0.1.0 wrote it: other names of the shapes."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    for layer in config["config"]["layers"]:
        shapes = (layer.get("build_config") or {}).get("shapes_dict")
        if shapes:
            layer["build_config"]["shapes_dict"] = rename(shapes)
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("name", LAYERS)
def test_two_inputs_of_an_old_file_are_query_and_the_rest(rng, tmp_path, name):
    query, value = keras.Input((None, 6)), keras.Input((None, 8))
    model = keras.Model([query, value], LAYERS[name]()(query, value))
    randomise(model, rng)
    inputs = [rng.standard_normal(shape) for shape in ((2, 3, 6), (2, 5, 8))]
    expected = ops.convert_to_numpy(model(inputs))
    path = tmp_path / "model.keras"
    model.save(path)
    older(
        path,
        lambda s: {"query_shape": s["query_shape"], "key_shape": s["value_shape"]},
    )
    loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(ops.convert_to_numpy(loaded(inputs)), expected)
    # Written again it is a file of now, and ordinary.
    loaded.save(path)
    again = keras.saving.load_model(path)
    np.testing.assert_array_equal(ops.convert_to_numpy(again(inputs)), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_three_inputs_by_position_in_an_old_file_are_refused(tmp_path, name):
    inputs = [keras.Input((None, 6)) for _ in range(3)]
    model = keras.Model(inputs, LAYERS[name]()(*inputs))
    path = tmp_path / "model.keras"
    model.save(path)
    keras.saving.load_model(path)

    def rename(shapes):
        names = ("query_shape", "key_shape", "value_shape")
        return {name: shapes[name] for name in names}

    older(path, rename)
    with pytest.raises(Exception, match="`key` came before `value`"):
        keras.saving.load_model(path)
