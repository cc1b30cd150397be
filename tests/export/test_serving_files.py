"""The configuration files that an export writes for TensorFlow Serving."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import threading

import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)

from keras_transformer.export import warmup_requests
from keras_transformer.export.compose import XLA_FLAG
from keras_transformer.export.serving_files import model_name, write_serving_files
from keras_transformer.export.sizing import MIB, ServerMemory
from tests import tiny_run

# Beside the versions.
NAMES = [
    "batching_parameters.txt", "docker-compose.gpu.yml", "docker-compose.yml",
    "kubernetes.yml", "models.config", "monitoring.config",
]  # fmt: skip
MEMORY = ServerMemory(
    version=100 * MIB, usual_batch=30 * MIB, longest_batch=500 * MIB, longest_text=256
)


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


def batching_parameters(text):
    """Parses session_bundle_config.proto's BatchingParameters, of TensorFlow Serving.

    tensorflow-serving-api has no classes of it; names and types are all that counts.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="batching.proto", syntax="proto3", dependency=["wrappers.proto"]
    )
    message = file.message_type.add(name="BatchingParameters")
    kind = descriptor_pb2.FieldDescriptorProto
    for number, field in enumerate(
        ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches",
         "num_batch_threads"), 1,
    ):  # fmt: skip
        message.field.add(
            name=field, number=number, label=kind.LABEL_OPTIONAL,
            type=kind.TYPE_MESSAGE, type_name="google.protobuf.Int64Value",
        )  # fmt: skip
    message.field.add(
        name="allowed_batch_sizes", number=6, label=kind.LABEL_REPEATED,
        type=kind.TYPE_INT64,
    )  # fmt: skip
    message.field.add(
        name="pad_variable_length_inputs", number=7, label=kind.LABEL_OPTIONAL,
        type=kind.TYPE_BOOL,
    )  # fmt: skip
    wrappers = descriptor_pb2.FileDescriptorProto.FromString(
        wrappers_pb2.DESCRIPTOR.serialized_pb
    )
    wrappers.name = "wrappers.proto"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(wrappers)
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("BatchingParameters")
    return text_format.Parse(text, message_factory.GetMessageClass(descriptor)())


@pytest.fixture(params=[False, True], ids=["plain", "xla"])
def jit_compile(request):
    return request.param


@pytest.fixture
def written(tmp_path, jit_compile):
    """The texts of the serving files of tiny/1, by file name."""
    (tmp_path / "tiny" / "1").mkdir(parents=True)
    files = write_serving_files(tmp_path / "tiny" / "1", jit_compile, MEMORY)
    return {file.name: file.read_text("utf-8") for file in files}


def test_the_files_stand_beside_the_versions(tmp_path, written):
    assert sorted(written) == NAMES
    found = sorted(file.name for file in (tmp_path / "tiny").iterdir())
    assert found == ["1", *NAMES]


def test_no_file_names_this_machine(tmp_path, written):
    for text in written.values():
        assert str(tmp_path) not in text
        # Unlike those of YAML and of a text proto, a field that was left unfilled has
        # no space in its braces.
        assert not re.search(r"\{\{|\{[^\s{}]*\}", text)


def test_the_configuration_serves_the_mounted_model(written):
    pytest.importorskip("tensorflow_serving")
    from tensorflow_serving.config import model_server_config_pb2

    config = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(written["models.config"], config)
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == ("tiny", "/models/tiny")
    assert model.model_platform == "tensorflow"


def test_batches_are_as_large_as_every_warmup_request_needs(written, jit_compile):
    parameters = batching_parameters(written["batching_parameters.txt"])
    largest = max(map(len, warmup_requests._warmup_batches(jit_compile)))
    assert largest <= parameters.max_batch_size.value == 32
    assert f"Keep it at {largest} or more" in written["batching_parameters.txt"]
    assert parameters.batch_timeout_micros.value > 0
    assert parameters.max_enqueued_batches.value > 0
    assert parameters.num_batch_threads.value > 0
    assert not parameters.pad_variable_length_inputs


def test_only_xla_limits_the_batch_sizes(written, jit_compile):
    """TensorFlow Serving wants them to increase and to end with max_batch_size."""
    parameters = batching_parameters(written["batching_parameters.txt"])
    sizes = list(parameters.allowed_batch_sizes)
    assert sizes == ([1, 2, 4, 8, 16, 32] if jit_compile else [])


def compose_service(text):
    yaml = pytest.importorskip("yaml")
    (service,) = yaml.safe_load(text)["services"].values()
    return service


def test_the_container_serves_this_machine_alone_from_a_read_only_mount(written):
    service = compose_service(written["docker-compose.yml"])
    assert service["image"] == "tensorflow/serving:2.20.0"
    assert service["ports"] == ["127.0.0.1:8500:8500", "127.0.0.1:8501:8501"]
    (volume,) = service["volumes"]
    assert volume == {
        "type": "bind", "source": ".", "target": "/models/tiny", "read_only": True
    }  # fmt: skip
    # Without it `docker compose stop` waits ten seconds, and then kills.
    assert service["init"] is True


def test_the_command_names_the_files_and_xla_where_it_is_needed(written, jit_compile):
    command = compose_service(written["docker-compose.yml"])["command"]
    assert command == [
        "--model_config_file=/models/tiny/models.config",
        "--enable_batching",
        "--batching_parameters_file=/models/tiny/batching_parameters.txt",
        "--monitoring_config_file=/models/tiny/monitoring.config",
        *([XLA_FLAG] if jit_compile else []),
    ]
    assert (XLA_FLAG in written["docker-compose.yml"]) == jit_compile


def monitoring_config(text):
    """Parses monitoring_config.proto's MonitoringConfig, of TensorFlow Serving.

    tensorflow-serving-api has no classes of it either.
    """
    file = descriptor_pb2.FileDescriptorProto(name="monitoring.proto", syntax="proto3")
    kind = descriptor_pb2.FieldDescriptorProto
    prometheus = file.message_type.add(name="PrometheusConfig")
    types = {"enable": kind.TYPE_BOOL, "path": kind.TYPE_STRING}
    for number, field in enumerate(types, 1):
        prometheus.field.add(
            name=field, number=number, label=kind.LABEL_OPTIONAL, type=types[field]
        )
    file.message_type.add(name="MonitoringConfig").field.add(
        name="prometheus_config", number=1, label=kind.LABEL_OPTIONAL,
        type=kind.TYPE_MESSAGE, type_name="PrometheusConfig",
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("MonitoringConfig")
    return text_format.Parse(text, message_factory.GetMessageClass(descriptor)())


def test_prometheus_reads_the_figures_where_the_manifest_says(written):
    yaml = pytest.importorskip("yaml")
    config = monitoring_config(written["monitoring.config"])
    assert config.prometheus_config.enable
    assert config.prometheus_config.path == "/monitoring/prometheus/metrics"
    deployment, _ = yaml.safe_load_all(written["kubernetes.yml"])
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == config.prometheus_config.path


def test_the_container_has_the_memory_of_the_longest_texts(tmp_path, written):
    limits = compose_service(written["docker-compose.yml"])["deploy"]["resources"]
    assert limits == {"limits": {"memory": f"{MEMORY.most // MIB}M"}}
    assert (
        "4 batches of 32 texts of 256 tokens, 500 each" in written["docker-compose.yml"]
    )
    (tmp_path / "other").mkdir()
    write_serving_files(tmp_path / "other" / "1")
    text = (tmp_path / "other" / "docker-compose.yml").read_text("utf-8")
    assert "deploy" not in compose_service(text)


def test_the_second_file_adds_a_gpu_to_the_same_service(written):
    yaml = pytest.importorskip("yaml")
    both = [
        yaml.safe_load(written[f"docker-compose{part}.yml"])["services"]
        for part in ("", ".gpu")
    ]
    assert both[0].keys() == both[1].keys()
    service = both[1]["serving"]
    assert service["image"] == f"{both[0]['serving']['image']}-gpu"
    assert service["environment"] == {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


class ModelStatus(http.server.BaseHTTPRequestHandler):
    """Answers the health check as TensorFlow Serving answers /v1/models/tiny."""

    state = "AVAILABLE"

    def do_GET(self):
        assert self.path == "/v1/models/tiny"
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
def test_the_health_check_tells_a_loaded_model(written, state, code):
    check = compose_service(written["docker-compose.yml"])["healthcheck"]["test"]
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


def test_files_that_are_there_stay_as_they_are(tmp_path):
    (tmp_path / "docker-compose.yml").write_text("mine")
    written = [file.name for file in write_serving_files(tmp_path / "1")]
    assert sorted(written) == [name for name in NAMES if name != "docker-compose.yml"]
    assert write_serving_files(tmp_path / "2") == []
    assert (tmp_path / "docker-compose.yml").read_text() == "mine"


def test_xla_replaces_what_a_plain_export_wrote_and_a_plain_one_keeps_it(tmp_path):
    smaller = MEMORY._replace(version=99 * MIB, usual_batch=29 * MIB)
    write_serving_files(tmp_path / "1", memory=smaller)
    (tmp_path / "batching_parameters.txt").write_text("max_batch_size { value: 64 }")
    written = write_serving_files(tmp_path / "2", jit_compile=True, memory=MEMORY)
    needing = ["docker-compose.yml", "kubernetes.yml"]
    assert [file.name for file in written] == needing
    for file in written:
        assert XLA_FLAG in file.read_text()
        assert f"memory: {MEMORY.most // MIB}M" in file.read_text()
    assert write_serving_files(tmp_path / "3", memory=MEMORY) == []
    assert write_serving_files(tmp_path / "4", jit_compile=True, memory=MEMORY) == []
    assert all(XLA_FLAG in file.read_text() for file in written)


def test_a_kept_file_without_the_flag_that_xla_needs_is_warned_of(tmp_path):
    write_serving_files(tmp_path / "1")
    for name in ("docker-compose.yml", "kubernetes.yml"):
        file = tmp_path / name
        file.write_text(file.read_text().replace("8501", "8601"))
    with pytest.warns(UserWarning, match="as it is") as warned:
        write_serving_files(tmp_path / "2", jit_compile=True)
    compose, manifest = (str(warning.message) for warning in warned)
    assert f"docker-compose.yml is kept as it is. Add {XLA_FLAG}" in compose
    assert f"kubernetes.yml is kept as it is. Add {XLA_FLAG}" in manifest


def test_a_kept_file_with_too_little_memory_is_warned_of(tmp_path):
    write_serving_files(tmp_path / "1", memory=MEMORY)
    more = MEMORY._replace(longest_batch=900 * MIB)
    with pytest.warns(UserWarning, match="as it is") as warned:
        assert write_serving_files(tmp_path / "2", memory=more) == []
    assert len(warned) == 2
    for warning in warned:
        assert f"`memory: {MEMORY.most // MIB}M`" in str(warning.message)
        assert f"may need {more.most // MIB}: raise it" in str(warning.message)
    less = MEMORY._replace(longest_batch=100 * MIB)
    assert write_serving_files(tmp_path / "3", memory=less) == []


def test_a_path_that_a_server_would_not_find_gets_no_files(tmp_path):
    assert write_serving_files(tmp_path / "model") == []
    assert not list(tmp_path.iterdir())


def test_an_export_writes_them(tmp_path_factory):
    path = tiny_run.saved_model(tmp_path_factory)
    assert sorted(file.name for file in path.parent.iterdir()) == ["1", *NAMES]
