"""Versions: found, loaded, served, dropped."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import threading
import weakref

import pytest

from keras_transformer.serving import versions as versions_module
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.versions import ModelVersions, check_directory


class Model:
    """What the tests load: the text of the version's file."""

    def __init__(self, path):
        self.text = (path / "model").read_text()
        if self.text == "bad":
            raise ValueError("a bad model")


def write(directory, name, text="good"):
    (directory / str(name)).mkdir(parents=True, exist_ok=True)
    (directory / str(name) / "model").write_text(text)


@pytest.fixture
def directory(tmp_path):
    write(tmp_path / "m", 1, "one")
    return tmp_path / "m"


@pytest.fixture
def versions(directory):
    versions = ModelVersions(directory, Model)
    asyncio.run(versions.load_first())
    return versions


def states(versions):
    return {
        int(status["version"]): status["state"]
        for status in versions.status("m", None)["model_version_status"]
    }


def served(versions):
    with versions.lease("m", None) as (number, model):
        return number, model.text


def test_the_highest_version_is_loaded_first(directory):
    write(directory, 9, "nine")
    write(directory, 10, "ten")
    versions = ModelVersions(directory, Model)
    asyncio.run(versions.load_first())
    assert served(versions) == (10, "ten")
    assert states(versions) == {10: "AVAILABLE"}


def test_a_new_version_takes_over(versions, directory):
    write(directory, 2, "two")
    asyncio.run(versions.poll())
    assert served(versions) == (2, "two")
    assert states(versions) == {2: "AVAILABLE", 1: "END"}
    assert list(states(versions)) == [2, 1]


def test_the_old_version_is_dropped_after_its_last_request(versions, directory):
    with versions.lease("m", 1) as (_, model):
        write(directory, 2, "two")
        asyncio.run(versions.poll())
        assert states(versions)[1] == "UNLOADING"
        assert served(versions) == (2, "two")
        with pytest.raises(RequestError, match=r"Specific\(m, 1\)"):
            versions.lease("m", 1).__enter__()
        assert model.text == "one"
        dropped = weakref.ref(model)
    del model
    assert states(versions)[1] == "END"
    asyncio.run(versions.poll())
    assert dropped() is None


def test_cycles_of_a_dropped_version_are_collected(directory):
    def load(path):
        model = Model(path)
        model.cycle = model
        return model

    versions = ModelVersions(directory, load)
    asyncio.run(versions.load_first())
    with versions.lease("m", None) as (_, model):
        dropped = weakref.ref(model)
    del model
    write(directory, 2)
    gc.disable()
    try:
        asyncio.run(versions.poll())
        assert dropped() is not None
        asyncio.run(versions.poll())
        assert dropped() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "name", ["2.partial", ".2-ab.partial", "v2", "-2", "2.0", "\u0662", str(2**63)]
)
def test_other_names_are_passed_over(versions, directory, name):
    write(directory, name)
    asyncio.run(versions.poll())
    assert states(versions) == {1: "AVAILABLE"}


def test_a_file_with_a_number_as_its_name_is_passed_over(versions, directory):
    (directory / "2").write_text("")
    asyncio.run(versions.poll())
    assert states(versions) == {1: "AVAILABLE"}


def test_a_version_that_does_not_load_is_told_and_disturbs_nothing(versions, directory):
    write(directory, 2, "bad")
    for _ in range(2):
        asyncio.run(versions.poll())
        assert served(versions) == (1, "one")
    [status] = versions.status("m", 2)["model_version_status"]
    assert status == {
        "version": "2",
        "state": "END",
        "status": {"error_code": "UNKNOWN", "error_message": "a bad model"},
    }


def test_a_version_that_did_not_load_is_tried_again_when_its_files_change(
    versions, directory
):
    calls = []
    load = versions._load
    versions._load = lambda path: (calls.append(path.name), load(path))[1]
    write(directory, 2, "bad")
    for _ in range(3):
        asyncio.run(versions.poll())
    assert calls == ["2"]
    write(directory, 2, "mended")
    asyncio.run(versions.poll())
    assert served(versions) == (2, "mended")


@pytest.mark.parametrize("where", ["", "variables"])
def test_a_version_with_a_named_pipe_does_not_load(versions, directory, where):
    (directory / "2" / where).mkdir(parents=True)
    os.mkfifo(directory / "2" / where / "model")
    asyncio.run(versions.poll())
    write(directory, 3, "three")
    asyncio.run(versions.poll())
    assert served(versions) == (3, "three")
    [status] = versions.status("m", 2)["model_version_status"]
    assert status["state"] == "END"
    message = status["status"]["error_message"]
    assert message.endswith("model is neither a file nor a directory")


def test_at_the_start_a_version_with_a_named_pipe_is_stepped_over(directory):
    (directory / "2").mkdir()
    os.mkfifo(directory / "2" / "model")
    versions = ModelVersions(directory, Model)
    asyncio.run(versions.load_first())
    assert served(versions) == (1, "one")


class Stuck:
    """Loads as `Model` does, but 2 only when `gate` is set."""

    def __init__(self):
        self.gate = threading.Event()

    def __call__(self, path):
        if path.name == "2":
            assert self.gate.wait(60)
        return Model(path)


@pytest.fixture
def stuck(directory, monkeypatch):
    """Versions of which 2 hangs, and what lets it go on."""
    monkeypatch.setattr(versions_module, "LOAD_SECONDS", 0.05)
    monkeypatch.setattr(versions_module, "POLL_SECONDS", 0.01)
    load = Stuck()
    versions = ModelVersions(directory, load)
    asyncio.run(versions.load_first())
    yield versions, load.gate
    load.gate.set()


def test_a_version_that_never_loads_does_not_keep_back_later_ones(stuck, directory):
    versions, gate = stuck
    write(directory, 2, "two")

    async def main():
        watching = asyncio.create_task(versions.watch())
        while 2 not in states(versions):
            await asyncio.sleep(0.01)
        write(directory, 3, "three")
        async with asyncio.timeout(60):
            while versions.served != 3:
                assert states(versions)[1] == "AVAILABLE"
                await asyncio.sleep(0.01)
        assert versions.is_loading
        gate.set()
        while versions.is_loading:
            await asyncio.sleep(0.01)
        watching.cancel()

    asyncio.run(main())
    assert served(versions) == (3, "three")
    assert states(versions) == {3: "AVAILABLE", 2: "END", 1: "END"}
    [status] = versions.status("m", 2)["model_version_status"]
    assert status["status"]["error_message"] == "not loaded after 0.05 seconds"


def test_a_slow_version_is_waited_for_where_no_other_is_wanted(stuck, directory):
    versions, gate = stuck
    write(directory, 2, "two")
    threading.Timer(0.3, gate.set).start()
    asyncio.run(versions.poll())
    assert served(versions) == (2, "two")
    assert not versions.is_loading


def test_removing_the_highest_version_goes_back(versions, directory):
    write(directory, 2, "two")
    asyncio.run(versions.poll())
    shutil.rmtree(directory / "2")
    asyncio.run(versions.poll())
    assert served(versions) == (1, "one")
    assert states(versions) == {2: "END", 1: "AVAILABLE"}


def test_the_served_version_stays_if_all_are_removed(versions, directory):
    shutil.rmtree(directory)
    asyncio.run(versions.poll())
    assert served(versions) == (1, "one")


def test_at_the_start_a_version_that_does_not_load_is_stepped_over(directory):
    write(directory, 2, "bad")
    versions = ModelVersions(directory, Model)
    asyncio.run(versions.load_first())
    assert served(versions) == (1, "one")
    assert states(versions) == {2: "END", 1: "AVAILABLE"}


def test_nothing_that_loads_is_an_error(tmp_path):
    write(tmp_path / "m", 1, "bad")
    versions = ModelVersions(tmp_path / "m", Model)
    with pytest.raises(
        ValueError, match="no version that loads. version 1: a bad model"
    ):
        asyncio.run(versions.load_first())


def test_no_version_is_an_error(tmp_path):
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileNotFoundError, match="holds no SavedModel"):
            check_directory(directory)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").touch()
    with pytest.raises(FileNotFoundError, match="is one version: give the directory"):
        check_directory(tmp_path / "1")


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("m", 2, "Servable not found for request: Specific(m, 2)"),
        ("x", None, "Servable not found for request: Latest(x)"),
        ("x", 1, "Servable not found for request: Specific(x, 1)"),
    ],
)
def test_what_is_not_served_is_not_found(versions, name, number, message):
    with pytest.raises(RequestError) as error:
        versions.lease(name, number).__enter__()
    assert (error.value.status, error.value.message) == (404, message)


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("m", 2, "Could not find version 2 of model m"),
        ("x", 1, "Could not find version 1 of model x"),
        ("x", None, "Could not find any versions of model x"),
    ],
)
def test_what_was_never_seen_has_no_status(versions, name, number, message):
    with pytest.raises(RequestError) as error:
        versions.status(name, number)
    assert (error.value.status, error.value.message) == (404, message)
