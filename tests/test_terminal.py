"""What is printed of other people's words: names, lines, translations."""

import ast
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from keras_transformer import quiet
from keras_transformer.apps import cli
from keras_transformer.apps.cli import use_verbs as verbs
from keras_transformer.terminal import (
    plain_console,
    print_message,
    print_result,
    printable,
    say,
)
from keras_transformer.training import dry_run
from keras_transformer.training.evaluation import Scores
from tests import tiny_run

ROOT = tiny_run.ROOT
RED = "\x1b[31mred"


def stream(encoding="utf-8", terminal=False):
    """A text stream that keeps its bytes in `buffer`."""
    made = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    made.isatty = lambda: terminal
    return made


def written(made):
    return made.buffer.getvalue()


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("Zwei Männer, 两个人 👨‍👩", "utf-8", "Zwei Männer, 两个人 👨‍👩"),
        ("[bold]a[/b] :smile: \\n", "utf-8", "[bold]a[/b] :smile: \\n"),
        (RED, "utf-8", "\\x1b[31mred"),
        ("a\tb\nc\rd\x07\x00\x7f", "utf-8", "a\tb\\nc\\rd\\x07\\x00\\x7f"),
        ("\x9b2J\x85\u2028\u202etxt.exe", None, "\\x9b2J\\x85\\u2028\\u202etxt.exe"),
        ("b\udcffr", "utf-8", "b\\udcffr"),
        ("Bär 人", "ascii", "B\\xe4r \\u4eba"),
        ("Bär 人", "latin-1", "Bär \\u4eba"),
    ],
)
def test_what_should_not_be_printed_becomes_an_escape(text, encoding, shown):
    assert printable(text, encoding) == shown


@pytest.mark.parametrize("terminal", [True, False])
def test_a_message_is_printed_as_it_stands_on_one_line(terminal):
    made = stream("ascii")
    text = f"[bold]{'long ' * 40}[/b] :smile: Bär {RED} 12"
    say(Console(file=made, width=20, force_terminal=terminal), text)
    shown = f"[bold]{'long ' * 40}[/b] :smile: B\\xe4r \\x1b[31mred 12\n"
    assert written(made).decode("ascii") == shown


def test_a_result_is_exact_in_a_pipe_and_readable_at_a_terminal(monkeypatch):
    text, name = f"Bär {RED}", Path(os.fsdecode(b"B\xe4r\n"))
    for terminal, expected in (
        (False, "Bär \x1b[31mred\n".encode() + b"B\xe4r\n\n"),
        (True, b"B\\xe4r \\x1b[31mred\nB\\udce4r\\n\n"),
    ):
        made = stream("ascii", terminal)
        monkeypatch.setattr("sys.stdout", made)
        print_result(text)
        print_result(name)
        assert written(made) == expected


def test_without_a_stream_nothing_is_printed(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    print_result("a")
    print_message("b")
    say(Console(), "c")


def test_a_run_and_a_corpus_may_have_any_name(run_directory, tmp_path):
    corpus, run = tmp_path / "c[" / f"t]Bär{RED}.tsv", tmp_path / "a[" / "b][bold]x"
    corpus.parent.mkdir()
    tiny_run.write_pairs(corpus)
    with open(corpus, "a", encoding="utf-8") as file:
        file.write("ein Bär ohne Ziel\n")
    made = stream("ascii")
    console = Console(file=made, width=200)
    dry_run(corpus, tmp_path / "new", tiny_run.CONFIG, console=console)
    shutil.copytree(run_directory, run)
    files = {"text": "train.tsv", "validation": "valid.tsv"}
    files = {side: run_directory.parent / name for side, name in files.items()}
    tiny_run.run(run, screen=made, **files)
    name = f"{tmp_path}/c[/t]B\\xe4r\\x1b[31mred.tsv"
    said = written(made).decode("ascii")
    assert f"bad lines: 1 ({name}:41: not source" in said
    assert f"\n{tmp_path}/a[/b][bold]x is finished: " in said


def test_errors_and_usage_print_no_escape_sequence(capsys):
    assert cli.main(["translate", RED, "a"]) == 1
    words = "error: \\x1b[31mred must be a training run, a "
    assert words in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["serve", "a", RED])
    assert "unrecognized arguments: \\x1b[31mred\n" in capsys.readouterr().err


def test_scores_are_lines(tmp_path, monkeypatch, capsys):
    path = tmp_path / "test.tsv"
    path.write_text("a\tb\n", "utf-8")
    scores = Scores(30.5, "nrefs:1", 50.25, "nrefs:1", 2, 0.5, 31.0, "case:lc")
    monkeypatch.setattr(verbs, "load_translator", lambda _: None)
    monkeypatch.setattr(
        "keras_transformer.training.evaluation.evaluate_translator",
        lambda *a, **k: scores,
    )
    assert cli.main(["evaluate", "any", "--test", str(path)]) == 0
    assert capsys.readouterr().out == f"{scores}\n"


CLOSED = """
import json, sys
path = sys.argv[1]
from keras_transformer.apps import cli
commands, statuses = json.load(open(path)), []
for words in commands:
    try:
        statuses.append(cli.main(words))
    except SystemExit as end:
        statuses.append(end.code)
json.dump(statuses, open(path, "w"))
"""


def test_every_verb_does_without_standard_streams(saved_model, run_directory, tmp_path):
    """The shell closes all three; what the verbs open must not take their places."""
    output, test = tmp_path / "out.txt", tiny_run.write_pairs(tmp_path / "test.tsv")
    (tmp_path / "in.txt").write_text("a dog\n", encoding="utf-8")
    translate = ["translate", saved_model]
    expected = {
        ("train", "--train", test, "--run", tmp_path): 1,
        ("evaluate", saved_model, "--test", test): 1,
        (*translate, "a dog"): 1,
        (*translate, "--input", tmp_path / "in.txt", "--output", output): 0,
        ("average", tmp_path, "--output", tmp_path / "mean"): 1,
        ("export", tmp_path, "--output", tmp_path / "saved"): 1,
        ("plot-training", run_directory, "--output", tmp_path / "a.svg"): 0,
        ("serve", tmp_path): 1,
        ("--help",): 0,
        ("paint",): 2,
    }
    commands = tmp_path / "commands.json"
    words = [[str(word) for word in command] for command in expected]
    commands.write_text(json.dumps(words), encoding="utf-8")
    shell = 'exec "$0" -c "$1" "$2" <&- >&- 2>&-'
    subprocess.run(
        ["sh", "-c", shell, sys.executable, CLOSED, commands],
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    assert json.loads(commands.read_text("utf-8")) == list(expected.values())
    assert output.read_text("utf-8").splitlines() == tiny_run.translator()(["a dog"])
    assert "<svg" in (tmp_path / "a.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("closed", "message"),
    [
        ("stdin", "Standard input must be open, or give sentences or `--input`."),
        ("stdout", "Standard output must be open, or give `--output`."),
    ],
)
def test_a_stream_that_is_needed_is_asked_for_first(
    monkeypatch, capsys, closed, message
):
    monkeypatch.setattr(f"sys.{closed}", None)
    assert cli.main(["translate", "none"]) == 1
    line = f"keras-transformer: error: {message} Received: it is closed\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("notebook", [False, True])
def test_a_notebook_gets_lines_of_text_and_no_bar(notebook, monkeypatch):
    """Its standard output calls itself a terminal."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: notebook)
    monkeypatch.setattr(sys, "stdout", stream(terminal=True))
    monkeypatch.setenv("TERM", "xterm")
    console = plain_console()
    assert console.is_terminal != notebook
    assert not console.is_jupyter
    say(console, "epoch 1")
    assert written(sys.stdout) == b"epoch 1\n"


# TensorFlow's own lines reach neither a user of the examples nor one of `quiet`.

EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
QUIET = "keras_transformer.quiet"


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_tensorflow_quietly(program):
    text, modules = program.read_text("utf-8"), []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(node.module)
    of_keras = [name for name in modules if name.split(".")[0].startswith("keras")]
    if "__main__" in text and of_keras:
        assert of_keras[0] == QUIET
        others = ("tensorflow", "numpy", "sklearn", "matplotlib")
        later = [name for name in modules if name.split(".")[0] in others]
        assert all(modules.index(QUIET) < modules.index(name) for name in later)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "begin"),
    [
        ("compose_layers.py --epochs 1 --rows 64", "1/1 - "),
        ("recurrent_translation.py --pairs 200 --epochs 1", ""),
    ],
)
def test_an_example_prints_its_own_lines_alone(words, begin, tmp_path):
    name, *options = words.split()
    done = tiny_run.in_a_process(ROOT / "examples" / name, *options, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(begin)


@pytest.mark.parametrize(("before", "after"), [(None, "3"), ("0", "0")])
def test_later_lines_are_those_of_the_environment(before, after, monkeypatch, capfd):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    if before is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", before)
    importlib.reload(quiet)
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == after
    os.write(2, b"later")
    assert capfd.readouterr().err == "later"
