"""The attentions of the examples against the NumPy reference, and their laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.masks import causal_mask, valid_length_mask
from keras_transformer.testing import assert_padding_invariant, assert_serializable
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.reference import numpy_attention as reference
from tests.reference import numpy_transformer
from tests.test_examples import load

NUM_HEADS, KEY_DIM, VALUE_DIM, LENGTH = 3, 5, 7, 23
SHAPE = (2, LENGTH, 11)
Linformer = load("linformer_attention").LinformerAttention
LSH = load("lsh_attention").LSHAttention
EXAMPLES = {
    "linformer": (Linformer, {"max_length": 29, "projected_length": 4}),
    "lsh": (LSH, {"num_buckets": 4, "chunk_size": 4, "num_rounds": 2, "seed": 1}),
}


def make(name, shapes=(SHAPE,), rng=None, **options):
    """An attention with random weights; the vectors to hash with stay as drawn."""
    kind, sizes = EXAMPLES[name]
    options = {"value_dim": VALUE_DIM} | sizes | options
    layer = kind(NUM_HEADS, KEY_DIM, **options)
    layer.build(*shapes)
    drawn = getattr(layer, "hash_vectors", None)
    values = None if drawn is None else ops.convert_to_numpy(drawn)
    randomise(layer, rng or np.random.default_rng(3))
    if drawn is not None:
        drawn.assign(values)
    return layer


def all_weights_of(layer):
    weights = weights_of(layer, "attention")
    for name in ("key_mixture", "value_mixture", "hash_vectors"):
        if hasattr(layer, name):
            weights[name] = np.float64(ops.convert_to_numpy(getattr(layer, name)))
    return weights


def random_inputs(rng, *shapes):
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_linformer_agrees_with_the_reference(rng, masked, use_bias):
    shapes = (2, 5, 11), (2, 7, 17), (2, 7, 13)
    layer = make("linformer", shapes, use_bias=use_bias, output_shape=19)
    query, value, key = random_inputs(rng, *shapes)
    mask = np.arange(7) < np.array([[4], [6]]) if masked else None
    expected = reference.linformer_attention(
        query, key, value, all_weights_of(layer), NUM_HEADS, mask
    )
    assert_close(layer(query, value, key, mask=mask), expected)


def test_mixtures_of_one_position_each_give_full_attention(rng):
    layer = make("linformer", projected_length=LENGTH, max_length=LENGTH)
    for mixture in (layer.key_mixture, layer.value_mixture):
        mixture.assign(np.eye(LENGTH))
    (inputs,) = random_inputs(rng, SHAPE)
    expected, _ = numpy_transformer.multi_head_attention(
        inputs, inputs, inputs, weights_of(layer, "attention"), NUM_HEADS
    )
    assert_close(layer(inputs), expected)


@pytest.mark.one_case
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("num_rounds", [3, 1])
@pytest.mark.parametrize("chunk_size", [5, 2, 23])
def test_lsh_agrees_with_the_reference(rng, chunk_size, num_rounds, masked):
    layer = make("lsh", chunk_size=chunk_size, num_rounds=num_rounds)
    (inputs,) = random_inputs(rng, SHAPE)
    mask = np.arange(LENGTH) < np.array([[LENGTH], [9]]) if masked else None
    expected, is_seen = reference.lsh_attention(
        inputs, all_weights_of(layer), NUM_HEADS, chunk_size, mask
    )
    # Neither everything nor nothing is seen, and some see themselves alone.
    assert 0.02 < is_seen.mean() < 0.9
    assert_close(layer(inputs, mask=mask), expected, tolerance=1e-4)


def test_more_rounds_come_closer_to_full_attention(rng):
    (inputs,), errors = random_inputs(rng, SHAPE), []
    for rounds in (1, 4, 64):
        layer = make("lsh", num_rounds=rounds, chunk_size=LENGTH)
        expected = reference.shared_key_attention(
            inputs, all_weights_of(layer), NUM_HEADS, np.ones((LENGTH, LENGTH), bool)
        )
        errors.append(np.abs(ops.convert_to_numpy(layer(inputs)) - expected).max())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.1 * errors[0]
    # One bucket and one chunk hide nothing.
    layer.hash_vectors.assign(np.zeros(layer.hash_vectors.shape))
    assert_close(layer(inputs), expected)


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_laws(name, rng):
    layer = make(name, use_bias=False)
    (inputs,) = random_inputs(rng, SHAPE)
    expected = ops.convert_to_numpy(layer(inputs))
    assert_padding_invariant(layer, inputs)
    assert_serializable(make(name, dropout=0.5), inputs, aliases=("options",))
    # A row of padding alone gives zeros.
    mask = valid_length_mask([LENGTH, 0], LENGTH)
    output = ops.convert_to_numpy(layer(inputs, mask=mask))
    assert_close(output[0], expected[0])
    assert not output[1].any()
    # A length that is not known beforehand.
    query = keras.Input((None, SHAPE[-1]))
    model = keras.Model(query, layer(query))
    assert_close(model.predict(inputs, verbose=0), expected)
    # Dropout, as the layer itself, and the float type.
    dropped = make(name, dropout=0.5, use_bias=False)
    dropped.set_weights(layer.get_weights())
    assert (
        np.abs(ops.convert_to_numpy(dropped(inputs, training=True)) - expected).max()
        > 0.1
    )
    half = EXAMPLES[name][0].from_config(
        layer.get_config() | {"dtype": "mixed_bfloat16"}
    )
    assert keras.backend.standardize_dtype(half(inputs).dtype) == "bfloat16"


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_it_cannot_do_is_refused(name, rng):
    layer, (inputs,) = make(name), random_inputs(rng, SHAPE)
    for options in ({"mask": causal_mask(LENGTH)}, {"use_causal_mask": True}):
        with pytest.raises(ValueError, match="`mask` must be the same for all"):
            layer(inputs, **options)
    with pytest.raises(ValueError, match="has no attention weights"):
        layer(inputs, return_attention_scores=True)
    with pytest.raises(ValueError, match="`positions`.* must be None"):
        make(name, positions="alibi")


def test_what_does_not_fit_is_refused(rng):
    with pytest.raises(ValueError, match="whose queries are the keys"):
        make("lsh")(*random_inputs(rng, SHAPE, SHAPE))
    with pytest.raises(ValueError, match="`num_buckets` must be even"):
        make("lsh", num_buckets=3)
    with pytest.raises(ValueError, match="at most `max_length`"):
        make("linformer")(np.ones((2, 30, 11), "float32"))
