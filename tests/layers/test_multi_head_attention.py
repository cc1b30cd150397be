"""Multi-head attention against NumPy, PyTorch's recorded numbers and Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.decoding import cache_place
from keras_transformer.kernels.few_passes import prepare_mask
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.masks import (
    attention_mask,
    causal_mask,
    graph_mask,
    valid_length_mask,
)
from tests.layers.layer_battery import ATTENTION_OPTIONS, AttentionBattery
from tests.layers.reference_weights import (
    assert_close,
    past_mask,
    randomise,
    set_weights,
    weights_of,
)
from tests.layers.step_by_step import MODES, decode_steps
from tests.reference import numpy_attention, torch_witness
from tests.reference import numpy_transformer as reference

BATCH, TARGET_LENGTH, SOURCE_LENGTH = 2, 5, 7
NUM_HEADS, KEY_DIM, VALUE_DIM, OUTPUT_DIM = 3, 5, 7, 23
WIDTHS = {"query": 11, "value": 17, "key": 13}


class TestBattery(AttentionBattery):
    layer_class = MultiHeadAttention
    options = ATTENTION_OPTIONS | {"positions": None}
    input_shapes = ((2, 5, 11), (2, 7, 17), (2, 7, 13))
    output_shape = (2, 5, OUTPUT_DIM)
    # It adds the same number to all scores of a query, which the softmax removes.
    weights_without_gradient = ("key_bias",)

    def test_battery_sets_every_argument_to_something_else_than_its_default(self):
        """`positions` need `query` alone: the battery below sets them."""


def random_inputs(rng, lengths=(TARGET_LENGTH, SOURCE_LENGTH, SOURCE_LENGTH)):
    return [
        rng.standard_normal((BATCH, length, width)).astype("float32")
        for length, width in zip(lengths, WIDTHS.values(), strict=True)
    ]


def random_layer(rng, shapes, **options):
    options = {"use_bias": False} | options
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, **options)
    layer.build(*shapes)
    return randomise(layer, rng)


def random_mask(rng):
    """A boolean (B, T, S) mask; one query of the last row may attend to nothing."""
    mask = rng.random((BATCH, TARGET_LENGTH, SOURCE_LENGTH)) < 0.6
    mask[1, 3] = False
    return mask


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_agrees_with_the_reference(rng, use_bias, masked):
    inputs = random_inputs(rng)
    layer = random_layer(
        rng, [x.shape for x in inputs], value_dim=VALUE_DIM, output_dim=OUTPUT_DIM,
        use_bias=use_bias,
    )  # fmt: skip
    mask = random_mask(rng) if masked else None
    output, attention_weights = layer(*inputs, mask=mask, return_attention_weights=True)
    weights = weights_of(layer, "attention")
    assert ("query_bias" in weights) == use_bias
    query, value, key = inputs
    expected = reference.multi_head_attention(
        query, key, value, weights, NUM_HEADS, mask
    )
    assert_close(output, expected[0])
    assert_close(attention_weights, expected[1])
    assert_close(layer(*inputs, mask=mask), expected[0])


def test_value_defaults_to_query_and_key_to_value(rng):
    query, value, _ = random_inputs(rng)
    own = random_layer(rng, [query.shape])
    weights = weights_of(own, "attention")
    expected, _ = reference.multi_head_attention(
        query, query, query, weights, NUM_HEADS
    )
    assert_close(own(query), expected)
    cross = random_layer(rng, [query.shape, value.shape])
    weights = weights_of(cross, "attention")
    expected, _ = reference.multi_head_attention(
        query, value, value, weights, NUM_HEADS
    )
    assert_close(cross(query, value), expected)
    assert_close(cross(query=query, value=value), expected)
    with pytest.raises(ValueError, match="`key` needs a `value` beside it"):
        cross(query, key=value)


def test_one_tensor_as_query_and_value_with_another_key(rng):
    query, _, key = random_inputs(rng, lengths=(7, 7, 7))
    layer = random_layer(rng, [query.shape, query.shape, key.shape], use_bias=True)
    weights = weights_of(layer, "attention")
    expected, _ = reference.multi_head_attention(query, key, query, weights, NUM_HEADS)
    query, key = map(ops.convert_to_tensor, (query, key))
    assert_close(layer(query, query, key), expected)


def test_row_with_nothing_to_attend_to_gives_zeros(rng):
    inputs = random_inputs(rng)
    layer = random_layer(rng, [x.shape for x in inputs])
    output, attention_weights = layer(
        *inputs, mask=valid_length_mask([3, 0], SOURCE_LENGTH),
        return_attention_weights=True,
    )  # fmt: skip
    assert not ops.convert_to_numpy(output)[1].any()
    assert not ops.convert_to_numpy(attention_weights)[1].any()
    assert ops.convert_to_numpy(output)[0].all()


def test_masks_of_every_accepted_shape_agree(rng):
    inputs = random_inputs(rng)
    layer = random_layer(rng, [x.shape for x in inputs])
    full = np.zeros((BATCH, TARGET_LENGTH, SOURCE_LENGTH), bool)
    full[0, :, :6], full[1, :, :2] = True, True
    expected = ops.convert_to_numpy(layer(*inputs, mask=full))
    assert_close(layer(*inputs, mask=full[:, :1]), expected)
    assert_close(layer(*inputs, mask=full[:, 0]), expected)


def test_agrees_with_torch():
    case = torch_witness.load("multi_head_attention")
    num_heads = case["attention_weights"].shape[1]
    layer = MultiHeadAttention(
        num_heads, case["query"].shape[-1] // num_heads, use_bias=True
    )
    inputs = [case[name].astype("float32") for name in ("query", "value", "key")]
    layer.build(*(x.shape for x in inputs))
    set_weights(layer, {name: case[name] for name in weights_of(layer, "attention")})
    output, attention_weights = layer(
        *inputs, mask=case["mask"], return_attention_weights=True
    )
    assert_close(output, case["outputs"])
    assert_close(attention_weights, case["attention_weights"])


def test_reference_agrees_with_torch():
    case = torch_witness.load("multi_head_attention")
    output, attention_weights = reference.multi_head_attention(
        case["query"], case["key"], case["value"], case,
        case["attention_weights"].shape[1], case["mask"][:, None],
    )  # fmt: skip
    np.testing.assert_allclose(output, case["outputs"], atol=1e-12)
    np.testing.assert_allclose(attention_weights, case["attention_weights"], atol=1e-12)


@pytest.mark.parametrize("use_bias", [False, True])
def test_agrees_with_keras(rng, use_bias):
    query, value, key = random_inputs(rng)
    layer = random_layer(
        rng, [query.shape, value.shape, key.shape], value_dim=VALUE_DIM,
        output_dim=OUTPUT_DIM, use_bias=use_bias,
    )  # fmt: skip
    peer = keras.layers.MultiHeadAttention(
        NUM_HEADS, KEY_DIM, value_dim=VALUE_DIM, output_shape=OUTPUT_DIM,
        use_bias=use_bias,
    )  # fmt: skip
    peer.build(query.shape, value.shape, key.shape)
    ours = weights_of(layer, "attention")
    names = [
        (f"{name}_kernel", f"{name}_bias") if use_bias else (f"{name}_kernel",)
        for name in ("query", "key", "value", "output")
    ]
    # Keras keeps the same numbers with the heads on an axis of their own.
    peer.set_weights(
        [
            ours[name].reshape(weight.shape)
            for name, weight in zip(sum(names, ()), peer.weights, strict=True)
        ]
    )
    mask = random_mask(rng)
    mask[1, 3] = [True] + [False] * (SOURCE_LENGTH - 1)
    expected, expected_weights = peer(
        query, value, key, attention_mask=mask, return_attention_scores=True
    )
    output, attention_weights = layer(
        query, value, key, mask=mask, return_attention_weights=True
    )
    assert_close(output, ops.convert_to_numpy(expected))
    assert_close(attention_weights, ops.convert_to_numpy(expected_weights))


@pytest.mark.parametrize("return_attention_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dropout_rate", [0.0, 0.5])
def test_causal_mask_holds_on_every_path(
    rng, dropout_rate, training, return_attention_weights
):
    """No key behind the mask changes an output, whatever else is asked for."""
    inputs = rng.standard_normal((BATCH, TARGET_LENGTH, 11)).astype("float32")
    changed = inputs.copy()
    changed[:, 3:] += 5.0

    def first_outputs(inputs):
        keras.utils.set_random_seed(7)  # The same weights and the same dropout.
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, dropout_rate=dropout_rate)
        result = layer(
            inputs, mask=causal_mask(TARGET_LENGTH), training=training,
            return_attention_weights=return_attention_weights,
        )  # fmt: skip
        if not return_attention_weights:
            return ops.convert_to_numpy(result)[:, :3], None
        return [ops.convert_to_numpy(x) for x in result]

    before, attention_weights = first_outputs(inputs)
    after, _ = first_outputs(changed)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    if return_attention_weights:
        assert not np.triu(attention_weights, k=1).any()
        assert np.diagonal(attention_weights, axis1=2, axis2=3).all()


def test_dropout_drops_attention_weights_and_returns_them_whole(rng):
    """The output is a mean of dropped weights; the returned weights sum to one."""
    inputs = rng.standard_normal((BATCH, TARGET_LENGTH, 11)).astype("float32")
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, dropout_rate=0.5)
    output, attention_weights = layer(
        inputs, training=True, return_attention_weights=True
    )
    totals = ops.convert_to_numpy(attention_weights).sum(axis=-1)
    np.testing.assert_allclose(totals, 1, atol=1e-6)
    assert np.abs(ops.convert_to_numpy(output - layer(inputs))).max() > 1e-2


def test_dropout_keeps_the_mean_of_the_output(rng):
    """With equal values each head's output is its value times the kept share."""
    layer = MultiHeadAttention(1, 4, dropout_rate=0.5, use_bias=False)
    inputs = np.ones((1, 4000, 4), "float32")
    layer.build(inputs.shape)
    for weight in layer.weights:
        weight.assign(np.eye(4))
    output = layer(inputs[:, :50], inputs, training=True)
    assert_close(ops.mean(output), 1.0, tolerance=0.02)


def test_step_equals_call_under_the_causal_mask(rng):
    inputs = rng.standard_normal((BATCH, TARGET_LENGTH, 11)).astype("float32")
    layer = random_layer(rng, [inputs.shape], value_dim=VALUE_DIM, use_bias=True)
    expected = ops.convert_to_numpy(layer(inputs, mask=causal_mask(TARGET_LENGTH)))
    cache = layer.initial_cache(BATCH, 1, TARGET_LENGTH + 2)
    weights = layer.decoding_weights("query", "key", "value")
    for index in range(TARGET_LENGTH):
        output, cache = layer.step(
            inputs[:, index : index + 1],
            cache,
            cache_place(cache[0], 1, ops.convert_to_tensor(index)),
            past_mask(index, TARGET_LENGTH + 2),
            weights,
        )
        assert_close(output[:, 0], expected[:, index])


def test_step_across_projected_keys_equals_call(rng):
    query, value, key = random_inputs(rng)
    layer = random_layer(rng, [query.shape, value.shape, key.shape], use_bias=True)
    mask = random_mask(rng)
    mask[..., 0] = True  # A step needs something to attend to.
    expected = ops.convert_to_numpy(layer(query, value, key, mask=mask))
    projected = layer.project_key_value(key, value)
    prepared = prepare_mask(attention_mask(mask)[:, None], "float32")
    output, _ = layer.step_across(
        query, *projected, prepared, layer.decoding_weights("query")
    )
    assert_close(output, expected)


def test_symbolic_attention_weights_have_their_shape():
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
    query, key = keras.Input((None, 11)), keras.Input((7, 13))
    output, attention_weights = layer(query, key, return_attention_weights=True)
    assert output.shape == (None, None, 11)
    assert attention_weights.shape == (None, NUM_HEADS, None, 7)


class TestBatteryOfSelfAttention(AttentionBattery):
    layer_class = MultiHeadAttention
    input_shapes = ((2, 5, 11),)
    output_shape = (2, 5, OUTPUT_DIM)


@pytest.mark.parametrize("num_key_value_heads", [1, 2, 3, 6])
def test_grouped_heads_agree_with_the_reference(rng, num_key_value_heads):
    inputs = rng.standard_normal((BATCH, TARGET_LENGTH, 11)).astype("float32")
    layer = MultiHeadAttention(
        6, KEY_DIM, value_dim=VALUE_DIM, num_key_value_heads=num_key_value_heads
    )
    layer.build(inputs.shape)
    randomise(layer, rng)
    mask = rng.random((BATCH, TARGET_LENGTH, TARGET_LENGTH)) < 0.6
    output, attention_weights = layer(inputs, mask=mask, return_attention_weights=True)
    expected = numpy_attention.self_attention(
        inputs, weights_of(layer, "attention"), 6, num_key_value_heads, mask
    )
    assert_close(output, expected[0])
    assert_close(attention_weights, expected[1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hypotheses", [1, 3])
def test_grouped_steps_equal_call_under_the_causal_mask(rng, hypotheses, mode):
    inputs = rng.standard_normal((BATCH, TARGET_LENGTH, 11)).astype("float32")
    layer = MultiHeadAttention(
        6, KEY_DIM, value_dim=VALUE_DIM, num_key_value_heads=2, use_bias=True
    )
    layer.build(inputs.shape)
    randomise(layer, rng)
    expected = ops.convert_to_numpy(layer(inputs, mask=causal_mask(TARGET_LENGTH)))
    for found in decode_steps(layer, inputs, hypotheses, mode=mode):
        assert_close(found, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hypotheses", [1, 3])
@pytest.mark.parametrize(
    "options", [{"use_gate": True, "value_dim": 7}, {"sliding_window": 2}]
)
def test_steps_with_a_gate_or_a_window_equal_call(rng, options, hypotheses, mode):
    inputs = rng.standard_normal((BATCH, TARGET_LENGTH, 11)).astype("float32")
    layer = random_layer(rng, [inputs.shape], use_bias=True, **options)
    expected = ops.convert_to_numpy(layer(inputs, use_causal_mask=True))
    for found in decode_steps(layer, inputs, hypotheses, mode=mode):
        assert_close(found, expected)


def test_step_across_with_a_gate_equals_call(rng):
    query, value, _ = random_inputs(rng)
    layer = random_layer(rng, [query.shape, value.shape], use_gate=True)
    mask = np.ones((1, 1, 1, SOURCE_LENGTH), bool)
    weights = layer.decoding_weights("query")
    output, _ = layer.step_across(
        query, *layer.project_key_value(value), prepare_mask(mask, "float32"), weights
    )
    assert_close(output, ops.convert_to_numpy(layer(query, value)))


def test_options_without_an_order_of_positions_have_no_steps():
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, attention_axes=2)
    with pytest.raises(ValueError, match="leave `attention_axes` out"):
        layer.decoding_weights("query", "key", "value")
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, sliding_window=2)
    with pytest.raises(ValueError, match="no `sliding_window` over a source"):
        layer.decoding_weights("query")


def test_positions_need_one_axis(rng):
    cells = rng.standard_normal((2, 3, 4, 8)).astype("float32")
    layer = MultiHeadAttention(2, 4, positions="rotary")
    with pytest.raises(ValueError, match="`positions` need an order"):
        layer(cells)
    rows = MultiHeadAttention(2, 4, positions="rotary", attention_axes=2)
    rows.build((None, None, None, 8))
    plain = MultiHeadAttention(2, 4, positions="rotary")
    plain.build((None, None, 8))
    plain.set_weights(rows.get_weights())
    expected = ops.convert_to_numpy(plain(cells.reshape(6, 4, 8)))
    assert_close(rows(cells), expected.reshape(2, 3, 4, 8))


def test_grouped_step_across_equals_call(rng):
    query, value, key = random_inputs(rng)
    layer = MultiHeadAttention(6, KEY_DIM, num_key_value_heads=2)
    layer.build(query.shape, value.shape, key.shape)
    randomise(layer, rng)
    mask = random_mask(rng)
    mask[..., 0] = True  # A step needs something to attend to.
    expected = ops.convert_to_numpy(layer(query, value, key, mask=mask))
    prepared = prepare_mask(attention_mask(mask)[:, None], "float32")
    weights = layer.decoding_weights("query")
    projected = layer.project_key_value(key, value)
    assert_close(layer.step_across(query, *projected, prepared, weights)[0], expected)


def test_cache_holds_the_heads_of_keys_and_values_alone(rng):
    layer = MultiHeadAttention(6, KEY_DIM, value_dim=VALUE_DIM, num_key_value_heads=2)
    layer.build((BATCH, TARGET_LENGTH, 11))
    keys, values = layer.initial_cache(BATCH, 3, 7)
    assert keys.shape == (BATCH, 2, 21, KEY_DIM)
    assert values.shape == (BATCH, 2, 21, VALUE_DIM)
    assert layer.key_kernel.shape == (11, 2 * KEY_DIM)


def test_heads_that_do_not_divide_into_groups_are_refused():
    with pytest.raises(ValueError, match="`num_heads` must be a multiple.*=6, .*=4"):
        MultiHeadAttention(6, KEY_DIM, num_key_value_heads=4)


def test_nodes_without_edges_get_zeros(rng):
    """Attention along the edges of a graph: node 2 has none."""
    inputs = rng.standard_normal((BATCH, 4, 11)).astype("float32")
    layer = random_layer(rng, [inputs.shape])
    adjacency = np.array([[1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]])
    output, attention_weights = layer(
        inputs, mask=graph_mask(adjacency), return_attention_weights=True
    )
    assert not ops.convert_to_numpy(output)[:, 2].any()
    assert ops.convert_to_numpy(output)[:, [0, 1, 3]].all()
    weights = ops.convert_to_numpy(attention_weights)
    np.testing.assert_array_equal(weights[0, 0] > 0, adjacency > 0)
    np.testing.assert_allclose(weights[:, :, 3, 2], 1, atol=1e-6)
