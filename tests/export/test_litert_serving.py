"""A LiteRT file for TensorFlow Serving, its service and its client.

No server was there to try: `LiteRtSession` does here what tflite_session.cc does.
"""

from __future__ import annotations

import http.server
import json
import math
import threading

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_transformer import LiteTranslator, cli
from keras_transformer.export import litert, litert_serving, serving_files
from keras_transformer.export.litert_serving import name_tensors
from tests import tiny_run
from tests.test_examples import load

TEXTS = [
    "the old man sleeps.", "", "a bear", "the good dog runs. " * 9, "the big bird", " ",
]  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("litert_models") / "tiny" / "1"
    return tiny_run.translator().export_litert_serving(path, languages=("en", "de"))


def test_without_a_version_the_next_one_is_written_with_all_its_files(
    tmp_path, monkeypatch
):
    for name in ("convert", "name_tensors"):
        monkeypatch.setattr(litert_serving, name, lambda *_: b"")
    for version in ("1", "2"):
        written = tiny_run.translator().export_litert_serving(tmp_path / "name")
        assert written == tmp_path / "name" / version
    assert sorted(path.name for path in (tmp_path / "name").iterdir()) == [
        "1", "2", "docker-compose.yml", "models.config"
    ]  # fmt: skip


class LiteRtSession:
    """Runs the first graph under the signature that TensorFlow Serving makes for it."""

    def __init__(self, path):
        self.interpreter = Interpreter(str(path / "model.tflite"), num_threads=1)
        self.interpreter.allocate_tensors()
        self.inputs = self.signature(self.interpreter.get_input_details())
        self.outputs = self.signature(self.interpreter.get_output_details())

    @staticmethod
    def signature(details):
        """Tensors by their names, cut at the first ":"; equal ones hide each other."""
        return {tensor["name"].split(":")[0]: tensor for tensor in details}

    def run(self, inputs):
        for name, tensor in self.inputs.items():
            shape = self.interpreter.get_tensor(tensor["index"]).shape
            if shape != inputs[name].shape:
                self.interpreter.resize_tensor_input(
                    tensor["index"], inputs[name].shape
                )
                self.interpreter.allocate_tensors()
            self.interpreter.set_tensor(tensor["index"], inputs[name])
        self.interpreter.invoke()
        return {
            name: self.interpreter.get_tensor(tensor["index"])
            for name, tensor in self.outputs.items()
        }


class RestServer(http.server.BaseHTTPRequestHandler):
    """Answers a request of rows as json_tensor.cc reads and writes them."""

    session: LiteRtSession
    shapes: list

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = 404, {"error": "Servable not found for request: Latest(huge)"}
        if self.path == "/v1/models/tiny:predict":
            status, answer = 200, {"predictions": self.rows(body["instances"])}
        content = json.dumps(answer).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def rows(self, instances):
        inputs = {
            name: np.array([row[name] for row in instances], tensor["dtype"])
            for name, tensor in self.session.inputs.items()
        }
        self.shapes.append(inputs["source"].shape)
        outputs = self.session.run(inputs)
        return [
            {name: values[i].tolist() for name, values in outputs.items()}
            for i in range(len(instances))
        ]

    def log_message(self, *_):
        pass


@pytest.fixture
def server(exported):
    """The URL of a server and the list of the shapes of the requests it got."""
    attributes = {"session": LiteRtSession(exported), "shapes": []}
    handler = type("Handler", (RestServer,), attributes)
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}", handler.shapes
        found.shutdown()


def test_the_first_graph_has_the_names_and_types_of_the_documentation(exported):
    session = LiteRtSession(exported)
    found = {
        name: (tensor["dtype"], tensor["shape_signature"].tolist())
        for name, tensor in (session.inputs | session.outputs).items()
    }
    assert found == {
        "source": (np.int32, [-1, -1]),
        "ids": (np.int32, [-1, -1]),
        "scores": (np.float32, [-1]),
    }
    assert session.interpreter.get_signature_list() == {
        "serving_default": {"inputs": ["source"], "outputs": ["ids", "scores"]}
    }


def converted(scores="scores"):
    """A file of a function with two outputs, as the converter writes it."""
    function = tf.function(
        lambda source: {"ids": source + 1, scores: tf.cast(source[:, 0], tf.float32)},
        input_signature=[tf.TensorSpec([None, None], tf.int32, name="source")],
    )
    return litert.convert(tiny_run.model(), {"serving_default": function})


def test_naming_tensors_brings_every_output_to_light_and_moves_nothing(tmp_path):
    content = converted()
    file = tmp_path / "model.tflite"
    file.write_bytes(content)
    assert len(LiteRtSession(tmp_path).outputs) == 1
    named = name_tensors(content)
    assert len(named) == len(content)
    assert sum(a != b for a, b in zip(named, content, strict=True)) < 100
    file.write_bytes(named)
    outputs = LiteRtSession(tmp_path).run({"source": np.array([[3, 4]], np.int32)})
    assert {name: value.tolist() for name, value in outputs.items()} == {
        "ids": [[4, 5]], "scores": [3.0],
    }  # fmt: skip
    assert name_tensors(named) == named


def test_a_name_without_room_is_refused():
    with pytest.raises(ValueError, match="names must not be longer.*'scores_scores_sc"):
        name_tensors(converted("scores_" * 6))


def test_batches_of_any_size_follow_each_other(exported):
    session = LiteRtSession(exported)
    rows = np.array([[270, 280, 290, 2], [275, 285, 2, 0], [277, 2, 0, 0]], np.int32)
    together = session.run({"source": rows})
    assert together["ids"].shape[0] == together["scores"].shape[0] == 3
    for i in (2, 0, 1):
        alone = session.run({"source": rows[i : i + 1]})
        length = alone["ids"].shape[1]
        np.testing.assert_array_equal(alone["ids"][0], together["ids"][i, :length])
        assert not together["ids"][i, length:].any()
        np.testing.assert_allclose(alone["scores"][0], together["scores"][i], atol=1e-5)


def test_the_client_translates_as_the_live_translator(exported, server):
    url, shapes = server
    client = load("litert_rest_client").Client(exported, "tiny", url)
    live = [best[0] for best in tiny_run.translator().translate(TEXTS)]
    for batch_size, sizes in ((32, [6]), (4, [4, 2]), (1, [1] * 6)):
        shapes.clear()
        found = client.translate(TEXTS, batch_size)
        assert [text for text, _ in found] == [best.text for best in live]
        np.testing.assert_allclose(
            [score for _, score in found], [best.score for best in live], atol=1e-4
        )
        assert [shape[0] for shape in shapes] == sizes
        assert max(shape[1] for shape in shapes) == 32


def test_a_search_that_finds_nothing_gives_an_empty_translation(exported, monkeypatch):
    client = load("litert_rest_client").Client(exported, "tiny")
    answer = json.loads('{"predictions": [{"ids": [270, 2, 0], "scores": -Infinity}]}')
    monkeypatch.setattr(client, "post", lambda body: answer)
    assert client.translate(["a bear"]) == [("", -math.inf)]
    answer["predictions"][0]["scores"] = -1.5
    assert client.translate(["a bear"]) == [(client.target.decode([270]), -1.5)]


def test_the_client_prints_translations_and_errors_in_one_line(
    exported, server, capsys
):
    url, _ = server
    main = load("litert_rest_client").main
    words = ["--export", str(exported), "--server", url, "--model"]
    main([*words, "tiny", TEXTS[0]])
    ((best,),) = tiny_run.translator().translate(TEXTS[:1])
    assert capsys.readouterr().out == f"{best.score:.3f}  {best.text}\n"
    with pytest.raises(SystemExit, match="huge:predict answered 404: .*not found"):
        main([*words, "huge", "a"])
    words[3] = "http://127.0.0.1:1"
    with pytest.raises(SystemExit, match="error: .*:1/.* gives no answer: .*refused"):
        main([*words, "tiny", "a"])
    words[1] = str(exported.parent)
    with pytest.raises(SystemExit, match=r"error: .*translator.json"):
        main([*words, "tiny", "a"])


def test_the_service_prefers_the_file_on_ports_of_its_own(exported):
    yaml = pytest.importorskip("yaml")
    assert sorted(path.name for path in exported.parent.iterdir()) == [
        "1", "docker-compose.yml", "models.config",
    ]  # fmt: skip
    text = (exported.parent / "docker-compose.yml").read_text("utf-8")
    services = yaml.safe_load(text)["services"]
    assert list(services) == ["serving-litert"]
    service = services["serving-litert"]
    assert service["command"] == [
        "--model_config_file=/models/tiny/models.config", "--prefer_tflite_model=true"
    ]  # fmt: skip
    assert service["ports"] == ["127.0.0.1:8502:8500", "127.0.0.1:8503:8501"]
    assert service["volumes"][0]["target"] == "/models/tiny"
    assert "/v1/models/tiny HTTP/1.0" in service["healthcheck"]["test"][3]
    models = (exported.parent / "models.config").read_text("utf-8")
    assert 'base_path: "/models/tiny"' in models


def test_a_kept_file_without_the_flag_is_warned_of(tmp_path):
    (tmp_path / "tiny").mkdir()
    serving_files.write_serving_files(tmp_path / "tiny" / "1")
    with pytest.warns(UserWarning, match="kept as it is. Add --prefer_tflite_model"):
        written = serving_files.write_litert_serving_files(tmp_path / "tiny" / "2")
    assert written == []
    assert serving_files.write_litert_serving_files(tmp_path / "tiny" / "model") == []


def test_the_command_line_exports_with_smaller_weights(
    tmp_path, tmp_path_factory, capsys
):
    run = tiny_run.run_directory(tmp_path_factory)
    path = tmp_path / "tiny" / "1"
    words = ["export", "--run", str(run), "--output", str(path)]
    words += ["--format", "litert_serving", "--quantize", "int8"]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"{path}\n"
    description = json.loads((path / "translator.json").read_text("utf-8"))
    assert description["format"] == "keras_transformer.litert_serving"
    assert description["quantize"] == "int8"
    assert description["scores"]["epoch"] == 2
    rows = np.array([[270, 280, 2], [275, 2, 0]], np.int32)
    assert np.isfinite(LiteRtSession(path).run({"source": rows})["scores"]).all()
    assert cli.main(words) == 1
    assert "exists. An exported version is never overwritten" in capsys.readouterr().err


def test_it_is_not_taken_for_an_export_for_devices(exported, tmp_path):
    with pytest.raises(ValueError, match="must have the format keras_transformer.lite"):
        LiteTranslator(exported)
    with pytest.raises(ValueError, match="`quantize` must be one of none, float16, in"):
        tiny_run.translator().export_litert_serving(tmp_path / "x" / "1", "int4")
    assert not list(tmp_path.iterdir())
