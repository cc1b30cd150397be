"""One battery for every layer of the table in `layer_battery`."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import layers
from keras_transformer.testing import assert_serializable
from tests.layers.layer_battery import COMPOSITE, ROWS
from tests.layers.reference_weights import assert_close, randomise


@pytest.fixture(params=ROWS)
def row(request):
    return ROWS[request.param]


def test_every_public_layer_has_a_row():
    is_layer = {
        name
        for name in layers.__all__
        if inspect.isclass(value := getattr(layers, name))
        and issubclass(value, keras.layers.Layer)
    }
    # A base, and two that are Keras' own but faster: they have tests of their own.
    is_layer -= {"TransformerLayer", "Dropout", "LayerNormalization"}
    assert {row.layer_class.__name__ for row in ROWS.values()} == is_layer


def plain(value):
    """A value of a configuration, or what it is serialised from."""
    is_object = isinstance(value, layers.relative_positions.RelativePositions)
    return keras.saving.serialize_keras_object(value) if is_object else value


def test_config_has_every_argument(row):
    """The table sets each to something else than its default."""
    parameters = inspect.signature(row.layer_class.__init__).parameters.values()
    required = {p.name for p in parameters if p.default is p.empty} & {*row.options}
    default = row.layer_class(**{name: row.options[name] for name in required})
    default, config = default.get_config(), row.layer_class(**row.options).get_config()
    of_keras = set(keras.layers.Layer().get_config())
    lacking = {"positions"} if row is ROWS["attention to another"] else set()
    if row.layer_class in (layers.LinearAttention, layers.PerformerAttention):
        lacking = {"dropout", "flash_attention", "num_key_value_heads", "positions"}
    assert set(config) - (of_keras - set(row.options)) == set(row.options) | lacking
    for name, value in row.options.items():
        assert config[name] == plain(value), name
        assert name in required or config[name] != default[name], name


def test_config_and_file_give_the_same_layer(row, rng):
    inputs = tuple(row.inputs(rng))
    for dtype in ("float32", "mixed_bfloat16"):
        layer = row.layer_class(**row.options, dtype=dtype, name="named")
        assert layer.get_config()["name"] == "named"
        assert_serializable(layer, inputs)


def test_registered_under_the_package_name(row):
    name = f"keras_transformer>{row.layer_class.__name__}"
    assert keras.saving.get_registered_name(row.layer_class) == name


def test_compute_output_shape_agrees_with_the_output(row, rng):
    layer = row.layer_class(**row.options)
    assert tuple(layer(*row.inputs(rng)).shape) == row.output_shape
    assert layer.compute_output_shape(*row.shapes) == row.output_shape


def test_mixed_precision_computes_in_bfloat16_and_keeps_float32_weights(row, rng):
    exact, mixed = (
        row.layer_class(**row.exact_options(), dtype=dtype)
        for dtype in ("float32", "mixed_bfloat16")
    )
    inputs = row.inputs(rng)
    exact(*inputs)
    randomise(exact, rng)
    mixed(*inputs)
    mixed.set_weights(exact.get_weights())
    output = mixed(*inputs)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    assert {weight.dtype for weight in mixed.weights} <= {"float32"}
    for part in mixed._flatten_layers():
        assert part.compute_dtype == "bfloat16", part.path
    # bfloat16 keeps 8 bits.
    expected = ops.convert_to_numpy(exact(*inputs))
    assert_close(ops.cast(output, "float32"), expected, tolerance=0.1)


def test_gradient_reaches_every_weight(row, rng):
    symbols = row.symbols()
    if row.layer_class is layers.PatchEmbedding:
        symbols = [keras.Input(row.shapes[0][1:])]
    layer = row.layer_class(**row.exact_options())
    model = randomise(keras.Model(symbols, layer(*symbols)), rng)
    if not model.weights:
        assert row.layer_class is layers.PositionalEncoding
        return
    before = [ops.convert_to_numpy(weight).copy() for weight in model.weights]
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse")
    model.train_on_batch(row.inputs(rng), rng.standard_normal(row.output_shape))
    for weight, old in zip(model.weights, before, strict=True):
        moved = np.abs(ops.convert_to_numpy(weight) - old)
        if weight.path.endswith(row.unmoved or ("nothing",)):
            assert moved.max() < 1e-6, weight.path
        elif weight.name == "position_embeddings":
            assert moved.max(axis=1).min() > 1e-3  # Every row of the table.
        else:
            assert moved.max() > 1e-6, weight.path


def test_dropout_acts_in_training_only(row, rng):
    layer = row.layer_class(**row.options)
    inputs = row.inputs(rng)
    silent, again, noisy = (
        ops.convert_to_numpy(layer(*inputs, training=t)) for t in (False, False, True)
    )
    np.testing.assert_array_equal(silent, again)
    if row.drops:
        assert np.abs(noisy - silent).max() > 1e-3
    else:
        np.testing.assert_allclose(noisy, silent, rtol=1e-5, atol=1e-5)


def test_sizes_and_rates_out_of_range_are_refused(row):
    """By each argument's name; those of the table tell types and ranges apart."""
    names = [n for n in row.options if n.endswith(("dropout", "dropout_rate"))]
    assert bool(names) == row.drops
    cases = [(name, bad) for name in names for bad in (1.0, -0.1, "0.1")]
    sizes = {name for name in row.options if type(row.options[name]) is int}
    sizes -= {"pad_id", "seed"}
    cases += [(name, bad) for name in sizes for bad in (0, -3, 2.0, True, "2")]
    for name, bad in cases:
        error, rule = ValueError, "must be a (positive integer|number in)"
        if row.options is COMPOSITE:
            right = int if name in sizes else float
            error = ValueError if type(bad) is right else TypeError
            rule = "must be (below 1.0|at least [01])"
            rule = f"must be {right.__name__}" if error is TypeError else rule
        with pytest.raises(error, match=f"`{name}` {rule}"):
            row.layer_class(**(row.options | {name: bad}))


def of_kind(layer, kind):
    """What `kernel_...` or `bias_...` speaks of."""
    ends = (f"_{kind}", kind)
    return [weight for weight in layer.weights if weight.name.endswith(ends)]


@pytest.mark.parametrize("kind", ("kernel", "bias"))
@pytest.mark.parametrize("name", [n for n in ROWS if "bias_initializer" in ROWS[n][1]])
def test_options_of_the_weights_reach_every_one_of_their_kind(name, kind):
    row = ROWS[name]
    regularizer, constraint = keras.regularizers.L2(0.5), keras.constraints.MaxNorm(3)
    options = {
        f"{kind}_initializer": keras.initializers.Constant(0.25),
        f"{kind}_regularizer": regularizer,
        f"{kind}_constraint": constraint,
    }
    others = [o for o in row.exact_options() if o.endswith(("izer", "constraint"))]
    plain = {o: v for o, v in row.exact_options().items() if o not in others}
    layer = row.layer_class(**plain, **options)
    layer.build(*row.shapes)
    chosen = of_kind(layer, kind)
    assert len(chosen) > (0 if name in ("ssru", "additive") else 1)
    for weight in chosen:
        assert (ops.convert_to_numpy(weight) == 0.25).all(), weight.path
        assert type(weight.regularizer) is keras.regularizers.L2, weight.path
        assert type(weight.constraint) is keras.constraints.MaxNorm, weight.path
    for weight in layer.weights:
        if not any(weight is one for one in chosen):
            assert weight.regularizer is None and weight.constraint is None, weight.path
    size = sum(int(np.prod(weight.shape)) for weight in chosen)
    loss = sum(float(loss) for loss in layer.losses)
    assert loss == pytest.approx(0.5 * 0.25**2 * size)
    again = row.layer_class.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


def test_an_initializer_draws_other_numbers_for_every_weight():
    layer = layers.EncoderLayer(2, 6, kernel_initializer="he_normal")
    layer.build((None, None, 6))
    kernels = [ops.convert_to_numpy(weight) for weight in of_kind(layer, "kernel")]
    assert len(kernels) == len({kernel.tobytes() for kernel in kernels}) == 6


@pytest.mark.parametrize("name", ("embedding", "features"))
def test_options_of_the_table_of_tokens_reach_it_alone(name):
    row = ROWS[name]
    options = {
        "embeddings_initializer": keras.initializers.Constant(0.25),
        "embeddings_regularizer": keras.regularizers.L2(0.5),
        "embeddings_constraint": keras.constraints.MaxNorm(3),
    }
    layer = row.layer_class(**(row.options | options))
    layer.build(*row.shapes)
    assert (ops.convert_to_numpy(layer.embeddings) == 0.25).all()
    assert layer.embeddings.constraint is layer.token_embedding.embeddings_constraint
    assert layer.position_embeddings.constraint is None
    assert [float(loss) for loss in layer.losses] == pytest.approx([0.5 * 0.0625 * 78])
