"""Every kind of attention: against float64 NumPy, its laws, and its cached steps."""

import itertools
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.kernels.caches import cache_place
from keras_transformer.nn.layers import (
    SSRU,
    AlibiPositions,
    MultiHeadAttention,
    RotaryPositions,
    enable_lora,
    recorded_attention,
)
from keras_transformer.nn.layers.attention import prepare_mask
from keras_transformer.nn.masks import attention_mask
from tests.examples.test_examples import load
from tests.nn.layers.reference_weights import (
    assert_close,
    past_mask,
    randomise,
    weights_of,
)
from tests.nn.layers.test_every_layer import exported
from tests.nn.layers.test_model_by_hand import OwnAttention
from tests.reference import numpy_attention as reference
from tests.reference import numpy_transformer

BATCH, LENGTH, WIDTH, HEADS, KEY_DIM, WINDOW = 2, 9, 11, 6, 4, 2
SHAPE = (BATCH, LENGTH, WIDTH)
FEW = {"num_key_value_heads": 2, "value_dim": 5, "use_bias": True}
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
# With TensorFlow a step in a graph goes ways of its own.
MODES = ("eager", "graph") if ON_TENSORFLOW else ("eager",)
array = ops.convert_to_numpy


def decode_steps(layer, inputs, hypotheses=1, room=2, mode="eager"):
    """Runs `layer.step` over inputs (B, T, D), the same for each hypothesis.

    Returns:
        For each hypothesis the outputs (B, T, D), arrays.
    """

    def decode(inputs):
        batch, length, _ = inputs.shape
        cache = layer.initial_cache(batch, hypotheses, length + room)
        weights = layer.step_weights()
        outputs = []
        for index in range(length):
            one = ops.repeat(inputs[:, index : index + 1], hypotheses, axis=1)
            mask = past_mask(index, length + room, hypotheses)
            place = cache_place(cache[0], hypotheses, ops.convert_to_tensor(index))
            output, cache = layer.step(one, cache, place, mask, weights)
            outputs.append(output)
        return ops.stack(outputs, axis=2)  # (B, N, T, D)

    outputs = array(in_mode(decode, mode)(ops.convert_to_tensor(inputs)))
    return [outputs[:, hypothesis] for hypothesis in range(hypotheses)]


def in_mode(function, mode):
    if mode == "eager":
        return function
    import tensorflow as tf

    return tf.function(function)


class Kind(NamedTuple):
    """A kind of attention.

    Attributes:
        layer_class: The class.
        options: Of its constructor.
        reference: Options of `reference.self_attention`, or a function of query, key,
            value, weights, heads and mask.
        cross: The reference of attention to another sequence, if there is one.
        any_mask: Whether its mask may differ between queries; else it works by blocks.
        has_state: Whether its cache is a state that does not grow, without weights.
        ways: Values of `use_causal_mask`.
    """

    layer_class: type
    options: dict
    reference: object
    cross: object = None
    any_mask: bool = True
    has_state: bool = False
    ways: tuple = (False, True)

    def layer(self, rng, *shapes, **more):
        options = {"use_bias": False} | self.options | more
        layer = self.layer_class(HEADS, KEY_DIM, **options)
        layer.build(*(shapes or [SHAPE]))
        return randomise(layer, rng)

    def expected(self, layer, inputs, mask):
        """Outputs and weights in float64; `mask` is of (B, T, T)."""
        weights = weights_of(layer, "ssru" if isinstance(layer, SSRU) else "attention")
        if callable(self.reference):
            return self.reference(inputs, inputs, inputs, weights, HEADS, mask), None
        if self.layer_class is LocalAttention:
            mask = mask & (DISTANCES <= layer.window)
        groups = self.options.get("num_key_value_heads")
        return reference.self_attention(
            inputs, weights, HEADS, groups, mask, **self.reference
        )


def performer(query, key, value, weights, heads, mask):
    vectors = weights["random_features"]
    return reference.performer_attention(
        query, key, value, weights, heads, vectors, mask
    )


def ssru(query, key, value, weights, heads, mask):
    return numpy_transformer.ssru(query, weights, mask[:, -1])


DOTS, ROTARY = {}, {"rotary_base": 10000.0}
RELU, SLOPES = (
    {"weigh": reference.relu_weights}, {"slopes": reference.alibi_slopes(HEADS)}
)  # fmt: skip
LOCAL, LINEAR = {"window": WINDOW}, reference.linear_attention
STATE = {"any_mask": False, "has_state": True}
# Subclasses that override `weigh`, `score` and `features`.
RELU_ATTENTION = load("relu_attention").ReluAttention
ADDITIVE = load("additive_attention").MultiHeadAdditiveAttention
LocalAttention = load("local_attention").LocalAttention
LinearAttention = load("linear_attention").LinearAttention
PERFORMER = load("performer_attention").PerformerAttention
ALIBI, TURNED = {"positions": "alibi"}, {"positions": "rotary"}
KINDS = {
    "dot-product": Kind(
        MultiHeadAttention, {}, DOTS, numpy_transformer.multi_head_attention
    ),
    "few heads of keys": Kind(MultiHeadAttention, FEW, DOTS),
    "one head of keys": Kind(MultiHeadAttention, {"num_key_value_heads": 1}, DOTS),
    "rotary": Kind(MultiHeadAttention, TURNED, ROTARY),
    "rotary, another base": Kind(
        MultiHeadAttention, {"positions": RotaryPositions(base=50.0)},
        {"rotary_base": 50.0},
    ),
    "rotary, few": Kind(MultiHeadAttention, FEW | TURNED, ROTARY),
    "alibi": Kind(MultiHeadAttention, ALIBI, SLOPES),
    "alibi, steeper after": Kind(
        MultiHeadAttention, {"positions": AlibiPositions(after=3.0)},
        SLOPES | {"after": 3.0},
    ),
    "alibi, few heads": Kind(MultiHeadAttention, FEW | ALIBI, SLOPES),
    "relu, rotary, few heads": Kind(RELU_ATTENTION, FEW | TURNED, RELU | ROTARY),
    "additive, alibi, few heads": Kind(ADDITIVE, FEW | ALIBI, SLOPES),
    "local": Kind(LocalAttention, LOCAL, DOTS, any_mask=False),
    "local, rotary, few heads": Kind(
        LocalAttention, LOCAL | FEW | TURNED, ROTARY, any_mask=False
    ),
    "local, alibi": Kind(LocalAttention, LOCAL | ALIBI, SLOPES, any_mask=False),
    "linear": Kind(LinearAttention, {"value_dim": 7}, LINEAR, LINEAR, **STATE),
    "performer": Kind(
        PERFORMER, {"value_dim": 7, "seed": 1}, performer, performer, **STATE
    ),
    "SSRU": Kind(lambda *_, **options: SSRU(), {}, ssru, ways=(True,), **STATE),
}  # fmt: skip
DISTANCES = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
CAUSAL = np.tril(np.ones((1, LENGTH, LENGTH), bool))
# The second row ends early, and so has queries whose window is all padding.
ROWS = np.arange(LENGTH) < np.array([[LENGTH], [4]])
ROWS[0, [0, 3, 4]] = False
# Nine positions are one block, or several, wider or narrower than the window.
BLOCKS = [(name, 64, {}) for name in KINDS]
BLOCKS += [(name, 4, {}) for name in KINDS if not KINDS[name].any_mask]
BLOCKS += [("local", b, {"window": w}) for b in (1, 4, 64) for w in (1, 3, 7, 40)]
IN_GRAPHS = (
    "dot-product", "rotary, few", "alibi, few heads", "additive, alibi, few heads",
    "local, alibi", "local, rotary, few heads", "linear", "SSRU",
)  # fmt: skip
every_kind = pytest.mark.parametrize("name", KINDS)


@pytest.fixture
def set_block(monkeypatch):
    def change(size):
        monkeypatch.setattr(load("linear_attention"), "BLOCK", size)
        monkeypatch.setattr(load("local_attention"), "SMALLEST_BLOCK", size)

    change(4)
    return change


def random_inputs(rng):
    return rng.standard_normal(SHAPE).astype("float32")


@pytest.mark.parametrize("name, block, options", BLOCKS)
def test_agrees_with_the_reference(name, block, options, rng, set_block):
    set_block(block)
    kind = KINDS[name]
    layer, inputs = kind.layer(rng, **options), random_inputs(rng)
    for masked, causal in itertools.product((False, True), kind.ways):
        given, mask = None, np.ones((1, LENGTH, LENGTH), bool)
        if masked and kind.any_mask:
            given = mask = rng.random((BATCH, LENGTH, LENGTH)) < 0.6
            mask[1, 3] = False
        elif masked:
            given, mask = ROWS, ROWS[:, None]
        mask = mask & CAUSAL if causal else mask
        mask = np.broadcast_to(mask, (BATCH, LENGTH, LENGTH))
        expected, expected_weights = kind.expected(layer, inputs, mask)
        arguments = {"mask": given, "use_causal_mask": causal}
        outputs = array(layer(inputs, **arguments))
        assert_close(outputs, expected)
        if masked and kind.any_mask and not layer.use_bias:
            np.testing.assert_array_equal(outputs.any(axis=-1), mask.any(axis=-1))
        if kind.has_state:
            continue
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
    # One new position at a time, to keys and values that are projected once.
    layer = kind.layer(rng, *shapes[:2], use_bias=use_bias)
    mask = np.arange(7) < np.array([[4], [6]])
    expected = array(layer(query, value, mask=mask))
    source = layer.keys_and_values(ops.convert_to_tensor(value))
    weights = layer.step_weights(across=True)
    allowed = prepare_mask(attention_mask(mask)[:, None], "float32")
    assert_close(layer.look_up(query, source, allowed, weights), expected)


def test_graphs_of_unknown_sizes_agree_with_the_reference(rng):
    """With a mask and without, and in training, where TensorFlow has ways of its own.

    One model of many kinds.
    """
    inputs, layers = random_inputs(rng), {n: KINDS[n].layer(rng) for n in IN_GRAPHS}
    states, mask = keras.Input((None, WIDTH)), keras.Input((None,), dtype="bool")
    every, outputs, expected = np.ones((BATCH, LENGTH, LENGTH), bool), [], []
    for name, layer in layers.items():
        (plain, *_), both = KINDS[name].ways, []
        both.append(layer(states, use_causal_mask=plain))
        both.append(layer(states, mask=mask, use_causal_mask=True))
        outputs.append(ops.concatenate(both, axis=1))
        seen = every & CAUSAL if plain else every, ROWS[:, None] & CAUSAL
        both = [KINDS[name].expected(layer, inputs, one)[0] for one in seen]
        expected.append(np.concatenate(both, axis=1))
    model, data = keras.Model([states, mask], outputs), [inputs, ROWS]
    for found, output in zip(model.predict(data, verbose=0), expected, strict=True):
        assert_close(found, output)
    model.compile(keras.optimizers.SGD(0.0), ["mse"] * len(expected))
    _, *losses = model.train_on_batch(data, [np.zeros(x.shape) for x in expected])
    assert losses == pytest.approx([(x**2).mean() for x in expected], rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="not exported by Keras")
@pytest.mark.filterwarnings("ignore:The `native_serialization` parameter")
@pytest.mark.parametrize("name", ("local, alibi", "local", "linear", "performer"))
def test_examples_are_called_and_exported_with_sizes_unknown(name, rng, tmp_path):
    """JAX must see that as many blocks come out as went in."""
    kind, inputs = KINDS[name], random_inputs(rng)
    states = keras.Input((None, WIDTH))
    layer = kind.layer_class(HEADS, KEY_DIM, **kind.options)
    model = keras.Model([states], layer(states, use_causal_mask=True))
    model.export(tmp_path / "1", format="tf_saved_model", verbose=False)
    for own in (inputs, inputs[:1, :3]):
        assert_close(exported(tmp_path / "1", [own]), array(model([own])))


@every_kind
def test_padding_changes_nothing(name, rng, set_block):
    layer, inputs = KINDS[name].layer(rng), random_inputs(rng)
    padded = np.pad(inputs, ((0, 0), (0, 3), (0, 0)), constant_values=50)
    mask = np.tile(np.arange(LENGTH + 3) < LENGTH, (BATCH, 1))
    for causal in KINDS[name].ways:
        found = layer(padded, mask=mask, use_causal_mask=causal)
        assert_close(found[:, :LENGTH], array(layer(inputs, use_causal_mask=causal)))


@every_kind
def test_a_later_position_changes_no_earlier_output(name, rng, set_block):
    """In training too, with the same dropout."""
    kind, inputs = KINDS[name], random_inputs(rng)
    changed = inputs.copy()
    changed[:, 6:] += 5
    rate = {} if kind.has_state else {"dropout": 0.5, "seed": 3}
    for options, training in (({}, False), (rate, True)):
        before, after = (
            array(
                kind.layer(np.random.default_rng(5), **options)(
                    x, use_causal_mask=True, training=training
                )
            )
            for x in (inputs, changed)
        )
        np.testing.assert_array_equal(before[:, :6], after[:, :6])
        assert np.abs(before - after)[:, 6:].max(axis=(0, 2)).min() > 1e-3


@every_kind
@pytest.mark.parametrize(
    "mode, hypotheses",
    [pytest.param("eager", 1, marks=pytest.mark.slow), ("eager", 3)]
    + [
        pytest.param("graph", 3, marks=pytest.mark.one_case("graph-3-local, alibi"))
        for _ in MODES[1:]
    ],
)
def test_steps_equal_call(name, rng, mode, hypotheses):
    layer, inputs = KINDS[name].layer(rng), random_inputs(rng)
    expected = array(layer(inputs, use_causal_mask=True))
    for found in decode_steps(layer, inputs, hypotheses, mode=mode):
        assert_close(found, expected)


# Numbers that a hypothesis of a sentence keeps.
STATES = {"linear": 192, "performer": 288, "SSRU": 11}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name, size", STATES.items())
def test_a_state_follows_the_hypotheses_and_does_not_grow(name, size, rng, mode):
    """Those that change places and split take the past of their parents along."""
    layer = KINDS[name].layer(rng)
    batch, hypotheses, length, width = 2, 3, 5, 11
    inputs = rng.standard_normal((length, batch, hypotheses, width)).astype("float32")
    parents = rng.integers(hypotheses, size=(length, batch, hypotheses)).astype("int32")
    # One path from the start to each hypothesis of the last position.
    paths = np.zeros((batch, hypotheses, length, width), "float32")
    for index in range(length):
        paths = np.take_along_axis(paths, parents[index][..., None, None], axis=1)
        paths[:, :, index] = inputs[index]
    assert any(not np.array_equal(p, np.sort(p, axis=1)) for p in parents)

    def decode(inputs, parents):
        cache = layer.initial_cache(batch, hypotheses, length)
        weights = layer.step_weights()
        for index in range(length):
            place = cache_place(cache[0], hypotheses, index, parents[index])
            output, cache = layer.step(inputs[index], cache, place, None, weights)
        return output

    output = in_mode(decode, mode)(*map(ops.convert_to_tensor, (inputs, parents)))
    whole = array(layer(ops.convert_to_tensor(paths.reshape(-1, length, width))))
    assert_close(output, whole[:, -1].reshape(batch, hypotheses, -1))
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


@pytest.mark.parametrize("own", (Sharper, Narrower, OwnAttention))
@pytest.mark.parametrize("positions", (None, "alibi", "rotary"))
def test_what_overrides_one_method_decodes_by_it(rng, own, positions):
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


OF_WAYS = (
    "few heads of keys", "additive, alibi, few heads", "local, rotary, few heads",
    "linear", "SSRU",
)  # fmt: skip


@pytest.mark.parametrize(
    "way", ("adapters", "int8", pytest.param("int4", marks=pytest.mark.slow))
)
@pytest.mark.parametrize("name", OF_WAYS)
def test_steps_of_adapted_and_of_rounded_projections_equal_call(name, rng, way):
    """Adapters are merged into the prepared weights; integers have none prepared."""
    layer, inputs = KINDS[name].layer(rng), random_inputs(rng)
    before = array(layer(inputs, use_causal_mask=True))
    denses = [x for x in layer._flatten_layers() if isinstance(x, keras.layers.Dense)]
    if way == "adapters":
        enable_lora(layer, 2)
        for dense in denses:
            dense.lora_kernel_b.assign(rng.standard_normal(dense.lora_kernel_b.shape))
    else:
        for dense in denses:
            dense.quantize(way)
    assert bool(keras.tree.flatten(layer.step_weights())) == (way == "adapters")
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
    # With equal values each head's output is its value times the kept share.
    layer = MultiHeadAttention(1, 4, dropout=0.5, use_bias=False)
    inputs = np.ones((1, 4000, 4), "float32")
    layer.build(inputs.shape)
    for weight in layer.weights:
        weight.assign(np.eye(4))
    output = layer(inputs[:, :50], inputs, training=True)
    assert_close(ops.mean(output), 1.0, tolerance=0.02)


def test_linear_attention_takes_other_features(rng):
    """Features of one unit, always 1: the mean of all values."""

    class Mean(LinearAttention):
        def features(self, *inputs):
            return [ops.ones_like(x[..., :1]) for x in inputs]

    layer = Mean(1, WIDTH)
    layer.build(SHAPE)
    layer.value_dense.kernel.assign(np.eye(WIDTH))
    layer.output_dense.kernel.assign(np.eye(WIDTH))
    inputs = random_inputs(rng)
    expected = np.broadcast_to(inputs.mean(axis=1, keepdims=True), SHAPE)
    assert_close(layer(inputs), expected)
