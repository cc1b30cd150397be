"""LiteRT exports: what is in them, every quantisation, and what cannot be one."""

import hashlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from keras import ops

import keras_transformer as kt
from keras_transformer.formats.litert import convert, export_litert
from keras_transformer.search.compiled import as_graph
from keras_transformer.text.sentences import sentence_rules
from keras_transformer.text.spans import span_rules
from tests import tiny_run
from tests.nn.layers.reference_weights import assert_close, randomise

TEXTS = ["the old man sleeps.", "a bear", "the good dog runs. the big bird sings."]


def test_the_description_tells_a_client_what_it_needs(lite_export):
    description = json.loads((lite_export / "translator.json").read_text("utf-8"))
    files = description.pop("files")
    assert description == {
        "format": "keras_transformer.litert.1",
        "special_ids": {"pad_id": 0, "start_id": 1, "end_id": 2, "unknown_id": 3},
        "tokenizers": {"source": "joint.model", "target": "joint.model"},
        "max_source_length": 32,
        "longest_output": 35,
        "n_best": 3,
        "lengths": None,
        "sentence_rules": json.loads(json.dumps(sentence_rules())),
        "carries_spans": True,
        "span_rules": json.loads(json.dumps(span_rules())),
        "search": json.loads(tiny_run.translator().config.to_json()),
        "quantize": "none",
        "languages": ["en", "de"],
    }
    assert set(files) == {"model.tflite", "joint.model"}
    for name, digest in files.items():
        assert hashlib.sha256((lite_export / name).read_bytes()).hexdigest() == digest
    # Python keeps what it compiles beside translate.py.
    paths = [path for path in lite_export.iterdir() if path.is_file()]
    assert sorted(path.name for path in paths) == [
        "doubts.py", "joint.model", "model.tflite", "sentences.py", "spans.py",
        "translate.py",
        "translation.py", "translator.json",
    ]  # fmt: skip


def test_signatures_have_the_names_of_the_documentation_and_share_weights(lite_export):
    found = Interpreter(str(lite_export / "model.tflite")).get_signature_list()
    rows = [
        line.split("|")[1].strip() for line in export_litert.__doc__.splitlines()
        if line.strip().startswith("|") and line.split("|")[1].strip().isalpha()
    ]  # fmt: skip
    assert sorted(found) == sorted(set(rows) - {"signature"})
    assert found["complete"]["inputs"] == [
        "lengths", "prefix", "prefix_lengths", "source",
    ]  # fmt: skip
    assert found["nbest"]["outputs"] == ["ids", "scores"]
    parameters = tiny_run.model().count_params() * 4  # bytes
    size = (lite_export / "model.tflite").stat().st_size
    # Six graphs of some 100 KB each; the weights once.
    assert parameters < size < parameters + 900_000


@pytest.mark.slow
def test_a_model_in_half_precision_becomes_one_in_float32(tmp_path):
    live = tiny_run.translator()
    half = kt.Translator(
        live.model.with_dtype("bfloat16"), live.tokenizers, live.config
    )
    whole = kt.Translator(
        half.model.with_dtype("float32"), live.tokenizers, live.config
    )
    lite = kt.LiteTranslator(half.export(tmp_path / "lite", "litert"))
    assert lite(TEXTS) == whole(TEXTS)


def predict(model):
    """The signature of a model that a converter is given."""
    ids = tf.TensorSpec([None, None], tf.int32)
    return {"predict": as_graph(lambda ids: {"logits": model(ids)}, {"ids": ids})}


def language_model(model_class=kt.LanguageModel, **options):
    sizes = {"num_layers": 2, "d_model": 6, "d_ff": 7, "num_heads": 2}
    return model_class(kt.LanguageModelConfig(vocabulary_size=29, **sizes | options))


@pytest.mark.parametrize(
    ("quantize", "share", "error"), [("float16", 0.65, 0.02), ("int8", 0.6, 0.3)]
)
def test_quantised_weights_take_less_and_answer_alike(quantize, share, error):
    model = randomise(language_model(d_model=64, d_ff=256), np.random.default_rng(3))
    content = convert(model, predict(model), quantize)
    run = Interpreter(model_content=content).get_signature_runner("predict")
    ids = np.array([[5, 9, 7, 12], [20, 4, 0, 0]], "int32")
    found, expected = run(ids=ids)["logits"], ops.convert_to_numpy(model(ids))
    # Of four bytes a weight, and of the graph.
    assert len(content) < share * (4 * model.count_params() + 80_000)
    assert 0 < np.abs(found - expected).max() < error * np.abs(expected).max()
    with pytest.raises(RuntimeError, match="gather index out of bounds"):
        run(ids=ids + 20)


class RollingModel(kt.LanguageModel):
    """A language model with an operation that LiteRT lacks."""

    def call(self, inputs, training=None):
        return ops.roll(super().call(inputs, training=training), 1, axis=1)


def test_an_operation_that_lite_rt_lacks_is_named():
    model = language_model(RollingModel)
    message = "A RollingModel with these options cannot become a LiteRT .* lacks, Roll"
    with pytest.raises(ValueError, match=message):
        convert(model, predict(model))


def tagger():
    config = kt.EncoderConfig(num_layers=2, d_model=6, d_ff=7, num_heads=2)
    ids = keras.Input((None,), dtype="int32", name="ids")
    states = kt.EncoderStack(config)(kt.PositionalEmbedding(29, 6, pad_id=0)(ids))
    return kt.ExactModel(ids, keras.layers.Dense(5)(states))


@pytest.mark.one_case("True")
@pytest.mark.parametrize("quantize", [False, True])
def test_keras_itself_writes_any_other_model_for_any_size(tmp_path, rng, quantize):
    model, path = randomise(tagger(), rng), tmp_path / "tagger.tflite"
    optimizations = [tf.lite.Optimize.DEFAULT] if quantize else []
    model.export(path, format="litert", verbose=False, optimizations=optimizations)
    runner = Interpreter(str(path)).get_signature_runner()
    for shape in ((2, 7), (3, 11)):
        ids = rng.integers(3, 29, shape).astype("int32")
        (logits,) = runner(ids=ids).values()
        assert_close(logits, keras.ops.convert_to_numpy(model(ids)))


@pytest.fixture(scope="module")
def fixed_export(tmp_path_factory):
    path = tmp_path_factory.mktemp("fixed") / "tiny"
    return tiny_run.translator().export(path, "litert", fixed_lengths=True)


LONG = "the old bear sleeps. the young dog runs. the big bird"


def test_an_export_of_fixed_lengths_translates_alike(fixed_export):
    live, lite = tiny_run.translator(), kt.LiteTranslator(fixed_export)
    assert lite.description["lengths"] == [16, 32]
    texts = [*TEXTS, LONG, ""]
    assert lite(texts) == live(texts)
    found = [[one.text for one in several] for several in lite.nbest(texts, 3)]
    assert found == [[one.text for one in several] for several in live.nbest(texts, 3)]
    with pytest.raises(ValueError, match="fixed lengths only translates.*`score`"):
        lite.score(TEXTS, TEXTS)


def test_the_compiled_model_of_telephones_runs_fixed_lengths(fixed_export):
    from ai_edge_litert.compiled_model import CompiledModel

    live = tiny_run.translator()
    [ids] = live.tokenizers.source.tokenize(TEXTS[1:2]).to_list()
    ids = np.array([*ids, 2], "int32")
    expected = kt.Generator(live.model, live.config).search(
        ids[None], np.array([len(ids)]), n_best=3
    )
    model = CompiledModel.from_file(str(fixed_export / "model.tflite"))
    name, given = "translate_16", {"source": np.zeros((1, 16), "int32")}
    given["source"][0, : len(ids)] = ids
    given["lengths"] = np.array([len(ids)], "int32")
    inputs = {key: model.create_input_buffer_by_name(name, key) for key in given}
    outputs = {
        key: model.create_output_buffer_by_name(name, key) for key in ("ids", "scores")
    }
    for key, value in given.items():
        inputs[key].write(value)
    model.run_by_name(name, inputs, outputs)
    width = expected.ids.shape[-1]
    shape = model.get_output_tensor_details(name)["ids"]["shape"]
    found = outputs["ids"].read(int(np.prod(shape)), np.int32).reshape(shape)[0]
    np.testing.assert_array_equal(found[:, :width], expected.ids[0])
    assert not found[:, width:].any()
    assert_close(outputs["scores"].read(3, np.float32), expected.scores[0])
