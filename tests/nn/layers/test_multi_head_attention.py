"""`keras.layers.MultiHeadAttention` and ours give the same for the same call."""

import inspect

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.layers import MultiHeadAttention
from tests.nn.layers.reference_weights import (
    assert_close,
    randomise,
    set_weights,
    weights_of,
)
from tests.reference import numpy_transformer, torch_witness

RNG = np.random.default_rng(20240)


def floats(*shape):
    return RNG.standard_normal(shape).astype("float32")


def mask(*shape, dtype=bool):
    """A random mask that leaves every query the first key."""
    drawn = RNG.random(shape) < 0.6
    drawn.reshape(-1, shape[-1])[:, 0] = True
    return drawn.astype(dtype)


QUERY, VALUE, KEY = floats(2, 5, 11), floats(2, 7, 17), floats(2, 7, 13)
X8 = floats(2, 5, 8)
SELF, CROSS, ALL_THREE = (QUERY, QUERY), (QUERY, VALUE), (QUERY, VALUE, KEY)
ARGUMENTS = {"num_heads": 3, "key_dim": 4}
SCORES, CAUSAL = {"return_attention_scores": True}, {"use_causal_mask": True}
# Arguments of the constructor, inputs by position, arguments of the call.
CALLS = {
    "self-attention": ({}, SELF, {}),
    "cross-attention": ({}, CROSS, {}),
    "value by name": ({}, (QUERY,), {"value": VALUE}),
    "key by position": ({}, ALL_THREE, {}),
    "key by name": ({}, CROSS, {"key": KEY}),
    "query and value alike": ({}, (QUERY, QUERY, floats(2, 5, 13)), {}),
    # On JAX Keras has other widths of values only where it returns the scores.
    "value_dim": ({"value_dim": 6}, ALL_THREE, SCORES),
    "no bias": ({"use_bias": False}, ALL_THREE, {}),
    "output_shape": ({"output_shape": 19}, CROSS, {}),
    "dropout is for training": ({"dropout": 0.5}, CROSS, {"training": False}),
    "causal": ({}, SELF, CAUSAL),
    "causal, more keys": ({}, CROSS, CAUSAL),
    "mask (B, T, S)": ({}, CROSS, {"attention_mask": mask(2, 5, 7)}),
    "mask (T, S)": ({}, CROSS, {"attention_mask": mask(5, 7)}),
    "mask (B, 1, S)": ({}, CROSS, {"attention_mask": mask(2, 1, 7)}),
    "mask (1, T, S)": ({}, CROSS, {"attention_mask": mask(1, 5, 7)}),
    "mask (B, H, T, S)": ({}, CROSS, {"attention_mask": mask(2, 3, 5, 7)}),
    "mask of int32": ({}, CROSS, {"attention_mask": mask(2, 5, 7, dtype="int32")}),
    "mask of uint8": ({}, CROSS, {"attention_mask": mask(5, 7, dtype="uint8")}),
    "value_mask": ({}, CROSS, {"value_mask": mask(2, 7)}),
    "value_mask of int32": ({}, CROSS, {"value_mask": mask(2, 7, dtype="int32")}),
    "key_mask": ({}, ALL_THREE, {"key_mask": mask(2, 7)}),
    "every mask at once": (
        {}, ALL_THREE,
        {"attention_mask": mask(2, 5, 7), "value_mask": mask(2, 7),
         "key_mask": mask(2, 7), **CAUSAL},
    ),
    "causal and a mask": ({}, SELF, {"attention_mask": mask(5, 5), **CAUSAL}),
    "scores": ({}, CROSS, SCORES),
    "scores under a mask": ({}, CROSS, {**SCORES, "attention_mask": mask(5, 7)}),
    "causal scores": ({}, SELF, {**SCORES, **CAUSAL}),
}  # fmt: skip
GROUPED = {
    "masked": (ALL_THREE, {"attention_mask": mask(2, 5, 7)}),
    "scores": (CROSS, SCORES),
    "causal": (SELF, CAUSAL),
}


def shapes_of(inputs, arguments):
    more = [arguments[name] for name in ("value", "key") if name in arguments]
    return [x.shape for x in (*inputs, *more)]


def pair(options, inputs, rng, arguments=None):
    """A layer of Keras with random weights, and ours with the same."""
    peer = keras.layers.MultiHeadAttention(**(ARGUMENTS | options))
    peer.build(*shapes_of(inputs, arguments or {}))
    randomise(peer, rng)
    return peer, MultiHeadAttention.from_keras(peer)


def assert_same(found, expected):
    found, expected = map(keras.tree.flatten, (found, expected))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, ops.convert_to_numpy(other))


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_gives_the_same(rng, name):
    options, inputs, arguments = CALLS[name]
    peer, ours = pair(options, inputs, rng, arguments)
    found = ours(*inputs, **arguments)
    assert_same(found, peer(*inputs, **arguments))
    given = {
        key: keras.Input(x.shape[1:]) if key in ("value", "key") else x
        for key, x in arguments.items()
        if not key.endswith("_mask") or key == "use_causal_mask"
    }
    symbolic = ours(*(keras.Input(x.shape[1:]) for x in inputs), **given)
    for one, other in zip(*map(keras.tree.flatten, (symbolic, found)), strict=True):
        assert one.shape == (None, *other.shape[1:])


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_attention_of_keras_is_taken_over(rng, name):
    inputs, arguments = GROUPED[name]
    peer = keras.layers.GroupQueryAttention(5, 6, 2)
    peer.build(*(x.shape for x in inputs))
    randomise(peer, rng)
    ours = MultiHeadAttention.from_keras(peer)
    assert (ours.num_heads, ours.num_key_value_heads, ours.key_dim) == (6, 2, 5)
    assert_same(ours(*inputs, **arguments), peer(*inputs, **arguments))


def test_query_with_nothing_to_attend_to_gets_zeros_where_keras_takes_the_mean(rng):
    """All other rows agree; a mask of queries changes nothing in either."""
    peer, ours = pair({"use_bias": False}, CROSS, rng)
    allowed = mask(2, 5, 7)
    allowed[1, 3] = False
    expected = ops.convert_to_numpy(peer(*CROSS, attention_mask=allowed))
    found = ops.convert_to_numpy(ours(*CROSS, attention_mask=allowed))
    lonely = ~allowed.any(axis=-1)
    assert_close(found[~lonely], expected[~lonely])
    assert not found[lonely].any()
    assert np.abs(expected[lonely]).max() > 0.01
    query_mask = np.array([[True] * 5, [True] * 3 + [False] * 2])
    assert_same(ours(*CROSS, query_mask=query_mask), ours(*CROSS))


def test_agrees_with_torch():
    case = torch_witness.load("multi_head_attention")
    num_heads = case["attention_weights"].shape[1]
    layer = MultiHeadAttention(num_heads, case["query"].shape[-1] // num_heads)
    inputs = [case[name].astype("float32") for name in ("query", "value", "key")]
    layer.build(*(x.shape for x in inputs))
    set_weights(layer, {name: case[name] for name in weights_of(layer, "attention")})
    output, weights = layer(*inputs, mask=case["mask"], **SCORES)
    assert_close(output, case["outputs"])
    assert_close(weights, case["attention_weights"])
    output, weights = numpy_transformer.multi_head_attention(
        case["query"],
        case["key"],
        case["value"],
        case,
        num_heads,
        case["mask"][:, None],
    )
    np.testing.assert_allclose(output, case["outputs"], atol=1e-12)
    np.testing.assert_allclose(weights, case["attention_weights"], atol=1e-12)


OF_WEIGHTS = {
    "kernel_initializer": keras.initializers.RandomNormal(stddev=0.3, seed=3),
    "bias_initializer": keras.initializers.RandomUniform(seed=4),
    "kernel_regularizer": keras.regularizers.L2(0.1),
    "bias_regularizer": keras.regularizers.L1(0.2),
    "activity_regularizer": keras.regularizers.L2(0.3),
    "kernel_constraint": keras.constraints.NonNeg(),
    "bias_constraint": keras.constraints.NonNeg(),
}


def test_training_takes_the_same_steps(rng):
    target, results = rng.standard_normal((2, 5, 11)).astype("float32"), []
    for layer in pair(OF_WEIGHTS, ALL_THREE, rng):
        symbolic = [keras.Input(x.shape[1:]) for x in ALL_THREE]
        model = keras.Model(symbolic, layer(*symbolic))
        model.compile(keras.optimizers.SGD(0.05), "mse")
        losses = [model.train_on_batch(list(ALL_THREE), target) for _ in range(3)]
        results.append((np.array(losses), model(list(ALL_THREE))))
    expected, found = results
    assert expected[0][0] > expected[0][2]
    assert_same(found, expected)


def test_seeded_initializers_draw_the_same_weights():
    layers = keras.layers.MultiHeadAttention, MultiHeadAttention
    peer, ours = (layer(**ARGUMENTS, **OF_WEIGHTS) for layer in layers)
    assert_same(ours(*ALL_THREE), peer(*ALL_THREE))


def parameters(cls, method):
    found = dict(inspect.signature(getattr(cls, method)).parameters)
    return {name: p for name, p in found.items() if p.kind is not p.VAR_KEYWORD}


# Keras has them by name too; ours are those of every layer made of `Dense`.
BY_NAME = {"attention_axes", "use_gate", "sliding_window", "seed", *OF_WEIGHTS}


def test_arguments_have_the_order_and_the_defaults_of_keras():
    for method in ("__init__", "call", "build"):
        theirs = parameters(keras.layers.MultiHeadAttention, method)
        ours = parameters(MultiHeadAttention, method)
        common = [n for n in theirs if n not in BY_NAME and n != "flash_attention"]
        assert list(ours)[: len(common)] == common, method
        for name in set(theirs) & set(ours):
            if theirs[name].default is not inspect.Parameter.empty:
                assert ours[name].default == theirs[name].default, name


@pytest.mark.parametrize(
    "name, value",
    (("attention_axes", 2), ("use_gate", True), ("sliding_window", 3),
     ("sliding_window", 1)),
)  # fmt: skip
def test_what_ours_has_not_is_refused_by_its_name(name, value):
    peer = keras.layers.MultiHeadAttention(**ARGUMENTS, **{name: value})
    shape = (None, 3, 5, 8) if name == "attention_axes" else (None, 5, 8)
    peer.build(shape, shape)
    with pytest.raises(ValueError, match=f"must not use `{name}`.*{name}=.?{value}"):
        MultiHeadAttention.from_keras(peer)
    with pytest.raises(ValueError, match=name):
        MultiHeadAttention(**ARGUMENTS, **{name: value})
    peer = keras.layers.MultiHeadAttention(**ARGUMENTS, attention_axes=1)
    peer.build((None, 5, 8), (None, 5, 8))
    assert_same(MultiHeadAttention.from_keras(peer)(X8), peer(X8, X8))


def test_a_config_of_keras_is_taken_over(rng):
    options = OF_WEIGHTS | {"dropout": 0.25, "seed": 3}
    peer, ours = pair(options, CROSS, rng)
    theirs, config = peer.get_config(), ours.get_config()
    for name in set(theirs) & set(config):
        assert config[name] == theirs[name], name
    assert MultiHeadAttention.from_config(config).get_config() == config


def test_adapters_of_keras_are_merged(rng):
    peer, _ = pair({}, CROSS, rng)
    peer.query_dense.enable_lora(2)
    randomise(peer, rng)
    assert_same(MultiHeadAttention.from_keras(peer)(*CROSS), peer(*CROSS))


def test_taken_weights_are_copies(rng):
    """On JAX an array of two layers would be gone once one is trained."""
    peer, ours = pair({}, SELF, rng)
    before = ops.convert_to_numpy(peer(*SELF)).copy()
    model = keras.Sequential([keras.Input(QUERY.shape[1:]), ours])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch(QUERY, QUERY)
    assert_close(peer(*SELF), before)
    assert np.abs(ops.convert_to_numpy(ours(QUERY)) - before).max() > 1e-3
