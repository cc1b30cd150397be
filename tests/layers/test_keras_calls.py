"""A table of calls: `keras.layers.MultiHeadAttention` and ours give the same."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.masks import carried_mask
from tests.layers.reference_weights import assert_close, randomise

BATCH, TARGETS, SOURCES = 2, 5, 7
RNG = np.random.default_rng(20240)


def floats(*shape):
    return RNG.standard_normal(shape).astype("float32")


def mask(*shape, dtype=bool):
    """A random mask that leaves every query the first key."""
    drawn = RNG.random(shape) < 0.6
    drawn.reshape(-1, shape[-1])[:, 0] = True
    return drawn.astype(dtype)


def mask_of_cells(*shape):
    """As `mask`, of keys on two axes."""
    drawn = mask(*shape)
    drawn[..., 0, 0] = True
    return drawn


QUERY, VALUE, KEY = floats(2, 5, 11), floats(2, 7, 17), floats(2, 7, 13)
CROSS, ALL_THREE = (QUERY, VALUE), (QUERY, VALUE, KEY)
# Two axes of positions: 3 by 5 of the query, 3 by 5 or 3 by 7 of the value.
CELLS, MORE_CELLS, ROW_CELLS = (
    floats(2, 3, 5, 11),
    floats(2, 4, 7, 11),
    floats(2, 3, 7, 9),
)
VOLUME = floats(2, 3, 4, 5, 6)
ARGUMENTS = {"num_heads": 3, "key_dim": 4}
# Arguments of the constructor, inputs by position, arguments of the call.
CALLS = {
    "self-attention": ({}, (QUERY, QUERY), {}),
    "cross-attention": ({}, CROSS, {}),
    "value by name": ({}, (QUERY,), {"value": VALUE}),
    "key by position": ({}, ALL_THREE, {}),
    "key by name": ({}, CROSS, {"key": KEY}),
    # On JAX Keras has other widths of values only where it returns the scores.
    "value_dim": ({"value_dim": 6}, ALL_THREE, {"return_attention_scores": True}),
    "no bias": ({"use_bias": False}, ALL_THREE, {}),
    "output_shape": ({"output_shape": 19}, CROSS, {}),
    "output_shape of two axes": ({"output_shape": (3, 2)}, CROSS, {}),
    "gate": ({"use_gate": True}, CROSS, {}),
    "gate without bias": ({"use_gate": True, "use_bias": False}, CROSS, {}),
    "dropout is for training": ({"dropout": 0.5}, CROSS, {"training": False}),
    "causal": ({}, (QUERY, QUERY), {"use_causal_mask": True}),
    "causal, more keys": ({}, CROSS, {"use_causal_mask": True}),
    "window": ({"sliding_window": 2}, (QUERY, QUERY), {}),
    "window of one": ({"sliding_window": 1}, (QUERY, QUERY), {}),
    "window, more keys": ({"sliding_window": 3}, CROSS, {}),
    "causal window": (
        {"sliding_window": 2}, (QUERY, QUERY), {"use_causal_mask": True},
    ),
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
        {"sliding_window": 5}, ALL_THREE,
        {"attention_mask": mask(2, 5, 7), "value_mask": mask(2, 7),
         "key_mask": mask(2, 7), "use_causal_mask": True},
    ),
    "causal and a mask": (
        {}, (QUERY, QUERY), {"attention_mask": mask(5, 5), "use_causal_mask": True},
    ),
    "scores": ({}, CROSS, {"return_attention_scores": True}),
    "scores under a mask": (
        {}, CROSS, {"return_attention_scores": True, "attention_mask": mask(5, 7)},
    ),
    "causal scores": (
        {}, (QUERY, QUERY), {"return_attention_scores": True, "use_causal_mask": True},
    ),
    "rank 4": ({}, (CELLS, CELLS), {"return_attention_scores": True}),
    "rank 4, other cells": ({}, (CELLS, MORE_CELLS), {"return_attention_scores": True}),
    "rank 4, over axis 1": (
        {"attention_axes": 1}, (CELLS, CELLS), {"return_attention_scores": True},
    ),
    "rank 4, over axis 2": (
        {"attention_axes": (2,)}, (CELLS, ROW_CELLS), {"return_attention_scores": True},
    ),
    "rank 4, over axis -2": ({"attention_axes": -2}, (CELLS, ROW_CELLS), {}),
    "rank 4, over 2 and 1": (
        {"attention_axes": [2, 1]}, (CELLS, MORE_CELLS),
        {"return_attention_scores": True},
    ),
    "rank 4, mask of cells": (
        {}, (CELLS, MORE_CELLS), {"attention_mask": mask_of_cells(2, 3, 5, 4, 7)},
    ),
    "rank 4, one mask of cells": (
        {}, (CELLS, MORE_CELLS), {"attention_mask": mask_of_cells(3, 5, 4, 7)},
    ),
    "rank 4, mask over axis 2": (
        {"attention_axes": (2,)}, (CELLS, ROW_CELLS),
        {"attention_mask": mask(2, 3, 5, 7)},
    ),
    "rank 4, causal over axis 1": (
        {"attention_axes": (1,)}, (CELLS, CELLS), {"use_causal_mask": True},
    ),
    "rank 4, window over axis 1": (
        {"attention_axes": (1,), "sliding_window": 2}, (CELLS, CELLS), {},
    ),
    "rank 4, value_mask over axis 1": (
        {"attention_axes": (1,)}, (CELLS, CELLS), {"value_mask": mask(2, 3)},
    ),
    "rank 4, value_mask over axis 2": (
        {"attention_axes": (2,)}, (CELLS, ROW_CELLS), {"value_mask": mask(2, 3, 7)},
    ),
    "rank 4, everything": (
        {"attention_axes": (2,), "use_gate": True, "value_dim": 6, "output_shape": 8},
        (CELLS, ROW_CELLS), {},
    ),
    "rank 4, output of two axes": (
        {"attention_axes": (2,), "output_shape": (3, 2)}, (CELLS, CELLS), {},
    ),
    "rank 5": ({}, (VOLUME, VOLUME), {"return_attention_scores": True}),
    "rank 5, over 2 and 3": (
        {"attention_axes": (2, 3)}, (VOLUME, VOLUME),
        {"attention_mask": mask_of_cells(2, 3, 4, 5, 4, 5),
         "return_attention_scores": True},
    ),
    "rank 5, over 1 and 3": (
        {"attention_axes": (1, 3)}, (VOLUME, VOLUME), {"return_attention_scores": True},
    ),
}  # fmt: skip


def pair(options, inputs, rng, base=keras.layers.MultiHeadAttention):
    """A layer of Keras with random weights, and ours with the same."""
    peer = base(**(ARGUMENTS | options))
    peer.build(*(x.shape for x in inputs))
    randomise(peer, rng)
    return peer, MultiHeadAttention.from_keras(peer)


def assert_same(found, expected):
    found, expected = map(keras.tree.flatten, (found, expected))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, ops.convert_to_numpy(other))


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_gives_the_same(rng, name):
    options, inputs, arguments = CALLS[name]
    shapes = inputs if len(inputs) > 1 else (*inputs, arguments["value"])
    if "key" in arguments:
        shapes = (*inputs, arguments["key"])
    peer, ours = pair(options, shapes, rng)
    assert_same(ours(*inputs, **arguments), peer(*inputs, **arguments))


@pytest.mark.parametrize("name", CALLS)
def test_symbolic_shapes_are_those_of_the_results(name):
    options, inputs, arguments = CALLS[name]
    given = {
        key: keras.Input(x.shape[1:]) if key in ("value", "key") else x
        for key, x in arguments.items()
        if not key.endswith("_mask") or key == "use_causal_mask"
    }
    layer = MultiHeadAttention(**(ARGUMENTS | options))
    symbolic = layer(*(keras.Input(x.shape[1:]) for x in inputs), **given)
    results = layer(*inputs, **arguments)
    for one, other in zip(*map(keras.tree.flatten, (symbolic, results)), strict=True):
        assert one.shape == (None, *other.shape[1:])


GROUPED = {
    "grouped": ({}, ALL_THREE, {"attention_mask": mask(2, 5, 7)}),
    "grouped scores": ({}, CROSS, {"return_attention_scores": True}),
    "grouped with a gate": ({"use_gate": True}, (QUERY, QUERY), {}),
    "grouped window": (
        {"sliding_window": 2}, (QUERY, QUERY), {"use_causal_mask": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_attention_of_keras_is_taken_over(rng, name):
    options, inputs, arguments = GROUPED[name]
    peer = keras.layers.GroupQueryAttention(5, 6, 2, **options)
    peer.build(*(x.shape for x in inputs))
    randomise(peer, rng)
    ours = MultiHeadAttention.from_keras(peer)
    assert (ours.num_heads, ours.num_key_value_heads, ours.key_dim) == (6, 2, 5)
    assert_same(ours(*inputs, **arguments), peer(*inputs, **arguments))


def test_query_with_nothing_to_attend_to_gets_zeros_where_keras_takes_the_mean(rng):
    """The one difference: all other rows agree."""
    peer, ours = pair({"use_bias": False}, CROSS, rng)
    allowed = mask(2, 5, 7)
    allowed[1, 3] = False
    expected = ops.convert_to_numpy(peer(*CROSS, attention_mask=allowed))
    found = ops.convert_to_numpy(ours(*CROSS, attention_mask=allowed))
    lonely = ~allowed.any(axis=-1)
    assert_close(found[~lonely], expected[~lonely])
    assert not found[lonely].any()
    assert np.abs(expected[lonely]).max() > 0.01
    # A mask of queries says the same; Keras heeds only one that the query carries.
    query_mask = np.array([[True] * 5, [True] * 3 + [False] * 2])
    found = ops.convert_to_numpy(ours(*CROSS, query_mask=query_mask))
    expected = ops.convert_to_numpy(peer(*CROSS))
    assert_close(found[query_mask], expected[query_mask])
    assert not found[~query_mask].any()


@pytest.mark.parametrize("arguments", ({}, {"use_causal_mask": True}))
@pytest.mark.parametrize("own", (True, False))
def test_masks_that_the_inputs_carry(rng, own, arguments):
    source = np.array([[5, 3, 4, 2, 6, 7, 1], [4, 6, 2, 0, 0, 0, 0]])
    target = np.array([[3, 7, 5, 2, 8], [9, 2, 4, 0, 0]])
    embedding = keras.layers.Embedding(11, 11, mask_zero=True)
    embedding.build(None)
    randomise(embedding, rng)
    peer, ours = pair({}, (QUERY, QUERY), rng)
    results = []
    for layer in (peer, ours):
        # Keras takes the masks away from the tensors that it is given.
        states = embedding(target)
        memory = states if own else embedding(source)
        output = layer(states, memory, **arguments)
        pooled = keras.layers.GlobalAveragePooling1D()(output)  # Heeds the mask.
        results.append([ops.convert_to_numpy(x) for x in (output, pooled)])
    (expected, expected_mean), (found, found_mean) = results
    assert_close(found[target != 0], expected[target != 0])
    assert_close(found_mean, expected_mean)


def test_inputs_keep_the_masks_that_keras_takes_away(rng):
    """After Keras' attention a residual sum has no mask, and padding is attended to."""
    embedding = keras.layers.Embedding(11, 11, mask_zero=True)
    embedding.build(None)
    peer, ours = pair({}, (QUERY, QUERY), rng)
    for layer, keeps in ((peer, False), (ours, True)):
        states = embedding(np.array([[3, 7, 5, 2, 8], [9, 2, 4, 0, 0]]))
        total = keras.layers.Add()([states, layer(states, states)])
        assert (carried_mask(total) is not None) == keeps


OPTIONS_OF_WEIGHTS = {
    "kernel_initializer": keras.initializers.RandomNormal(stddev=0.3, seed=3),
    "bias_initializer": keras.initializers.RandomUniform(seed=4),
    "kernel_regularizer": keras.regularizers.L2(0.1),
    "bias_regularizer": keras.regularizers.L1(0.2),
    "activity_regularizer": keras.regularizers.L2(0.3),
    "kernel_constraint": keras.constraints.NonNeg(),
    "bias_constraint": keras.constraints.NonNeg(),
    "use_gate": True,
}


def losses_of(layer, inputs, name):
    layer(*inputs)
    return float(sum(map(ops.convert_to_numpy, layer.losses)))


@pytest.mark.parametrize("inputs", (CROSS, (CELLS, MORE_CELLS)), ids=("3", "4"))
@pytest.mark.parametrize(
    "kind", ("kernel_regularizer", "bias_regularizer", "activity_regularizer")
)
def test_regularizers_add_the_same_loss(rng, kind, inputs):
    options = {kind: OPTIONS_OF_WEIGHTS[kind], "use_gate": True}
    peer, ours = pair(options, inputs, rng)
    expected = losses_of(peer, inputs, kind)
    assert expected > 0.1
    assert losses_of(ours, inputs, kind) == pytest.approx(expected, rel=1e-5)


def trained(layer, inputs, target):
    symbolic = [keras.Input(x.shape[1:]) for x in inputs]
    model = keras.Model(symbolic, layer(*symbolic))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    losses = [model.train_on_batch(list(inputs), target) for _ in range(3)]
    return np.array(losses), ops.convert_to_numpy(model(list(inputs)))


@pytest.mark.one_case
@pytest.mark.parametrize("options", ({}, OPTIONS_OF_WEIGHTS), ids=("plain", "all"))
def test_training_takes_the_same_steps(rng, options):
    inputs, target = ALL_THREE, rng.standard_normal((2, 5, 11)).astype("float32")
    peer, ours = pair(options, inputs, rng)
    expected, found = (trained(layer, inputs, target) for layer in (peer, ours))
    assert expected[0][0] > expected[0][2]
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])


@pytest.mark.parametrize(
    "options",
    (
        {"kernel_initializer": keras.initializers.GlorotUniform(seed=5)},
        {"kernel_initializer": keras.initializers.HeNormal(seed=5), "use_gate": True},
        OPTIONS_OF_WEIGHTS,
    ),
)
def test_seeded_initializers_draw_the_same_weights(options):
    layers = keras.layers.MultiHeadAttention, MultiHeadAttention
    peer, ours = (layer(**ARGUMENTS, **options) for layer in layers)
    assert_same(ours(*ALL_THREE), peer(*ALL_THREE))


def test_two_weights_of_one_shape_start_apart():
    layer = MultiHeadAttention(2, 4, kernel_initializer=keras.initializers.HeNormal())
    layer.build((None, None, 8))
    query, key = (
        ops.convert_to_numpy(x) for x in (layer.query_kernel, layer.key_kernel)
    )
    assert np.abs(query - key).max() > 0.1


def test_seed_makes_dropout_repeatable():
    def dropped(seed):
        layer = MultiHeadAttention(
            2, 4, dropout=0.5, seed=seed, kernel_initializer="ones"
        )
        return ops.convert_to_numpy(layer(QUERY, training=True))

    np.testing.assert_array_equal(dropped(3), dropped(3))
    assert np.abs(dropped(3) - dropped(4)).max() > 0.01


@pytest.mark.parametrize("policy", ("mixed_bfloat16", "mixed_float16", "float64"))
def test_precision(rng, policy):
    if policy == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has no float64 unless it is told to")
    peer, ours = pair({"dtype": policy}, CROSS, rng)
    found, expected = ours(*CROSS), peer(*CROSS)
    assert found.dtype == expected.dtype
    assert {w.dtype for w in ours.weights} == {w.dtype for w in peer.weights}
    if policy == "float64":
        # On PyTorch products are of float32: github.com/keras-team/keras/issues/23704.
        tolerance = 1e-12 if keras.backend.backend() == "tensorflow" else 1e-5
        assert_close(found, ops.convert_to_numpy(expected), tolerance)
        return
    tolerance = {"mixed_bfloat16": 0.05, "mixed_float16": 5e-3}[policy]
    expected = ops.convert_to_numpy(ops.cast(expected, "float32"))
    assert_close(ops.cast(found, "float32"), expected, tolerance)


def test_config_of_keras_makes_ours_and_comes_back(rng):
    peer, _ = pair(OPTIONS_OF_WEIGHTS | {"dropout": 0.25, "seed": 3}, CROSS, rng)
    ours = MultiHeadAttention.from_config(peer.get_config())
    config = ours.get_config()
    for name, value in peer.get_config().items():
        assert config[name] == value or config["value_dim"] is None, name
    assert MultiHeadAttention.from_config(config).get_config() == config
    again = keras.layers.MultiHeadAttention.from_config(
        {name: config[name] for name in peer.get_config()}
    )
    assert again.get_config()["kernel_initializer"] == config["kernel_initializer"]


def test_aliases_mean_the_same():
    ours = MultiHeadAttention(2, 4, dropout_rate=0.25, output_dim=6)
    config = ours.get_config()
    assert (config["dropout"], config["output_shape"]) == (0.25, 6)
    assert "dropout_rate" not in config and "output_dim" not in config
    assert (ours.dropout, ours.dropout_rate, ours.output_dim) == (0.25, 0.25, 6)
    with pytest.raises(
        ValueError, match="`dropout_rate` is another name for `dropout`"
    ):
        MultiHeadAttention(2, 4, dropout=0.5, dropout_rate=0.25)
    with pytest.raises(ValueError, match="`output_dim` is another name for `output_sh"):
        MultiHeadAttention(2, 4, output_shape=5, output_dim=6)
    with pytest.raises(ValueError, match="`return_attention_weights` is another name"):
        ours(QUERY, return_attention_scores=True, return_attention_weights=False)
    first = ours(QUERY, return_attention_scores=True)
    assert_same(ours(QUERY, return_attention_weights=True), first)


def test_arguments_have_the_order_and_the_defaults_of_keras():
    for method in ("__init__", "call", "build"):
        theirs = parameters(keras.layers.MultiHeadAttention, method)
        ours = parameters(MultiHeadAttention, method)
        assert list(ours)[: len(theirs)] == list(theirs), method
        for name, parameter in theirs.items():
            if parameter.default is not parameter.empty:
                assert ours[name].default == parameter.default, name
        more = [ours[name] for name in list(ours)[len(theirs) :]]
        assert all(p.kind is p.KEYWORD_ONLY for p in more), method


def parameters(cls, method):
    found = dict(inspect.signature(getattr(cls, method)).parameters)
    found.pop("kwargs", None)
    return found


IDS = np.array([[1, 2], [3, 4]])
REFUSED = {
    "rank 2": (lambda a: a(QUERY[0]), ValueError, r"`query` must .* \(B, ..., T, D\)"),
    "rank 2 value": (lambda a: a(QUERY, VALUE[0]), ValueError, "`value` must have the"),
    "ids": (lambda a: a(IDS), ValueError, r"`query` must .* \(B, ..., T, D\)"),
    "dict": (lambda a: a({"a": QUERY}), TypeError, "`query` must be one ten"),
    "list": (lambda a: a([QUERY, QUERY]), TypeError, "`query` must be one ten"),
    "other rank": (lambda a: a(QUERY, CELLS), ValueError, "as many axes as `query`"),
    "other length": (
        lambda a: a(QUERY, QUERY, QUERY[:, :4]), ValueError, "the same sizes but",
    ),
    "other rows": (
        lambda a: a(QUERY, QUERY[:1]), ValueError, "as many rows .the first axis",
    ),
    "key alone": (lambda a: a(QUERY, key=QUERY), ValueError, "`key` needs a `value`"),
    "float mask": (
        lambda a: a(QUERY, attention_mask=np.ones((5, 5))), TypeError,
        "`attention_mask` must be boolean or of integers.*Received: dtype float32",
    ),
    "float mask of values": (
        lambda a: a(QUERY, QUERY, value_mask=np.ones((2, 5), "float32")), TypeError,
        "`value_mask` must be boolean or of integers",
    ),
    "integer mask of ours": (
        lambda a: a(QUERY, mask=np.ones((2, 5), int)), TypeError, "`mask` must be bool",
    ),
    "mask of another length": (
        lambda a: a(QUERY, mask=np.ones((2, 4), bool)), ValueError,
        r"`mask` must have the shape \(B, S\).*with \(B, T, S\) = \(2, 5, 5\)",
    ),
    "attention_mask of keys": (
        lambda a: a(QUERY, attention_mask=np.ones((2, 5), bool)), ValueError,
        r"`attention_mask` must fit the inputs.*\(2, 3, 5, 5\).*\(1, 1, 2, 5\)",
    ),
    "attention_mask of rank 1": (
        lambda a: a(QUERY, attention_mask=np.ones(5, bool)), ValueError,
        r"`attention_mask` must have the shape \(T, S\)",
    ),
    "key_mask of another length": (
        lambda a: a(QUERY, VALUE, VALUE, key_mask=np.ones((2, 5), bool)), ValueError,
        "`key_mask` must fit the inputs",
    ),
    "query_mask of another length": (
        lambda a: a(QUERY, VALUE, query_mask=np.ones((2, 7), bool)), ValueError,
        "`query_mask` must fit the inputs",
    ),
    "causal over two axes": (
        lambda a: a(CELLS, use_causal_mask=True), ValueError, "`use_causal_mask` needs",
    ),
    "value_mask of an axis that is not attended over": (
        lambda a: a(CELLS, CELLS, value_mask=np.ones((2, 3), bool)), ValueError,
        "`value_mask` must fit the inputs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("built", (False, True))
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(name, built):
    call, error, message = REFUSED[name]
    layer = MultiHeadAttention(**ARGUMENTS)
    if built:
        layer.build((2, 5, 11))
    with pytest.raises(error, match=message):
        call(layer)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's ragged tensors"
)
def test_ragged_input_is_refused():
    import tensorflow as tf

    ragged = tf.RaggedTensor.from_row_lengths(tf.ones((5, 11)), [2, 3])
    with pytest.raises(TypeError, match="`query` must be a dense .*: a RaggedTensor"):
        MultiHeadAttention(**ARGUMENTS)(ragged)


@pytest.mark.parametrize(
    ("options", "message"),
    (
        ({"flash_attention": "yes"}, "`flash_attention` must be None, True or False"),
        (
            {"flash_attention": True, "dropout": 0.1},
            "`flash_attention` must be None or False .* no attention weights",
        ),
        ({"attention_axes": "1"}, "`attention_axes` must be an axis or several"),
        ({"attention_axes": ()}, "`attention_axes` must be an axis or several"),
        ({"sliding_window": 0}, "`sliding_window` must be a positive integer"),
        ({"output_shape": (3, 0)}, "`output_shape` must be a positive integer"),
    ),
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**ARGUMENTS, **options)


@pytest.mark.parametrize("axes", (0, 3, -1, (1, 1), (1, -3)))
def test_axes_that_cannot_be_attended_over_are_refused(axes):
    with pytest.raises(ValueError, match="`attention_axes` must be different axes"):
        MultiHeadAttention(**ARGUMENTS, attention_axes=axes)(CELLS)


class OtherAttention(keras.layers.MultiHeadAttention):
    def _compute_attention(self, *args, **kwargs):
        return super()._compute_attention(*args, **kwargs)


def test_only_built_layers_of_keras_are_taken_over():
    with pytest.raises(TypeError, match="Received: Dense"):
        MultiHeadAttention.from_keras(keras.layers.Dense(2))
    with pytest.raises(ValueError, match="`layer` must be built"):
        MultiHeadAttention.from_keras(keras.layers.MultiHeadAttention(2, 3))
    own = OtherAttention(2, 3)
    own.build((None, None, 4), (None, None, 4))
    with pytest.raises(ValueError, match="OtherAttention, which overrides it"):
        MultiHeadAttention.from_keras(own)
    quantized = keras.layers.MultiHeadAttention(2, 3)
    quantized.build((None, None, 4), (None, None, 4))
    quantized.query_dense.quantize("int8")
    with pytest.raises(ValueError, match="take its weights over, then quantize"):
        MultiHeadAttention.from_keras(quantized)


def test_adapters_of_keras_are_merged(rng):
    peer, _ = pair({}, CROSS, rng)
    peer.query_dense.enable_lora(2)
    randomise(peer, rng)
    assert_same(MultiHeadAttention.from_keras(peer)(*CROSS), peer(*CROSS))
