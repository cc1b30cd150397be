"""Decoding step by step with layers whose attentions keep the past in unlike ways."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    CausalLayer,
    DecoderLayer,
    LanguageModel,
    LanguageModelConfig,
    LanguageSampler,
    LinearAttention,
    MultiHeadAttention,
)
from tests.layers.reference_weights import randomise
from tests.reference import numpy_transformer as reference

SIZES = {"d_model": 12, "d_ff": 17, "num_heads": 2}
PROMPTS = np.array([[5, 6, 7], [8, 9, 10]], "int32")
numpy = ops.convert_to_numpy


def attention(kind, dtype, name):
    if kind == "linear":
        return LinearAttention(2, 5, dtype=dtype, name=name)
    options = {
        "full": {},
        "one key": {"num_key_value_heads": 1},
        "alibi": {"positions": "alibi"},
    }[kind]
    return MultiHeadAttention(2, 6, dtype=dtype, name=name, **options)


class MixedModel(LanguageModel):
    """Layer i has the attention `kinds[i]`."""

    kinds = ()

    def make_layer(self, name):
        kind = self.kinds[int(name.rpartition("_")[2])]

        class Layer(CausalLayer):
            def make_attention(self, name, d_model):
                return attention(kind, self.dtype_policy, name)

        return Layer(**self.config.layer_options(), dtype=self.dtype_policy, name=name)


def language_model(kinds, dtype=None):
    model_class = type("Model", (MixedModel,), {"kinds": kinds})
    config = LanguageModelConfig(vocabulary_size=20, num_layers=len(kinds), **SIZES)
    return randomise(model_class(config, dtype=dtype), np.random.default_rng(3))


def log_probabilities(logits, ids, lengths):
    """Of whole texts, from the logits of a call."""
    scores = reference.log_softmax(numpy(logits).astype("float64"))
    scores = np.take_along_axis(scores, ids[..., None], axis=-1)[..., 0]
    return np.array([row[:n].sum() for row, n in zip(scores, lengths, strict=True)])


def shifted(ids):
    return np.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=1)


@pytest.mark.one_case
@pytest.mark.parametrize(
    "kinds",
    [
        ("linear", "full", "linear"),
        ("full", "linear", "full"),
        ("full", "one key", "full"),
        ("linear", "linear", "alibi"),
    ],
    ids=" ".join,
)
def test_sampled_texts_have_the_models_probability(kinds):
    model = language_model(kinds)
    result = LanguageSampler(model)(PROMPTS, length=12, temperature=0.0)
    ids, lengths = numpy(result.ids)[:, 0], numpy(result.lengths)[:, 0]
    expected = log_probabilities(model(shifted(ids)), ids, lengths)
    actual = numpy(result.log_probabilities)[:, 0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4)


@pytest.mark.one_case
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
@pytest.mark.parametrize("kind", ["full", "alibi"])
def test_half_precision_steps_stay_close_to_the_call(kind, dtype):
    model = language_model((kind, kind), dtype)
    result = LanguageSampler(model)(PROMPTS, length=8, temperature=0.0)
    ids, lengths = numpy(result.ids)[:, 0], numpy(result.lengths)[:, 0]
    logits = ops.cast(model(shifted(ids)), "float32")
    expected = log_probabilities(logits, ids, lengths)
    actual = numpy(result.log_probabilities)[:, 0]
    np.testing.assert_allclose(actual, expected, rtol=0.05)
    state = model.start_decoding(2, 3)
    parents = np.zeros((2, 1), "int32")
    logits, _ = model.decode_step(ops.convert_to_tensor([1, 1]), parents, state)
    assert np.isfinite(numpy(ops.cast(logits, "float32"))).all()


def test_a_source_may_be_attended_to_without_weights():
    class Layer(DecoderLayer):
        def make_attention(self, name, d_model):
            if name == "cross_attention":
                return LinearAttention(2, 5, dtype=self.dtype_policy, name=name)
            return super().make_attention(name, d_model)

    layer = Layer(num_heads=2, d_ff=17)
    assert layer(np.ones((1, 4, 6)), np.ones((1, 5, 6))).shape == (1, 4, 6)
