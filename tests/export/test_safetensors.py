"""Exports of named tensors."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from keras_transformer import (
    DecodingConfig,
    TokenizerPair,
    TransformerConfig,
    enable_lora,
)
from tests import tiny_run


def test_every_weight_has_its_name_and_the_sizes_come_with_it(tmp_path):
    translator = tiny_run.translator()
    path = translator.export(tmp_path / "weights", "safetensors")
    tensors = load_file(path / "model.safetensors")
    weights = {
        weight.path.split("/", 1)[1]: keras.ops.convert_to_numpy(weight)
        for weight in translator.model.weights
    }
    assert tensors.keys() == weights.keys()
    assert "encoder_layer_0/self_attention/query/kernel" in tensors
    for name, value in weights.items():
        np.testing.assert_array_equal(tensors[name], value)
    with safe_open(path / "model.safetensors", "numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == "keras_transformer"
    assert metadata["class"] == "Transformer"
    config = TransformerConfig.from_dict(json.loads(metadata["config"]))
    assert config == translator.model.config
    decoding = DecodingConfig.from_dict(json.loads(metadata["decoding"]))
    assert decoding == translator.config
    tokenizers = TokenizerPair.load(path / "tokenizer")
    assert tokenizers.same_as(translator.tokenizers)


def test_weights_in_bfloat16_are_written_as_float32(tmp_path):
    translator = tiny_run.translator()
    model = translator.model.with_dtype("bfloat16")
    other = type(translator)(model, translator.tokenizers, translator.config)
    path = other.export(tmp_path / "weights", "safetensors")
    tensors = load_file(path / "model.safetensors")
    gamma = tensors["decoder_layer_0/feed_forward_norm/gamma"]
    assert gamma.dtype == np.float32
    expected = keras.ops.cast(
        model.decoder_layers[0].norms["feed_forward"].gamma, "float32"
    )
    np.testing.assert_array_equal(gamma, keras.ops.convert_to_numpy(expected))


def test_adapters_and_an_ensemble_are_refused(tmp_path):
    member = tiny_run.translator()
    both = type(member).ensemble([member, member])
    model = member.model.with_dtype("bfloat16")
    enable_lora(model, 2)
    other = type(member)(model, member.tokenizers, member.config)
    for translator, message in (
        (other, "merges them.*with an adapter"),
        (both, "holds one `Transformer`.*Received: an Ensemble"),
    ):
        with pytest.raises(ValueError, match=message):
            translator.export(tmp_path / "weights", "safetensors")
    assert not list(tmp_path.iterdir())
