"""What Keras does to models works on one that is composed of our layers by hand."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests.nn.layers.reference_weights import assert_close, randomise

VOCABULARY, WIDTH, RANK = 29, 12, 2
SOURCE = np.array([[5, 3, 14, 2, 6, 7, 1], [4, 6, 2, 0, 0, 0, 0]])
TARGET = np.array([[3, 7, 25, 2, 8], [9, 2, 4, 0, 0]])
TARGET_OUT = np.array([[7, 25, 2, 8, 1], [2, 4, 1, 0, 0]])
INPUTS = [SOURCE, TARGET]
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")


@keras.saving.register_keras_serializable(package="tests")
class HalvedDense(keras.layers.Dense):
    """A projection of somebody's own, which makes no joined product."""

    def call(self, inputs, training=None):
        return 0.5 * super().call(inputs, training=training)


@keras.saving.register_keras_serializable(package="tests")
class OwnAttention(kt.MultiHeadAttention):
    def dense(self, name, units, use_bias=True, **options):
        return HalvedDense(
            units,
            use_bias=use_bias,
            dtype=self.dtype_policy,
            name=name,
            **self.weight_options(),
            **options,
        )


@keras.saving.register_keras_serializable(package="tests")
class Gated(keras.layers.Layer):
    """A feed-forward network whose hidden units are gated: other weights than ours."""

    def __init__(self, d_ff, **options):
        super().__init__(**options)
        self.d_ff = d_ff
        self.up, self.gate = (keras.layers.Dense(d_ff, dtype=self.dtype_policy, name=n)
                              for n in ("up", "gate"))  # fmt: skip

    def build(self, shape):
        self.down = keras.layers.Dense(
            shape[-1], dtype=self.dtype_policy, name="down", use_bias=False
        )
        for layer in (self.up, self.gate):
            layer.build(shape)
        self.down.build((*shape[:-1], self.d_ff))

    def call(self, inputs, training=None):
        return self.down(self.up(inputs) * ops.silu(self.gate(inputs)))


@keras.saving.register_keras_serializable(package="tests")
class OwnLayer(kt.CausalLayer):
    """Every part of it is another one."""

    def make_attention(self, name, d_model):
        return OwnAttention(
            self.num_heads,
            d_model // self.num_heads,
            dtype=self.dtype_policy,
            name=name,
        )

    def make_feed_forward(self, name):
        return Gated(self.d_ff, dtype=self.dtype_policy, name=name)

    def make_norm(self, name):
        # Ours hand `training` on.
        return RootMeanSquare(dtype=self.dtype_policy, name=name)


@keras.saving.register_keras_serializable(package="tests")
class RootMeanSquare(keras.layers.RMSNormalization):
    def call(self, inputs, training=None):
        return super().call(inputs)


def composed(dtype="float32"):
    """Encoder and decoder of different kinds, each a layer of a functional model."""
    options = {"dtype": dtype, "dropout_rate": 0.0, "activation_dropout_rate": 0.0}
    options["attention_dropout_rate"] = 0.0
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    embeddings = [
        kt.PositionalEmbedding(VOCABULARY, WIDTH, pad_id=0, dtype=dtype)
        for _ in range(2)
    ]
    x = embeddings[0](source)
    x = kt.EncoderLayer(3, 17, positions="rotary", **options)(x)
    x = kt.EncoderLayer(3, 17, norm_first=True, use_bias=True, **options)(x)
    y = OwnLayer(3, 17, **options)(embeddings[1](target))
    y = kt.DecoderLayer(3, 17, num_key_value_heads=1, **options)(y, x)
    y = kt.DecoderLayer(3, 17, attention="ssru", **options)(y, x)
    attention = kt.MultiHeadAttention(3, 4, dtype=dtype)
    states = kt.FeedForward(17, dtype=dtype)(attention(y, use_causal_mask=True))
    y = keras.layers.Add(dtype=dtype)([y, states])  # A plain sum has no mask in Keras.
    logits = keras.layers.Dense(VOCABULARY, dtype=dtype, name="logits")(y)
    return keras.Model([source, target], logits)


@pytest.fixture
def model(rng):
    return randomise(composed(), rng)


def numbers(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def outputs_of(model):
    return numbers(model(INPUTS))


def from_file(model, path):
    model.save(path / "model.keras")
    return keras.saving.load_model(path / "model.keras")


def train(model, steps=3):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss, run_eagerly=True)
    return [float(model.train_on_batch(INPUTS, TARGET_OUT)) for _ in range(steps)]


def matrices(model):
    """What is quantised: kernels of `Dense` layers and tables of tokens.

    Keras rounds no subclass of `Dense`: those of `OwnAttention` stay.
    """
    return [
        weight
        for weight in model.weights
        if weight.name in ("kernel", "embeddings")
        and not ("own_layer" in weight.path and "attention" in weight.path)
    ]


def error_of(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


def test_padding_and_later_tokens_change_nothing(model):
    """By the masks that Keras carries from the embeddings through every layer."""
    expected = outputs_of(model)
    alone = numbers(model([SOURCE[1:, :3], TARGET[1:, :3]]))
    assert_close(alone, expected[1:, :3])
    changed = TARGET.copy()
    changed[0, 3:] = [11, 12]
    found = numbers(model([SOURCE, changed]))
    np.testing.assert_array_equal(found[0, :3], expected[0, :3])
    assert np.abs(found[0, 3:] - expected[0, 3:]).min(axis=-1).all()
    # Pooling after it heeds the mask.
    states = model.get_layer("logits").input
    pooled = keras.layers.GlobalAveragePooling1D()(states)
    both = keras.Model(model.inputs, [states, pooled])(INPUTS)
    means = [numbers(both[0])[0].mean(axis=0), numbers(both[0])[1, :3].mean(axis=0)]
    assert_close(both[1], means)


def test_a_file_brings_it_back(model, tmp_path):
    layer = next(layer for layer in model.layers if isinstance(layer, OwnLayer))
    assert type(layer.self_attention.query_dense) is HalvedDense
    assert type(layer.feed_forward) is Gated
    assert {type(norm) for norm in layer.norms} == {RootMeanSquare}
    loaded = from_file(model, tmp_path)
    np.testing.assert_array_equal(outputs_of(loaded), outputs_of(model))
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    assert train(loaded) == pytest.approx(train(model), rel=1e-5)


# Largest error as a share of the largest logit, and columns of a byte.
WAYS = {"int8": (0.1, 1), "int4": (1.0, 2)}


@pytest.mark.one_case("int8")
@pytest.mark.parametrize("way", WAYS)
def test_integers(model, way, tmp_path):
    """Every matrix is rounded, the outputs stay near, and a file keeps the integers."""
    most, packed = WAYS[way]
    exact, before = model.predict(INPUTS, verbose=0), matrices(model)
    sizes = {weight.path: weight.shape for weight in before}
    model.quantize(way)
    after = matrices(model)
    assert [weight.path for weight in after] == list(sizes)
    for weight in after:
        size = np.prod(sizes[weight.path])
        assert weight.dtype == "int8", weight.path
        assert size / packed <= np.prod(weight.shape) <= size / packed + WIDTH * 30
    rounded = outputs_of(model)
    assert 0 < error_of(rounded, exact) < most
    # Functions that were compiled before are made anew.
    assert_close(model.predict(INPUTS, verbose=0), rounded, tolerance=1e-4)
    loaded = from_file(model, tmp_path)
    np.testing.assert_array_equal(outputs_of(loaded), rounded)
    assert [w.dtype for w in loaded.weights] == [w.dtype for w in model.weights]
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(outputs_of(copy), rounded)


@pytest.mark.filterwarnings("ignore:Invalid quantization mode")
@pytest.mark.one_case("gptq")
@pytest.mark.parametrize("way", ("gptq", "awq"))
def test_calibrated_integers(way, rng):
    """Every matrix of the blocks is rounded by Keras, and the outputs stay near."""
    configs = {"gptq": keras.quantizers.GPTQConfig, "awq": keras.quantizers.AWQConfig}
    inputs = keras.Input((None,), dtype="int32")
    embedding = kt.PositionalEmbedding(VOCABULARY, WIDTH)
    layers = [kt.EncoderLayer(3, 17, name=f"layer_{i}") for i in range(2)]
    states = layers[1](layers[0](embedding(inputs)))
    model = randomise(keras.Model(inputs, states), rng)
    exact = numbers(model(SOURCE))
    config = configs[way](
        [rng.integers(1, VOCABULARY, (1, 60))],
        str.split,
        num_samples=5,
        sequence_length=7,
        group_size=-1,
        quantization_layer_structure={
            "pre_block_layers": [embedding],
            "sequential_blocks": layers,
        },
    )
    model.quantize(way, config=config)
    kernels = [w for w in model.weights if w.name == "kernel"]
    assert [w.dtype for w in kernels] == ["uint8"] * 12
    assert 0 < error_of(numbers(model(SOURCE)), exact) < 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Invalid quantization mode")
def test_float8_trains(model):
    """Of the `Dense` layers; Keras has no table of tokens in float8."""
    exact = outputs_of(model)
    model.quantize("float8")
    assert 0 < error_of(outputs_of(model), exact) < 0.3
    losses = train(model)
    assert losses[2] < losses[0]


@pytest.mark.one_case("None")
@pytest.mark.parametrize("way", (None, "int8", "int4"))
def test_adapters(model, way, tmp_path, rng):
    """Nothing else is trained, a file holds the sums, and what is loaded still trains.

    Of integers the file's sums are rounded again.
    """
    if way:
        model.quantize(way)
    frozen = outputs_of(model)
    kt.enable_lora(model, RANK)
    assert_close(outputs_of(model), frozen)
    adapters = model.trainable_weights
    dense = [w for w in model.weights if w.name == "kernel"]
    assert {weight.name for weight in adapters} == {"lora_kernel_a", "lora_kernel_b"}
    assert len(adapters) == 2 * len(dense)
    before = {w.path: ops.convert_to_numpy(w).copy() for w in model.weights}
    losses = train(model)
    assert losses[2] < losses[0]
    changed = {
        w.path
        for w in model.weights
        if not np.array_equal(ops.convert_to_numpy(w), before[w.path])
    }
    assert changed == {weight.path for weight in adapters}
    for weight in adapters:
        weight.assign(rng.standard_normal(weight.shape) / 6)
    trained = outputs_of(model)
    assert error_of(trained, frozen) > 0.05
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = from_file(model, tmp_path)
    assert not any("lora" in weight.name for weight in loaded.weights)
    most = {None: 1e-4, "int8": 0.1, "int4": 1.0}[way]
    assert error_of(outputs_of(loaded), trained) < most
    # Into the same model: its adapters begin anew, and go on.
    model.load_weights(tmp_path / "model.weights.h5")
    assert error_of(outputs_of(model), trained) < most
    for weight in adapters:
        values = ops.convert_to_numpy(weight)
        assert bool(values.any()) == weight.name.endswith("_a"), weight.path
    for again in (model, loaded):
        if again is loaded:
            kt.enable_lora(loaded, RANK)
        losses = train(again)
        assert losses[2] < losses[0]
        for weight in again.trainable_weights:
            assert ops.convert_to_numpy(weight).any(), weight.path
