"""What the models without a decoder share: sizes, stack, class token, text encoder."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.config.layers import EncoderConfig
from keras_transformer.layers import (
    EncoderLayer,
    LinearAttention,
    PositionalEmbedding,
)
from keras_transformer.layers.embedding import ClassToken
from keras_transformer.models.encoder_model import EncoderModel
from keras_transformer.models.encoder_stack import EncoderStack
from keras_transformer.models.tagger import Tagger
from keras_transformer.models.text_encoder import TextEncoder
from tests.layers.reference_weights import assert_close, layer_weights_of, randomise
from tests.models.encoder_cases import (
    CONFIG,
    FEATURES,
    IDS,
    VOCABULARY_SIZE,
    embedding_output,
    stack_output,
    text_encoder,
    text_states,
)
from tests.reference import numpy_transformer as reference

PRE_NORM = CONFIG.replace(norm_first=True)
MASK = IDS != 0


def random_stack(rng, config=CONFIG, stack_class=EncoderStack):
    stack = stack_class(config)
    stack.build((None, None, config.d_model))
    return randomise(stack, rng)


def random_text_encoder(rng, config=CONFIG, **options):
    encoder = text_encoder(config, **options)
    encoder.build()
    return randomise(encoder, rng)


def random_states(rng):
    return rng.standard_normal((2, 7, 13)).astype("float32")


@pytest.mark.parametrize("config", [CONFIG, PRE_NORM], ids=["post-norm", "pre-norm"])
def test_stack_agrees_with_the_reference(rng, config):
    stack, states = random_stack(rng, config), random_states(rng)
    assert_close(stack(states), stack_output(stack, states))
    expected = stack_output(stack, states, MASK[:, None])
    assert_close(stack(states, mask=MASK), expected)
    of_each_query = MASK[:, None] & reference.causal_mask(7)
    expected = stack_output(stack, states, of_each_query)
    assert_close(stack(states, mask=of_each_query), expected)


@pytest.mark.parametrize("config", [CONFIG, PRE_NORM], ids=["post-norm", "pre-norm"])
def test_attention_of_a_layer_agrees_with_the_reference(rng, config):
    model = randomise(Tagger(text_encoder(config), 3), rng)
    first, last = map(layer_weights_of, model.stack.encoder_layers)
    mask = MASK[:, None]
    states = embedding_output(model.encoder, IDS)
    for layer, weights in ((0, first), (1, last), (-1, last)):
        if layer == 1:
            states = reference.encoder_layer(
                states, first, 3, mask, norm_first=config.norm_first
            )
        query = states
        if config.norm_first:
            query = reference.layer_norm(states, weights["self_attention_norm"])
        expected = reference.multi_head_attention(
            query, query, query, weights["self_attention"], 3, mask
        )[1]
        assert_close(model.attention(IDS, layer), expected)


def test_every_option_reaches_the_layers():
    options = {
        "d_ff": 19, "num_heads": 2, "key_dim": 3, "value_dim": 11, "activation": "gelu",
        "norm_first": True, "use_bias": True, "dropout_rate": 0.2,
        "attention_dropout_rate": 0.3, "activation_dropout_rate": 0.4,
    }  # fmt: skip
    stack = EncoderStack(EncoderConfig(num_layers=3, d_model=13, **options))
    assert len(stack.encoder_layers) == 3
    for layer in stack.encoder_layers:
        config = layer.get_config()
        assert {name: config[name] for name in options} == options


def test_layers_are_replaced_by_overriding_one_method(rng):
    class Blind(EncoderLayer):
        def call(self, inputs, mask=None, training=None):
            return inputs

    class BlindStack(EncoderStack):
        def make_encoder_layer(self, name):
            return Blind(num_heads=1, d_ff=2, name=name)

    states = random_states(rng)
    assert_close(random_stack(rng, stack_class=BlindStack)(states), states)


def test_class_token_stands_before_every_row(rng):
    layer, states = ClassToken(), random_states(rng)
    output = ops.convert_to_numpy(layer(states))
    assert output.shape == layer.compute_output_shape((2, 7, 13)) == (2, 8, 13)
    np.testing.assert_array_equal(output[:, 1:], states)
    for row in output:
        np.testing.assert_array_equal(row[0], ops.convert_to_numpy(layer.token))


def test_class_token_is_never_masked():
    ids = keras.Input((None,), dtype="int32")
    states = ClassToken()(PositionalEmbedding(VOCABULARY_SIZE, 13, pad_id=0)(ids))
    # A layer that tells what mask it gets.
    model = keras.Model(ids, _Mask()(states))
    expected = np.pad(MASK, ((0, 0), (1, 0)), constant_values=True)
    np.testing.assert_array_equal(ops.convert_to_numpy(model(IDS)), expected)


class _Mask(keras.layers.Layer):
    supports_masking = True

    def call(self, inputs, mask=None):
        return ops.cast(mask, "int32")


@pytest.mark.parametrize("ids", [IDS, FEATURES], ids=["tokens", "features"])
@pytest.mark.parametrize("config", [CONFIG, PRE_NORM], ids=["post-norm", "pre-norm"])
def test_text_encoder_agrees_with_the_reference(rng, config, ids):
    num_features = None if ids.ndim == 2 else 3
    encoder = random_text_encoder(rng, config, num_features=num_features)
    output = ops.convert_to_numpy(encoder(ids))
    assert output.shape == encoder.compute_output_shape(ids.shape)
    assert_close(output, text_states(encoder, ids))


def test_text_encoder_has_learned_positions(rng):
    encoder = random_text_encoder(rng, positions="learned", max_length=11)
    table = ops.convert_to_numpy(encoder.embedding.position_embeddings)
    expected = reference.positional_embedding(
        IDS, ops.convert_to_numpy(encoder.embedding.embeddings), table
    )
    assert_close(encoder.embedding(IDS), expected)
    with pytest.raises(ValueError, match="longer than the learned positions"):
        encoder(np.ones((1, 13), "int32"))


def test_text_encoder_config_round_trip():
    encoder = TextEncoder(
        CONFIG, 31, num_features=3, positions="learned", max_length=11, pad_id=2
    )
    again = TextEncoder.from_config(encoder.get_config())
    assert again.get_config() == encoder.get_config()
    assert again.config == CONFIG
    assert again.ids_shape == (None, None, 3)


def test_config_of_another_type_is_refused():
    for build in (EncoderStack, lambda config: TextEncoder(config, 11)):
        with pytest.raises(
            TypeError, match="`config` must be of the class `EncoderConfig`"
        ):
            build({"num_layers": 2})


def test_width_must_be_a_multiple_of_the_heads():
    with pytest.raises(ValueError, match="`d_model` must be a multiple of `num_heads`"):
        EncoderConfig(d_model=13, num_heads=3)


@pytest.mark.parametrize("name", ["num_layers", "d_model", "d_ff", "num_heads"])
def test_sizes_must_be_positive(name):
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1"):
        EncoderConfig(**{name: 0})


def test_sizes_of_the_text_must_be_positive():
    with pytest.raises(ValueError, match="`num_features` must be a positive integer"):
        TextEncoder(CONFIG, 11, num_features=0)
    with pytest.raises(ValueError, match="`vocabulary_size` must be a positive"):
        TextEncoder(CONFIG, 0)


class LinearLayer(EncoderLayer):
    def make_attention(self, name, d_model):
        return LinearAttention(2, 3, name=name)


def test_attention_says_which_layers_have_weights_to_show(monkeypatch):
    with pytest.raises(ValueError, match="`layer` must be from -2 to 1. Received.*9"):
        Tagger(text_encoder(), 3).attention(IDS, layer=9)
    stack = "keras_transformer.models.encoder_stack.EncoderLayer"
    monkeypatch.setattr(stack, LinearLayer)
    with pytest.raises(ValueError, match="no weights to show: it is LinearAttention"):
        Tagger(text_encoder(), 3).attention(IDS)


def test_a_model_must_say_what_it_exports():
    error = "EncoderModel must define `input_signature`"
    with pytest.raises(NotImplementedError, match=error):
        EncoderModel().input_signature()
