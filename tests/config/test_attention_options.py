"""Kinds of attention and of positions that go together, and those that do not."""

from __future__ import annotations

import typing

import pytest

from keras_transformer import (
    CausalLayer,
    DecoderLayer,
    EncoderConfig,
    EncoderLayer,
    LanguageModelConfig,
    RotaryPositions,
    TransformerConfig,
)
from keras_transformer.config.layers import ATTENTION_KINDS
from keras_transformer.layers.transformer_layer import _KINDS, LayerArguments

CONFIGS = (TransformerConfig, EncoderConfig, LanguageModelConfig)
LINEAR = {"attention": "linear", "attention_dropout_rate": 0.0}
PERFORMER = LINEAR | {"attention": "performer"}
REFUSED = {
    "`attention` must be one of 'dot-product', 'local'": {"attention": "global"},
    "`attention_window`, .* must be given with attention='local'": {
        "attention": "local"
    },
    "`attention_window`, .* with no other.*attention_window=3": {"attention_window": 3},
    "`attention_dropout_rate` must be 0 with attention='linear'": {
        "attention": "linear"
    },
    "`positions` must be added as vectors .* positions='alibi'": LINEAR
    | {"positions": "alibi"},
    "`positions` must be .*input of additive attention, or 'alibi': no others": {
        "attention": "additive",
        "positions": "rotary",
    },
    "`positions` must be .*input of performer attention: .*='rotary'": PERFORMER
    | {"positions": "rotary"},
    "`attention_dropout_rate` must be 0 with attention='performer'": {
        "attention": "performer"
    },
    "`num_key_value_heads` must be None with attention='linear'": LINEAR
    | {"num_key_value_heads": 4},
    "`num_heads` must be a multiple of `num_key_value_heads`": {
        "num_key_value_heads": 3
    },
}


def test_one_table_serves_configurations_and_layers():
    assert set(_KINDS) == set(ATTENTION_KINDS)
    names = LayerArguments.__annotations__["attention"].__forward_arg__
    assert typing.get_args(eval(names, vars(typing))) == tuple(ATTENTION_KINDS)


@pytest.mark.parametrize("message", REFUSED)
def test_options_that_contradict_each_other_are_refused(message):
    for config_class in CONFIGS:
        with pytest.raises(ValueError, match=message):
            config_class(**REFUSED[message])
    for layer_class in (EncoderLayer, DecoderLayer, CausalLayer):
        with pytest.raises(ValueError, match=message):
            layer_class(num_heads=8, d_ff=5, **REFUSED[message])


@pytest.mark.parametrize("config_class", CONFIGS)
def test_rotary_positions_need_an_even_width_of_heads(config_class):
    for sizes in ({"key_dim": 5}, {"d_model": 24}):
        with pytest.raises(ValueError, match="`key_dim`, .* must be even for rotary"):
            config_class(positions="rotary", **sizes)
    config_class(positions="rotary", d_model=24, key_dim=4)


def test_an_ssru_has_no_attention_to_change():
    for options in (
        LINEAR, {"attention": "relu"}, {"positions": "rotary"}, {"positions": "alibi"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="`decoder_self_attention` must be 'att"):
            TransformerConfig(decoder_self_attention="ssru", **options)
    TransformerConfig(decoder_self_attention="ssru", num_key_value_heads=2)


def test_an_ssru_stands_only_where_no_position_sees_a_later_one():
    message = "`attention` must not be 'ssru', which sees only the past"
    for make in (EncoderConfig, lambda **o: EncoderLayer(8, 5, **o)):
        with pytest.raises(ValueError, match=f"{message}.*sees all positions. Rec"):
            make(attention="ssru")
    with pytest.raises(ValueError, match=f"{message}.*decoder_self_attention='ssru'"):
        TransformerConfig(attention="ssru")
    assert LanguageModelConfig(attention="ssru").attention == "ssru"


def test_an_object_of_positions_reaches_the_self_attention_and_its_file():
    layer = DecoderLayer(num_heads=2, d_ff=5, positions=RotaryPositions(base=77.0))
    again = DecoderLayer.from_config(layer.get_config())
    again.build((None, None, 8), (None, None, 8))
    assert again.self_attention.positions.base == 77.0
    assert again.cross_attention.positions is None
