"""The process of the playground: how it starts, what it refuses, what ends it."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time

import httpx
import pytest

from keras_transformer import cli, playground
from keras_transformer.cli import make_parser
from keras_transformer.playground import PlaygroundConfig, models, play
from tests.playground.toys import Toy


@pytest.fixture
def run(tmp_path):
    """What looks like the directory of a run."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "model.keras").touch()
    return path


def test_it_says_where_it_is_answers_and_ends_at_a_signal(run, monkeypatch, caplog):
    monkeypatch.setattr(models, "load_models", lambda paths: [Toy() for _ in paths])
    answers = []

    def visit():
        for _ in range(2000):
            if found := re.search(r"open (http://127.0.0.1:\d+)", caplog.text):
                break
            time.sleep(0.01)
        try:
            question = {"model": 1, "text": "a dog"}
            url = f"{found[1]}/api/translate"
            answers.append(httpx.post(url, json=question, timeout=20).json())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    visitor = threading.Thread(target=visit)
    with caplog.at_level("INFO", "keras_transformer.playground"):
        visitor.start()
        play([run, run], PlaygroundConfig(port=0))
    visitor.join()
    assert answers[0]["translations"][0]["text"] == "A DOG"
    assert "the playground has ended" in caplog.text


def test_a_port_that_is_taken_is_told_before_models_are_loaded(run, capsys):
    from keras_transformer.serving.server import bind

    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.main(["playground", str(run), "--port", str(port)]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"Cannot listen on 127.0.0.1:{port}" in message
    assert message.endswith("Choose another `--port`.")


def test_a_missing_extra_is_named(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["playground", str(run)]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert "The playground needs starlette and uvicorn" in message
    assert "keras-transformer-seq2seq[playground]" in message


def test_what_is_no_model_is_told(tmp_path, capsys):
    for path, message in ((tmp_path, "neither"), (tmp_path / "x", "not a directory")):
        assert cli.main(["playground", str(path)]) == 1
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="`languages` must be those of source and"):
        play([tmp_path], languages=["en"])


def test_the_command_line_gives_its_options(run, monkeypatch):
    calls = []
    monkeypatch.setattr(playground, "play", lambda *given: calls.append(given))
    flags = "--languages en de --port 0 --host ::1 --max-text-length 9"
    assert cli.main(["playground", str(run), str(run), *flags.split()]) == 0
    assert cli.main(["playground", str(run)]) == 0
    config = PlaygroundConfig(host="::1", port=0, max_text_length=9)
    assert calls == [
        ([run, run], config, ["en", "de"]), ([run], PlaygroundConfig(), None),
    ]  # fmt: skip
    assert make_parser().parse_args(["playground", "x"]).verb == "playground"
