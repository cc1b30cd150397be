"""Taggers and classifiers of vectors against NumPy, and their laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    LocalAttention,
    MaskedCrossentropy,
    MaskedLanguageModel,
    Tagger,
)
from keras_transformer.models.text_classifier import TextClassifier
from keras_transformer.models.vector_encoder import VectorEncoder
from tests.layers.reference_weights import assert_close, randomise
from tests.models.encoder_battery import EncoderModelBattery
from tests.models.encoder_cases import (
    CONFIG,
    array,
    linear_weights_of,
    stack_output,
    text_encoder,
)
from tests.reference import numpy_encoders, numpy_transformer

NUM_FEATURES, NUM_TAGS, NUM_CLASSES = 5, 11, 3
VECTORS = np.random.default_rng(7).standard_normal((2, 7, NUM_FEATURES))
VECTORS = VECTORS.astype("float32")
VECTORS[1, 4:] = 0.0
MASK = np.arange(7) < np.array([[7], [4]])
TAGS = np.array([[3, 10, 1, 1, 7, 2, 5], [4, 1, 9, 6, 0, 0, 0]], "int32")
CLASSES = np.array([2, 0], "int32")


def vector_encoder(**options):
    return VectorEncoder(CONFIG, NUM_FEATURES, name="encoder", **options)


class TestBatteryOfTheTagger(EncoderModelBattery):
    model_class = Tagger
    inputs = VECTORS
    targets = TAGS
    loss = MaskedCrossentropy()

    def model(self, **options):
        return Tagger(vector_encoder(dtype=options.get("dtype")), NUM_TAGS, **options)


@pytest.mark.slow
class TestBatteryOfTheClassifier(EncoderModelBattery):
    model_class = TextClassifier
    inputs = VECTORS
    targets = CLASSES
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def model(self, **options):
        encoder = vector_encoder(
            positions="learned", max_length=9, dtype=options.get("dtype")
        )
        return TextClassifier(encoder, NUM_CLASSES, "class_token", **options)


POSITIONS = {
    "sinusoidal": {},
    "learned": {"positions": "learned", "max_length": 13},
    "none": {"positions": None},
}


@pytest.fixture(params=POSITIONS)
def encoder(request, rng):
    return randomise_built(vector_encoder(**POSITIONS[request.param]), rng)


def randomise_built(encoder, rng):
    encoder.build()
    return randomise(encoder, rng)


def embedded(encoder, vectors):
    """What the reference makes of vectors before the stack, [B, S, D]."""
    states = numpy_encoders.linear(vectors, linear_weights_of(encoder.feature_map))
    length = vectors.shape[1]
    if encoder.positions == "sinusoidal":
        states = states + numpy_transformer.sinusoidal_positions(length, CONFIG.d_model)
    elif encoder.positions == "learned":
        states = states + array(encoder.position_layer.position_embeddings)[:length]
    return states


def reference_states(encoder, vectors, mask):
    return stack_output(encoder.stack, embedded(encoder, vectors), mask[:, None])


def test_states_agree_with_the_reference(encoder):
    states = encoder(VECTORS)
    assert states.shape == (2, 7, CONFIG.d_model)
    assert_close(states, reference_states(encoder, VECTORS, MASK))


def test_tags_and_classes_agree_with_the_reference(encoder, rng):
    states = reference_states(encoder, VECTORS, MASK)
    tagger = randomise(Tagger(encoder, NUM_TAGS), rng)
    classifier = TextClassifier(encoder, NUM_CLASSES)  # Its encoder is random.
    states = reference_states(encoder, VECTORS, MASK)
    weights = linear_weights_of(tagger.output_map)
    assert_close(tagger(VECTORS), numpy_encoders.linear(states, weights))
    weights = linear_weights_of(classifier.output_map)
    state = numpy_encoders.masked_mean(states, MASK)
    assert_close(classifier(VECTORS), numpy_encoders.linear(state, weights))


def test_a_class_token_stands_before_the_vectors(rng):
    model = TextClassifier(vector_encoder(), NUM_CLASSES, "class_token")
    randomise(model, rng)
    states = numpy_encoders.with_class_token(
        embedded(model.encoder, VECTORS), array(model.class_token.token)
    )
    mask = np.pad(MASK, ((0, 0), (1, 0)), constant_values=True)
    expected = stack_output(model.stack, states, mask[:, None])[:, 0]
    assert_close(model.sentence_state(VECTORS), expected)


MODELS = {
    "tagger": lambda: Tagger(vector_encoder(), NUM_TAGS),
    "mean": lambda: TextClassifier(vector_encoder(), NUM_CLASSES),
    "class token": lambda: TextClassifier(
        vector_encoder(), NUM_CLASSES, "class_token"
    ),
}  # fmt: skip


@pytest.fixture(params=MODELS)
def model(request, rng):
    return randomise(MODELS[request.param](), rng)


def real(model, output):
    """The logits of what is not padding."""
    output = ops.convert_to_numpy(output)[:, :7]
    return output[MASK] if isinstance(model, Tagger) else output


def test_more_padding_changes_nothing(model):
    longer = np.pad(VECTORS, ((0, 0), (0, 4), (0, 0)))
    assert_close(real(model, model(longer)), real(model, model(VECTORS)))


# Numbers in place of padding, which only a mask can tell.
NOISY = VECTORS + 5.0 * ~MASK[..., None]


def test_an_explicit_mask_says_what_is_padding(model):
    expected = real(model, model(VECTORS))
    assert_close(real(model, model(NOISY, mask=MASK)), expected)
    assert np.abs(real(model, model(NOISY)) - expected).max() > 1e-3


def test_the_mask_that_keras_carries_is_honoured(model):
    inputs = keras.Input((None, NUM_FEATURES))
    masked = keras.layers.Masking(5.0)(inputs)
    around = keras.Model(inputs, model(masked))
    assert_close(real(model, around(NOISY)), real(model, model(VECTORS)))


def test_a_loss_of_keras_leaves_out_the_frames_of_padding(rng):
    tagger = randomise(Tagger(vector_encoder(), NUM_TAGS), rng)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    tagger.compile("sgd", loss)
    found = tagger.evaluate(VECTORS, TAGS, verbose=0)
    logits = ops.convert_to_numpy(tagger(VECTORS))
    expected = numpy_transformer.label_smoothed_cross_entropy(logits, TAGS, 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_without_a_mask_value_zeros_are_vectors_like_others(rng):
    encoder = randomise_built(vector_encoder(mask_value=None), rng)
    everything = np.ones_like(MASK)
    assert_close(encoder(VECTORS), reference_states(encoder, VECTORS, everything))


def test_without_positions_the_order_does_not_matter(rng):
    tagger = randomise(Tagger(vector_encoder(positions=None), NUM_TAGS), rng)
    order = rng.permutation(7)
    logits = ops.convert_to_numpy(tagger(VECTORS))
    assert_close(tagger(VECTORS[:, order]), logits[:, order])


def test_what_cannot_be_taken_is_named(model):
    with pytest.raises(TypeError, match=r"`inputs` must be floats, vectors of 5.*int"):
        model(np.ones((2, 7, NUM_FEATURES), "int32"))
    with pytest.raises(ValueError, match=r"`inputs` must have the shape \(B, S, F\)"):
        model(np.ones((2, 7), "int32"))
    with pytest.raises(ValueError, match=r"`num_features` numbers.*\(2, 7, 4\)"):
        model(VECTORS[..., :4])
    with pytest.raises(ValueError, match=r"`mask` must have the shape \(B, S\)"):
        model(VECTORS, mask=MASK[:, None])
    with pytest.raises(ValueError, match=r"`inputs` must have the shape \(B, S\)"):
        Tagger(text_encoder(), 3)(VECTORS)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`num_features` must be a positive integer"):
        VectorEncoder(CONFIG, 0)
    with pytest.raises(ValueError, match="`positions` must be 'sinusoidal', 'learned'"):
        VectorEncoder(CONFIG, 5, positions="rotary")
    with pytest.raises(ValueError, match="`max_length` must be a positive integer"):
        VectorEncoder(CONFIG, 5, positions="learned")
    with pytest.raises(TypeError, match="`config` must be of the class"):
        VectorEncoder(None, 5)
    with pytest.raises(TypeError, match="`encoder` must be a `TextEncoder`. Received"):
        MaskedLanguageModel(vector_encoder())


def test_an_explicit_mask_replaces_that_of_ids(rng):
    tagger = randomise(Tagger(text_encoder(), NUM_TAGS), rng)
    ids = np.array([[9, 4, 28, 17]], "int32")
    mask = np.array([[True, True, True, False]])
    changed = ids.copy()
    changed[0, 3] = 5
    before, after = (ops.convert_to_numpy(tagger(x, mask=mask)) for x in (ids, changed))
    assert_close(before[:, :3], after[:, :3])
    assert np.abs(ops.convert_to_numpy(tagger(ids))[:, :3] - before[:, :3]).max() > 1e-4


def test_make_stack_chooses_the_layers(rng):
    class Local(VectorEncoder):
        def make_stack(self, name):
            stack = super().make_stack(name)
            for layer in stack.encoder_layers:
                layer.make_attention = lambda name, d_model: LocalAttention(3, 5, 1)
            return stack

    tagger = randomise(Tagger(Local(CONFIG, NUM_FEATURES), NUM_TAGS), rng)
    changed = VECTORS[:1].copy()
    changed[0, 6] += 1.0
    before, after = (ops.convert_to_numpy(tagger(x)) for x in (VECTORS[:1], changed))
    moved = (np.abs(after - before)[0] > 1e-5).any(axis=-1)
    # Two layers, each of which sees one vector far.
    assert moved.tolist() == [False] * 4 + [True] * 3
