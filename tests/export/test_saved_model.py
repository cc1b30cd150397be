"""The SavedModel against the live translator, and what it is made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import ExportedTranslator
from keras_transformer.export import latest_version
from keras_transformer.export.serving_files import NAMES
from keras_transformer.generation.pipeline import Pipeline
from tests import tiny_run

TEXTS = ["the good bear runs.", "", "a dog", "the old man </s> sings. 🐈", "  "]

# A stranger's process: TensorFlow and the compiled SentencePiece operations alone, as
# in TensorFlow Serving; the Python side of tensorflow-text would import Keras.
STRANGER = """
import importlib.util, json, sys
text = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
blocked = ("keras", "keras_hub", "keras_transformer", "sentencepiece")
sys.modules.update(dict.fromkeys((*blocked, "tensorflow_text")))
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

definition = saved_model_pb2.SavedModel()
with open(sys.argv[1] + "/saved_model.pb", "rb") as file:
    definition.ParseFromString(file.read())
graph = definition.meta_graphs[0].graph_def
functions = {function.signature.name for function in graph.library.function}
nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
operations = sorted({node.op for node in nodes} - functions)
foreign = [op for op in operations if op_def_registry.get(op) is None]

tf.load_op_library(text + "/python/ops/_sentencepiece_tokenizer.so")
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]

def call(texts):
    result = serve(text=tf.constant(texts, tf.string))
    assert sorted(result) == ["score", "translation", "truncated"]
    return {
        "translation": [text.decode() for text in result["translation"].numpy()],
        "score": result["score"].numpy().tolist(),
        "truncated": result["truncated"].numpy().tolist(),
    }

texts = json.loads(sys.argv[2])
json.dump(
    {
        "together": call(texts), "alone": [call([text]) for text in texts],
        "empty": call([]), "operations": operations, "foreign": foreign,
        "imported": [name for name in blocked if sys.modules.get(name)],
    },
    sys.stdout,
)
"""

# TensorFlow has them, a server must not need them.
FORBIDDEN = ("PyFunc", "EagerPyFunc", "Xla", "ReadFile", "WriteFile", "Print")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_run.saved_model(tmp_path_factory)


@pytest.fixture(scope="module")
def stranger(path):
    """What a process without Keras and this package gets from the SavedModel."""
    arguments = [sys.executable, "-c", STRANGER, path, json.dumps(TEXTS)]
    done = subprocess.run(arguments, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def live():
    return [best[0] for best in tiny_run.translator().translate(TEXTS)]


@pytest.fixture(scope="module")
def definition(path):
    message = saved_model_pb2.SavedModel()
    message.ParseFromString((path / "saved_model.pb").read_bytes())
    return message


def test_it_loads_without_keras_and_this_package(stranger):
    assert stranger["imported"] == []


def test_a_batch_gives_strings_and_scores_of_the_live_translator(stranger, live):
    assert stranger["together"]["translation"] == [t.text for t in live]
    np.testing.assert_allclose(
        stranger["together"]["score"], [t.score for t in live], rtol=1e-5
    )
    assert len({t.text for t in live}) >= 3


def test_single_sentences_give_strings_and_scores_of_the_live_translator(
    stranger, live
):
    for alone, expected in zip(stranger["alone"], live, strict=True):
        assert alone["translation"] == [expected.text]
        np.testing.assert_allclose(alone["score"], [expected.score], rtol=1e-4)


def test_an_empty_batch_gives_an_empty_batch(stranger):
    assert stranger["empty"] == {"translation": [], "score": [], "truncated": []}


# Sizes of the axes: -1 is any, such as the batch's; the beam of `tiny_run` is 3.
TEXT, TEXTS_OF_ROW = ("string", [-1]), ("string", [-1, -1])
NUMBER, NUMBERS_OF_ROW = ("float32", [-1]), ("float32", [-1, -1])
TRANSLATION = {"translation": TEXT, "score": NUMBER, "truncated": ("bool", [-1])}
SIGNATURES = {
    "serving_default": ({"text": TEXT}, TRANSLATION),
    "nbest": (
        {"text": TEXT},
        {
            "translations": ("string", [-1, 3]),
            "scores": ("float32", [-1, 3]),
            "truncated": ("bool", [-1]),
        },
    ),
    "score": (
        {"source": TEXT, "target": TEXT},
        {
            "log_probability": NUMBER,
            "tokens": TEXTS_OF_ROW,
            "token_log_probabilities": NUMBERS_OF_ROW,
            "truncated": ("bool", [-1]),
        },
    ),
    "align": (
        {"text": TEXT},
        {
            "translation": TEXT,
            "source_tokens": TEXTS_OF_ROW,
            "target_tokens": TEXTS_OF_ROW,
            "attention": ("float32", [-1, -1, -1]),
            "truncated": ("bool", [-1]),
        },
    ),
    "sample": (
        {"text": TEXT, "temperature": NUMBER, "seed": ("int64", [-1])},
        TRANSLATION,
    ),
    "complete": ({"text": TEXT, "prefix": TEXT}, TRANSLATION),
}


def described(tensors):
    return {
        name: (
            tf.as_dtype(info.dtype).name,
            [size.size for size in info.tensor_shape.dim],
        )
        for name, info in tensors.items()
    }


def test_the_signatures_are_those_of_the_contract(definition):
    found = {
        name: (described(signature.inputs), described(signature.outputs))
        for name, signature in definition.meta_graphs[0].signature_def.items()
        if not name.startswith("__")
    }
    assert found == SIGNATURES


def test_every_operation_is_of_tensorflow_or_sentencepiece(stranger):
    # Asked of a process that had imported TensorFlow alone.
    assert stranger["foreign"] == [
        "SentencepieceDetokenizeOp", "SentencepieceOp", "SentencepieceTokenizeOp"
    ]  # fmt: skip


def test_no_operation_needs_python_a_compiler_or_the_outside(stranger):
    assert "MatMul" in stranger["operations"]
    found = [op for op in stranger["operations"] if op.startswith(FORBIDDEN)]
    assert not found


def test_no_path_of_the_machine_that_exported_is_inside(path, definition):
    here = str(Path(__file__).resolve().parents[2]).encode()
    inside = [here, str(path.parent).encode(), sys.prefix.encode()]
    for file in path.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not [place for place in inside if place in content], file
    assert not list((path / "assets").iterdir())


def test_the_exported_translator_is_called_like_the_live_one(path, live):
    exported = ExportedTranslator(path.parent)
    assert exported.path == path
    assert exported(TEXTS, batch_size=2) == [translation.text for translation in live]
    assert exported([]) == []


@pytest.mark.one_case
@pytest.mark.parametrize("texts", ["a dog", [None], [1], [b"a dog"]])
def test_the_exported_translator_refuses_what_the_live_one_refuses(path, texts):
    with pytest.raises(TypeError, match="`texts` must be a sequence of strings"):
        ExportedTranslator(path)(texts)


class Stopped(Exception):
    """What ends an export in the middle."""


def test_a_server_sees_no_half_written_version_and_a_failure_leaves_nothing(
    tmp_path, monkeypatch
):
    seen = []

    def save(module, directory, **_):
        Path(directory).mkdir(exist_ok=True)  # As TensorFlow does.
        (Path(directory) / "saved_model.pb").write_bytes(b"half")
        seen.extend(path.name for path in (tmp_path / "name").iterdir())
        raise Stopped

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(Stopped):
        tiny_run.translator().export(tmp_path / "name")
    assert len(seen) == 1 and not seen[0].isdecimal()
    assert not list((tmp_path / "name").iterdir())


def test_graphs_are_made_once_and_the_next_version_has_all_its_files(
    tmp_path, monkeypatch
):
    traced, run = [], Pipeline.run

    def traces(self, name, *inputs):
        traced.append(name)
        return run(self, name, *inputs)

    monkeypatch.setattr(Pipeline, "run", traces)
    monkeypatch.setattr(
        tf.saved_model, "save", lambda _, path, **__: Path(path).mkdir(exist_ok=True)
    )
    (tmp_path / "name" / "1").mkdir(parents=True)
    written = tiny_run.translator().export(tmp_path / "name")
    assert written == tmp_path / "name" / "2"
    assert sorted(traced) == sorted(SIGNATURES)
    assert (written / "assets.extra" / "tf_serving_warmup_requests").exists()
    assert {path.name for path in (tmp_path / "name").iterdir()} == {"1", "2", *NAMES}


def test_an_existing_version_is_never_overwritten(path):
    before = sorted((f, f.stat().st_mtime_ns) for f in path.rglob("*"))
    with pytest.raises(FileExistsError, match="version is never overwritten"):
        tiny_run.translator().export(path)
    assert sorted((f, f.stat().st_mtime_ns) for f in path.rglob("*")) == before


def test_the_latest_version_is_the_largest_whole_number(tmp_path):
    for name in ("2", "10", "9", "11", ".12.partial", "thirteen"):
        (tmp_path / name).mkdir()
        if name != "11":  # An empty directory is no version.
            (tmp_path / name / "saved_model.pb").touch()
    assert latest_version(tmp_path) == tmp_path / "10"
    assert latest_version(tmp_path / "9") == tmp_path / "9"


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_without_a_saved_model_the_error_names_the_path(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match=f"{name} holds no SavedModel"):
        ExportedTranslator(tmp_path / name)
