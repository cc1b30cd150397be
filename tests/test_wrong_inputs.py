"""What a layer or model cannot take: the argument, the rule and what came."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt

X = np.ones((2, 5, 6), "float32")
MEMORY = np.ones((2, 7, 6), "float32")
IDS = np.array([[3, 4, 5, 0, 0], [6, 7, 8, 9, 10]])
RAGGED_IDS = tf.ragged.constant([[3, 4, 5], [6, 7]])
RAGGED = tf.RaggedTensor.from_row_lengths(np.ones((7, 6), "float32"), [5, 2])
ENCODER = kt.EncoderConfig(num_layers=1, d_model=6, d_ff=8, num_heads=2)
SIZES = dict(
    source_vocabulary_size=11,
    target_vocabulary_size=11,
    d_model=6,
)
# Layers of vectors, and the name of what they take.
LAYERS = {
    "EncoderLayer": (lambda: kt.EncoderLayer(2, 8), "inputs"),
    "CausalLayer": (lambda: kt.CausalLayer(2, 8), "inputs"),
    "EncoderStack": (lambda: kt.EncoderStack(ENCODER), "states"),
    "LinearAttention": (lambda: kt.LinearAttention(2, 3), "query"),
    "LocalAttention": (lambda: kt.LocalAttention(2, 3, window=2), "query"),
    "PerformerAttention": (lambda: kt.PerformerAttention(2, 3), "query"),
    "LinformerAttention": (lambda: kt.LinformerAttention(2, 3, 9, 2), "query"),
    "LSHAttention": (lambda: kt.LSHAttention(2, 3), "query"),
}  # fmt: skip


def transformer():
    sizes = dict(num_encoder_layers=1, num_decoder_layers=1, d_ff=8, num_heads=2)
    return kt.Transformer(kt.TransformerConfig(**SIZES, **sizes))


def text_encoder(**options):
    return kt.TextEncoder(ENCODER, vocabulary_size=11, **options)


def language_model():
    sizes = dict(num_layers=1, d_model=6, d_ff=8, num_heads=2)
    return kt.LanguageModel(kt.LanguageModelConfig(vocabulary_size=11, **sizes))


# What takes ids (B, S), and the name of its argument.
OF_IDS = {
    "PositionalEmbedding": (lambda: kt.PositionalEmbedding(11, 6), "ids"),
    "TextEncoder": (text_encoder, "ids"),
    "LanguageModel": (language_model, "ids"),
    "MaskedLanguageModel": (lambda: kt.MaskedLanguageModel(text_encoder()), "inputs"),
    "Tagger": (lambda: kt.Tagger(text_encoder(), 5), "inputs"),
    "TextClassifier": (lambda: kt.TextClassifier(text_encoder(), 2), "inputs"),
    "with a class token": (
        lambda: kt.TextClassifier(text_encoder(), 2, "class_token"), "inputs"
    ),
}  # fmt: skip
PAIRS = {"Transformer": transformer}


def error_of(call, *args, **kwargs):
    with pytest.raises((TypeError, ValueError)) as error:
        call(*args, **kwargs)
    return str(error.value)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_vectors_names_what_it_cannot_take(name):
    make, argument = LAYERS[name]
    rule = f"`{argument}` must "
    assert rule + "have the shape (B, " in error_of(make(), X[0])
    assert "D). Received: shape (5, 6)" in error_of(make(), X[0])
    assert "Received: shape (2, 1, 5, 6)" in error_of(make(), X[:, None])
    assert rule + "be one tensor of shape (B, " in error_of(make(), {"x": X})
    assert "Received: a dictionary with the keys 'x'" in error_of(make(), {"x": X})
    assert "Received: a list of 2" in error_of(make(), [X, X])
    assert rule + "be a dense tensor, padded" in error_of(make(), RAGGED)
    # And once it has weights.
    layer = make()
    layer(X)
    assert "D). Received: shape (5, 6)" in error_of(layer, X[0])
    assert "Received: a dictionary with the keys 'x'" in error_of(layer, {"x": X})


def test_a_decoder_layer_names_which_of_its_inputs_it_is():
    layer = kt.DecoderLayer(2, 8)
    message = error_of(layer, X, MEMORY[0])
    assert "`encoder_output` must have the shape (B, S, D)" in message
    assert "Received: shape (7, 6)" in message
    layer(X, MEMORY)
    assert "`inputs` must have the shape (B, T, D)" in error_of(layer, X[0], MEMORY)
    assert "`encoder_output` must be a dense" in error_of(layer, X, RAGGED)
    assert "a dictionary with the keys 'a'" in error_of(layer, X, {"a": MEMORY})


def test_additive_attention_names_which_of_its_inputs_it_is():
    layer = kt.AdditiveAttention(4)
    assert "`value` must have the shape (B, S, D)" in error_of(layer, X, MEMORY[0])
    layer(X, MEMORY)
    assert "`query` must have the shape (B, T, D)" in error_of(layer, X[0], MEMORY)


@pytest.mark.parametrize(
    "layer_class", [kt.MultiHeadAttention, kt.MultiHeadAdditiveAttention]
)
def test_attention_of_heads_names_which_of_its_inputs_it_is(layer_class):
    """It takes more axes than others."""
    for built in (False, True):
        layer = layer_class(2, 3)
        if built:
            layer(X, MEMORY)
        message = error_of(layer, X, MEMORY[0, 0])
        assert "`value` must have the shape (B, ..., S, D)" in message
        message = error_of(layer, X[0, 0], MEMORY)
        assert "`query` must have the shape (B, ..., T, D)" in message
        message = error_of(layer, {"x": X}, MEMORY)
        assert "`query` must be one tensor of shape (B, " in message
        assert "`query` must be a dense tensor, padded" in error_of(layer, RAGGED)


def test_a_feed_forward_network_takes_any_number_of_positions():
    layer = kt.FeedForward(8)
    outputs = [layer(x) for x in (X[0, :1], X[:1], X[:1, None])]
    for output in outputs[1:]:
        np.testing.assert_allclose(
            keras.ops.reshape(output, (-1, 6))[:1], outputs[0], rtol=1e-5
        )
    assert "must have the shape (B, ..., D). Received: shape (6,)" in error_of(
        layer, X[0, 0]
    )
    assert "a dictionary with the keys 'x'" in error_of(kt.FeedForward(8), {"x": X})


MASKS = {
    "another length": ((2, 4), "(2, 1, 4)"),
    "another number of rows": ((3, 5), "(3, 1, 5)"),
    "other queries": ((2, 4, 5), "(2, 4, 5)"),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "name",
    [
        "EncoderLayer", "CausalLayer", "LinearAttention", "PerformerAttention",
        "LSHAttention",
    ],
)  # fmt: skip
def test_a_mask_that_does_not_fit_is_named(name, mask):
    shape, shown = MASKS[mask]
    layer = LAYERS[name][0]()
    message = error_of(layer, X, mask=np.ones(shape, "bool"))
    assert "`mask` must have the shape (B, S), (B, 1, S) or (B, T, S) with " in message
    assert f"(B, T, S) = (2, 5, 5). Received: shape {shown}" in message


def test_a_mask_of_the_source_that_does_not_fit_is_named():
    layer = kt.DecoderLayer(2, 8)
    mask = np.ones((2, 5), "bool")
    message = error_of(layer, X, MEMORY, encoder_output_mask=mask)
    assert "`encoder_output_mask` must have the shape" in message
    assert "(B, T, S) = (2, 5, 7). Received: shape (2, 1, 5)" in message
    message = error_of(layer, X, MEMORY, mask=np.ones((2, 7), "bool"))
    assert "`mask` must have the shape" in message
    message = error_of(kt.AdditiveAttention(4), X, MEMORY, mask=mask)
    assert "`mask` must have the shape" in message


@pytest.mark.parametrize("name", OF_IDS)
def test_ids_that_cannot_be_taken_are_named(name):
    make, argument = OF_IDS[name]
    rule = f"`{argument}` must "
    model = make()
    assert rule + "have the shape (B, " in error_of(model, IDS[0])
    assert "Received: shape (5,)" in error_of(model, IDS[0])
    assert "Received: shape (2, 5, 1)" in error_of(model, IDS[..., None])
    assert rule + "be one tensor" in error_of(model, {"ids": IDS})
    assert "Received: a dictionary with the keys 'ids'" in error_of(model, {"ids": IDS})
    assert rule + "be a dense tensor, padded" in error_of(model, RAGGED_IDS)
    assert rule + "be integers" in error_of(model, IDS > 3)
    assert "Received: dtype bool" in error_of(model, IDS > 3)


def test_a_token_of_several_features_has_an_axis_more():
    message = error_of(kt.FeatureEmbedding(11, 6), IDS)
    assert "`ids` must have the shape (B, T, F). Received: shape (2, 5)" in message
    tagger = kt.Tagger(text_encoder(num_features=3), 5)
    message = error_of(tagger, IDS)
    assert "`inputs` must have the shape (B, S, F). Received: shape (2, 5)" in message
    message = error_of(tagger, np.full((2, 5, 3), 0.5, "float32"))
    assert "`inputs` must be integers, 3 ids a token. Received" in message
    assert "Received: dtype float32" in message


@pytest.mark.parametrize("name", PAIRS)
def test_a_model_of_pairs_says_what_the_pair_is(name):
    model = PAIRS[name]()
    rule = "`inputs` must be a pair, (source, target_in). Received: "
    # Of two rows, it would be taken for a pair.
    assert rule + "one tensor of shape (2, 5)" in error_of(model, IDS)
    given = {"source": IDS, "target_in": IDS}
    assert rule + "a dictionary with the keys 'source', 'target_in'" in error_of(
        model, given
    )
    assert rule + "a tuple of 3" in error_of(model, (IDS, IDS, IDS))
    message = error_of(model, (IDS[0], IDS))
    assert "`source` must have the shape (B, S). Received: shape (5,)" in message
    message = error_of(model, (IDS, RAGGED_IDS))
    assert "`target_in` must be a dense tensor, padded" in message
    message = error_of(model, (IDS, IDS[:1]))
    assert "`source` and `target_in` must have as many rows. Received: 2 and 1" in (
        message
    )
    model.compile("sgd", kt.MaskedCrossentropy())
    assert rule + "a dictionary" in error_of(model.fit, given, IDS, verbose=0)


@pytest.mark.parametrize("layer", [kt.PositionalEmbedding, kt.FeatureEmbedding])
def test_a_sequential_without_an_input_gives_the_ids_as_floats(layer):
    ids = IDS if layer is kt.PositionalEmbedding else IDS[..., None] % 11
    embedding = layer(11, 6)
    model = keras.Sequential([embedding, kt.EncoderLayer(2, 8, dropout_rate=0.0)])
    outputs = model(ids)
    assert outputs.shape == (2, 5, 6)
    expected = model.layers[1](embedding(ids))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    as_floats = embedding(ids.astype("float32"))
    np.testing.assert_array_equal(as_floats, embedding(ids))


def test_ids_are_never_rounded_to_half_precision():
    embedding = kt.PositionalEmbedding(1000, 6, dtype="mixed_bfloat16")
    ids = np.array([[257, 999]])  # bfloat16 has 256 and 258, 996 and 1000.
    for model, given in (
        (embedding, ids.astype("float32")), (keras.Sequential([embedding]), ids)
    ):  # fmt: skip
        message = error_of(model, given)
        assert "`ids` must be integers; a model of Keras gives them with `" in message
        assert "Received: dtype bfloat16" in message
    model = keras.Sequential([keras.Input((None,), dtype="int32"), embedding])
    np.testing.assert_array_equal(model(ids), embedding(ids))


def test_the_checks_add_no_operation_to_a_graph():
    """Ids that are integers and vectors of the right shape pass as they are."""
    from keras_transformer.layers.arguments import integer_ids

    ids = keras.ops.convert_to_tensor(IDS)
    assert integer_ids("ids", ids, "B", "T") is ids
