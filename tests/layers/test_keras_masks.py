"""Masks that Keras carries along agree with masks given as arguments."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import layers
from keras_transformer.layers import DecoderLayer, EncoderLayer, FeedForward
from tests.layers.reference_weights import assert_close, randomise

SOURCE = np.array([[5, 3, 4, 2, 6, 7, 1], [4, 6, 2, 0, 0, 0, 0]])
# Padding before the last token, which only its mask hides from that token.
TARGET = np.array([[3, 7, 5, 2, 8], [0, 0, 0, 2, 9]])
WIDTH = 15
EMBEDDINGS = {
    "of Keras": lambda: keras.layers.Embedding(11, WIDTH, mask_zero=True),
    "of the package": lambda: layers.PositionalEmbedding(11, WIDTH, pad_id=0),
}
# The layer, the ids of its inputs, and the argument that is each one's mask. The
# query's own mask says nothing about the keys and plays no part.
LAYERS = {
    "self-attention": (lambda: layers.MultiHeadAttention(3, 5), (SOURCE,), ("mask",)),
    "attention": (
        lambda: layers.MultiHeadAttention(3, 5), (TARGET, SOURCE), (None, "mask"),
    ),
    "key and value": (
        lambda: layers.MultiHeadAttention(3, 5), (TARGET, SOURCE, SOURCE),
        (None, "value_mask", "key_mask"),
    ),
    "additive": (
        lambda: layers.AdditiveAttention(5), (TARGET, SOURCE), (None, "mask"),
    ),
    "linear": (lambda: layers.LinearAttention(3, 5), (SOURCE,), ("mask",)),
    "SSRU": (layers.SSRU, (TARGET,), ("mask",)),
    "encoder layer": (lambda: EncoderLayer(3, 11), (SOURCE,), ("mask",)),
    "causal layer": (lambda: layers.CausalLayer(3, 11), (TARGET,), ("mask",)),
    "decoder layer": (
        lambda: DecoderLayer(3, 11), (TARGET, SOURCE), ("mask", "encoder_output_mask"),
    ),
    "feed-forward": (lambda: FeedForward(7), (SOURCE,), (None,)),
    "added positions": (layers.PositionalEncoding, (SOURCE,), (None,)),
}  # fmt: skip


@pytest.fixture(params=list(EMBEDDINGS))
def embedding(request, rng):
    layer = EMBEDDINGS[request.param]()
    layer.build((None, None))
    return randomise(layer, rng)


def bare(tensor):
    """A copy without the Keras mask."""
    return ops.convert_to_tensor(ops.convert_to_numpy(tensor))


@pytest.mark.parametrize("name", LAYERS)
def test_what_an_input_carries_is_as_a_mask_given(embedding, name):
    make, ids, arguments = LAYERS[name]
    layer = make()
    plain = ops.convert_to_numpy(layer(*(bare(embedding(x)) for x in ids)))
    everything = {}
    for place, argument in enumerate(arguments):  # One alone, then all.
        inputs = [bare(embedding(x)) for x in ids]
        inputs[place] = embedding(ids[place])
        given = {argument: ids[place] != 0} if argument else {}
        everything |= given
        expected = layer(*(bare(x) for x in inputs), **given)
        expected = ops.convert_to_numpy(expected)
        assert_close(layer(*inputs), expected)
        assert (np.abs(expected - plain).max() > 0.01) == bool(argument)
    expected = layer(*(bare(embedding(x)) for x in ids), **everything)
    output = layer(*map(embedding, ids))
    assert_close(output, ops.convert_to_numpy(expected))
    # The output carries the first one's, seen through pooling.
    pool = keras.layers.GlobalAveragePooling1D()
    pooled = pool(bare(output), mask=ids[0] != 0)
    assert_close(pool(output), ops.convert_to_numpy(pooled))
    if arguments == ("mask",):  # A mask that is given wins.
        found = layer(embedding(ids[0]), mask=np.ones(ids[0].shape, bool))
        assert_close(found, plain)


def test_mask_survives_a_cast_to_half_precision(embedding):
    layer = EncoderLayer(3, 11, dtype="mixed_bfloat16")
    inputs = embedding(SOURCE)
    outputs = layer(inputs), layer(bare(inputs), mask=SOURCE != 0)
    np.testing.assert_array_equal(
        *(ops.convert_to_numpy(ops.cast(x, "float32")) for x in outputs)
    )


class TakesMask(keras.Model):
    """A subclassed model, which Keras builds from a file with masks of floats."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.layer = EncoderLayer(3, 11)

    def call(self, inputs):
        states, mask = inputs
        return self.layer(states, mask=mask)


def test_a_mask_may_be_an_input_of_a_subclassed_model_in_a_file(rng, tmp_path):
    model, mask = TakesMask(), SOURCE != 0
    inputs = [rng.standard_normal((2, 7, WIDTH)).astype("float32"), mask]
    expected = ops.convert_to_numpy(model(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(
        tmp_path / "model.keras", custom_objects={"TakesMask": TakesMask}
    )
    np.testing.assert_array_equal(ops.convert_to_numpy(loaded(inputs)), expected)
    with pytest.raises(TypeError, match="`mask` must be boolean"):
        loaded([inputs[0], mask.astype("float32")])


class NormOfKeras(EncoderLayer):
    def make_norm(self, name):
        return keras.layers.RMSNormalization(dtype=self.dtype_policy, name=name)


def test_a_norm_of_keras_takes_masked_states_without_a_warning():
    layer = NormOfKeras(3, 11, norm_first=True)
    assert layer(embedding(SOURCE)).shape == (*SOURCE.shape, WIDTH)
