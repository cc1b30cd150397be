"""What a layer or model cannot take: the argument, the rule and what came."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt

IDS = np.array([[3, 4, 5, 0, 0], [6, 7, 8, 9, 10]])
RAGGED_IDS = tf.ragged.constant([[3, 4, 5], [6, 7]])
ENCODER = kt.EncoderConfig(num_layers=1, d_model=6, d_ff=8, num_heads=2)
SIZES = dict(
    source_vocabulary_size=11,
    target_vocabulary_size=11,
    d_model=6,
)


def transformer():
    sizes = dict(num_encoder_layers=1, num_decoder_layers=1, d_ff=8, num_heads=2)
    return kt.Transformer(kt.TransformerConfig(**SIZES, **sizes))


def encoder():
    return kt.Encoder(ENCODER, 11)


def language_model():
    sizes = dict(num_layers=1, d_model=6, d_ff=8, num_heads=2)
    return kt.LanguageModel(kt.LanguageModelConfig(vocabulary_size=11, **sizes))


# What takes ids (B, S), and the name of its argument.
OF_IDS = {
    "Encoder": (encoder, "inputs"),
    "LanguageModel": (language_model, "ids"),
    "MaskedLanguageModel": (lambda: kt.MaskedLanguageModel(encoder()), "inputs"),
    "Tagger": (lambda: kt.Tagger(encoder(), 5), "inputs"),
    "TextClassifier": (lambda: kt.TextClassifier(encoder(), 2), "inputs"),
    "with a class token": (
        lambda: kt.TextClassifier(encoder(), 2, "class_token"), "inputs"
    ),
}  # fmt: skip
PAIRS = {"Transformer": transformer}


def error_of(call, *args, **kwargs):
    with pytest.raises((TypeError, ValueError)) as error:
        call(*args, **kwargs)
    return str(error.value)


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
    tagger = kt.Tagger(kt.Encoder(ENCODER, kt.FeatureEmbedding(11, 6)), 5)
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


def test_the_checks_add_no_operation_to_a_graph():
    """Ids that are integers and vectors of the right shape pass as they are."""
    from keras_transformer.layers.arguments import integer_ids

    ids = keras.ops.convert_to_tensor(IDS)
    assert integer_ids("ids", ids, "B", "T") is ids
