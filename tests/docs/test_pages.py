"""The code of the README and of the pages runs as it is, and links lead somewhere."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    EncoderConfig,
    LanguageModelConfig,
    TransformerConfig,
    layers,
    search,
)
from keras_transformer.apps.cli import make_parser
from keras_transformer.config.layer_config import CAUSAL_KINDS, RELATIVE_POSITIONS
from keras_transformer.search.strings import SIGNATURES
from tests import tiny_run
from tests.docs.document import ROOT, blocks, commands, run, write_files
from tests.models.backends import BACKENDS, run_python

DOCS, README = ROOT / "docs", ROOT / "README.md"
# Pages whose code other tests run, or whose commands take half an hour.
ELSEWHERE = {
    "benchmarks", "experiments", "index", "other_systems", "tutorial", "when_it_fails",
}  # fmt: skip
# What the commands of each page are, without those that are not run. All but the first
# find a run in its place and train none by a command.
PAGES = {
    "start": "train evaluate translate export",
    "your_data": "clean",
    "training": "average evaluate plot-training",
    "serving": "export translate evaluate translate export train evaluate evaluate "
    "export",
    "devices": "export translate evaluate export",
    "layers": "",
    "own_model": "",
    "coming_from_elsewhere": "",
    "paper": "plot-attention plot-attention",
}
# Each trains or exports for a minute, as the README does, which another test runs.
HEAVY = {"start", "your_data", "training", "serving", "devices", "own_model"}


def test_every_block_of_the_readme_runs_in_order(tmp_path, monkeypatch):
    """Nothing is defined elsewhere; the first ends in a German sentence.

    Its translator is trained as a reader's would be, that of the commands smaller.
    """
    monkeypatch.chdir(tmp_path)
    write_files()
    names, ran = run(README, smaller={})
    assert ran == ["train", "translate", "export"]
    assert names["model"].output_shape == (None, None, 1000)
    assert Path("saved_models/en-de/1/saved_model.pb").is_file()
    assert Path("saved_models/en-de/models.config").is_file()


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page in HEAVY)) for page in PAGES],
)
def test_every_block_runs_in_order(page, tmp_path, run_directory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files()
    if page != "start":
        copy = shutil.copytree(run_directory, tmp_path / "runs" / "en-de")
        search = tiny_run.CONFIG.decoding.replace(beam_size=3)  # The pages' n-best.
        (copy / "decoding.json").write_text(search.to_json(), encoding="utf-8")
    trains = page in ("start", "serving")
    _, ran = run(DOCS / f"{page}.md", () if trains else ("train",))
    assert ran == PAGES[page].split()
    if page == "serving":
        lines = Path("news.de").read_text("utf-8").splitlines()
        assert len(lines) == len(tiny_run.VALID)
        facts = json.loads(Path("runs/en-de-2/summary.json").read_text("utf-8"))
        assert facts["data"]["training"]["replayed"] == len(tiny_run.VALID)
        assert Path("saved_models/en-de/4/saved_model.pb").is_file()


def test_the_code_of_every_page_is_run():
    def has_code(page):
        return any(language == "python" for language, _ in blocks(page)) or any(
            line.startswith("keras-transformer ") for line in commands(page)
        )

    pages = {page.stem for page in DOCS.glob("*.md") if has_code(page)}
    assert pages <= ELSEWHERE | {*PAGES}


def test_no_line_of_code_is_cut_off():
    """A page is 90 characters of code wide at 1,280 pixels."""
    for page in DOCS.glob("*.md"):
        for text in re.findall(
            r"```(?:python|bash|sh)\n(.*?)```", page.read_text("utf-8"), re.DOTALL
        ):
            long = [line for line in text.splitlines() if len(line) > 88]
            assert not long or page.stem == "when_it_fails", (page.stem, long)


WITH_COMMANDS = [README, ROOT / "examples" / "README.md", *sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_every_command_is_understood(page):
    for command in commands(page):
        command = command.partition(" > ")[0]
        program, *words = shlex.split(command, comments=True) or [""]
        if program.rpartition("/")[2] == "keras-transformer":
            assert make_parser().parse_args(words).verb == words[0]
        elif program == "python" and words[0].endswith(".py"):
            assert (ROOT / words[0]).is_file(), command


def test_the_options_beside_those_of_other_systems_are_flags():
    text = (DOCS / "coming_from_elsewhere.md").read_text("utf-8")
    table = text.split("fairseq: commands")[1]
    cells = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    flags = re.findall(r"`(--[\w-]+)", " ".join(cells))
    verbs = make_parser().verbs
    known = {*verbs["train"]._option_string_actions} | {"--output"}
    assert len(flags) > 10 and [flag for flag in flags if flag not in known] == []


def test_every_verb_is_shown():
    lines = [line for page in WITH_COMMANDS for line in commands(page)]
    shown = set(re.findall(r"\bkeras-transformer ([a-z-]+)", "\n".join(lines)))
    assert make_parser().verbs.keys() <= shown


def section(page, title):
    text = (DOCS / page).read_text("utf-8")
    return text.split(f"# {title}\n")[1].split("\n## ")[0]


def test_the_signatures_and_their_inputs_are_those_of_an_export():
    text = section("serving.md", "Signatures")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE)
    inputs = {name: re.findall(r"`(\w+)`", cell) for name, cell in rows}
    assert inputs == {name: list(each.inputs) for name, each in SIGNATURES.items()}


def test_every_path_in_the_map_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    text = text.split("## What is where\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    paths = [path for row in rows for path in re.findall(r"`(\S+)`", row)]
    roots = ROOT, ROOT / "keras_transformer"
    lost = [p for p in paths if not any((root / p).exists() for root in roots)]
    assert len(paths) > 12 and not lost


# The page of layers, and the examples of functions.

LAYERS = (DOCS / "layers.md").read_text("utf-8")


def functions_of(module):
    members = inspect.getmembers(module, inspect.isfunction)
    public = getattr(module, "__all__", [name for name, _ in members])
    return [n for n, f in members if n in public and n[0] != "_"
            if inspect.unwrap(f).__module__.startswith(module.__name__)]  # fmt: skip


def test_every_kind_is_named_and_every_option_named_is_one():
    rows = re.findall(r"^\| (`.*?) \| `(\w+)` \|", LAYERS, re.MULTILINE)
    options = " ".join(cell for cell, layer in rows if hasattr(layers, layer))
    found = set(re.findall(r"`(\w+)=", options))
    configs = TransformerConfig, EncoderConfig, LanguageModelConfig
    known = set().union(*(config.__dataclass_fields__ for config in configs))
    assert len(found) > 3 and found <= known
    kinds = [f'`attention="{kind}"`' for kind in CAUSAL_KINDS]
    kinds += [f'`positions="{kind}"`' for kind in RELATIVE_POSITIONS]
    assert [kind for kind in kinds if kind not in options] == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_page_of_layers_runs_on_every_backend(backend, tmp_path):
    programs = [block for _, block in blocks(DOCS / "layers.md")]
    start = f"import os; os.chdir({str(tmp_path)!r})\n"
    run_python(backend, "-c", start + "\n".join(programs))


@pytest.mark.parametrize(
    "module, name",
    [(module, name) for module in (layers, search) for name in functions_of(module)],
    ids=str,
)
def test_the_example_of_a_function_is_true(module, name):
    names = {"np": np, "ops": ops} | vars(module)
    function = inspect.unwrap(getattr(module, name))
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=names)
    assert any(part.want for part in example.examples)
    printed = []
    failed, _ = doctest.DocTestRunner().run(example, out=printed.append)
    assert not failed, "".join(printed)


# The page on failures quotes what is in the source.

FAILURES = (DOCS / "when_it_fails.md").read_text("utf-8")
QUOTED = re.findall(r"```text\n(.*?)\n```", FAILURES, re.DOTALL)
HOLE = "\0"


def texts():
    """Every string of the package, a hole where an f-string has an expression."""
    for path in sorted((ROOT / "keras_transformer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    part.value if isinstance(part, ast.Constant) else HOLE
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


SOURCE = "\n".join(texts())


@pytest.mark.parametrize("message", QUOTED)
def test_the_message_is_in_the_source(message):
    parts = [re.escape(part) for part in message.split("...")]
    pattern = f"[^\n{HOLE}]*{HOLE}[^\n{HOLE}]*".join(parts)
    assert re.search(pattern, SOURCE), message


def test_there_are_about_twenty():
    assert len(QUOTED) >= 20
    assert len(set(QUOTED)) == len(QUOTED)
