"""Every kind of attention: against float64 NumPy, its laws, and its cached steps."""

from __future__ import annotations

from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.decoding import prepare_mask
from keras_transformer.layers import (
    AdditiveAttention,
    LinearAttention,
    LocalAttention,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
    PerformerAttention,
    ReluAttention,
    RotaryPositions,
    enable_lora,
    local_attention,
    recorded_attention,
)
from keras_transformer.masks import attention_mask
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.layers.step_by_step import (
    MODES,
    check_state_follows_the_hypotheses,
    decode_steps,
)
from tests.reference import numpy_attention as reference
from tests.reference import numpy_transformer

BATCH, LENGTH, WIDTH, HEADS, KEY_DIM, WINDOW = 2, 9, 11, 6, 4, 2
SHAPE = (BATCH, LENGTH, WIDTH)
SLOPES = {"slopes": [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]}
FEW = {"num_key_value_heads": 2, "value_dim": 5, "use_bias": True}


class Kind(NamedTuple):
    """A kind of attention.

    Attributes:
        layer_class: The class.
        options: Of its constructor.
        reference: Options of `reference.self_attention`, or a function of query, key,
            value, weights, heads and mask.
        any_mask: Whether its mask may differ between queries.
        has_state: Whether its cache is a state that does not grow, without weights.
        cross: The reference of attention to another sequence, if there is one.
    """

    layer_class: type
    options: dict
    reference: object
    any_mask: bool = True
    has_state: bool = False
    cross: object = None

    def layer(self, rng, *shapes, **more):
        options = {"use_bias": False} | self.options | more
        layer = self.layer_class(HEADS, KEY_DIM, **options)
        layer.build(*(shapes or [SHAPE]))
        return randomise(layer, rng)

    def expected(self, layer, inputs, mask):
        """Outputs and weights in float64; `mask` is of (B, T, T)."""
        weights = weights_of(layer, "attention")
        if callable(self.reference):
            return self.reference(inputs, inputs, inputs, weights, HEADS, mask), None
        if self.layer_class is LocalAttention:
            far = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))
            mask = mask & (np.abs(far) <= WINDOW)
        groups = self.options.get("num_key_value_heads")
        return reference.self_attention(
            inputs, weights, HEADS, groups, mask, **self.reference
        )


def performer(query, key, value, weights, heads, mask):
    vectors = weights["random_features"]
    return reference.performer_attention(
        query, key, value, weights, heads, vectors, mask
    )


DOTS, ROTARY = {}, {"rotary_base": 10000.0}
RELU = {"weigh": reference.relu_weights}
ACROSS = numpy_transformer.multi_head_attention
LOCAL = {"window": WINDOW}
KINDS = {
    "dot-product": Kind(MultiHeadAttention, {}, DOTS, cross=ACROSS),
    "few heads of keys": Kind(MultiHeadAttention, FEW, DOTS),
    "one head of keys": Kind(MultiHeadAttention, {"num_key_value_heads": 1}, DOTS),
    "rotary": Kind(MultiHeadAttention, {"positions": "rotary"}, ROTARY),
    "rotary, another base": Kind(
        MultiHeadAttention, {"positions": RotaryPositions(base=50.0)},
        {"rotary_base": 50.0},
    ),
    "rotary, few": Kind(MultiHeadAttention, FEW | {"positions": "rotary"}, ROTARY),
    "alibi": Kind(MultiHeadAttention, {"positions": "alibi"}, SLOPES),
    "alibi, few heads": Kind(MultiHeadAttention, FEW | {"positions": "alibi"}, SLOPES),
    "relu": Kind(ReluAttention, {}, RELU),
    "relu, rotary, few heads": Kind(
        ReluAttention, FEW | {"positions": "rotary"}, RELU | ROTARY
    ),
    "additive": Kind(
        MultiHeadAdditiveAttention, {}, DOTS,
        cross=reference.multi_head_additive_attention,
    ),
    "additive, alibi, few heads": Kind(
        MultiHeadAdditiveAttention, FEW | {"positions": "alibi"}, SLOPES
    ),
    "local": Kind(LocalAttention, LOCAL, DOTS, any_mask=False),
    "local, rotary, few heads": Kind(
        LocalAttention, LOCAL | FEW | {"positions": "rotary"}, ROTARY, any_mask=False
    ),
    "local, alibi": Kind(
        LocalAttention, LOCAL | {"positions": "alibi"}, SLOPES, any_mask=False
    ),
    "linear": Kind(
        LinearAttention, {"value_dim": 7}, reference.linear_attention, any_mask=False,
        has_state=True, cross=reference.linear_attention,
    ),
    "performer": Kind(
        PerformerAttention, {"value_dim": 7, "seed": 1}, performer, any_mask=False,
        has_state=True, cross=performer,
    ),
}  # fmt: skip
CAUSAL = np.tril(np.ones((1, LENGTH, LENGTH), bool))
# The second row ends early, and so has queries whose window is all padding.
ROWS = np.arange(LENGTH) < np.array([[LENGTH], [4]])


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(params=(1, 64))
def block(request, monkeypatch):
    """Nine positions are several blocks, or one."""
    module = __import__(LinearAttention.__module__, fromlist=["BLOCK"])
    monkeypatch.setattr(module, "BLOCK", max(request.param, 4))
    monkeypatch.setattr(local_attention, "SMALLEST_BLOCK", request.param)


def random_inputs(rng):
    return rng.standard_normal(SHAPE).astype("float32")


def array(tensor):
    return ops.convert_to_numpy(tensor)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("masked", (False, True))
def test_agrees_with_the_reference(kind, rng, block, masked, causal):
    layer, inputs = kind.layer(rng), random_inputs(rng)
    given, mask = None, np.ones((1, LENGTH, LENGTH), bool)
    if masked and kind.any_mask:
        given = mask = rng.random((BATCH, LENGTH, LENGTH)) < 0.6
        mask[1, 3] = False
    elif masked:
        given, mask = ROWS, ROWS[:, None]
    mask = np.broadcast_to(mask & CAUSAL if causal else mask, (BATCH, LENGTH, LENGTH))
    expected, expected_weights = kind.expected(layer, inputs, mask)
    arguments = {"mask": given, "use_causal_mask": causal}
    outputs = array(layer(inputs, **arguments))
    assert_close(outputs, expected)
    if masked and kind.any_mask and not layer.use_bias:
        np.testing.assert_array_equal(outputs.any(axis=-1), mask.any(axis=-1))
    if kind.has_state:
        return
    outputs, weights = layer(inputs, **arguments, return_attention_scores=True)
    assert_close(outputs, expected)
    assert_close(weights, expected_weights)
    with recorded_attention() as record:
        layer(inputs, **arguments)
    np.testing.assert_array_equal(array(record[layer][0]), array(weights))


@pytest.mark.parametrize("use_bias", (False, True))
@pytest.mark.parametrize("name", [n for n in KINDS if KINDS[n].cross])
def test_attention_to_another_sequence_agrees_with_the_reference(name, rng, use_bias):
    kind, shapes = KINDS[name], ((2, 5, 11), (2, 7, 17), (2, 7, 13))
    layer = kind.layer(rng, *shapes, use_bias=use_bias, output_shape=19)
    query, value, key = (rng.standard_normal(s).astype("float32") for s in shapes)
    mask = np.arange(7) < np.array([[[4]], [[0]]])
    for given in (None, mask):
        expected = kind.cross(
            query, key, value, weights_of(layer, "attention"), HEADS, given
        )
        expected = expected[0] if isinstance(expected, tuple) else expected
        assert_close(layer(query, value, key, mask=given), expected)
    if not use_bias:
        assert not array(layer(query, value, key, mask=mask))[1].any()
    # One new position at a time, to keys and values that are projected once.
    layer = kind.layer(rng, *shapes[:2], use_bias=use_bias)
    mask = np.arange(7) < np.array([[4], [6]])
    expected = array(layer(query, value, mask=mask))
    source = layer.keys_and_values(ops.convert_to_tensor(value))
    weights = layer.step_weights(across=True)
    allowed = prepare_mask(attention_mask(mask)[:, None], "float32")
    assert_close(layer.look_up(query, source, allowed, weights), expected)


def test_training_of_an_unknown_length_agrees_with_the_reference(rng):
    """In a TensorFlow graph training has ways of its own. One model of all kinds."""
    inputs, states = random_inputs(rng), keras.Input((None, WIDTH))
    layers = {name: kind.layer(rng) for name, kind in KINDS.items()}
    model = keras.Model(states, [layer(states) for layer in layers.values()])
    every = np.ones((BATCH, LENGTH, LENGTH), bool)
    expected = [
        KINDS[name].expected(layer, inputs, every)[0] for name, layer in layers.items()
    ]
    for found, output in zip(model.predict(inputs, verbose=0), expected, strict=True):
        assert_close(found, output)
    model.compile(keras.optimizers.SGD(0.0), ["mse"] * len(expected))
    zeros = [np.zeros(x.shape) for x in expected]
    _, *losses = model.train_on_batch(inputs, zeros)
    assert losses == pytest.approx([(x**2).mean() for x in expected], rel=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's graphs"
)
@pytest.mark.parametrize("causal", (False, True))
def test_a_graph_need_not_know_the_shape(rng, causal):
    import tensorflow as tf

    layers, inputs = [kind.layer(rng) for kind in KINDS.values()], random_inputs(rng)
    signature = [
        tf.TensorSpec((None, None, WIDTH), "float32"),
        tf.TensorSpec((None, None), "bool"),
    ]

    def call(inputs, mask):
        return [layer(inputs, mask=mask, use_causal_mask=causal) for layer in layers]

    graph = tf.function(call, input_signature=signature, autograph=False)
    for found, expected in zip(graph(inputs, ROWS), call(inputs, ROWS), strict=True):
        assert_close(found, array(expected))


@pytest.mark.parametrize("causal", (False, True))
def test_padding_changes_nothing(kind, rng, block, causal):
    layer, inputs = kind.layer(rng), random_inputs(rng)
    padded = np.pad(inputs, ((0, 0), (0, 3), (0, 0)), constant_values=50)
    mask = np.tile(np.arange(LENGTH + 3) < LENGTH, (BATCH, 1))
    found = layer(padded, mask=mask, use_causal_mask=causal)
    assert_close(found[:, :LENGTH], array(layer(inputs, use_causal_mask=causal)))


def test_a_later_position_changes_no_earlier_output(kind, rng, block):
    """Whatever else is asked for, and with the same dropout."""
    inputs = random_inputs(rng)
    changed = inputs.copy()
    changed[:, 6:] += 5
    rates = ({},) if kind.has_state else ({}, {"dropout": 0.5, "seed": 3})
    for options in rates:
        layer = kind.layer(np.random.default_rng(5), **options)
        for training in (False, True):
            before, after = (
                array(kind.layer(np.random.default_rng(5), **options)(
                    x, use_causal_mask=True, training=training
                ))
                for x in (inputs, changed)
            )  # fmt: skip
            np.testing.assert_array_equal(before[:, :6], after[:, :6])
            assert np.abs(before - after)[:, 6:].max(axis=(0, 2)).min() > 1e-3
    if not kind.has_state:
        _, weights = layer(inputs, use_causal_mask=True, return_attention_scores=True)
        assert not np.triu(array(weights), k=1).any()


@pytest.mark.parametrize("hypotheses", (1, 3))
def test_steps_equal_call(kind, rng, hypotheses):
    layer, inputs = kind.layer(rng), random_inputs(rng)
    expected = array(layer(inputs, use_causal_mask=True))
    for found in decode_steps(layer, inputs, hypotheses):
        assert_close(found, expected)


@pytest.mark.one_case
@pytest.mark.parametrize("mode", MODES[1:])
def test_steps_in_a_graph_equal_call(kind, rng, mode):
    layer, inputs = kind.layer(rng), random_inputs(rng)
    expected = array(layer(inputs, use_causal_mask=True))
    for found in decode_steps(layer, inputs, hypotheses=3, mode=mode):
        assert_close(found, expected)


@pytest.mark.parametrize("name", [n for n in KINDS if KINDS[n].has_state])
def test_a_state_follows_the_hypotheses_and_does_not_grow(name, rng):
    layer = KINDS[name].layer(rng)
    check_state_follows_the_hypotheses(layer, rng)
    size = HEADS * layer.feature_dim * (7 + 1)
    for length in (7, 7000):
        assert [x.shape for x in layer.initial_cache(2, 3, length)] == [(2, 3, size)]


class Sharper(MultiHeadAttention):
    """Overrides `attend` alone: its scores are three times as far apart."""

    def attend(self, queries, *others, **options):
        return super().attend(3.0 * queries, *others, **options)


class Narrower(MultiHeadAttention):
    """Overrides `attend` alone: no query sees a key that begins with a low number."""

    def attend(self, queries, keys, values, mask=None, *others, **options):
        sees = keys[:, :1, None, :, 0] > -0.3
        mask = sees if mask is None else ops.logical_and(mask, sees)
        return super().attend(queries, keys, values, mask, *others, **options)


@pytest.mark.parametrize("own", (Sharper, Narrower))
@pytest.mark.parametrize("positions", (None, "alibi", "rotary"))
def test_what_overrides_attend_alone_decodes_by_it(rng, own, positions):
    layer = own(HEADS, KEY_DIM, positions=positions)
    layer.build(SHAPE)
    inputs = random_inputs(rng)
    expected = array(layer(inputs, use_causal_mask=True))
    for found in decode_steps(layer, inputs, hypotheses=2):
        assert_close(found, expected)
    usual = MultiHeadAttention(HEADS, KEY_DIM, positions=positions)
    usual.build(SHAPE)
    usual.set_weights(layer.get_weights())
    assert np.abs(array(usual(inputs, use_causal_mask=True)) - expected).max() > 1e-3


def test_a_cache_holds_the_heads_of_keys_and_values_alone(rng):
    layer = KINDS["few heads of keys"].layer(rng)
    keys, values = layer.initial_cache(BATCH, 3, 7)
    assert keys.shape == (BATCH, 2, 21, KEY_DIM)
    assert values.shape == (BATCH, 2, 21, 5)
    assert layer.key_dense.kernel.shape == (WIDTH, 2 * KEY_DIM)


@pytest.mark.parametrize("way", ("adapters", "int8", "int4"))
def test_steps_of_adapted_and_of_rounded_projections_equal_call(kind, rng, way):
    """Adapters are merged into the prepared weights; integers have none prepared."""
    layer, inputs = kind.layer(rng), random_inputs(rng)
    before = array(layer(inputs, use_causal_mask=True))
    denses = [layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense]
    if way == "adapters":
        enable_lora(layer, 2)
        for dense in denses:
            dense.lora_kernel_b.assign(rng.standard_normal(dense.lora_kernel_b.shape))
    else:
        for dense in denses:
            dense.quantize(way)
    assert (layer.step_weights() == ((), ())) == (way != "adapters")
    expected = array(layer(inputs, use_causal_mask=True))
    assert np.abs(expected - before).max() > 1e-3
    for found in decode_steps(layer, inputs, hypotheses=2):
        assert_close(found, expected, tolerance=1e-4)


def test_dropout_drops_attention_weights_and_returns_them_whole(rng):
    """The output is a mean of dropped weights; the returned weights sum to one."""
    layer, inputs = KINDS["dot-product"].layer(rng, dropout=0.5), random_inputs(rng)
    output, weights = layer(inputs, training=True, return_attention_scores=True)
    np.testing.assert_allclose(array(weights).sum(axis=-1), 1, atol=1e-6)
    assert np.abs(array(output - layer(inputs))).max() > 1e-2


def test_dropout_keeps_the_mean_of_the_output():
    """With equal values each head's output is its value times the kept share."""
    layer = MultiHeadAttention(1, 4, dropout=0.5, use_bias=False)
    inputs = np.ones((1, 4000, 4), "float32")
    layer.build(inputs.shape)
    for weight in layer.weights:
        weight.assign(np.eye(4))
    output = layer(inputs[:, :50], inputs, training=True)
    assert_close(ops.mean(output), 1.0, tolerance=0.02)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("window", (1, 3, 7, 40))
def test_local_attention_of_any_window_is_full_attention_in_it(
    rng, block, window, causal
):
    local, inputs = KINDS["local"].layer(rng, window=window), random_inputs(rng)
    full = MultiHeadAttention(HEADS, KEY_DIM, use_bias=False)
    full.build(SHAPE)
    full.set_weights(local.get_weights())
    far = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
    mask = (far <= window) & ROWS[:, None]
    expected = array(full(inputs, mask=mask, use_causal_mask=causal))
    assert_close(local(inputs, mask=ROWS, use_causal_mask=causal), expected)


def test_linear_attention_takes_other_features(rng):
    """Features of one unit, always 1: the mean of all values."""

    class Mean(LinearAttention):
        def feature_map(self, inputs):
            return ops.ones_like(inputs[..., :1])

    layer = Mean(1, WIDTH)
    layer.build(SHAPE)
    layer.value_dense.kernel.assign(np.eye(WIDTH))
    layer.output_dense.kernel.assign(np.eye(WIDTH))
    inputs = random_inputs(rng)
    expected = np.broadcast_to(inputs.mean(axis=1, keepdims=True), SHAPE)
    assert_close(layer(inputs), expected)


# Additive scores.


def test_one_head_of_additive_scores_is_bahdanaus_layer_of_projected_values(rng):
    shapes = ((2, 5, 11), (2, 7, 17), (2, 7, 13))
    layer = MultiHeadAdditiveAttention(1, KEY_DIM, value_dim=3, use_bias=False)
    layer.build(*shapes)
    randomise(layer, rng)
    query, value, key = (rng.standard_normal(s).astype("float32") for s in shapes)
    values = array(layer.value_dense(value))
    additive = AdditiveAttention(KEY_DIM)
    additive.build(query.shape, values.shape, key.shape)
    for name in ("query_dense", "key_dense"):
        getattr(additive, name).kernel.assign(getattr(layer, name).kernel)
    additive.score_kernel.assign(layer.score_kernel[:, 0])
    expected = array(layer.output_dense(additive(query, values, key)))
    assert_close(layer(query, value, key), expected)


def test_initializers_take_the_width_of_a_head_for_the_inputs_of_its_scores():
    layer = MultiHeadAdditiveAttention(3, 400, kernel_initializer="lecun_normal")
    layer.build(SHAPE)
    squares = np.square(array(layer.score_kernel)).sum(axis=0)
    np.testing.assert_allclose(squares, np.ones(3), atol=0.3)
