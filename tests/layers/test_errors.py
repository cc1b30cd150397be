"""One table of what layers refuse: the call, the exception and its words."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import layers

X, OTHER = np.ones((2, 5, 6), "float32"), np.ones((2, 7, 6), "float32")
IDS = np.array([[3, 4, 5, 0, 0], [6, 7, 8, 9, 10]])
IMAGES = np.ones((2, 4, 6, 3), "float32")
PATCHES = {"image_shape": (4, 6, 3), "patch_size": 2, "d_model": 8}


def full(*shape, dtype=bool):
    return np.ones(shape, dtype)


def built(layer, *shapes):
    layer.build(*shapes)
    return layer


# The call; its exception, if it is not a `ValueError`; and what it says.
ERRORS = {
    # Shapes.
    "kt.MultiHeadAttention(2, 3)(X[0])":
        r"`query`, .* must have the shapes \(B, T, D\) .*Received: \(5, 6\)",
    "kt.MultiHeadAttention(2, 3)(X[:, None])": r"`query`.*Received: \(2, 1, 5, 6\)",
    "kt.MultiHeadAttention(2, 3)(X, OTHER[0])": r"`value`.*\(2, 5, 6\), \(7, 6\)",
    "kt.MultiHeadAttention(2, 3)(X, OTHER, OTHER[0])": r"`key` must.*, \(7, 6\)$",
    "kt.EncoderLayer(2, 8)(X[0])": r"`inputs`.*\(B, T, D\)",
    "kt.CausalLayer(2, 8)(X[None])": r"`inputs`.*\(B, T, D",
    "kt.DecoderLayer(2, 8)(X, OTHER[0])": r"`value`.*\(7, 6\)",
    "kt.LocalAttention(2, 4, 3)(X[None])": "`query`, `value` and `key` must",
    "kt.FeedForward(8)(X[0, 0])": "(min_)?ndim",
    "kt.DecoderLayer(2, 8)(X)": (TypeError, "encoder_output"),
    "kt.PositionalEncoding()(X[0])": "expected ndim=3",
    'kt.PositionalEncoding("learned", 9)(X[None])': "expected ndim=3",
    # Masks.
    'kt.MultiHeadAttention(2, 3)(X, attention_mask=full(5, 5, dtype="float32"))':
        (TypeError, "`attention_mask` must be boolean or of integers.*: dtype float32"),
    'kt.MultiHeadAttention(2, 3)(X, value_mask=full(2, 5, dtype="float32"))':
        (TypeError, "`value_mask` must be boolean or of integers"),
    "kt.MultiHeadAttention(2, 3)(X, mask=full(2, 5, dtype=int))":
        (TypeError, "`mask` must be boolean, Tr"),
    "kt.MultiHeadAttention(2, 3)(X, mask=full(2, 4))":
        r"`mask` must fit the inputs, \(B, H, T, S\) = \(2, None, 5, 5\).*\(2, 1, 1, 4",
    "kt.MultiHeadAttention(2, 3)(X, mask=full(3, 5))": r"`mask` must fit.*\(3, 1, ",
    "kt.MultiHeadAttention(2, 3)(X, mask=full(2, 4, 5))": "`mask` must fit the inp",
    "kt.MultiHeadAttention(2, 3)(X, mask=full(2, 2, 5, 5))":
        r"`mask`.*\(B, S\) or \(B, T",
    "kt.MultiHeadAttention(2, 3)(X, attention_mask=full(2, 5))":
        "`attention_mask` must fit.*1, 2, 5",
    "kt.MultiHeadAttention(2, 3)(X, attention_mask=full(5))":
        "`attention_mask` must fit the inputs",
    "kt.MultiHeadAttention(2, 3)(X, OTHER, OTHER, key_mask=full(2, 5))":
        "`key_mask` must fit the inputs",
    "kt.EncoderLayer(2, 8)(X, mask=full(2, 4))": "`mask` must fit the inputs",
    "kt.DecoderLayer(2, 8)(X, OTHER, encoder_output_mask=full(2, 5))":
        r"`mask` must fit the inputs, .* = \(2, None, 5, 7\)",
    "kt.AdditiveAttention(4)(X, OTHER, mask=full(2, 5, dtype=int))":
        (TypeError, "`mask` must be boolean"),
    "kt.LocalAttention(2, 4, 3)(X, mask=full(1, 5, 5))":
        "`mask` must be the same for all queries",
    "kt.LinearAttention(2, 4)(X, mask=full(1, 5, 5))":
        "`mask` must be the same for all queries",
    "kt.SSRU()(X, mask=full(1, 5, 5))": "`mask` must be the same for all",
    # Options of attention.
    "kt.MultiHeadAttention(6, 3, num_key_value_heads=4)":
        "`num_heads` must be a multiple.*=6, .*=4",
    'kt.MultiHeadAttention(2, 5, positions="rotary")':
        "`key_dim` must be even.*key_dim=5",
    'kt.MultiHeadAttention(2, 4, positions="sinusoidal")':
        "`positions` must be 'rotary', 'alibi'",
    "kt.MultiHeadAttention(2, 4, positions=3)": "`positions` must be 'rotary",
    'kt.MultiHeadAttention(2, 4, positions="alibi")(X, OTHER)':
        "`positions` need self-attention",
    "kt.RotaryPositions(base=1)": "`base` must be above 1",
    "kt.AlibiPositions(after=0)": "`after` must be positive",
    "kt.LocalAttention(2, 4, 0)": "`window` must be a pos",
    "kt.LinearAttention(2, 4, dropout=0.1)": "`dropout` must be left out: L",
    "kt.LinearAttention(2, 4, num_key_value_heads=1)":
        "`num_key_value_heads` must be left out",
    'kt.PerformerAttention(2, 4, positions="alibi")':
        "`positions` must be left out: Performer",
    "kt.LinearAttention(2, 4)(X, return_attention_scores=True)":
        "`return_attention_scores` must be False: LinearAttention has no",
    "kt.LinearAttention(2, 4)(X, OTHER, use_causal_mask=True)":
        "`use_causal_mask` needs as many queries as keys.*5 and 7",
    'kt.MultiHeadAdditiveAttention(2, 4, positions="rotary")':
        "`positions` must not be .rotary.",
    "kt.MultiHeadAdditiveAttention(2, 4, flash_attention=True)":
        "`flash_attention` must be None or False.*additive",
    "kt.LocalAttention(2, 4, 3, flash_attention=True)":
        "`flash_attention` must be None or False.*blocks",
    "kt.LinearAttention(2, 4, flash_attention=True)":
        "`flash_attention` must be None or False.*softmax",
    "kt.ReluAttention(2, 4, flash_attention=True)(X)":
        "`flash_attention` must be None or False.*`weigh` is another function",
    "kt.MultiHeadAttention(2, 4, dropout=0.1, flash_attention=True)":
        "`flash_attention` must be None or False.*no attention weights",
    "kt.SSRU()(X, use_causal_mask=False)": "`use_causal_mask` must be True",
    # Options of layers, which come from one table.
    "kt.EncoderLayer(2, 11)(np.ones((1, 3, 15)))": "multiple of `num_heads`.*width=15",
    'kt.EncoderLayer(2, d_ff="wide")': (TypeError, "`d_ff` must be int. Rec"),
    "kt.EncoderLayer(2, 8, d_f=3)": "Unrecognized.*d_f",
    'kt.FeedForward(7, activation="nonsense")': "nonsense",
    # Embeddings.
    "kt.PositionalEmbedding(11, 6)(IDS[0])":
        r"`ids` must have the shape \(B, T\). Received: shape \(5,\)",
    "kt.PositionalEmbedding(11, 6)(IDS[..., None])": r"shape \(2, 5, 1\)",
    "kt.FeatureEmbedding(11, 6)(IDS)": r"`ids`.*\(B, T, F\).*\(2, 5\)",
    "kt.PositionalEmbedding(11, 6)(IDS > 3)":
        (TypeError, "`ids` must be integers.*Received: dtype bool"),
    'kt.PositionalEmbedding(11, 6, dtype="mixed_bfloat16")(IDS.astype("float32"))':
        (TypeError, "`ids` must be integers; in a functional model use.*bfloat16"),
    'kt.PositionalEmbedding(11, 6, positions="learned", max_length=4)(IDS)':
        "longer than the learned.*max_length=4",
    'kt.FeatureEmbedding(11, 6, positions="learned", '
    "max_length=7)(IDS[..., None], start=3)":
        "5 positions, start=3, max_length=7",
    'kt.PositionalEncoding("learned", 4)(X)': "longer than the learned.*h=4",
    'kt.PositionalEmbedding(11, 6, positions="learned")':
        "`max_length` must be a positive integer",
    'kt.PositionalEmbedding(11, 6, positions="rotary", max_length=3)':
        "`positions` must be one of 'sinusoidal', ",
    'kt.PositionalEmbedding(11, 7, positions="sinusoidal-halves")':
        "`d_model` must be even.*d_model=7",
    'kt.TransformerConfig(d_model=7, num_heads=1, positions="sinusoidal-marian")':
        "`d_model` must be even.*d_model=7",
    'kt.sinusoidal_encoding(np.arange(3), 8, "learned")':
        "`kind` must be one of 'sinusoidal', 'sinus",
    "kt.PatchEmbedding((4, 6, 1), 4, 8)": "`patch_size` must divide the hei",
    "kt.PatchEmbedding((4, 6), 2, 8)": r"`image_shape` must be \(height, wid",
    "kt.PatchEmbedding(**PATCHES)(IMAGES[0])": "is incompatible w",
    "kt.PatchEmbedding(**PATCHES)(IMAGES[:, :, :4])": "is incompatible with",
    # Layers of others.
    "kt.MultiHeadAttention.from_keras(keras.layers.Dense(2))":
        (TypeError, "Received: Dense"),
    "kt.EncoderLayer.from_keras(keras.layers.Dense(2))":
        (TypeError, "`layer` must be a `keras_hub.layers.TransformerEncoder`"),
    "kt.MultiHeadAttention.from_keras(keras.layers.MultiHeadAttention(2, 3))":
        "`layer` must be built",
    # Adapters.
    "kt.enable_lora(built(kt.FeedForward(8), (None, 5, 6)), 0)":
        "`rank` must be a positive integer",
    "kt.enable_lora(built(kt.PositionalEmbedding(9, 4), (None, 5)), 2)":
        "`model` must have layers of the class `keras.layers.Dense`",
    "kt.enable_lora(kt.FeedForward(8), 2)": "'hidden', which is not built",
    'kt.enable_lora(built(kt.FeedForward(8, kernel_constraint="non_neg"), '
    "(None, 5, 6)), 2)":
        "which has a constraint",
}  # fmt: skip


@pytest.mark.parametrize("call", ERRORS)
def test_what_cannot_be_meant_is_refused(call):
    given = ERRORS[call]
    error, words = given if isinstance(given, tuple) else (ValueError, given)
    with pytest.raises(error, match=words):
        eval(call)


@pytest.mark.parametrize(
    "layer_class",
    (
        kt.ReluAttention, kt.LocalAttention, kt.LinearAttention, kt.PerformerAttention,
        kt.MultiHeadAdditiveAttention,
    ),
)  # fmt: skip
def test_a_kind_that_keras_has_not_takes_over_nothing(layer_class):
    theirs = built(keras.layers.MultiHeadAttention(2, 4), (None, 5, 6), (None, 5, 6))
    with pytest.raises(TypeError, match=f"no counterpart of {layer_class.__name__}"):
        layer_class.from_keras(theirs)


class OtherAttention(keras.layers.MultiHeadAttention):
    def _compute_attention(self, *args, **kwargs):
        return super()._compute_attention(*args, **kwargs)


def test_what_a_layer_of_keras_holds_must_be_what_ours_computes():
    own = built(OtherAttention(2, 3), (None, None, 4), (None, None, 4))
    with pytest.raises(ValueError, match="OtherAttention, which overrides it"):
        kt.MultiHeadAttention.from_keras(own)
    rounded = keras.layers.MultiHeadAttention(2, 3)
    built(rounded, (None, None, 4), (None, None, 4)).query_dense.quantize("int8")
    with pytest.raises(ValueError, match="convert it first, then quantize"):
        kt.MultiHeadAttention.from_keras(rounded)


def test_adapters_are_added_once_and_to_nothing_before_all_can_have_them():
    layer = built(kt.EncoderLayer(2, 11), (None, 4, 6))
    layers.enable_lora(layer.feed_forward, 2)
    before = [w.path for w in layer.weights]
    with pytest.raises(ValueError, match="which has adapters already"):
        layers.enable_lora(layer, 2)
    assert [w.path for w in layer.weights] == before


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's ragged tensors"
)
def test_ragged_ids_are_refused():
    import tensorflow as tf

    ids = tf.ragged.constant([[3, 4, 5], [6, 7]])
    with pytest.raises(TypeError, match="`ids` must be a padded dense tensor"):
        kt.PositionalEmbedding(11, 6)(ids)


@pytest.mark.parametrize("layer", (kt.PositionalEmbedding, kt.FeatureEmbedding))
def test_a_sequential_without_an_input_gives_the_ids_as_floats(layer):
    ids = IDS if layer is kt.PositionalEmbedding else IDS[..., None] % 11
    embedding = layer(11, 6)
    model = keras.Sequential([embedding, kt.EncoderLayer(2, 8, dropout_rate=0.0)])
    outputs = keras.ops.convert_to_numpy(model(ids))
    expected = keras.ops.convert_to_numpy(model.layers[1](embedding(ids)))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    # Under mixed precision bfloat16 would have 256 and 258, and no 257.
    exact = kt.PositionalEmbedding(1000, 6, dtype="mixed_bfloat16")
    model = keras.Sequential([keras.Input((None,), dtype="int32"), exact])
    ids = np.array([[257, 999]])
    both = [keras.ops.cast(f(ids), "float32") for f in (model, exact)]
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, both))
