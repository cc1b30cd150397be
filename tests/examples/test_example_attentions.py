"""The attentions of the examples: their laws, and NumPy for what is new."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.masks import causal_mask, valid_length_mask
from keras_transformer.testing import assert_padding_invariant, assert_serializable
from tests.examples.test_examples import load
from tests.nn.layers.reference_weights import assert_close, randomise, weights_of
from tests.reference import numpy_attention
from tests.reference.numpy_transformer import multi_head_attention

numpy = ops.convert_to_numpy
relu = load("relu_attention")
additive = load("additive_attention")
performer = load("performer_attention")

NUM_HEADS, KEY_DIM, VALUE_DIM, LENGTH = 3, 5, 7, 23
LONG = (2, LENGTH, 11)
ATTENTIONS = {
    "linformer": (
        load("linformer_attention").LinformerAttention,
        {"max_length": 29, "projected_length": 4},
    ),
    "lsh": (
        load("lsh_attention").LSHAttention,
        {"num_buckets": 4, "chunk_size": 4, "num_rounds": 2, "seed": 1},
    ),
    "relu": (relu.ReluAttention, {"num_key_value_heads": 1, "positions": "alibi"}),
    "additive": (additive.MultiHeadAdditiveAttention, {"num_key_value_heads": 1}),
    "performer": (performer.PerformerAttention, {"num_features": 19, "seed": 1}),
}


def make_attention(name, shapes=(LONG,), rng=None, **options):
    """An attention with random weights; the vectors to hash with stay as drawn."""
    kind, sizes = ATTENTIONS[name]
    options = {"value_dim": VALUE_DIM} | sizes | options
    layer = kind(NUM_HEADS, KEY_DIM, **options)
    layer.build(*shapes)
    drawn = getattr(layer, "hash_vectors", None)
    values = None if drawn is None else numpy(drawn)
    randomise(layer, rng or np.random.default_rng(3))
    if drawn is not None:
        drawn.assign(values)
    return layer


def random_inputs(rng, *shapes):
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def test_mixtures_of_one_position_each_give_full_attention(rng):
    layer = make_attention("linformer", projected_length=LENGTH, max_length=LENGTH)
    for mixture in (layer.key_mixture, layer.value_mixture):
        mixture.assign(np.eye(LENGTH))
    (inputs,) = random_inputs(rng, LONG)
    expected, _ = multi_head_attention(
        inputs, inputs, inputs, weights_of(layer, "attention"), NUM_HEADS
    )
    assert_close(layer(inputs), expected)


@pytest.mark.one_case("5-3-True")
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("num_rounds", [3, 1])
@pytest.mark.parametrize("chunk_size", [5, 2, 23])
def test_lsh_agrees_with_the_reference(rng, chunk_size, num_rounds, masked):
    layer = make_attention("lsh", chunk_size=chunk_size, num_rounds=num_rounds)
    (inputs,) = random_inputs(rng, LONG)
    mask = np.arange(LENGTH) < np.array([[LENGTH], [9]]) if masked else None
    weights = weights_of(layer, "attention")
    weights["hash_vectors"] = numpy(layer.hash_vectors).astype("float64")
    expected, is_seen = numpy_attention.lsh_attention(
        inputs, weights, NUM_HEADS, chunk_size, mask
    )
    # Neither everything nor nothing is seen, and some see themselves alone.
    assert 0.02 < is_seen.mean() < 0.9
    assert_close(layer(inputs, mask=mask), expected, tolerance=1e-4)


def test_more_rounds_come_closer_to_full_attention(rng):
    (inputs,), errors = random_inputs(rng, LONG), []
    for rounds in (1, 4, 64):
        layer = make_attention("lsh", num_rounds=rounds, chunk_size=LENGTH)
        weights, every = weights_of(layer, "attention"), np.ones((LENGTH, LENGTH), bool)
        expected = numpy_attention.shared_key_attention(
            inputs, weights, NUM_HEADS, every
        )
        errors.append(np.abs(numpy(layer(inputs)) - expected).max())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.1 * errors[0]
    # One bucket and one chunk hide nothing.
    layer.hash_vectors.assign(np.zeros(layer.hash_vectors.shape))
    assert_close(layer(inputs), expected)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_its_laws(name, rng):
    layer = make_attention(name, use_bias=False)
    (inputs,) = random_inputs(rng, LONG)
    expected = numpy(layer(inputs))
    assert_padding_invariant(layer, inputs)
    rate = {} if name == "performer" else {"dropout": 0.5}
    aliases = "args", "options"
    assert_serializable(make_attention(name, **rate), inputs, aliases=aliases)
    # A row of padding alone gives zeros.
    mask = valid_length_mask([LENGTH, 0], LENGTH)
    output = numpy(layer(inputs, mask=mask))
    assert_close(output[0], expected[0])
    assert not output[1].any()
    # A length that is not known beforehand.
    query = keras.Input((None, LONG[-1]))
    model = keras.Model(query, layer(query))
    assert_close(model.predict(inputs, verbose=0), expected)
    # Dropout, as the layer itself, and the float type.
    dropped = make_attention(name, use_bias=False, **rate)
    dropped.set_weights(layer.get_weights())
    moved = np.abs(numpy(dropped(inputs, training=True)) - expected).max()
    assert moved > 0.1 if rate else moved < 1e-5
    half = ATTENTIONS[name][0].from_config(
        layer.get_config() | {"dtype": "mixed_bfloat16"}
    )
    assert keras.backend.standardize_dtype(half(inputs).dtype) == "bfloat16"


@pytest.mark.parametrize("name", ("linformer", "lsh"))
def test_what_it_cannot_do_is_refused(name):
    layer, inputs = make_attention(name), np.ones(LONG, "float32")
    for options in ({"mask": causal_mask(LENGTH)}, {"use_causal_mask": True}):
        with pytest.raises(ValueError, match="`mask` must be the same for all"):
            layer(inputs, **options)
    with pytest.raises(ValueError, match="has no attention weights"):
        layer(inputs, return_attention_scores=True)
    with pytest.raises(ValueError, match="`positions`.* must be None"):
        make_attention(name, positions="alibi")
    with pytest.raises(ValueError, match="queries are the keys|most `max_length`"):
        layer(inputs, np.ones((2, 30, 11), "float32"))
    if name == "lsh":
        with pytest.raises(ValueError, match="`num_buckets` must be even"):
            make_attention(name, num_buckets=3)
    with pytest.raises(ValueError, match="`positions` must not be 'rotary'"):
        additive.MultiHeadAdditiveAttention(2, 4, positions="rotary")


def test_relu_weights_by_hand():
    scores = ops.convert_to_tensor([[3.0, -1.0, 6.0], [2.0, 4.0, 8.0]])
    weigh = relu.relu_weights
    assert_close(weigh(scores), [[1, 0, 2], [2 / 3, 4 / 3, 8 / 3]])
    mask = np.array([[True, True, False], [False, False, False]])
    assert_close(weigh(scores, mask), [[1.5, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("masked", (False, True))
def test_additive_attention_agrees_with_the_reference(rng, masked):
    query, value = random_inputs(rng, (2, 3, 7), (2, 5, 17))
    mask = valid_length_mask([4, 2], 5) if masked else None
    layer = additive.AdditiveAttention(7)
    layer.build(query.shape, value.shape)
    weights = weights_of(randomise(layer, rng), "attention")
    given = None if mask is None else numpy(mask)
    expected = numpy_attention.additive_attention(query, value, value, weights, given)
    assert_close(layer(query, value, mask), expected[0])
    # Keys that are projected once serve every query.
    projected = layer.key_dense(value)
    for t in range(3):
        one = layer.attend(query[:, t : t + 1], projected, value, mask)
        for part, whole in zip(one, expected, strict=True):
            assert_close(part[:, 0], whole[:, t])


def test_initializers_take_the_width_of_a_head_for_the_inputs_of_its_scores():
    layer = additive.MultiHeadAdditiveAttention(
        3, 400, kernel_initializer="lecun_normal"
    )
    layer.build(LONG)
    squares = np.square(numpy(layer.score_kernel)).sum(axis=0)
    np.testing.assert_allclose(squares, np.ones(3), atol=0.3)


# Random features.

OF_PERFORMER = (2, 17, 11)


def vectors_of(layer):
    return numpy(layer.random_features).astype(np.float64)


def test_features_estimate_the_exponential_without_bias(rng):
    """Lemma 1: over many draws the mean of phi(q) . phi(k) is exp(q . k / sqrt(K))."""
    draws = 20000
    layer = performer.PerformerAttention(1, 5, num_features=draws * 5, seed=1)
    layer.build(OF_PERFORMER)
    query, key = 0.7 * rng.standard_normal((2, 1, 1, 3, 5)).astype("float32")
    queries, keys = (
        numpy(layer.feature_map(x))[0, 0].astype(np.float64) for x in (query, key)
    )
    # Each block of K is a draw of its own.
    products = (queries[:, None] * keys).reshape(3, 3, draws, 5)
    products = products.sum(axis=-1) * draws
    expected = np.exp(query[0, 0] @ key[0, 0].T / np.sqrt(5))
    error = products.std(axis=-1) / np.sqrt(draws)
    assert (np.abs(products.mean(axis=-1) - expected) < 4 * error).all()
    assert (error < 0.03 * expected).all()


def test_vectors_are_orthogonal_in_blocks_with_the_lengths_of_gaussians():
    generator = np.random.default_rng(1)
    vectors = performer.orthogonal_gaussians(4000, 8, generator)
    blocks = vectors.reshape(-1, 8, 8)
    products = blocks @ blocks.transpose(0, 2, 1)
    off_diagonal = products * (1 - np.eye(8))
    assert np.abs(off_diagonal).max() < 1e-9
    # |w|^2 has the mean K and the variance 2 K; each unit has the variance 1.
    squares = (vectors**2).sum(axis=1)
    assert squares.mean() == pytest.approx(8, abs=0.3)
    assert squares.var() == pytest.approx(16, abs=2)
    assert np.abs(vectors.mean(axis=0)).max() < 0.08
    assert performer.orthogonal_gaussians(5, 8, generator).shape == (5, 8)


def test_a_seed_draws_the_same_and_redraw_draws_others():
    first, second = (performer.PerformerAttention(2, 4, seed=7) for _ in range(2))
    for layer in (first, second):
        layer.build(OF_PERFORMER)
    drawn = vectors_of(first)
    assert drawn.shape == (6, 4)  # 4 ln 4, rounded up
    np.testing.assert_array_equal(drawn, vectors_of(second))
    first.redraw(seed=8)
    assert np.abs(drawn - vectors_of(first)).min() > 0
    first.redraw()
    second.redraw()
    assert np.abs(vectors_of(first) - vectors_of(second)).max() > 0


@pytest.mark.parametrize("scale", [30.0, 1e3])
def test_large_inputs_of_random_features_give_finite_outputs_and_gradients(rng, scale):
    layer = make_attention("performer", (OF_PERFORMER,), rng)
    (inputs,) = random_inputs(rng, OF_PERFORMER)
    inputs, states = scale * inputs, keras.Input(OF_PERFORMER[1:])
    model = keras.Model(states, layer(states, use_causal_mask=True))
    output = numpy(model(inputs))
    model.compile(keras.optimizers.SGD(1e-9), "mse")
    model.train_on_batch(inputs, np.zeros(output.shape))
    assert all(np.isfinite(numpy(x)).all() for x in (output, *layer.weights))
