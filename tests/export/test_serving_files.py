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
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)

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
    files = write_serving_files(versions / "1")
    texts = {file.name: file.read_text("utf-8") for file in files}
    for text in texts.values():
        assert str(versions) not in text and not re.search(r"\$\w", text)
    return texts


def test_files_stand_beside_the_versions_and_stay_as_they_are(tmp_path):
    (tmp_path / "docker-compose.yml").write_text("mine")
    written = [file.name for file in write_serving_files(tmp_path / "1")]
    assert {*written, "docker-compose.yml"} == {*NAMES}
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(NAMES)
    assert write_serving_files(tmp_path / "2") == []
    assert (tmp_path / "docker-compose.yml").read_text() == "mine"


def test_an_export_writes_them(tmp_path_factory):
    path = tiny_run.saved_model(tmp_path_factory)
    assert {file.name for file in path.parent.iterdir()} == {"1", *NAMES}


def test_an_installed_package_has_the_templates():
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg", encoding="utf-8")
    patterns = setup["options.package_data"]["keras_transformer"].split(",")
    package = TEMPLATES.parents[1]
    installed = {path for each in patterns for path in package.glob(each.strip())}
    assert {path.name for path in TEMPLATES.iterdir()} == {*NAMES, "model_card.md"}
    assert set(TEMPLATES.iterdir()) <= installed


def parse(text, fields, *messages):
    """Parses a text as a message, of which tensorflow-serving-api has no class.

    Names and types of `fields` are all that counts; `messages` are those in it.
    """
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="parsed.proto", syntax="proto3", dependency=["wrappers.proto"]
    )
    for name, contents in (*messages, ("Parsed", fields)):
        message = file.message_type.add(name=name)
        for number, (field, of) in enumerate(contents.items(), 1):
            types = {int: kind.TYPE_INT64, bool: kind.TYPE_BOOL, str: kind.TYPE_STRING}
            named = {} if of in types else {"type_name": of}
            message.field.add(
                name=field, number=number, label=kind.LABEL_OPTIONAL,
                type=types.get(of, kind.TYPE_MESSAGE), **named,
            )  # fmt: skip
    wrappers = descriptor_pb2.FileDescriptorProto.FromString(
        wrappers_pb2.DESCRIPTOR.serialized_pb
    )
    wrappers.name = "wrappers.proto"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(wrappers)
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("Parsed")
    return text_format.Parse(text, message_factory.GetMessageClass(descriptor)())


def test_batches_are_as_large_as_every_warmup_request_needs(written):
    names = (
        "max_batch_size", "batch_timeout_micros", "max_enqueued_batches",
        "num_batch_threads",
    )  # fmt: skip
    fields = dict.fromkeys(names, "google.protobuf.Int64Value")
    text = written["batching_parameters.txt"]
    parameters = parse(text, fields | {"pad_variable_length_inputs": bool})
    largest = max(map(len, BATCHES))
    assert largest <= parameters.max_batch_size.value == 32
    assert f"Keep it at {largest} or more" in text
    assert all(getattr(parameters, name).value > 0 for name in names)
    assert not parameters.pad_variable_length_inputs


def test_the_configuration_serves_the_mounted_model(written):
    pytest.importorskip("tensorflow_serving")
    from tensorflow_serving.config import model_server_config_pb2

    config = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(written["models.config"], config)
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == ("EN_de.v2", "/models/EN_de.v2")
    assert model.model_platform == "tensorflow"


def test_prometheus_reads_the_figures_where_the_manifest_says(written):
    prometheus = "PrometheusConfig", {"enable": bool, "path": str}
    fields = {"prometheus_config": "PrometheusConfig"}
    config = parse(written["monitoring.config"], fields, prometheus).prometheus_config
    assert config.enable and config.path == "/monitoring/prometheus/metrics"
    deployment, _ = yaml.safe_load_all(written["kubernetes.yml"])
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == config.path


@pytest.fixture(scope="module")
def service(written):
    (service,) = yaml.safe_load(written["docker-compose.yml"])["services"].values()
    return service


def test_the_container_serves_this_machine_alone_from_a_read_only_mount(service):
    assert service["image"] == "tensorflow/serving:2.20.0"
    assert service["ports"] == ["127.0.0.1:8500:8500", "127.0.0.1:8501:8501"]
    (volume,) = service["volumes"]
    assert volume == {
        "type": "bind", "source": ".", "target": "/models/EN_de.v2", "read_only": True
    }  # fmt: skip
    # Without it `docker compose stop` waits ten seconds, and then kills.
    assert service["init"] is True
    assert service["command"] == [
        "--model_config_file=/models/EN_de.v2/models.config",
        "--enable_batching",
        "--batching_parameters_file=/models/EN_de.v2/batching_parameters.txt",
        "--monitoring_config_file=/models/EN_de.v2/monitoring.config",
    ]


def test_the_second_file_adds_a_gpu_to_the_same_service(written, service):
    (gpu,) = yaml.safe_load(written["docker-compose.gpu.yml"])["services"].values()
    assert "\n  serving:\n" in written["docker-compose.yml"]
    assert "\n  serving:\n" in written["docker-compose.gpu.yml"]
    assert gpu["image"] == f"{service['image']}-gpu"
    assert gpu["environment"] == {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


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
    assert ports == {"grpc": 8500, "rest": 8501}
    assert {p["targetPort"]: p["port"] for p in service["spec"]["ports"]} == ports


def test_a_pod_runs_the_server_of_the_compose_file(container, service):
    assert container["image"] == service["image"]
    assert container["command"] == ["tensorflow_model_server"]
    # What the image's shell adds, and the threads, of which a limit tells nothing.
    assert set(container["args"]) - set(service["command"]) == {
        "--port=8500", "--rest_api_port=8501", "--tensorflow_session_parallelism=4"
    }  # fmt: skip
    assert set(service["command"]) <= set(container["args"])
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == service["volumes"][0]["target"]
    assert mount["readOnly"]
    assert container["resources"]["limits"] == {"cpu": "4"}


def test_probes_ask_for_the_model_and_a_stop_lets_requests_end(objects, container):
    for probe in ("startupProbe", "readinessProbe"):
        get = container[probe]["httpGet"]
        assert get == {"path": "/v1/models/EN_de.v2", "port": "rest"}
    # A busy server answers late, and must not be started anew for that.
    assert container["livenessProbe"]["tcpSocket"] == {"port": "rest"}
    pod = objects[0]["spec"]["template"]["spec"]
    assert pod["shareProcessNamespace"] is True
    seconds = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert 30 < seconds < pod["terminationGracePeriodSeconds"]
