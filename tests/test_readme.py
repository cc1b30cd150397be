"""The code in the README runs as it stands there, from the first block to the last."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from keras_transformer.cli import make_parser
from keras_transformer.generation.pipeline import INPUTS
from tests import tiny_run
from tests.docs.document import ROOT, blocks, run, write_files

README = ROOT / "README.md"


def test_every_block_runs_in_order(tmp_path, monkeypatch):
    """Nothing is defined elsewhere; a model is trained smaller than the reader's."""
    monkeypatch.chdir(tmp_path)
    write_files()
    names, ran = run(README)
    assert ran == ["train", "evaluate", "translate", "export", "import"]
    assert names["model"].output_shape == (None, 2)
    for name in ("en-de", "en-de-python"):
        served = Path("saved_models") / name
        assert (served / "1" / "saved_model.pb").is_file()
        assert (served / "models.config").is_file()


def test_the_commands_of_the_page_on_fine_tuning_are_understood():
    page = (ROOT / "docs" / "fine_tuning.md").read_text("utf-8")
    lines = page.replace("\\\n", " ").splitlines()
    words = [
        shlex.split(line)[1:] for line in lines if "    keras-transformer " in line
    ]
    assert [command[0] for command in words] == ["train", "train", "export"]
    for command in words:
        make_parser().parse_args(command)
    known = set()
    for verb in ("train", "export"):
        known |= {*make_parser().verbs[verb].flags()}
    flags = set(re.findall(r"--[a-z][a-z-]+", page))
    assert len(flags) > 15 and flags <= known


@pytest.mark.slow
def test_training_at_scale_trains():
    names = {}
    (block,) = (b for lang, b in blocks(ROOT / "docs" / "training_at_scale.md"))
    exec(block, names)
    # Four batches make an update.
    assert names["model"].updates == 5


@pytest.mark.slow
def test_the_page_on_litert_runs(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run.litert(tmp_path_factory), tmp_path / "lite" / "en-de")
    document = ROOT / "docs" / "litert.md"
    names = {}
    for language, block in blocks(document):
        if language == "python":
            exec(block, names)
    assert names["found"]["ids"].shape == (1, 1, 20)
    assert names["alternatives"][0][0].text == names["translations"][0]
    (commands,) = (b for language, b in blocks(document) if language == "bash")
    for command in commands.splitlines():
        make_parser().parse_args(shlex.split(command)[1:])


def section(page, title):
    text = (ROOT / "docs" / page).read_text("utf-8")
    return text.split(f"# {title}\n")[1].split("\n## ")[0]


def commands(*pages):
    text = "".join(
        block
        for page in pages or [README]
        for language, block in blocks(page)
        if language == "bash"
    )
    lines = text.replace("\\\n", " ").splitlines()
    return [
        line.split("keras-transformer ")[1].partition(" > ")[0]
        for line in lines
        if re.search(r"(^|/)keras-transformer ", line)
    ]


@pytest.mark.parametrize("command", commands())
def test_every_command_is_understood(command):
    options = make_parser().parse_args(shlex.split(command))
    assert options.verb == command.split()[0]


def test_every_script_that_is_named_exists():
    text = "".join(block for _, block in blocks(ROOT / "examples" / "README.md"))
    scripts = re.findall(r"^python (\S+)", text, re.MULTILINE)
    assert scripts and [s for s in scripts if not (ROOT / s).is_file()] == []


def test_every_verb_is_shown():
    pages = (ROOT / "docs").glob("*.md")
    shown = {command.split()[0] for command in commands(README, *pages)}
    assert shown == {name.split()[0] for name in make_parser().verbs}


def test_the_signatures_and_their_inputs_are_those_of_an_export():
    text = section("serving.md", "Signatures")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE)
    inputs = {name: re.findall(r"`(\w+)`", cell) for name, cell in rows}
    assert inputs == {name: list(specs) for name, specs in INPUTS.items()}


def test_every_path_in_the_map_exists():
    text = section("source.md", "What is where")
    rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    paths = [path for row in rows for path in re.findall(r"`(\S+)`", row)]
    known = [
        path
        for path in paths
        if (README.parent / path).exists()
        or (README.parent / "keras_transformer" / path).exists()
    ]
    assert known == paths
    assert len(paths) > 12
