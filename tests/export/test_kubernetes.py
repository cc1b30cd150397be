"""The manifest for Kubernetes that an export writes."""

from __future__ import annotations

import re

import pytest

from keras_transformer.export.compose import IMAGE, XLA_FLAG, compose_file
from keras_transformer.export.kubernetes import manifest, object_name
from keras_transformer.export.sizing import MIB, ServerMemory

yaml = pytest.importorskip("yaml")

MEMORY = ServerMemory(
    version=100 * MIB, usual_batch=30 * MIB, longest_batch=500 * MIB, longest_text=256
)


@pytest.fixture(params=[False, True], ids=["plain", "xla"])
def jit_compile(request):
    return request.param


@pytest.fixture
def objects(jit_compile):
    """The Deployment and the Service of a model with an odd name."""
    return list(yaml.safe_load_all(manifest("EN_de.v2", jit_compile, MEMORY)))


@pytest.fixture
def container(objects):
    (container,) = objects[0]["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("memory", [MEMORY, None], ids=["memory", "unknown"])
def test_it_follows_the_schema_of_kubernetes(jit_compile, memory):
    validate = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all(manifest("en-de", jit_compile, memory)):
        validate.validate(document, "1.33", strict=True)
        document["spec"]["selectr"] = {}
        with pytest.raises(validate.ValidationError, match="selectr"):
            validate.validate(document, "1.33", strict=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("en-de", "translator-en-de"),
        ("EN_de.v2", "translator-en-de-v2"),
        ("x-", "translator-x"),
        ("n" * 99, "translator-" + "n" * 52),
    ],
)
def test_objects_have_names_that_a_service_may_have(name, expected):
    assert object_name(name) == expected
    assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", expected)


def test_the_claim_of_the_comment_is_the_one_that_the_pods_want(objects):
    text = manifest("EN_de.v2", False, MEMORY)
    lines = re.findall("^#     (.*)$", text, re.MULTILINE)
    claim = yaml.safe_load("\n".join(lines))
    (volume,) = objects[0]["spec"]["template"]["spec"]["volumes"]
    wanted = volume["persistentVolumeClaim"]["claimName"]
    assert claim["metadata"] == {"name": wanted}
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(claim, "1.33", strict=True)


def test_the_service_finds_the_pods_and_their_ports(objects, container):
    deployment, service = objects
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": 8500, "rest": 8501}
    assert {p["targetPort"]: p["port"] for p in service["spec"]["ports"]} == ports


def test_it_starts_the_server_of_the_compose_file(container, jit_compile):
    (service,) = yaml.safe_load(compose_file("EN_de.v2", jit_compile, None))[
        "services"
    ].values()
    assert container["image"] == service["image"] == IMAGE
    assert container["command"] == ["tensorflow_model_server"]
    arguments = set(container["args"])
    # What the image's shell adds, and the threads, of which a limit tells nothing.
    assert arguments - set(service["command"]) == {
        "--port=8500", "--rest_api_port=8501", "--tensorflow_session_parallelism=4"
    }  # fmt: skip
    assert set(service["command"]) <= arguments
    assert (XLA_FLAG in arguments) == jit_compile
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == service["volumes"][0]["target"]
    assert mount["readOnly"]


def test_the_probes_ask_for_the_model_by_its_name(container):
    for probe in ("startupProbe", "readinessProbe"):
        get = container[probe]["httpGet"]
        assert get == {"path": "/v1/models/EN_de.v2", "port": "rest"}
    # A busy server answers late, and must not be started anew for that.
    assert container["livenessProbe"]["tcpSocket"] == {"port": "rest"}


def test_a_pod_that_stops_lets_running_requests_end(objects, container):
    pod = objects[0]["spec"]["template"]["spec"]
    assert pod["shareProcessNamespace"] is True
    seconds = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert 30 < seconds < pod["terminationGracePeriodSeconds"]


def test_memory_is_that_of_sentences_and_at_most_that_of_the_longest(container):
    assert container["resources"] == {
        "requests": {"cpu": "1", "memory": f"{MEMORY.usual // MIB}Mi"},
        "limits": {"cpu": "4", "memory": f"{MEMORY.most // MIB}Mi"},
    }
    plain, _ = yaml.safe_load_all(manifest("en-de", False, None))
    (container,) = plain["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}
