"""The encoder, its stack, and the models that read its states."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.models.masked_tokens import mask_tokens
from tests.layers.reference_weights import assert_close, layer_weights_of, randomise
from tests.models.cases import (
    CONFIG,
    IDS,
    VOCABULARY_SIZE,
    classifier,
    embedding_output,
    encoded,
    masked_language_model,
    sentence_expected,
    stack_output,
    tagger,
)
from tests.reference import numpy_transformer as reference

PRE_NORM = CONFIG.replace(norm_first=True)
BOTH_NORMS = pytest.mark.parametrize(
    "config", [CONFIG, PRE_NORM], ids=["post-norm", "pre-norm"]
)
MASK = IDS != 0
FIRST_ID = 5
MASKING = {"mask_id": 4, "first_id": FIRST_ID, "vocabulary_size": VOCABULARY_SIZE}
numpy = ops.convert_to_numpy


def random_stack(rng, config=CONFIG, stack_class=kt.EncoderStack):
    stack = stack_class(config)
    stack.build((None, None, config.d_model))
    return randomise(stack, rng)


def random_states(rng):
    return rng.standard_normal((2, 7, 13)).astype("float32")


@BOTH_NORMS
def test_attention_of_a_layer_agrees_with_the_reference(rng, config):
    model = randomise(tagger(config), rng)
    first, last = map(layer_weights_of, model.encoder.stack.encoder_layers)
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
    # A mask that is given wins.
    mask, encoder = MASK & (np.arange(7) != 1), model.encoder
    states = embedding_output(encoder, IDS)
    expected = stack_output(encoder.stack, states, mask[:, None])
    found = encoder(IDS, mask=mask)
    assert found.shape == encoder.compute_output_shape(IDS.shape)
    assert_close(found, expected)


def test_layers_are_replaced_by_overriding_one_method(rng):
    class Blind(kt.EncoderLayer):
        def call(self, inputs, mask=None, training=None):
            return inputs

    class BlindStack(kt.EncoderStack):
        def make_encoder_layer(self, name):
            return Blind(num_heads=1, d_ff=2, name=name)

    states = random_states(rng)
    assert_close(random_stack(rng, stack_class=BlindStack)(states), states)


def test_embedding_may_be_any_layer_that_makes_states(rng):
    """Vectors with a mask that the layer carries on; and tokens padded with 3."""
    vectors = rng.standard_normal((2, 7, 4)).astype("float32")
    dense = keras.layers.Dense(13)
    model = kt.Tagger(kt.Encoder(CONFIG, dense), 11)
    model(vectors)
    randomise(model, rng)
    expected = stack_output(model.encoder.stack, numpy(dense(vectors)))
    assert_close(model.encoder(vectors), expected)
    with pytest.raises(ValueError, match="`input_signature` must be given .* a Dense"):
        model.input_signature()
    embedding = kt.PositionalEmbedding(VOCABULARY_SIZE, 13, pad_id=3)
    other, ids = kt.Encoder(CONFIG, embedding), np.where(IDS == 0, 3, IDS)
    other.build(ids.shape)
    randomise(other, rng)
    states = embedding_output(other, ids)
    expected = stack_output(other.stack, states, (ids != 3)[:, None])
    assert_close(other(ids), expected)


def test_sentence_state_agrees_with_the_reference(rng):
    for pooling in ("mean", "class_token"):
        model = randomise(classifier(pooling), rng)
        assert_close(model.sentence_state(IDS), sentence_expected(model, IDS))
        padding = numpy(model.sentence_state(np.zeros((2, 3), "int32")))
        assert np.isfinite(padding).all()
        if pooling == "mean":
            np.testing.assert_array_equal(padding, np.zeros((2, 13)))


def test_models_of_one_encoder_share_its_weights(rng):
    hidden = randomise(masked_language_model(), rng)
    shared = {id(weight) for weight in hidden.encoder.weights}
    assert shared and shared == {id(weight) for weight in hidden.weights}
    model = kt.Tagger(hidden.encoder, 3)
    assert shared == {id(weight) for weight in model.weights} & shared
    assert_close(model.encoder(IDS), encoded(hidden.encoder, IDS))
    assert_close(hidden(IDS, return_states=True), encoded(hidden.encoder, IDS))


def test_what_is_hidden_and_how():
    """15 %, of which 80 % are masks, 10 % random and 10 % as they were."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY_SIZE, (500, 401), "int32")
    shown, targets = mask_tokens(ids, np.random.default_rng(2), **MASKING)
    assert shown.dtype == targets.dtype == ids.dtype
    ordinary, chosen = ids >= FIRST_ID, targets != 0
    assert not chosen[~ordinary].any()
    np.testing.assert_array_equal(targets[chosen], ids[chosen])
    np.testing.assert_array_equal(shown[~chosen], ids[~chosen])
    assert chosen[ordinary].mean() == pytest.approx(0.15, abs=0.004)
    of_chosen, before = shown[chosen], ids[chosen]
    is_masked = of_chosen == MASKING["mask_id"]
    assert is_masked.mean() == pytest.approx(0.8, abs=0.01)
    assert set(of_chosen[~is_masked]) == set(range(FIRST_ID, VOCABULARY_SIZE))
    # One random token in 24 is the one that was there.
    same = (of_chosen == before).mean()
    assert same == pytest.approx(0.1 + 0.1 / 24, abs=0.01)
    changed = of_chosen[~is_masked & (of_chosen != before)]
    counts = np.bincount(changed)[FIRST_ID:]
    assert counts.max() < 2 * counts.min()
    for rate in (0.3, 1.0):
        _, targets = mask_tokens(ids, np.random.default_rng(1), **MASKING, rate=rate)
        assert (targets != 0)[ordinary].mean() == pytest.approx(rate, abs=0.02)


def test_an_epoch_has_every_row_once_in_a_new_order_under_new_masks():
    ids = np.arange(FIRST_ID, FIRST_ID + 21).reshape(7, 3)
    batches = kt.MaskedTokens(ids, 3, **MASKING, rate=1.0)
    assert [len(batches[i][0]) for i in range(len(batches))] == [3, 3, 1]
    epochs = []
    for _ in range(2):
        epochs.append(np.concatenate([batches[i][1] for i in range(3)]).tolist())
        batches.on_epoch_end()
    assert sorted(epochs[0]) == sorted(epochs[1]) == ids.tolist()
    assert epochs[0] != epochs[1]

    def shown(seed):
        batches = kt.MaskedTokens(
            np.tile(np.arange(FIRST_ID, 29), (5, 1)), 5, **MASKING, seed=seed
        )
        first = batches[0]
        np.testing.assert_array_equal(batches[0], first)
        batches.on_epoch_end()
        return np.stack([first, batches[0]])

    once = shown(seed=1)
    np.testing.assert_array_equal(shown(seed=1), once)
    assert (once[0, 1] != once[1, 1]).any()
    assert (shown(seed=2) != once).any()
