"""The configuration files that an export writes for TensorFlow Serving."""

from __future__ import annotations

import configparser
import http.server
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from google.protobuf import text_format

from keras_transformer.export import web
from keras_transformer.export.serving_files import (
    BATCHES,
    NAMES,
    TEMPLATES,
    model_name,
    write_serving_files,
)
from tests import tiny_run

yaml = pytest.importorskip("yaml")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("saved_models/en-de/1", "en-de"),
        ("saved_models/../de.v2/3/", "de.v2"),
        ('odd "$na/mes: $x\n"/1', "mes-x-"),
        ("/1", "model"),
    ],
)
def test_the_model_is_named_after_its_directory(path, name):
    assert model_name(path) == name


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


def test_files_stand_beside_the_versions_and_stay_as_they_are(tmp_path):
    (tmp_path / "docker-compose.yml").write_text("mine")
    write_serving_files(tmp_path / "1")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(NAMES)
    (tmp_path / "models.config").write_text("mine")
    write_serving_files(tmp_path / "2")
    for name in ("docker-compose.yml", "models.config"):
        assert (tmp_path / name).read_text() == "mine"


def test_an_export_writes_them(tmp_path_factory):
    path = tiny_run.saved_model(tmp_path_factory)
    assert {file.name for file in path.parent.iterdir()} == {"1", *NAMES}


def test_an_installed_package_has_the_templates_and_the_page():
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg", encoding="utf-8")
    patterns = setup["options.package_data"]["keras_transformer"].split(",")
    package = TEMPLATES.parents[1]
    installed = {path for each in patterns for path in package.glob(each.strip())}
    assert {path.name for path in TEMPLATES.iterdir()} == {*NAMES, "model_card.md"}
    assert {*TEMPLATES.iterdir(), *web.PAGE.iterdir()} <= installed


def test_batches_are_as_large_as_every_warmup_request_needs(written):
    text = written["batching_parameters.txt"]
    values = {k: int(v) for k, v in re.findall(r"(\w+) \{ value: (\d+) \}", text)}
    largest = max(map(len, BATCHES))
    assert largest <= values["max_batch_size"] == 32
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


def test_prometheus_reads_the_figures_where_the_manifest_says(written):
    (path,) = re.findall(r'path: "(.*)"', written["monitoring.config"])
    deployment, _ = yaml.safe_load_all(written["kubernetes.yml"])
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == path


@pytest.fixture(scope="module")
def service(written):
    (service,) = yaml.safe_load(written["docker-compose.yml"])["services"].values()
    return service


class ModelStatus(http.server.BaseHTTPRequestHandler):
    """Answers the health check as TensorFlow Serving answers /v1/models/NAME."""

    state = "AVAILABLE"

    def do_GET(self):
        assert self.path == "/v1/models/EN_de.v2"
        status = {"error_code": "UNAVAILABLE" if self.state == "END" else "OK"}
        version = {"version": "1", "state": self.state, "status": status}
        status = {"model_version_status": [version]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(status).encode("utf-8"))

    def log_message(self, *_):
        pass


@pytest.mark.skipif(shutil.which("bash") is None, reason="the image has bash")
@pytest.mark.parametrize(
    ("state", "code"), [("AVAILABLE", 0), ("LOADING", 1), ("END", 1)]
)
def test_the_health_check_tells_a_loaded_model(service, state, code):
    check = service["healthcheck"]["test"]
    assert check[0] == "CMD"
    handler = type("Handler", (ModelStatus,), {"state": state})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = check[3].replace("/8501", f"/{server.server_port}")
        done = subprocess.run([*check[1:3], command], check=False, timeout=20)
        server.shutdown()
    assert done.returncode == code
    gone = subprocess.run([*check[1:3], command], capture_output=True, check=False)
    assert gone.returncode != 0


@pytest.fixture(scope="module")
def objects(written):
    """The Deployment and the Service of Kubernetes."""
    return list(yaml.safe_load_all(written["kubernetes.yml"]))


@pytest.fixture(scope="module")
def container(objects):
    (container,) = objects[0]["spec"]["template"]["spec"]["containers"]
    return container


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("en-de", "translator-en-de"),
        ("EN_de.v2", "translator-en-de-v2"),
        ("x-", "translator-x"),
        ("n" * 99, "translator-" + "n" * 52),
    ],
)
def test_objects_have_names_that_a_service_may_have(name, expected, tmp_path):
    (tmp_path / name).mkdir()
    write_serving_files(tmp_path / name / "1")
    text = (tmp_path / name / "kubernetes.yml").read_text("utf-8")
    found = [each["metadata"]["name"] for each in yaml.safe_load_all(text)]
    assert found == [expected, expected]
    assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", expected)


def test_the_service_finds_the_pods_and_their_ports(objects, container):
    deployment, service = objects
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {p["targetPort"]: p["port"] for p in service["spec"]["ports"]} == ports
    pod = deployment["spec"]["template"]["spec"]
    seconds = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert 30 < seconds < pod["terminationGracePeriodSeconds"]


def test_container_and_pod_run_one_server_that_other_machines_cannot_reach(
    written, container, service
):
    assert container["image"] == service["image"]
    assert set(service["command"]) <= set(container["args"])
    (mount,), (volume,) = container["volumeMounts"], service["volumes"]
    assert mount["mountPath"] == volume["target"] == "/models/EN_de.v2"
    assert mount["readOnly"] and volume["read_only"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    files = re.findall(r"=/models/EN_de.v2/(\S+)", "\n".join(service["command"]))
    assert set(files) == written.keys() - {
        "docker-compose.yml", "docker-compose.gpu.yml", "kubernetes.yml"
    }  # fmt: skip
    (gpu,) = yaml.safe_load(written["docker-compose.gpu.yml"])["services"].values()
    assert gpu["image"] == f"{service['image']}-gpu"
