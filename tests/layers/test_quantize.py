"""Quantised layers: they round as Keras' own, stay near, are saved and come back."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras.quantizers import (
    AbsMaxQuantizer,
    Int4QuantizationConfig,
    Int8QuantizationConfig,
)

from keras_transformer.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
)
from tests.layers.reference_weights import assert_close
from tests.layers.step_by_step import MODES, decode_steps
from tests.layers.test_lora import (
    COMPOSITES,
    LAYERS,
    add_random_adapters,
    built,
    numbers,
)

# How it is asked for, and the name of the policy.
WAYS = {
    "int8": ({"mode": "int8"}, "int8_from_float32"),
    "int8, inputs as they are": (
        {"config": Int8QuantizationConfig(activation_quantizer=None)},
        "int8_from_float32",
    ),
    "int4": ({"mode": "int4"}, "int4/128_from_float32"),
    "int4, blocks of 3": (
        {"config": Int4QuantizationConfig(block_size=3)},
        "int4/3_from_float32",
    ),
    "int4, no blocks": (
        {"config": Int4QuantizationConfig(block_size=None)},
        "int4/-1_from_float32",
    ),
    "int4, inputs of 8 bits": (
        {
            "config": Int4QuantizationConfig(
                activation_quantizer=AbsMaxQuantizer(), block_size=None
            )
        },
        "int4_from_float32",
    ),
}


@pytest.fixture(params=LAYERS)
def case(request, rng):
    *how, names = LAYERS[request.param]
    return *built(*how, rng), names


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def functional(layer, inputs):
    symbols = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]
    return keras.Model(symbols, layer(*symbols))


@pytest.mark.one_case
@pytest.mark.parametrize("way", ("int8", "int4"))
def test_a_layer_computes_almost_the_same(case, way):
    layer, inputs, names = case
    before = numbers(layer(*inputs))
    sizes = {name: tuple(getattr(layer, name).shape) for name in names}
    keyword, policy = WAYS[way]
    layer.quantize(**keyword)
    assert (layer.quantization_mode, layer.dtype_policy.name) == (way, policy)
    for name in names:
        rows, columns = sizes[name]
        if way == "int4":
            columns = (columns + 1) // 2
        assert tuple(getattr(layer, name).shape) == (rows, columns)
        assert getattr(layer, name).dtype == "int8"
    trained = {weight.name for weight in layer.trainable_weights}
    assert not trained & names
    error = np.abs(numbers(layer(*inputs)) - before).max() / np.abs(before).max()
    assert 0 < error < (0.03 if way == "int8" else 0.35)


@pytest.mark.one_case
def test_a_file_brings_the_layer_back(case, way, tmp_path):
    layer, inputs, names = case
    keyword, policy = way
    model = functional(layer, inputs)
    layer.quantize(**keyword)
    expected = numbers(layer(*inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.layers[-1]
    assert again.dtype_policy.name == policy
    assert {w.name for w in again.weights if w.dtype == "int8"} >= names
    np.testing.assert_array_equal(numbers(loaded(inputs)), expected)


@pytest.mark.one_case
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_feed_forward_equals_two_dense_layers_of_keras(way, rng):
    keyword, _ = way
    layer, (inputs,) = built(*LAYERS["feed-forward"][:3], rng)
    dense = keras.Sequential(
        [keras.layers.Dense(11, activation="relu"), keras.layers.Dense(7)]
    )
    dense(inputs)
    dense.set_weights(layer.get_weights())
    layer.quantize(**keyword)
    dense.quantize(**keyword)
    assert_close(layer(inputs), numbers(dense(inputs)))
    kept = {weight.dtype: 0 for weight in layer.weights}
    for model, sign in ((layer, 1), (dense, -1)):
        for weight in model.weights:
            if weight.name != "g_idx":  # Keras keeps the number of each input's block.
                kept[weight.dtype] += sign * int(np.prod(weight.shape))
    assert set(kept.values()) == {0}


@pytest.mark.parametrize("way", ("int8", "int4, blocks of 3"))
def test_embedding_equals_the_one_of_keras(way, rng):
    keyword, _ = WAYS[way]
    layer, (ids,) = built(
        lambda: PositionalEmbedding(13, 7, positions="sinusoidal"), ((2, 4),), 13, rng
    )
    theirs = keras.layers.Embedding(13, 7)
    theirs(ids)
    theirs.set_weights(layer.get_weights())
    positions = numbers(layer(ids)) - numbers(theirs(ids)) * 7**0.5
    layer.quantize(**keyword)
    theirs.quantize(**keyword)
    assert_close(layer(ids), numbers(theirs(ids)) * 7**0.5 + positions)


def test_projections_round_like_layers_of_their_own(rng):
    """The joined product of three matrices is that of three Dense layers."""
    layer = MultiHeadAttention(num_heads=3, key_dim=4, use_bias=True)
    inputs = rng.standard_normal((2, 5, 7)).astype("float32")
    layer(inputs)
    for name in ("query", "key", "value"):
        getattr(layer, f"{name}_bias").assign(rng.standard_normal(12))
    kernels = {n: numbers(getattr(layer, f"{n}_kernel")) for n in ("query", "value")}
    biases = {n: numbers(getattr(layer, f"{n}_bias")) for n in kernels}
    layer.quantize("int8")
    parts = dict(
        zip(("query", "key", "value"), layer.projections.project(*[inputs] * 3),
            strict=True)
    )  # fmt: skip
    for name, factor in (("query", 4**-0.5), ("value", 1.0)):
        dense = keras.layers.Dense(12)
        dense(inputs)
        dense.set_weights([kernels[name], biases[name]])
        dense.quantize("int8")
        expected = numbers(dense(inputs)).reshape(2, 5, 3, 4).transpose(0, 2, 1, 3)
        assert_close(parts[name], expected * factor)


@pytest.mark.one_case
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ("int8", "int4"))
@pytest.mark.parametrize("adapted", (False, True))
def test_a_step_equals_a_call(rng, mode, way, adapted):
    layer, (inputs,) = built(*LAYERS["few heads of keys"][:3], rng)
    layer.quantize(way)
    if adapted:
        add_random_adapters(layer, rng)
    causal = np.tril(np.ones((1, 4, 4), bool))
    expected = numbers(layer(inputs, mask=causal))
    (outputs,) = decode_steps(layer, inputs, mode=mode)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.one_case
@pytest.mark.parametrize("way", ("int8", "int4", "int4, blocks of 3"))
def test_adapters_of_a_quantised_layer(case, way, rng, tmp_path):
    """They are added to the rounded matrix, and rounded with it in a file."""
    layer, inputs, names = case
    layer.quantize(**WAYS[way][0])
    rounded = numbers(layer(*inputs))
    layer.enable_lora(2)
    np.testing.assert_allclose(numbers(layer(*inputs)), rounded, rtol=1e-5, atol=1e-5)
    add = {w.name: w for w in layer.trainable_weights if w.name.startswith("lora_")}
    assert len(add) == 2 * len(names)
    for weight in add.values():
        weight.assign(rng.standard_normal(weight.shape) / 3)
    expected = numbers(layer(*inputs))
    change = np.abs(expected - rounded).max()
    assert change > 0.05
    model = functional(layer, inputs)
    model.save(tmp_path / "model.keras")
    loaded = numbers(keras.saving.load_model(tmp_path / "model.keras")(inputs))
    error = np.abs(loaded - expected).max() / np.abs(expected).max()
    # A hash of what is rounded twice may be another one.
    assert error < (0.03 if way == "int8" else 0.5)


@pytest.mark.one_case
@pytest.mark.parametrize("name", COMPOSITES)
@pytest.mark.parametrize("way", ("int8, inputs as they are", "int4, blocks of 3"))
def test_a_layer_of_layers_and_its_file(name, way, rng, tmp_path):
    make, shapes = COMPOSITES[name]
    layer, inputs = built(make, shapes, None, rng)
    model = functional(layer, inputs)
    keyword, policy = WAYS[way]
    layer.quantize(**keyword)
    matrices = [w for w in layer.weights if w.name.endswith("_kernel")]
    assert len(matrices) == (10 if name == "decoder layer" else 6)
    assert {weight.dtype for weight in matrices} == {"int8"}
    assert layer.quantization_mode is None
    assert layer.self_attention.dtype_policy.name == policy
    assert layer.feed_forward_norm.dtype_policy.name == "float32"
    expected = numbers(layer(*inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numbers(loaded(inputs)), expected)
    assert loaded.layers[-1].get_config() == layer.get_config()


@pytest.mark.one_case
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize("name", COMPOSITES)
def test_any_keras_model_counts_our_layers(name, rng):
    make, shapes = COMPOSITES[name]
    layer, inputs = built(make, shapes, None, rng)
    model = functional(layer, inputs)
    before = numbers(model(inputs))
    model.predict(inputs, verbose=0)
    model.quantize("int8")
    quantised = sum(np.prod(w.shape) for w in model.weights if w.dtype == "int8")
    kernels = [w for w in model.weights if w.name.endswith("_kernel")]
    assert quantised == sum(np.prod(w.shape) for w in kernels) > 0
    after = numbers(model(inputs))
    assert 0 < np.abs(after - before).max() < 0.05 * np.abs(before).max()
    # Functions that were compiled before are made anew.
    assert_close(model.predict(inputs, verbose=0), after, tolerance=1e-4)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_filters_choose_layers(rng):
    layer, inputs = built(lambda: EncoderLayer(2, 11), ((2, 4, 6),), None, rng)
    model = functional(layer, inputs)
    model.quantize("int8", filters="feed_forward$")
    assert layer.feed_forward.quantization_mode == "int8"
    assert layer.self_attention.quantization_mode is None


def test_gradient_passes_through_the_rounding(rng):
    """It is that of the product with the rounded matrix."""
    layer, (inputs,) = built(*LAYERS["feed-forward"][:3], rng)
    layer.activation = keras.activations.linear
    layer.quantize("int8")
    hidden = layer.hidden_matrix.value("float32")
    output = layer.output_matrix.value("float32")
    inner = keras.Sequential([keras.layers.Dense(7, use_bias=False), layer])
    inner(inputs)
    first = inner.layers[0]
    start = numbers(first.kernel)
    inner.compile(keras.optimizers.SGD(1.0), "mse")
    target = rng.standard_normal(inputs.shape).astype("float32")
    residual = numbers(inner(inputs)) - target
    inner.train_on_batch(inputs, target)
    upstream = 2 * residual.reshape(-1, 7) / residual.size
    slope = upstream @ numbers(output).T @ numbers(hidden).T
    expected = start - inputs.reshape(-1, 7).T @ slope
    assert np.abs(expected - start).max() > 0.01
    np.testing.assert_allclose(numbers(first.kernel), expected, rtol=1e-3, atol=1e-4)


def test_a_policy_quantises_a_layer_that_is_built_from_it(rng):
    layer = FeedForward(d_ff=11, dtype="int8_from_mixed_bfloat16")
    output = layer(rng.standard_normal((2, 4, 6)).astype("float32"))
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    assert layer.hidden_kernel.dtype == "int8"
    assert layer.hidden_dropout.dtype_policy.name == "mixed_bfloat16"
    with pytest.raises(ValueError, match="already quantized"):
        layer.quantize("int8")


@pytest.mark.parametrize("make", (lambda: FeedForward(3), lambda: EncoderLayer(2, 3)))
def test_other_modes_say_why_not(make):
    layer = make()
    layer.build((None, None, 4))
    with pytest.raises(NotImplementedError, match="multiply in float8"):
        layer.quantize("float8")
    assert {weight.dtype for weight in layer.weights} == {"float32"}


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_a_model_of_keras_warns_of_other_modes():
    model = keras.Sequential([keras.Input((3, 4)), FeedForward(5)])
    with pytest.warns(UserWarning, match="multiply in float8"):
        model.quantize("float8")


def test_a_layer_that_is_not_built_is_refused():
    for layer in (FeedForward(3), DecoderLayer(2, 3)):
        with pytest.raises(ValueError, match="isn't yet built"):
            layer.quantize("int8")
