"""What an export writes for TensorFlow Serving: its options, warm-up requests."""

import http.server
import json
import re
import shutil
import subprocess
import threading

import pytest
import tensorflow as tf
from google.protobuf import text_format

from keras_transformer.apps.serving.rest_app import SECONDS
from keras_transformer.apps.serving.served_model import most_rows
from keras_transformer.formats.model_card import model_name
from keras_transformer.formats.saved_model import (
    BATCHES,
    NAMES,
    write_serving_files,
    write_warmup_requests,
)
from keras_transformer.search.strings import SIGNATURES

yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The texts of the files of a model with an odd name, by file name."""
    versions = tmp_path_factory.mktemp("models") / "EN_de.v2"
    versions.mkdir()
    write_serving_files(versions / "1")
    texts = {file.name: file.read_text("utf-8") for file in versions.iterdir()}
    for text in texts.values():
        assert str(versions) not in text and not re.search(r"\$\w", text)
    return texts


@pytest.fixture(scope="module")
def service(written):
    (service,) = yaml.safe_load(written["docker-compose.yml"])["services"].values()
    return service


@pytest.fixture(scope="module")
def objects(written):
    """The Deployment and the Service of Kubernetes."""
    return list(yaml.safe_load_all(written["kubernetes.yml"]))


def test_files_stand_beside_the_versions_and_stay_as_they_are(tmp_path):
    (tmp_path / "docker-compose.yml").write_text("mine")
    write_serving_files(tmp_path / "1")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(NAMES)
    (tmp_path / "models.config").write_text("mine")
    write_serving_files(tmp_path / "2")
    for name in ("docker-compose.yml", "models.config"):
        assert (tmp_path / name).read_text() == "mine"


def test_the_model_and_its_objects_are_named_after_its_directory(tmp_path):
    for path, name in (
        ("saved_models/en-de/1", "en-de"),
        ("saved_models/../de.v2/3/", "de.v2"),
        ('odd "$na/mes: $x\n"/1', "mes-x-"),
        ("/1", "model"),
    ):
        assert model_name(path) == name
    for name, expected in {
        "en-de": "translator-en-de",
        "EN_de.v2": "translator-en-de-v2",
        "x-": "translator-x",
        "n" * 99: "translator-" + "n" * 52,
    }.items():
        (tmp_path / name).mkdir()
        write_serving_files(tmp_path / name / "1")
        text = (tmp_path / name / "kubernetes.yml").read_text("utf-8")
        found = [each["metadata"]["name"] for each in yaml.safe_load_all(text)]
        assert found == [expected, expected]
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", expected)


def test_batches_are_as_large_as_every_warmup_request_needs(written, tmp_path):
    text = written["batching_parameters.txt"]
    values = {k: int(v) for k, v in re.findall(r"(\w+) \{ value: (\d+) \}", text)}
    largest = max(map(len, BATCHES))
    assert largest <= values["max_batch_size"] == 32
    (tmp_path / "batching_parameters.txt").write_text(text, encoding="utf-8")
    assert most_rows(tmp_path) == 32
    assert f"Keep it at {largest} or more" in text
    assert len(values) == 4 and all(value > 0 for value in values.values())
    assert "pad_variable_length_inputs: false" in text


def test_the_configuration_serves_the_mounted_model(written):
    pytest.importorskip("tensorflow_serving")
    from tensorflow_serving.config import model_server_config_pb2

    config = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(written["models.config"], config)
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == ("EN_de.v2", "/models/EN_de.v2")
    assert model.model_platform == "tensorflow"


class ModelStatus(http.server.BaseHTTPRequestHandler):
    """Answers the health check as TensorFlow Serving answers /v1/models/NAME."""

    state = "AVAILABLE"

    def do_GET(self):
        assert self.path == "/v1/models/EN_de.v2"
        status = {"error_code": "UNAVAILABLE" if self.state == "END" else "OK"}
        version = {"version": "1", "state": self.state, "status": status}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"model_version_status": [version]}).encode())

    def log_message(self, *_):
        pass


@pytest.mark.skipif(shutil.which("bash") is None, reason="the image has bash")
def test_the_health_check_tells_a_loaded_model(service):
    start, *check = service["healthcheck"]["test"]
    assert start == "CMD"
    for state, code in (("AVAILABLE", 0), ("LOADING", 1), ("END", 1)):
        handler = type("Handler", (ModelStatus,), {"state": state})
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            command = check[2].replace("/8501", f"/{server.server_port}")
            done = subprocess.run([*check[:2], command], check=False, timeout=20)
            server.shutdown()
        assert done.returncode == code
        gone = subprocess.run([*check[:2], command], capture_output=True, check=False)
        assert gone.returncode != 0


def test_the_manifest_follows_the_schema_of_kubernetes(written, objects):
    validate = pytest.importorskip("kubernetes_validate")
    lines = re.findall("^#     (.*)$", written["kubernetes.yml"], re.MULTILINE)
    claim = yaml.safe_load("\n".join(lines))  # The one of the comment.
    (volume,) = objects[0]["spec"]["template"]["spec"]["volumes"]
    assert claim["metadata"]["name"] == volume["persistentVolumeClaim"]["claimName"]
    for document in (*objects, claim):
        validate.validate(document, "1.33", strict=True)
        with pytest.raises(validate.ValidationError, match="selectr"):
            wrong = {**document, "spec": {**document["spec"], "selectr": {}}}
            validate.validate(wrong, "1.33", strict=True)


def test_container_and_pod_run_one_server_that_other_machines_cannot_reach(
    written, objects, service
):
    deployment, of_pods = objects
    template = deployment["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    (container,) = pod["containers"]
    # The service finds the pods and their ports.
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert of_pods["spec"]["selector"] == labels
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {p["targetPort"]: p["port"] for p in of_pods["spec"]["ports"]} == ports
    seconds = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert SECONDS < seconds < pod["terminationGracePeriodSeconds"]
    assert f"--rest_api_timeout_in_ms={SECONDS * 1000:.0f}" in service["command"]
    # Prometheus reads the figures where the manifest says.
    (path,) = re.findall(r'path: "(.*)"', written["monitoring.config"])
    assert template["metadata"]["annotations"]["prometheus.io/path"] == path
    # Docker and Kubernetes run the same.
    assert container["image"] == service["image"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert service["environment"] == variables == {"TF_ENABLE_ONEDNN_OPTS": "1"}
    assert set(service["command"]) <= set(container["args"])
    (mount,), (volume,) = container["volumeMounts"], service["volumes"]
    assert mount["mountPath"] == volume["target"] == "/models/EN_de.v2"
    assert mount["readOnly"] and volume["read_only"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    files = re.findall(r"=/models/EN_de.v2/(\S+)", "\n".join(service["command"]))
    others = {"docker-compose.yml", "docker-compose.gpu.yml", "kubernetes.yml"}
    assert set(files) == written.keys() - others
    (gpu,) = yaml.safe_load(written["docker-compose.gpu.yml"])["services"].values()
    assert gpu["image"] == f"{service['image']}-gpu"


# Warm-up requests.

REQUESTS = "assets.extra/tf_serving_warmup_requests"


def read_requests(file):
    """The PredictRequests of a warm-up file."""
    pytest.importorskip("tensorflow_serving")
    from tensorflow_serving.apis import prediction_log_pb2

    requests = []
    for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        # No field is unknown to the real classes.
        log.DiscardUnknownFields()
        assert len(log.SerializeToString()) == len(record)
        requests.append(log.predict_log.request)
    return requests


def test_every_signature_is_warmed_up_alone_and_in_a_batch(saved_model):
    """By the loaded model; sentences have several lengths, and numbers are 1."""
    assert {path.name for path in saved_model.parent.iterdir()} == {"1", *NAMES}
    signatures, sizes = tf.saved_model.load(str(saved_model)).signatures, {}
    lengths = set()
    for request in read_requests(saved_model / REQUESTS):
        assert request.model_spec.name == "tiny"
        name = request.model_spec.signature_name
        arrays = {n: tf.make_ndarray(tensor) for n, tensor in request.inputs.items()}
        inputs = {n: tf.constant(array) for n, array in arrays.items()}
        specs = signatures[name].structured_input_signature[1]
        types = {n: spec.dtype for n, spec in specs.items()}
        assert {n: tensor.dtype for n, tensor in inputs.items()} == types
        texts = arrays["source" if "source" in arrays else "text"]
        assert all(len(text) > 5 for text in texts)
        outputs = signatures[name](**inputs)
        (size,) = {len(values) for values in (*inputs.values(), *outputs.values())}
        sizes.setdefault(name, []).append(size)
        if size == 1:
            lengths.add(len(texts[0].split()))
        for number in ("temperature", "seed") if name == "sample" else ():
            assert (arrays[number] == 1).all()
    assert sizes == dict.fromkeys(SIGNATURES, [1, 1, 1, 8])
    assert min(lengths) <= 3 < 10 < max(lengths)


def test_names_of_any_length_are_written_as_protocol_buffers(tmp_path):
    """A length takes one byte more at 128, 128^2 and 128^3."""
    spec = tf.TensorSpec([None], tf.string, name="text")
    function = tf.function(lambda text: text, input_signature=[spec])
    function = function.get_concrete_function()
    for length in (1, 127, 128, 129, 16_383, 16_384, 2_097_152):
        name, signature = "n" * length, "s" * length
        write_warmup_requests(tmp_path, name, {signature: function})
        model_spec = read_requests(tmp_path / REQUESTS)[0].model_spec
        assert (model_spec.name, model_spec.signature_name) == (name, signature)
