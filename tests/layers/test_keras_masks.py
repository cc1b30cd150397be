"""Masks that Keras carries along agree with masks given as arguments."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
)
from tests.layers.reference_weights import assert_close, randomise

SOURCE = np.array([[5, 3, 4, 2, 6, 7, 1], [4, 6, 2, 0, 0, 0, 0]])
TARGET = np.array([[3, 7, 5, 2, 8], [9, 2, 0, 0, 0]])
SOURCE_MASK, TARGET_MASK = SOURCE != 0, TARGET != 0
D_MODEL = 15
EMBEDDINGS = {
    "of Keras": lambda: keras.layers.Embedding(11, D_MODEL, mask_zero=True),
    "of the package": lambda: PositionalEmbedding(11, D_MODEL, pad_id=0),
}


@pytest.fixture(params=list(EMBEDDINGS))
def embedding(request, rng):
    layer = EMBEDDINGS[request.param]()
    layer.build((None, None))
    return randomise(layer, rng)


def bare(tensor):
    """A copy without the Keras mask."""
    return ops.convert_to_tensor(ops.convert_to_numpy(tensor))


def differ(first, second):
    first, second = ops.convert_to_numpy(first), ops.convert_to_numpy(second)
    return np.abs(first - second).max() > 0.01


def test_self_attention_honours_the_mask_it_carries(embedding):
    layer = MultiHeadAttention(3, 5)
    inputs = embedding(SOURCE)
    expected = layer(bare(inputs), mask=SOURCE_MASK)
    assert_close(layer(inputs), ops.convert_to_numpy(expected))
    assert differ(layer(bare(inputs)), expected)


def test_cross_attention_honours_the_mask_of_the_key(embedding):
    """The query's own mask says nothing about the keys and plays no part."""
    layer = MultiHeadAttention(3, 5)
    query, key = embedding(TARGET), embedding(SOURCE)
    expected = layer(bare(query), bare(key), mask=SOURCE_MASK)
    assert_close(layer(query, key), ops.convert_to_numpy(expected))
    assert_close(layer(query, key, key), ops.convert_to_numpy(expected))
    assert_close(layer(bare(query), key), ops.convert_to_numpy(expected))
    without = layer(bare(query), bare(key))
    assert differ(without, expected)
    assert_close(layer(query, bare(key)), ops.convert_to_numpy(without))


def test_encoder_layer_honours_the_mask_it_carries(embedding):
    layer = EncoderLayer(3, 11)
    inputs = embedding(SOURCE)
    expected = layer(bare(inputs), mask=SOURCE_MASK)
    assert_close(layer(inputs), ops.convert_to_numpy(expected))
    assert differ(layer(bare(inputs)), expected)


def test_decoder_layer_honours_both_masks_it_carries(embedding):
    layer = DecoderLayer(3, 11)
    # Padding before the last token, which only its mask hides from that token.
    target = TARGET[:, ::-1]
    inputs, encoder_output = embedding(target), embedding(SOURCE)
    plain = bare(inputs), bare(encoder_output)
    target_mask = {"mask": target != 0}
    source_mask = {"encoder_output_mask": SOURCE_MASK}
    both = layer(*plain, **target_mask, **source_mask)
    assert_close(layer(inputs, encoder_output), ops.convert_to_numpy(both))
    only_target = layer(*plain, **target_mask)
    assert_close(layer(inputs, plain[1]), ops.convert_to_numpy(only_target))
    only_source = layer(*plain, **source_mask)
    assert_close(layer(plain[0], encoder_output), ops.convert_to_numpy(only_source))
    for one in (only_target, only_source):
        assert differ(both, one)


def test_explicit_mask_wins_over_the_carried_one(embedding):
    layer = EncoderLayer(3, 11)
    inputs = embedding(SOURCE)
    everything = np.ones(SOURCE.shape, bool)
    expected = ops.convert_to_numpy(layer(bare(inputs)))
    assert_close(layer(inputs, mask=everything), expected)


def test_mask_survives_a_cast_to_half_precision(embedding):
    layer = EncoderLayer(3, 11, dtype="mixed_bfloat16")
    inputs = embedding(SOURCE)
    expected = layer(bare(inputs), mask=SOURCE_MASK)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(ops.cast(layer(inputs), "float32")),
        ops.convert_to_numpy(ops.cast(expected, "float32")),
    )


@pytest.mark.one_case
def test_masks_flow_through_a_functional_model_and_its_file(embedding, rng, tmp_path):
    encoder = [EncoderLayer(3, 11) for _ in range(2)]
    decoder, feed_forward = DecoderLayer(3, 11), FeedForward(7)
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    encoded = encoder[1](encoder[0](embedding(source)))
    decoded = decoder(embedding(target), feed_forward(encoded))
    model = randomise(keras.Model([source, target], [encoded, decoded]), rng)

    states = bare(embedding(SOURCE))
    for layer in encoder:
        states = bare(layer(states, mask=SOURCE_MASK))
    expected = decoder(
        bare(embedding(TARGET)), bare(feed_forward(states)), mask=TARGET_MASK,
        encoder_output_mask=SOURCE_MASK,
    )  # fmt: skip
    outputs = model([SOURCE, TARGET])
    assert_close(outputs[0], ops.convert_to_numpy(states))
    assert_close(outputs[1], ops.convert_to_numpy(expected))

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    reloaded = loaded([SOURCE, TARGET])
    assert_close(reloaded[1], ops.convert_to_numpy(expected))
    predicted = loaded.predict([SOURCE, TARGET], verbose=0)
    assert_close(predicted[1], ops.convert_to_numpy(expected))


class TakesMask(keras.Model):
    """A subclassed model, which Keras builds from a file with masks of floats."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.layer = EncoderLayer(3, 11)

    def call(self, inputs):
        states, mask = inputs
        return self.layer(states, mask=mask)


def test_a_mask_may_be_an_input_of_a_subclassed_model_in_a_file(rng, tmp_path):
    model = TakesMask()
    inputs = [rng.standard_normal((2, 7, D_MODEL)).astype("float32"), SOURCE_MASK]
    expected = ops.convert_to_numpy(model(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(
        tmp_path / "model.keras", custom_objects={"TakesMask": TakesMask}
    )
    np.testing.assert_array_equal(ops.convert_to_numpy(loaded(inputs)), expected)
    with pytest.raises(TypeError, match="`mask` must be boolean"):
        loaded([inputs[0], SOURCE_MASK.astype("float32")])


def test_outputs_carry_the_mask_of_their_first_input(embedding):
    """Seen through pooling, which leaves out what the mask excludes."""
    pool = keras.layers.GlobalAveragePooling1D()
    inputs, encoder_output = embedding(TARGET), embedding(SOURCE)
    outputs = (
        EncoderLayer(3, 11)(inputs),
        DecoderLayer(3, 11)(inputs, encoder_output),
        MultiHeadAttention(3, 5)(inputs, encoder_output),
        FeedForward(7)(inputs),
    )
    for output in outputs:
        expected = pool(bare(output), mask=TARGET_MASK)
        assert_close(pool(output), ops.convert_to_numpy(expected))
