"""One table of what models refuse: the call, the exception and its words."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt

IDS = np.array([[3, 4, 5, 0, 0], [6, 7, 8, 9, 10]])
RAGGED_IDS = tf.ragged.constant([[3, 4, 5], [6, 7]])
ENCODER = kt.EncoderConfig(num_layers=1, d_model=6, d_ff=8, num_heads=2)
LINEAR = ENCODER.replace(attention="linear", attention_dropout_rate=0.0)
LANGUAGE = {
    "vocabulary_size": 11, "num_layers": 1, "d_model": 6, "d_ff": 8, "num_heads": 2,
}  # fmt: skip
MASKING = {"mask_id": 4, "first_id": 5, "vocabulary_size": 29}
PAIR = {"source": IDS, "target": IDS}


def transformer(**options):
    sizes = {
        "source_vocabulary_size": 11, "target_vocabulary_size": 11, "d_model": 6,
        "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 8, "num_heads": 2,
    }  # fmt: skip
    return kt.Transformer(kt.TransformerConfig(**sizes | options))


def encoder(config=ENCODER):
    return kt.Encoder(config, 11)


def language_model(**options):
    return kt.LanguageModel(kt.LanguageModelConfig(**LANGUAGE | options))


def of_features():
    return kt.Encoder(ENCODER, kt.FeatureEmbedding(11, 6))


def fitted(inputs):
    model = transformer()
    model.compile("sgd", kt.MaskedCrossentropy())
    model.fit(inputs, IDS, verbose=0)


def masked(**options):
    return kt.MaskedTokens(IDS, 2, **MASKING | options)


INPUTS = "`inputs` must be a pair, (source, target_in). Received: "
RATE, ORDER = "(0, 1]", "The ids must be 0 < `mask_id` <"
# Parts of the message; those in `TYPE_ERRORS` are no `ValueError`.
ERRORS = {
    # Ids.
    "transformer()((IDS[0], IDS))":
        "`source` must have the shape (B, S). Received: shape (5,)",
    "transformer()((IDS, IDS[:1]))":
        "`source` and `target_in` must have the same number of rows. Received: 2 and 1",
    "kt.Tagger(of_features(), 5)(IDS)":
        "`ids` must have the shape (B, T, F). Received: shape (2, 5)",
    # Arguments.
    "kt.Encoder(ENCODER, 0)": "`vocabulary_size` must be a positive",
    "kt.Tagger(encoder(), 0)": "`num_tags` must be a positive integer",
    "kt.TextClassifier(encoder(), 0)": "`num_classes` must be a positive integer",
    "kt.TextClassifier(encoder(), 3, 'max')":
        "`pooling` must be one of mean, class_token",
    "kt.MaskedLanguageModel(of_features())":
        "must have a `PositionalEmbedding`, one id per",
    "kt.Tagger(encoder(LINEAR), 3).attention(IDS)":
        "no weights to show: it is a LinearAttention",
    "kt.MaskedTokens(IDS, 0, **MASKING)": "`batch_size` must be a positive integer",
    "kt.MaskedTokens(IDS, 2, **MASKING, rate=0)": RATE,
    "kt.MaskedTokens(IDS, 2, **MASKING, rate=1.1)": RATE,
    "masked(mask_id=0)": ORDER,
    "masked(first_id=4)": ORDER,
    "masked(vocabulary_size=5)": ORDER,
    "language_model(end_id=1)": "three different ids below `vocabulary_size`",
    "language_model(vocabulary_size=2)": "vocabulary_size=2",
    "language_model(d_model=7)": "`d_model` must be a multiple",
    "language_model(positions='learned', max_positions=19).start_decoding(1, 20)":
        "length=20, max_positions=19",
    # Ensembles.
    "kt.Ensemble([transformer()])": "at least two members. Received: 1",
    "kt.Ensemble([transformer(), transformer(tied_embeddings='two-way', "
    "target_vocabulary_size=9)])":
        "must have one `target_vocabulary_size`. Received: 11, 9",
}  # fmt: skip
TYPE_ERRORS = {
    "transformer()(IDS)": INPUTS + "one tensor of shape (2, 5)",
    "transformer()(PAIR)": INPUTS + "a dictionary with the keys 'source', 'target'",
    "transformer()((IDS, IDS, IDS))": INPUTS + "a tuple of 3",
    "fitted(PAIR)": INPUTS + "a dictionary",
    "transformer()((IDS, RAGGED_IDS))": "`target_in` must be a padded dense tensor",
    "kt.Transformer({'d_model': 16})":
        "`config` must be of the class `TransformerConfig`",
    "kt.LanguageModel({'d_model': 16})":
        "`config` must be of the class `LanguageModelConfig`",
    "kt.EncoderStack({'num_layers': 2})": "of the class `EncoderConfig`",
    "kt.Encoder({'num_layers': 2}, 9)": "of the class `EncoderConfig`",
    "kt.Tagger(kt.FeedForward(3), 3)": "must be an `Encoder`",
    "kt.TextClassifier(None, 3)": "`encoder` must be an `Encoder`",
    "kt.Ensemble([transformer(), kt.Ensemble([transformer(), transformer()])])":
        "another `Seq2Seq`. Received: Ensemble",
}  # fmt: skip


def error_of(call, error=(TypeError, ValueError)):
    with pytest.raises(error) as caught:
        eval(call) if isinstance(call, str) else call()
    return str(caught.value)


@pytest.mark.parametrize("call", ERRORS)
def test_what_cannot_be_meant_is_refused(call):
    assert ERRORS[call] in error_of(call, ValueError)


@pytest.mark.parametrize("call", TYPE_ERRORS)
def test_what_has_another_type_is_refused(call):
    assert TYPE_ERRORS[call] in error_of(call, TypeError)


# What takes ids (B, S).
OF_IDS = {
    "Encoder": encoder,
    "LanguageModel": language_model,
    "MaskedLanguageModel": lambda: kt.MaskedLanguageModel(encoder()),
    "Tagger": lambda: kt.Tagger(encoder(), 5),
    "TextClassifier": lambda: kt.TextClassifier(encoder(), 2),
    "with a class token": lambda: kt.TextClassifier(encoder(), 2, "class_token"),
}


@pytest.mark.parametrize("name", OF_IDS)
def test_ids_that_cannot_be_taken_are_named(name):
    model = OF_IDS[name]()
    for given, rule, came in (
        (IDS[0], "have the shape (B, ", "shape (5,)"),
        (IDS[..., None], "have the shape (B, ", "shape (2, 5, 1)"),
        ({"ids": IDS}, "be one tensor", "a dictionary with the keys 'ids'"),
        (RAGGED_IDS, "be a padded dense tensor", ""),
        (IDS > 3, "be integers", "dtype bool"),
    ):
        message = error_of(lambda given=given: model(given))
        assert f"`ids` must {rule}" in message and came in message


def test_an_index_of_a_layer_must_be_in_range():
    with pytest.raises(IndexError, match="index out of range"):
        kt.Tagger(encoder(), 3).attention(IDS, layer=9)
