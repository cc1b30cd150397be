"""ONNX exports: their files, every quantisation, other runtimes, and what is refused.

test_exports.py compares what they answer.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from keras import ops

import keras_transformer as kt
from keras_transformer.formats import litert
from keras_transformer.formats import onnx as writer
from keras_transformer.search.beam import beam_search
from keras_transformer.search.compiled import as_graph
from keras_transformer.search.tokens import Constraints, SpecialIds
from tests import tiny_run
from tests.browser import Site, chromium

TEXTS = ["the old man sleeps.", "a bear", "the good dog runs. the big bird sings."]
SCRIPT = Path(__file__).with_name("onnx.mjs")


def test_files_have_the_names_of_the_signatures_and_share_weights(onnx_export):
    names = "attention", "complete", "nbest", "sample", "score", "translate"
    paths = sorted(onnx_export.glob("*.onnx"))
    assert tuple(path.stem for path in paths) == names
    weights = (onnx_export / "weights.bin").stat().st_size
    # A matrix that is multiplied and looked up has its transpose too.
    assert 0 < weights < 1.5 * 4 * tiny_run.model().count_params()
    for path in paths:
        onnx.checker.check_model(path)
        graph = onnx.load(path, load_external_data=False)
        outside = [t for t in graph.graph.initializer if t.external_data]
        assert all(t.external_data[0].value == "weights.bin" for t in outside)
    # Loops carry along what they change alone, so that weights are constants.
    nodes = [node for one in writer._graphs(graph.graph) for node in one.node]
    loops = [node for node in nodes if node.op_type == "Loop"]
    assert len(loops) == 2
    for loop in loops:
        [body] = [each.g for each in loop.attribute if each.name == "body"]
        carried = {each.name for each in body.input}
        assert not carried & {each.name for each in body.output}
    description = json.loads((onnx_export / "translator.json").read_text("utf-8"))
    assert description["format"] == "keras_transformer.onnx.1"
    files = {f"{name}.onnx" for name in names} | {"weights.bin", "joint.model"}
    assert set(description["files"]) == files


@pytest.mark.one_case("int8")
@pytest.mark.parametrize(("quantize", "share"), [("float16", 0.6), ("int8", 0.4)])
def test_quantised_weights_take_less_and_answer_alike(
    tmp_path, onnx_export, monkeypatch, quantize, share
):
    live = tiny_run.translator()
    whole = kt.LiteTranslator(onnx_export)
    # One of six conversions shows it.
    free = litert.free_signatures
    monkeypatch.setattr(
        litert, "free_signatures", lambda *given: {"score": free(*given)["score"]}
    )
    path = live.export(tmp_path / "onnx", "onnx", quantize=quantize)
    size = (path / "weights.bin").stat().st_size
    assert size < share * (onnx_export / "weights.bin").stat().st_size
    targets = live(TEXTS)
    exact = whole.score(TEXTS, targets)
    for one, other in zip(
        kt.LiteTranslator(path).score(TEXTS, targets), exact, strict=True
    ):
        difference = np.abs(one.token_log_probabilities - other.token_log_probabilities)
        assert 0 < difference.max() < (0.01 if quantize == "float16" else 0.5)


def test_an_operation_that_onnx_lacks_is_named():
    inputs = {"x": tf.TensorSpec([None], tf.float32)}
    graph = as_graph(lambda x: {"y": ops.erfinv(x)}, inputs)
    with pytest.raises(ValueError, match="A Sequential with .* lacks, Erfinv"):
        writer._check_operations(writer._converted(graph), "Sequential")


def test_a_part_of_a_tensor_is_written_in_its_place():
    cache = tf.TensorSpec([None, 2, None, 3], tf.float32)
    new = tf.TensorSpec([None, 2, 2, 3], tf.float32)
    start = tf.TensorSpec([], tf.int32)

    def written(cache, new, start):
        zero = ops.zeros_like(start)
        return {"written": ops.slice_update(cache, (zero, zero, start, zero), new)}

    graph = as_graph(written, {"cache": cache, "new": new, "start": start})
    content = writer._converted(graph).SerializeToString()
    session = onnxruntime.InferenceSession(content)
    given = np.arange(48, dtype="float32").reshape(2, 2, 4, 3)
    expected = given.copy()
    expected[:, :, 1:3] = -1
    inputs = {"cache": given, "new": np.full((2, 2, 2, 3), -1, "float32")}
    [found] = session.run(None, inputs | {"start": np.array(1, "int32")})
    np.testing.assert_array_equal(found, expected)


def test_a_part_along_another_axis_is_refused():
    whole, new = (tf.TensorSpec([None, n, None, 3], tf.float32) for n in (4, 2))

    def written(whole, new):
        return {"written": ops.slice_update(whole, (0, 1, 0, 0), new)}

    graph = as_graph(written, {"whole": whole, "new": new})
    with pytest.raises(ValueError, match="lacks, XlaDynamicUpdateSlice"):
        writer._check_operations(writer._converted(graph), "Sequential")


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_division_rounds_down(dtype):
    specs = {"x": tf.TensorSpec([None], dtype), "y": tf.TensorSpec([], dtype)}
    graph = as_graph(lambda x, y: {"rest": x % y, "whole": x // y}, specs)
    session = onnxruntime.InferenceSession(writer._converted(graph).SerializeToString())
    x, y = np.arange(-20, 20).astype(dtype), np.array(7, dtype)
    rest, whole = session.run(["rest", "whole"], {"x": x, "y": y})
    np.testing.assert_array_equal(rest, x % y)
    np.testing.assert_array_equal(whole, x // y)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("has_prefix", [False, True])
def test_infinities_survive_every_search(rng, beam_size, has_prefix):
    table = rng.normal(size=(11, 11)).astype("float32")

    def step(ids, parents, state):
        return ops.take(ops.convert_to_tensor(table), ids, axis=0), state

    def searched(lengths, prefix):
        found = beam_search(
            step,
            (),
            max_lengths=lengths,
            limit=ops.max(lengths),
            special_ids=SpecialIds(),
            beam_size=beam_size,
            n_best=beam_size,
            constraints=Constraints(prefix=prefix if has_prefix else None),
            resize=lambda state, sentences, length: state,
        )
        return {"ids": found.ids, "scores": found.scores}

    given = {
        "lengths": np.array([6, 2], "int32"),
        "prefix": np.array([[5, 6, 0], [7, 0, 0]], "int32"),
    }
    specs = {
        name: tf.TensorSpec([None] * value.ndim, value.dtype)
        for name, value in given.items()
    }
    graph = as_graph(searched, specs)
    session = onnxruntime.InferenceSession(writer._converted(graph).SerializeToString())
    taken = {one.name: given[one.name] for one in session.get_inputs()}
    ids, scores = session.run(["ids", "scores"], taken)
    expected = graph(*given.values())
    np.testing.assert_array_equal(ids, expected["ids"])
    np.testing.assert_allclose(scores, expected["scores"], rtol=1e-5)


def test_a_package_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[onnx\]"'):
        tiny_run.translator().export(tmp_path / "onnx", "onnx")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def runtimes():
    """The node_modules with ONNX Runtime for browsers and Node."""
    modules = os.environ.get("ONNX_JS")
    if not modules:
        pytest.skip(
            "no ONNX Runtime: ONNX_JS must name the node_modules of `npm install "
            "--ignore-scripts onnxruntime-web@1.30.0 onnxruntime-node@1.30.0`"
        )
    return Path(modules)


@pytest.fixture(scope="module")
def sources():
    """Sources of ids, and the ids of their translations."""
    live = tiny_run.translator()
    rows = live.tokenizers.source.tokenize(TEXTS).to_list()
    rows = [[*row, 2] for row in rows]
    source = keras.utils.pad_sequences(rows, padding="post", value=0)
    lengths = np.array([len(row) for row in rows])
    found = kt.Generator(live.model, live.config).search(source, lengths)
    return rows, ops.convert_to_numpy(found.ids)[:, 0].tolist()


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_node_finds_the_same(onnx_export, runtimes, sources):
    given = {
        "ort": str(runtimes / "onnxruntime-node/dist/index.js"),
        "model": str(onnx_export / "translate.onnx"),
        "sources": sources[0],
    }
    done = subprocess.run(
        ["node", SCRIPT], input=json.dumps(given), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == sources[1]


def test_a_browser_finds_the_same(onnx_export, runtimes, sources, tmp_path):
    site = shutil.copytree(onnx_export, tmp_path / "site")
    shutil.copytree(runtimes / "onnxruntime-web/dist", site / "ort")
    shutil.copy(SCRIPT, site)
    (site / "index.html").write_text("<!doctype html><title>ONNX</title>")
    program = """async (sources) => {
        const ort = await import("./ort/ort.wasm.min.mjs");
        const { found } = await import("./onnx.mjs");
        const weights = { path: "weights.bin", data: "weights.bin" };
        ort.env.wasm.numThreads = 1;
        return found(ort, "translate.onnx", { externalData: [weights] }, sources);
    }"""
    with Site(site) as served, chromium() as browser:
        page = browser.new_page()
        page.goto(served.url)
        assert page.evaluate(program, sources[0]) == sources[1]
