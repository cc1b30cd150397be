"""Encoders of every kind of self-attention; models with a decoder have their variants.

See `VARIANTS` of `transformer_cases` and of `test_language_model`.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import EncoderConfig, Tagger, TextEncoder
from keras_transformer.attention_kinds import ATTENTION_KINDS
from keras_transformer.models.encoder_stack import EncoderStack
from keras_transformer.testing import assert_padding_invariant
from tests.layers.reference_weights import assert_close, randomise
from tests.models import test_language_model, transformer_cases
from tests.models.encoder_cases import IDS, stack_output
from tests.models.transformer_cases import hash_to_two_buckets

SIZES = dict(num_layers=2, d_model=13, d_ff=17, num_heads=3, key_dim=6, value_dim=7)
OPTIONS = {
    "dot-product": {"positions": "rotary", "num_key_value_heads": 1},
    "local": {"attention_window": 2, "positions": "rotary", "use_bias": True},
    "relu": {"positions": "alibi", "num_key_value_heads": 1},
    "additive": {"positions": "alibi", "norm_first": True},
    "linear": {"attention_dropout_rate": 0.0},
    "performer": {"attention_dropout_rate": 0.0, "use_bias": True},
    "lsh": {},
}
MASK = IDS != 0


@pytest.fixture(params=OPTIONS)
def config(request):
    return EncoderConfig(**SIZES, attention=request.param, **OPTIONS[request.param])


def filled(model, rng):
    randomise(model, rng)
    hash_to_two_buckets(model)
    return model


def test_every_kind_is_tested_in_every_model():
    assert set(OPTIONS) == set(ATTENTION_KINDS)
    for variants in (transformer_cases.VARIANTS, test_language_model.VARIANTS):
        kinds = {options.get("attention") for options in variants.values()}
        assert kinds - {None} == set(ATTENTION_KINDS) - {"dot-product"}


def test_a_stack_agrees_with_the_reference(rng, config):
    stack = EncoderStack(config)
    stack.build((None, None, config.d_model))
    states = rng.standard_normal((2, 7, 13)).astype("float32")
    expected = stack_output(filled(stack, rng), states)
    assert_close(stack(states), expected)
    expected = stack_output(stack, states, MASK[:, None])
    found = ops.convert_to_numpy(stack(states, mask=MASK))
    assert_close(found[MASK], expected[MASK])


@pytest.mark.one_case
def test_a_tagger_comes_back_from_its_file(rng, config, tmp_path):
    model = filled(Tagger(TextEncoder(config, 29), 3), rng)
    before = ops.convert_to_numpy(model(IDS))
    assert_padding_invariant(lambda ids: model(ids), (IDS,))
    model.save(tmp_path / "tagger.keras")
    again = keras.saving.load_model(tmp_path / "tagger.keras")
    assert again.encoder.config == config
    np.testing.assert_array_equal(ops.convert_to_numpy(again(IDS)), before)
