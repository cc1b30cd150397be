"""Adapters of low rank: the same function at first, then W + alpha / rank A B."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    AdditiveAttention,
    CausalLayer,
    DecoderLayer,
    EncoderLayer,
    FeatureEmbedding,
    FeedForward,
    LinearAttention,
    LinformerAttention,
    LocalAttention,
    LSHAttention,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
    PerformerAttention,
    PositionalEmbedding,
)
from tests.layers.reference_weights import assert_close, randomise
from tests.layers.step_by_step import MODES, decode_steps

RANK = 2
# The layer, the shapes of its inputs, how many ids there are, its matrices.
LAYERS = {
    "attention": (
        lambda: MultiHeadAttention(num_heads=3, key_dim=5, use_bias=True),
        ((2, 4, 7), (2, 5, 11)), None,
        {"query_kernel", "key_kernel", "value_kernel", "output_kernel"},
    ),
    "few heads of keys": (
        lambda: MultiHeadAttention(num_heads=4, key_dim=3, num_key_value_heads=2),
        ((2, 4, 7),), None,
        {"query_kernel", "key_kernel", "value_kernel", "output_kernel"},
    ),
    "linear attention": (
        lambda: LinearAttention(num_heads=3, key_dim=5), ((2, 4, 7),), None,
        {"query_kernel", "key_kernel", "value_kernel", "output_kernel"},
    ),
    "local attention": (
        lambda: LocalAttention(num_heads=3, key_dim=5, window=2), ((2, 4, 7),), None,
        {"query_kernel", "key_kernel", "value_kernel", "output_kernel"},
    ),
    "additive heads": (
        lambda: MultiHeadAdditiveAttention(num_heads=3, key_dim=5), ((2, 4, 7),), None,
        {"query_kernel", "key_kernel", "value_kernel", "output_kernel"},
    ),
    "random features": (
        lambda: PerformerAttention(num_heads=3, key_dim=5), ((2, 4, 7),), None,
        {"query_kernel", "key_kernel", "value_kernel", "output_kernel"},
    ),
    "mixtures": (
        lambda: LinformerAttention(3, 5, max_length=9, projected_length=2),
        ((2, 4, 7),), None,
        {"query_kernel", "key_kernel", "value_kernel", "output_kernel"},
    ),
    "hashing": (
        lambda: LSHAttention(num_heads=3, key_dim=5), ((2, 4, 7),), None,
        {"query_kernel", "value_kernel", "output_kernel"},
    ),
    "additive attention": (
        lambda: AdditiveAttention(units=5), ((2, 4, 7), (2, 5, 11)), None,
        {"query_kernel", "key_kernel"},
    ),
    "feed-forward": (
        lambda: FeedForward(d_ff=11), ((2, 4, 7),), None,
        {"hidden_kernel", "output_kernel"},
    ),
    "embedding": (
        lambda: PositionalEmbedding(13, 7, positions="learned", max_length=5),
        ((2, 4),), 13, {"embeddings"},
    ),
    "features": (
        lambda: FeatureEmbedding(13, 7), ((2, 4, 3),), 13, {"embeddings"},
    ),
}  # fmt: skip
COMPOSITES = {
    "encoder layer": (lambda: EncoderLayer(2, 11, norm_first=True), ((2, 4, 6),)),
    "causal layer": (lambda: CausalLayer(2, 11), ((2, 4, 6),)),
    "decoder layer": (lambda: DecoderLayer(2, 11), ((2, 4, 6), (2, 5, 7))),
}


def built(make, shapes, limit, rng):
    """A layer with random weights, and inputs of its shapes."""
    if limit is not None:
        inputs = [rng.integers(limit, size=shape, dtype="int32") for shape in shapes]
    else:
        inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    layer = make()
    layer(*inputs)
    return randomise(layer, rng), inputs


def numbers(tensor):
    return ops.convert_to_numpy(tensor)


def lora_names(names):
    return {f"lora_{name}_{end}" for name in names for end in "ab"}


def add_random_adapters(layer, rng, **options):
    layer.enable_lora(RANK, **options)
    for weight in layer.trainable_weights:
        if weight.name.startswith("lora_"):
            weight.assign(rng.standard_normal(weight.shape) / 3)


@pytest.fixture(params=LAYERS)
def case(request, rng):
    *how, names = LAYERS[request.param]
    return *built(*how, rng), names


def test_adapters_change_nothing_at_first(case):
    layer, inputs, _ = case
    before = numbers(layer(*inputs))
    layer.enable_lora(RANK)
    np.testing.assert_allclose(numbers(layer(*inputs)), before, rtol=1e-6, atol=1e-6)


def test_matrices_are_frozen_and_adapters_trained(case):
    layer, _, names = case
    drawn = {weight.name for weight in layer.non_trainable_weights}
    others = {weight.name for weight in layer.weights} - names - drawn
    shapes = {weight.name: weight.shape for weight in layer.weights}
    assert layer.lora_rank is None
    layer.enable_lora(RANK)
    assert (layer.lora_rank, layer.lora_alpha) == (RANK, RANK)
    trained = {weight.name: tuple(weight.shape) for weight in layer.trainable_weights}
    assert set(trained) == others | lora_names(names)
    frozen = {weight.name for weight in layer.non_trainable_weights}
    assert frozen == names | drawn
    for name in names:
        rows, columns = shapes[name]
        assert trained[f"lora_{name}_a"] == (rows, RANK)
        assert trained[f"lora_{name}_b"] == (RANK, columns)


def test_a_matrix_becomes_its_sum_with_the_adapter(case, rng):
    layer, inputs, names = case
    plain = type(layer).from_config(layer.get_config())
    plain(*inputs)
    plain.set_weights(layer.get_weights())
    add_random_adapters(layer, rng, lora_alpha=5)
    before = numbers(plain(*inputs))
    for name in names:
        a, b = (numbers(getattr(layer, f"lora_{name}_{end}")) for end in "ab")
        matrix = getattr(plain, name)
        matrix.assign(numbers(matrix) + 5 / RANK * a @ b)
    expected = numbers(plain(*inputs))
    assert np.abs(expected - before).max() > 0.05
    np.testing.assert_allclose(numbers(layer(*inputs)), expected, rtol=1e-4, atol=1e-5)


def test_a_file_holds_the_sums(case, rng, tmp_path):
    layer, inputs, _ = case
    never_trained = len(layer.non_trainable_weights)
    add_random_adapters(layer, rng, lora_alpha=5)
    expected = numbers(layer(*inputs))
    inputs_of_model = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]
    model = keras.Model(inputs_of_model, layer(*inputs_of_model))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numbers(loaded(inputs)), expected, rtol=1e-5, atol=1e-5)
    names = {weight.name for weight in loaded.weights}
    assert not any(name.startswith("lora_") for name in names)
    assert len(loaded.non_trainable_weights) == never_trained


def test_weights_load_into_a_layer_with_adapters(case, rng, tmp_path):
    layer, inputs, _ = case
    inputs_of_model = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]
    model = keras.Model(inputs_of_model, layer(*inputs_of_model))
    add_random_adapters(layer, rng)
    expected = numbers(layer(*inputs))
    model.save_weights(tmp_path / "model.weights.h5")
    for weight in layer.trainable_weights:
        weight.assign(rng.standard_normal(weight.shape))
    model.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(numbers(layer(*inputs)), expected, rtol=1e-5, atol=1e-5)
    for weight in layer.trainable_weights:
        # A product of two zeros would have no gradient.
        if weight.name.startswith("lora_"):
            assert (np.abs(numbers(weight)).max() > 0) == weight.name.endswith("_a")


@pytest.mark.parametrize("way", (None, "int8", "int4"))
def test_one_projection_is_adapted_alone(way, rng, tmp_path):
    layer, inputs = built(*LAYERS["attention"][:3], rng)
    layer.quantize(way) if way else None
    before = numbers(layer(*inputs))
    layer.value_dense.enable_lora(RANK, lora_alpha=5)
    layer.query_dense.enable_lora(3)
    np.testing.assert_allclose(numbers(layer(*inputs)), before, rtol=1e-5, atol=1e-5)
    assert (layer.value_dense.lora_rank, layer.query_dense.lora_rank) == (RANK, 3)
    assert layer.lora_enabled and layer.lora_rank is None
    assert not layer.key_dense.lora_enabled and not layer.output_dense.lora_enabled
    adapters = lora_names({"value_kernel", "query_kernel"})
    weights = {w.name: w for w in layer.trainable_weights}
    assert {name for name in weights if name.startswith("lora_")} == adapters
    if way is None:
        assert set(weights) >= {"key_kernel", "output_kernel"}
        assert not {"value_kernel", "query_kernel"} & set(weights)
    for name in adapters:
        weights[name].assign(rng.standard_normal(weights[name].shape) / 3)
    expected = numbers(layer(*inputs))
    assert np.abs(expected - before).max() > 0.05
    symbols = [keras.Input(x.shape[1:]) for x in inputs]
    model = keras.Model(symbols, layer(*symbols))
    model.save(tmp_path / "model.keras")
    loaded = numbers(keras.saving.load_model(tmp_path / "model.keras")(inputs))
    tolerance = {None: 1e-5, "int8": 0.03, "int4": 0.4}[way]
    assert np.abs(loaded - expected).max() < tolerance * np.abs(expected).max()
    with pytest.raises(ValueError, match="have the rank 3"):
        layer.query_dense.enable_lora(2)
    with pytest.raises(ValueError, match="have the rank"):
        layer.enable_lora(2)


def test_one_projection_is_frozen_alone(rng):
    layer, _ = built(*LAYERS["attention"][:3], rng)
    layer.key_dense.trainable = False
    assert (layer.key_dense.trainable, layer.query_dense.trainable) == (False, True)
    names = {weight.name for weight in layer.non_trainable_weights}
    assert names == {"key_kernel", "key_bias"}


def test_one_projection_is_not_rounded_alone(rng):
    layer, _ = built(*LAYERS["attention"][:3], rng)
    with pytest.raises(NotImplementedError, match="call `quantize` of the attention"):
        layer.query_dense.quantize("int8")
    with pytest.raises(ValueError, match="call or build the layer first"):
        MultiHeadAttention(2, 3).query_dense.enable_lora(2)


def test_feed_forward_equals_two_dense_layers_of_keras(rng):
    layer, inputs = built(lambda: FeedForward(d_ff=11), ((2, 4, 7),), None, rng)
    hidden, output = keras.layers.Dense(11, activation="relu"), keras.layers.Dense(7)
    dense = keras.Sequential([hidden, output])
    dense(inputs[0])
    dense.set_weights(layer.get_weights())
    add_random_adapters(layer, rng, lora_alpha=3)
    for keras_layer, name in ((hidden, "hidden"), (output, "output")):
        keras_layer.enable_lora(RANK, lora_alpha=3)
        for end in "ab":
            ours = getattr(layer, f"lora_{name}_kernel_{end}")
            getattr(keras_layer, f"lora_kernel_{end}").assign(numbers(ours))
    assert_close(layer(*inputs), numbers(dense(inputs[0])))


@pytest.mark.one_case
@pytest.mark.parametrize("mode", MODES)
def test_a_step_uses_the_adapters(rng, mode):
    layer, (inputs,) = built(*LAYERS["few heads of keys"][:3], rng)
    add_random_adapters(layer, rng)
    causal = np.tril(np.ones((1, 4, 4), bool))
    expected = numbers(layer(inputs, mask=causal))
    (outputs,) = decode_steps(layer, inputs, mode=mode)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.one_case
@pytest.mark.parametrize("name", COMPOSITES)
def test_training_a_layer_of_layers_changes_only_its_adapters(name, rng):
    make, shapes = COMPOSITES[name]
    layer, inputs = built(make, shapes, None, rng)
    symbols = [keras.Input(shape[1:]) for shape in shapes]
    model = keras.Model(symbols, layer(*symbols))
    parameters = layer.count_params()
    layer.enable_lora(RANK)
    matrices = [w for w in layer.non_trainable_weights if w.name.endswith("_kernel")]
    added = sum(RANK * sum(matrix.shape) for matrix in matrices)
    assert layer.count_params() == parameters + added
    trained = layer.trainable_weights
    assert sum(np.prod(weight.shape) for weight in trained) == added
    before = {w.path: numbers(w).copy() for w in layer.weights}
    model.compile(keras.optimizers.SGD(0.1), "mse")
    target = rng.standard_normal(shapes[0])
    model.fit(inputs, target, epochs=3, verbose=0)
    changed = {
        weight.path
        for weight in layer.weights
        if np.abs(numbers(weight) - before[weight.path]).max() > 1e-7
    }
    assert changed == {weight.path for weight in trained}


def test_gradients_reach_adapters_in_mixed_precision(rng):
    layer = EncoderLayer(2, 11, dropout_rate=0.0, dtype="mixed_bfloat16")
    inputs = rng.standard_normal((2, 4, 6)).astype("float32")
    layer(inputs)
    layer.enable_lora(RANK)
    assert {weight.dtype for weight in layer.trainable_weights} == {"float32"}
    assert keras.backend.standardize_dtype(layer(inputs).dtype) == "bfloat16"
    model = keras.Sequential([keras.Input((4, 6)), layer])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    before = [numbers(weight).copy() for weight in layer.trainable_weights]
    model.fit(inputs, rng.standard_normal((2, 4, 6)), epochs=2, verbose=0)
    for weight, old in zip(layer.trainable_weights, before, strict=True):
        assert np.abs(numbers(weight) - old).max() > 0, weight.path


def test_adapters_need_a_layer_that_is_built():
    for layer in (FeedForward(d_ff=11), EncoderLayer(2, 11)):
        with pytest.raises(ValueError, match="call or build the layer first"):
            layer.enable_lora(RANK)


def test_adapters_are_added_once(rng):
    layer, _ = built(lambda: EncoderLayer(2, 11), ((2, 4, 6),), None, rng)
    layer.feed_forward.enable_lora(RANK)
    for adapted in (layer.feed_forward, layer):
        with pytest.raises(ValueError, match="have the rank 2"):
            adapted.enable_lora(RANK)
    assert layer.self_attention.lora_rank is None


@pytest.mark.parametrize("bad", (0, -1, 2.0, None))
def test_rank_must_be_a_positive_integer(bad, rng):
    layer, _ = built(lambda: FeedForward(d_ff=11), ((2, 4, 6),), None, rng)
    with pytest.raises(ValueError, match="`rank` must be a positive integer"):
        layer.enable_lora(bad)
