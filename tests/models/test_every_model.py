"""The battery: every kind of model against the reference, and what all must do."""

import gc

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.config.layer_config import CAUSAL_KINDS
from keras_transformer.testing import (
    assert_cached_equals_uncached,
    assert_causal,
    assert_padding_invariant,
    assert_serializable,
)
from tests.models.backends import BACKENDS, run_python, run_tests
from tests.models.cases import (
    A_ROW_A_CLASS,
    ALL,
    CASES,
    LANGUAGE_VARIANTS,
    VARIANTS,
    with_property,
)
from tests.nn.layers.reference_weights import assert_close, randomise
from tests.nn.layers.round_trips import (
    QUANTISES,
    check_adapters,
    check_quantised,
    quantisations,
)
from tests.nn.layers.test_every_layer import EXPORTS, exported
from tests.reference import numpy_transformer as reference

HERE = keras.backend.backend()
numpy = ops.convert_to_numpy


def random_model(name, rng, **options):
    return randomise(CASES[name].make(**options), rng)


def output(model, case, **options):
    return numpy(model(case.inputs, **options))


def of_ids(model, case):
    """The model as a function of the ids that the output has the positions of."""
    if case.model_class is not kt.Transformer:
        return model, case.inputs
    return lambda target_in, source: model((source, target_in)), case.inputs[::-1]


def test_every_kind_of_attention_is_tested_in_every_model():
    kinds = set(CAUSAL_KINDS)
    for variants in (VARIANTS, LANGUAGE_VARIANTS):
        tested = [list(options.values()) for options in variants.values()]
        assert kinds - {"dot-product"} <= {
            str(value) for row in tested for value in row
        }


@ALL
def test_logits_agree_with_the_reference(name, rng):
    case, model = CASES[name], random_model(name, rng)
    found, expected = output(model, case), case.expected(model, case.inputs)
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert_close(found[case.real], expected[case.real])


@ALL
@pytest.mark.one_case("Transformer: post-norm, three-way")
def test_loss_and_metrics_agree_with_the_reference(name, rng):
    case, model = CASES[name], random_model(name, rng)
    logits, targets = case.expected(model, case.inputs), case.targets
    smoothing = case.loss.label_smoothing
    expected = {
        "loss": reference.label_smoothed_cross_entropy(logits, targets, smoothing)
    }
    metrics = [kt.MaskedAccuracy(), kt.Perplexity()]
    expected["masked_accuracy"] = reference.masked_accuracy(logits, targets)
    expected["perplexity"] = reference.perplexity(logits, targets)
    model.compile("sgd", case.loss, metrics=metrics, run_eagerly=True)
    found = model.evaluate(case.inputs, targets, verbose=0, return_dict=True)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, err_msg=key)


@A_ROW_A_CLASS
def test_losses_of_keras_leave_padding_out(name, rng):
    case, model = CASES[name], random_model(name, rng)
    logits, targets = model(case.inputs), case.targets
    expected = reference.label_smoothed_cross_entropy(numpy(logits), targets, 0.0)
    found = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
        targets, logits
    )
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-5)


@with_property("decodes")
@pytest.mark.one_case("Transformer: rotary, one head of keys")
def test_later_token_cannot_change_an_earlier_logit(name, rng):
    layer, inputs = of_ids(random_model(name, rng), CASES[name])
    assert_causal(layer, inputs, ids_below=29, tolerance=0)


@with_property("decodes")
@pytest.mark.one_case("Transformer: post-norm, three-way")
def test_later_token_cannot_change_an_earlier_logit_in_training(name):
    """Dropout of attention weights must not cost the causal mask (same seed)."""
    case = CASES[name]
    config = case.make().config
    assert config.rate(config.attention_dropout_rate) > 0

    def logits(value):
        keras.utils.set_random_seed(7)  # The same weights and the same dropout.
        ids = case.ids.copy()
        ids[:, 2:] = value
        inputs = keras.tree.map_structure(
            lambda x: ids if x is case.ids else x, case.inputs
        )
        return numpy(case.make()(inputs, training=True))

    before, after = logits(17), logits(13)
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert (before[:, 2] != after[:, 2]).any()


@with_property("decodes")
@pytest.mark.one_case("3-Transformer: rotary, one head of keys")
@pytest.mark.parametrize("beam_size", [1, 3])
def test_cached_decoding_equals_uncached(name, beam_size, rng):
    """Each hypothesis of a sentence goes its own way, in a state that is resized."""
    model = random_model(name, rng)
    source = (
        CASES[name].inputs[0] if CASES[name].model_class is kt.Transformer else None
    )
    assert_cached_equals_uncached(model, source, beam_size=beam_size)


@ALL
@pytest.mark.one_case("Transformer: ALiBi, pre-norm")
def test_padding_and_other_rows_change_nothing(name, rng):
    case, model = CASES[name], random_model(name, rng)
    assert_padding_invariant(*of_ids(model, case))
    swapped = keras.tree.map_structure(lambda x: x[::-1].copy(), case.inputs)
    assert_close(numpy(model(swapped))[::-1], output(model, case))


@A_ROW_A_CLASS
def test_weights_exist_from_the_start_and_the_shape_is_known(name):
    case = CASES[name]
    model = case.make()
    count = len(model.weights)
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), case.inputs)
    assert model.compute_output_shape(shapes) == output(model, case).shape
    assert len(model.weights) == count > 0


@A_ROW_A_CLASS
@pytest.mark.one_case("1-LanguageModel: post-norm, tied")
@pytest.mark.parametrize("axis", (0, 1))
def test_no_sentence_and_no_position_are_computed_and_scored(name, axis):
    case = CASES[name]
    model = case.make()

    def empty(x):
        return x[:0] if axis == 0 else x[:, :0]

    inputs = keras.tree.map_structure(empty, case.inputs)
    targets = empty(case.targets)
    for training in (False, True):
        shape = tuple(model(inputs, training=training).shape)
        assert shape == (*targets.shape, 29)
    metrics = [kt.MaskedAccuracy(), kt.Perplexity()]
    model.compile("sgd", case.loss, metrics=metrics, run_eagerly=True)
    assert model.test_on_batch(inputs, targets)[0] == 0.0
    loss = case.loss(targets, model(inputs))
    assert numpy(loss) == 0.0


class Holder(keras.Model):
    """Somebody's model around one of ours."""

    def __init__(self, held):
        super().__init__()
        self.held = held

    def call(self, inputs):
        return self.held(inputs)


@A_ROW_A_CLASS
def test_summary_of_a_new_a_called_and_a_held_model_shows_shapes_and_sizes(name):
    case = CASES[name]
    model, holder = case.make(), Holder(case.make())
    holder(case.inputs)
    width = model.config.d_model
    for step in ("new", "called", "held"):
        lines = []
        one = holder if step == "held" else model
        one.summary(print_fn=lines.append, expand_nested=True)
        assert f"(None, None, {width})" in lines[0]
        assert f"Total params: {model.count_params():,} " in lines[0]
        model(case.inputs)


@A_ROW_A_CLASS
@quantisations("int8 of weights", "int4 of weights")
@QUANTISES
def test_a_quantised_model_comes_back_from_its_file(name, way, rng, tmp_path):
    check_quantised(random_model(name, rng), CASES[name].inputs, way, tmp_path)


@A_ROW_A_CLASS
def test_adapters_are_trained_and_come_back_merged(name, rng, tmp_path):
    case, model = CASES[name], random_model(name, rng)
    check_adapters(model, case.inputs, case.targets, case.loss, tmp_path)


@A_ROW_A_CLASS
def test_config_and_file_give_the_same_model(name, rng):
    inputs = tuple(keras.tree.flatten(CASES[name].inputs))
    model = randomise(CASES[name].make(name="named", dtype="mixed_bfloat16"), rng)
    assert model.get_config()["name"] == "named"
    assert_serializable(model, inputs)
    name = f"keras_transformer>{type(model).__name__}"
    assert keras.saving.get_registered_name(type(model)) == name


@A_ROW_A_CLASS
@pytest.mark.one_case("Transformer: post-norm, three-way")
def test_compiled_model_comes_back_from_its_file(name, rng, tmp_path):
    case, model = CASES[name], random_model(name, rng)
    model.compile("adam", case.loss, run_eagerly=True)
    model.train_on_batch(case.inputs, case.targets)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.loss) is type(case.loss)
    np.testing.assert_array_equal(output(loaded, case), output(model, case))
    steps = loaded.optimizer.iterations
    assert numpy(steps) == 1


@ALL
@pytest.mark.one_case("Transformer: normalised embeddings, SSRU, output bias")
def test_dropout_acts_in_training_only(name, rng):
    case, model = CASES[name], random_model(name, rng)
    silent = output(model, case, training=False)
    np.testing.assert_array_equal(output(model, case), silent)
    assert_close(model.predict(case.inputs, verbose=0), silent)
    assert np.abs(output(model, case, training=True) - silent).max() > 1e-3


@A_ROW_A_CLASS
def test_mixed_precision_stays_close_and_keeps_float32_weights(name, rng):
    case, exact = CASES[name], random_model(name, rng)
    mixed = case.make(dtype="mixed_bfloat16")
    mixed.set_weights(exact.get_weights())
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    found = mixed(case.inputs)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    tolerance = 0.2 if case.model_class is kt.Transformer else 0.3
    assert_close(ops.cast(found, "float32"), output(exact, case), tolerance)


@A_ROW_A_CLASS
def test_gradient_reaches_every_weight(name, rng):
    case, model = CASES[name], random_model(name, rng)
    before = [numpy(weight).copy() for weight in model.trainable_weights]
    model.compile(keras.optimizers.SGD(1.0), case.loss, run_eagerly=True)
    model.train_on_batch(case.inputs, case.targets)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        # A key's bias adds one number to all scores of a query: softmax removes it.
        if not weight.path.endswith("key_dense/bias"):
            assert np.abs(numpy(weight) - old).max() > 1e-7, weight.path


@A_ROW_A_CLASS
@pytest.mark.one_case("LanguageModel: post-norm, tied")
def test_fit_learns_the_batch_by_heart(name, rng):
    case, model = CASES[name], CASES[name].make()
    # The loss of smoothed targets cannot come near zero.
    loss = kt.MaskedCrossentropy()
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    batch = case.inputs, case.targets

    def fit(data):
        history = model.fit(*data, len(case.targets), verbose=0, shuffle=False).history
        return history["loss"][0]

    first = fit(batch)
    fit(keras.tree.map_structure(lambda x: np.concatenate([x] * 60), batch))
    assert fit(batch) < 0.5 * first


def live_graphs():
    from tensorflow.python.framework.func_graph import FuncGraph

    gc.collect()
    return sum(isinstance(x, FuncGraph) for x in gc.get_objects())


@A_ROW_A_CLASS
@pytest.mark.one_case("LanguageModel: post-norm, tied")
@pytest.mark.skipif(HERE != "tensorflow", reason="graphs of TensorFlow")
def test_a_trained_model_leaves_no_graph(name):
    def train():
        case, model = CASES[name], CASES[name].make()
        model.compile(kt.Adam(0.01), case.loss, jit_compile=False)
        model.train_on_batch(case.inputs, case.targets)

    train()
    before = live_graphs()
    train()
    assert live_graphs() == before


@A_ROW_A_CLASS
@pytest.mark.one_case("tf_saved_model-Transformer: post-norm, three-way")
@pytest.mark.filterwarnings("ignore:In the future `np.object`")
@pytest.mark.filterwarnings("ignore:The `native_serialization` parameter")
@pytest.mark.parametrize("format", EXPORTS.get(HERE, ()))
def test_an_export_by_keras_equals_the_model_on_any_batch(name, format, rng, tmp_path):
    if format == "onnx" and "one head of keys" in name:
        pytest.skip("ONNX's converter takes a wrong shape where heads share keys")
    case, model = CASES[name], random_model(name, rng)
    path = tmp_path / ("model.onnx" if format == "onnx" else "1")
    model.export(path, format=format, verbose=False)
    for rows in (slice(0, 1), slice(None)):
        inputs = keras.tree.map_structure(lambda x, r=rows: x[r], case.inputs)
        assert_close(exported(path, inputs), numpy(model(inputs)))


# Other backends.


@pytest.fixture(scope="module", params=range(12), ids="part {}".format)
def saved(request, tmp_path_factory):
    """A folder with files of a twelfth of the models, and of their inputs."""
    folder = tmp_path_factory.mktemp("backends")
    models = {}
    for number, (name, case) in list(enumerate(CASES.items()))[request.param :: 12]:
        models[name] = randomise(case.make(), np.random.default_rng(number))
        models[name].save(folder / f"{number}.keras")
        np.savez(folder / f"{number}.npz", *keras.tree.flatten(case.inputs))
    return folder, models


@pytest.mark.one_case("part 0-jax")
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_file_gives_the_same_logits_on_every_backend(saved, backend):
    folder, models = saved
    run_python(backend, "-m", "tests.models.backends", folder)
    for number, (name, case) in enumerate(CASES.items()):
        if name not in models:
            continue
        with np.load(folder / f"{number}.{backend}.npz") as outputs:
            found = dict(outputs)
        here = numpy(models[name](case.inputs))
        expected = case.expected(models[name], case.inputs)
        for output in found.values():
            np.testing.assert_allclose(output, here, rtol=1e-5, atol=1e-5)
        logits = found["logits"][case.real], expected[case.real]
        np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-5, err_msg=name)
        assert ("steps" in found) == ("decodes" in case.properties)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != HERE])
def test_tests_of_layers_and_model_pass_on_every_backend(backend):
    models = (f"tests/models/test_{name}.py" for name in ("every_model", "transformer"))
    run_tests(backend, "tests/nn/layers", *models)
