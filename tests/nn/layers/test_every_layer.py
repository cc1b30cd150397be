"""One battery for every layer: a table of rows, and what holds of each."""

import gc
import inspect
import weakref
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import layers
from keras_transformer.testing import assert_serializable
from tests.nn.layers.reference_weights import assert_close, randomise
from tests.nn.layers.round_trips import (
    QUANTISES,
    check_adapters,
    check_quantised,
    quantisations,
)

# What Keras does with the weights, as a configuration has it; none is a default.
WEIGHTS = {
    "kernel_initializer": keras.initializers.serialize(keras.initializers.HeNormal()),
    "bias_initializer": keras.initializers.serialize(keras.initializers.Constant(2.0)),
    "kernel_regularizer": keras.regularizers.serialize(keras.regularizers.L2(1e-3)),
    "bias_regularizer": keras.regularizers.serialize(keras.regularizers.L1(1e-3)),
    "kernel_constraint": keras.constraints.serialize(keras.constraints.MaxNorm(100)),
    "bias_constraint": keras.constraints.serialize(keras.constraints.MaxNorm(99)),
}
HEADS = {
    "num_heads": 3,
    "key_dim": 4,
    "value_dim": 7,
    "use_bias": False,
    "output_shape": 23,
    "activity_regularizer": keras.regularizers.serialize(keras.regularizers.L2(1e-3)),
    "seed": 7,
    **WEIGHTS,
}
ATTENTION = HEADS | {
    "dropout": 0.5,
    "flash_attention": False,
    "num_key_value_heads": 1,
    "positions": layers.RotaryPositions(base=50.0),
}
COMPOSITE = {
    "num_heads": 3,
    "d_ff": 11,
    "key_dim": 5,
    "value_dim": 7,
    "dropout_rate": 0.5,
    "attention_dropout_rate": 0.4,
    "activation_dropout_rate": 0.3,
    "activation": "gelu",
    "norm_first": True,
    "use_bias": True,
    "layer_norm_epsilon": 1e-3,
    "num_key_value_heads": 1,
    "positions": layers.AlibiPositions(after=3.0),
    **WEIGHTS,
}
TABLE = {
    "dropout_rate": 0.5,
    "positions": "learned",
    "max_length": 11,
    "pad_id": 3,
    "embeddings_initializer": WEIGHTS["kernel_initializer"],
    "embeddings_regularizer": WEIGHTS["kernel_regularizer"],
    "embeddings_constraint": WEIGHTS["kernel_constraint"],
}
# What the numeric tests replace: so a weight moves by the loss alone.
EXACT = {
    "use_bias": True,
    "activity_regularizer": None,
    "kernel_regularizer": None,
    "bias_regularizer": None,
    "embeddings_regularizer": None,
    "dropout": 0.0,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "activation_dropout_rate": 0.0,
}


class Row(NamedTuple):
    """A layer of the battery.

    Attributes:
        layer_class: The class.
        options: A value other than the default for each argument.
        shapes: Shapes of the inputs, batch first.
        output_shape: Shape of the output.
        ids_below: Inputs are integers below this number, or floats where it is `None`.
        unmoved: Ends of the paths of weights that the loss does not move, by the
            layer's mathematics.
        drops: Whether it has a dropout.
    """

    layer_class: type
    options: dict
    shapes: tuple
    output_shape: tuple
    ids_below: int | None = None
    unmoved: tuple = ()
    drops: bool = True

    def exact_options(self):
        return self.options | {n: EXACT[n] for n in EXACT if n in self.options}

    def inputs(self, rng):
        if self.ids_below is not None:
            return [rng.integers(self.ids_below, size=s) for s in self.shapes]
        return [rng.standard_normal(s).astype("float32") for s in self.shapes]

    def model(self, **options):
        """A functional model of the layer without dropout."""
        layer = self.layer_class(**(self.exact_options() | options))
        dtype = "float32" if self.ids_below is None else "int32"
        symbols = [keras.Input((None, *s[2:]), dtype=dtype) for s in self.shapes]
        return keras.Model(symbols, layer(*symbols))


SELF, CROSS = ((2, 5, 11),), ((2, 5, 11), (2, 7, 17), (2, 7, 13))
SOFTMAX = ("key_dense/bias",)  # It adds the same number to all scores of a query.
ROWS = {
    "attention": Row(layers.MultiHeadAttention, ATTENTION, SELF, (2, 5, 23)),
    "attention to another": Row(
        layers.MultiHeadAttention,
        {n: ATTENTION[n] for n in ATTENTION if n != "positions"},
        CROSS, (2, 5, 23), unmoved=SOFTMAX,
    ),
    "ssru": Row(layers.SSRU, WEIGHTS, SELF, (2, 5, 11), drops=False),
    "feed-forward": Row(
        layers.FeedForward,
        {"d_ff": 7, "activation": "gelu", "dropout_rate": 0.5, **WEIGHTS},
        SELF, (2, 5, 11),
    ),
    "encoder layer": Row(
        layers.EncoderLayer, COMPOSITE, SELF, (2, 5, 11), unmoved=SOFTMAX
    ),
    "causal layer": Row(
        layers.CausalLayer, COMPOSITE, SELF, (2, 5, 11), unmoved=SOFTMAX
    ),
    "decoder layer": Row(
        layers.DecoderLayer, COMPOSITE, CROSS[:2], (2, 5, 11), unmoved=SOFTMAX
    ),
    "embedding": Row(
        layers.PositionalEmbedding, {"vocabulary_size": 13, "d_model": 6, **TABLE},
        ((2, 11),), (2, 11, 6), ids_below=13,
    ),
    "learned positions": Row(
        layers.PositionalEncoding,
        {"positions": "learned", "max_length": 5, "dropout_rate": 0.5},
        SELF, (2, 5, 11),
    ),
    "sinusoids": Row(
        layers.PositionalEncoding,
        {"positions": "sinusoidal-halves", "max_length": 7, "dropout_rate": 0.5},
        ((2, 5, 6),), (2, 5, 6),
    ),
}  # fmt: skip


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
    if hasattr(row.layer_class, "step_weights") and row.options is COMPOSITE:
        lacking = {"attention"}  # An SSRU takes no positions.
    assert set(config) - (of_keras - set(row.options)) == set(row.options) | lacking
    for name, value in row.options.items():
        assert config[name] == plain(value), name
        assert name in required or config[name] != default[name], name


def test_config_and_file_give_the_same_layer(row, rng):
    layer = row.layer_class(**row.options, dtype="mixed_bfloat16", name="named")
    assert layer.get_config()["name"] == "named"
    assert_serializable(layer, tuple(row.inputs(rng)))
    name = f"keras_transformer>{row.layer_class.__name__}"
    assert keras.saving.get_registered_name(row.layer_class) == name


def test_compute_output_shape_agrees_with_the_output(row, rng):
    layer = row.layer_class(**row.options)
    assert tuple(layer(*row.inputs(rng)).shape) == row.output_shape
    assert layer.compute_output_shape(*row.shapes) == row.output_shape


@pytest.mark.parametrize("axis", (0, 1))
def test_no_sentence_and_no_position_are_computed_too(row, axis):
    """With a gradient; of more inputs also the last one alone has none."""
    layer = row.layer_class(**row.options)
    layer.build(*row.shapes)
    dtype = "float32" if row.ids_below is None else "int32"
    inputs = [np.ones(shape, dtype) for shape in row.shapes]
    empty = [x[:0] if axis == 0 else x[:, :0] for x in inputs]
    expected = (*row.output_shape[:axis], 0, *row.output_shape[axis + 1 :])
    for training in (False, True):
        assert tuple(layer(*empty, training=training).shape) == expected
    if len(inputs) > 1 and axis == 1:
        output = ops.convert_to_numpy(layer(inputs[0], *empty[1:]))
        assert output.shape == row.output_shape and np.isfinite(output).all()


# Keras exports to these on a backend.
EXPORTS = {"tensorflow": ("tf_saved_model", "onnx"), "jax": ("tf_saved_model",)}


def exported(path, inputs):
    """The first output of an export by Keras."""
    if path.suffix == ".onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(path)
        names = [x.name for x in session.get_inputs()]
        arrays = dict(zip(names, keras.tree.flatten(inputs), strict=True))
        return session.run(None, arrays)[0]
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    return loaded.serve(inputs).numpy()


@pytest.mark.one_case("encoder layer-onnx")
@pytest.mark.filterwarnings("ignore:In the future `np.object`")
@pytest.mark.filterwarnings("ignore:The `native_serialization` parameter")
@pytest.mark.parametrize("format", EXPORTS.get(keras.backend.backend(), ()))
def test_an_export_by_keras_equals_the_layer_at_any_size(row, format, rng, tmp_path):
    if keras.backend.backend() == "jax" and len(row.shapes) == 3:
        pytest.skip("JAX cannot know that a key is as long as its value")
    # ONNX's converter has no GELU, and takes a wrong shape where heads share keys.
    lacking = {"activation": "relu", "num_key_value_heads": None}
    lacking = lacking if format == "onnx" else {}
    options = {name: lacking[name] for name in lacking if name in row.options}
    model = randomise(row.model(**options), rng)
    inputs = row.inputs(rng)
    if row.ids_below is not None:
        inputs = [x.astype("int32") for x in inputs]
    model(inputs)
    path = tmp_path / ("layer.onnx" if format == "onnx" else "layer")
    model.export(path, format=format, verbose=False)
    for own in (inputs, [x[:1, :3] for x in inputs]):
        assert_close(exported(path, own), ops.convert_to_numpy(model(own)))


class Holder(keras.Model):
    """A subclassed model of a layer or model, which its summary asks for its shape."""

    def __init__(self, held):
        super().__init__()
        self.held = held

    def call(self, inputs):
        return self.held(*inputs)


@pytest.mark.parametrize("way", ("called", "built"))
def test_summary_of_a_model_shows_the_output_shape(row, way, rng):
    model = Holder(row.layer_class(**row.options))
    if way == "called":
        model(row.inputs(rng))
    else:
        model.held.build(*row.shapes)
    lines = []
    model.summary(print_fn=lines.append, line_length=120)
    assert str(row.output_shape) in lines[0]
    lines = []
    row.model().summary(print_fn=lines.append, line_length=120)
    assert str((None, None, *row.output_shape[2:])) in lines[0]


def test_layers_within_are_named_as_attributes(row):
    """So that paths of weights are what a user expects, for a `LayoutMap`."""
    layer = row.layer_class(**row.options)
    layer.build(*row.shapes)
    for part in (layer, *layer._flatten_layers()):
        for name, value in vars(part).items():
            assert not isinstance(value, keras.layers.Layer) or value.name == name


@quantisations("int8 of weights")
@QUANTISES
def test_a_quantised_layer_comes_back_from_its_file(row, way, rng, tmp_path):
    loaded = check_quantised(
        randomise(row.model(), rng), row.inputs(rng), way, tmp_path
    )
    is_rounded = any(part.quantization_mode for part in loaded._flatten_layers())
    has_table = row.ids_below is not None and way != "float8"
    assert is_rounded == (has_table or "bias_initializer" in row.options)


@pytest.mark.parametrize("name", [n for n in ROWS if "bias_initializer" in ROWS[n][1]])
def test_adapters_are_trained_and_come_back_merged(name, rng, tmp_path):
    row = ROWS[name]
    model = randomise(row.model(kernel_constraint=None), rng)
    targets = rng.standard_normal(row.output_shape)
    check_adapters(model, row.inputs(rng), targets, "mse", tmp_path)


def test_a_layer_that_is_not_built_knows_what_a_call_returns(row, rng):
    """As Keras' own attention does, also of the attention weights."""
    attends = "return_attention_scores" in row.layer_class.call.__code__.co_varnames
    for options in ({}, {"return_attention_scores": True})[: 1 + attends]:
        layer = row.layer_class(**row.options, dtype="mixed_bfloat16")
        symbols = map(keras.KerasTensor, row.shapes)
        found = layer.compute_output_spec(*symbols, **options)
        assert not layer.built
        made = keras.tree.flatten(layer(*row.inputs(rng), **options))
        found = [(x.shape, x.dtype) for x in keras.tree.flatten(found)]
        kind = keras.backend.standardize_dtype
        assert found == [(tuple(x.shape), kind(x.dtype)) for x in made]


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
    model = randomise(row.model(), rng)
    if not model.weights:
        assert row.layer_class is layers.PositionalEncoding
        return
    before = [ops.convert_to_numpy(weight).copy() for weight in model.weights]
    model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=True)
    model.train_on_batch(row.inputs(rng), rng.standard_normal(row.output_shape))
    for weight, old in zip(model.weights, before, strict=True):
        moved = np.abs(ops.convert_to_numpy(weight) - old)
        if weight.path.endswith(row.unmoved or ("nothing",)):
            assert moved.max() < 1e-6, weight.path
        elif weight.name == "position_embeddings":
            assert moved.max(axis=1).min() > 1e-3  # Every row of the table.
        else:
            assert moved.max() > 1e-6, weight.path


@pytest.mark.one_case("encoder layer")
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="graphs")
def test_the_graph_of_a_training_step_goes_with_it(row, rng):
    """TensorFlow's own `custom_gradient` would keep it: 14 MB a model."""
    import tensorflow as tf

    def graph_of_a_step():
        layer = row.layer_class(**row.options)
        layer.build(*row.shapes)

        @tf.function(autograph=False)
        def step(*inputs):
            with tf.GradientTape() as tape:
                loss = ops.sum(layer(*inputs, training=True))
            return tape.gradient(loss, layer.trainable_weights)

        inputs = map(tf.constant, row.inputs(rng))
        return weakref.ref(step.get_concrete_function(*inputs).graph)

    graph = graph_of_a_step()
    gc.collect()
    assert graph() is None


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
    assert len(chosen) > (0 if name == "ssru" else 1)
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


def test_options_of_the_table_of_tokens_reach_it_alone():
    row = ROWS["embedding"]
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


# Masks that Keras carries along agree with masks given as arguments.

SOURCE = np.array([[5, 3, 4, 2, 6, 7, 1], [4, 6, 2, 0, 0, 0, 0]])
# Padding before the last token, which only its mask hides from that token.
TARGET = np.array([[3, 7, 5, 2, 8], [0, 0, 0, 2, 9]])
WIDTH = 15
# The layer, the ids of its inputs, and the argument that is each one's mask. The
# query's own mask says nothing about the keys and plays no part.
MASKED = {
    "self-attention": (lambda: layers.MultiHeadAttention(3, 5), (SOURCE,), ("mask",)),
    "attention": (
        lambda: layers.MultiHeadAttention(3, 5), (TARGET, SOURCE), (None, "mask"),
    ),
    "key and value": (
        lambda: layers.MultiHeadAttention(3, 5), (TARGET, SOURCE, SOURCE),
        (None, "value_mask", "key_mask"),
    ),
    "SSRU": (layers.SSRU, (TARGET,), ("mask",)),
    "encoder layer": (lambda: layers.EncoderLayer(3, 11), (SOURCE,), ("mask",)),
    "pre-norm layer": (
        lambda: layers.EncoderLayer(3, 11, norm_first=True), (SOURCE,), ("mask",),
    ),
    "causal layer": (lambda: layers.CausalLayer(3, 11), (TARGET,), ("mask",)),
    "decoder layer": (
        lambda: layers.DecoderLayer(3, 11), (TARGET, SOURCE),
        ("mask", "encoder_output_mask"),
    ),
    "feed-forward": (lambda: layers.FeedForward(7), (SOURCE,), (None,)),
    "added positions": (layers.PositionalEncoding, (SOURCE,), (None,)),
}  # fmt: skip


def random_embedding(rng, of_keras=False):
    layer = layers.PositionalEmbedding(11, WIDTH, pad_id=0)
    if of_keras:
        layer = keras.layers.Embedding(11, WIDTH, mask_zero=True)
    layer.build((None, None))
    return randomise(layer, rng)


def bare(tensor):
    """A copy without the Keras mask."""
    return ops.convert_to_tensor(ops.convert_to_numpy(tensor))


@pytest.mark.parametrize("name", MASKED)
def test_what_an_input_carries_is_as_a_mask_given(rng, name):
    make, ids, arguments = MASKED[name]
    layer, embedding = make(), random_embedding(rng)
    plain = ops.convert_to_numpy(layer(*(bare(embedding(x)) for x in ids)))
    everything = {}
    for place, argument in enumerate(arguments):  # One alone, then all.
        inputs = [bare(embedding(x)) for x in ids]
        inputs[place] = embedding(ids[place])
        given = {argument: ids[place] != 0} if argument else {}
        everything |= given
        expected = layer(*(bare(x) for x in inputs), **given)
        expected = ops.convert_to_numpy(expected)
        assert_close(layer(*inputs), expected)
        assert (np.abs(expected - plain).max() > 0.01) == bool(argument)
    expected = layer(*(bare(embedding(x)) for x in ids), **everything)
    output = layer(*map(embedding, ids))
    assert_close(output, ops.convert_to_numpy(expected))
    # The output carries the first one's, seen through pooling.
    pool = keras.layers.GlobalAveragePooling1D()
    pooled = pool(bare(output), mask=ids[0] != 0)
    assert_close(pool(output), ops.convert_to_numpy(pooled))
    if arguments == ("mask",):  # A mask that is given wins.
        found = layer(embedding(ids[0]), mask=np.ones(ids[0].shape, bool))
        assert_close(found, plain)


def test_a_functional_model_masks_as_many_rows_as_positions(rng):
    """There Keras hands a mask (B, S) on as a plain argument, whatever B and S are."""
    ids = keras.Input((None,), dtype="int32")
    layer = layers.EncoderLayer(3, 11)
    model = keras.Model(ids, layer(random_embedding(rng)(ids)))
    randomise(model, rng)
    rows = np.array([[5, 6, 0], [4, 0, 0], [7, 8, 9]])
    alone = ops.convert_to_numpy(model(rows[1:2, :1]))
    assert_close(ops.convert_to_numpy(model(rows))[1:2, :1], alone)


@pytest.mark.parametrize("of_keras", (False, True))
def test_mask_survives_a_cast_to_half_precision(rng, of_keras):
    layer = layers.EncoderLayer(3, 11, dtype="mixed_bfloat16")
    inputs = random_embedding(rng, of_keras)(SOURCE)
    outputs = layer(inputs), layer(bare(inputs), mask=SOURCE != 0)
    np.testing.assert_array_equal(
        *(ops.convert_to_numpy(ops.cast(x, "float32")) for x in outputs)
    )


class TakesMask(keras.Model):
    """A subclassed model, which Keras builds from a file with masks of floats."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.layer = layers.EncoderLayer(3, 11)

    def call(self, inputs):
        states, mask = inputs
        return self.layer(states, mask=mask)


def test_a_mask_may_be_an_input_of_a_subclassed_model_in_a_file(rng, tmp_path):
    model, mask = TakesMask(), SOURCE != 0
    inputs = [rng.standard_normal((2, 7, WIDTH)).astype("float32"), mask]
    expected = ops.convert_to_numpy(model(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(
        tmp_path / "model.keras", custom_objects={"TakesMask": TakesMask}
    )
    np.testing.assert_array_equal(ops.convert_to_numpy(loaded(inputs)), expected)
    with pytest.raises(TypeError, match="`mask` must be boolean"):
        loaded([inputs[0], mask.astype("float32")])
