"""The code of the README and of the site's pages runs as it stands there."""

from __future__ import annotations

import ast
import doctest
import inspect
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
    decoding,
    layers,
    masks,
)
from keras_transformer.cli import make_parser
from keras_transformer.config.layers import ATTENTION_KINDS, RELATIVE_POSITIONS
from keras_transformer.generation.pipeline import INPUTS
from tests import tiny_run
from tests.docs.document import ROOT, blocks, commands, run, write_files
from tests.models.test_backends import BACKENDS, run_python

DOCS, README = ROOT / "docs", ROOT / "README.md"
# Pages whose code other tests run, or whose commands take half an hour.
ELSEWHERE = {
    "benchmarks", "embeddings", "fine_tuning", "layers", "litert", "other_systems",
    "playground", "relatives", "testing_layers", "training_at_scale", "why",
}  # fmt: skip
# What the commands of each page are, without those that are not run. All but the first
# find a run in its place and train none by a command.
PAGES = {
    "start": "train evaluate translate export",
    "your_data": "",
    "training": "average evaluate plot",
    "serving": "export translate translate evaluate translate",
    "layers_in_keras": "",
    "paper": "plot plot plot",
    "gallery": "plot plot",
}
# Each trains or exports for a minute, as the README does, which another test runs.
HEAVY = {"start", "your_data", "serving"}


def test_every_block_of_the_readme_runs_in_order(tmp_path, monkeypatch):
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


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page in HEAVY)) for page in PAGES],
)
def test_every_block_runs_in_order(page, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files()
    if page != "start":
        finished = tiny_run.run_directory(tmp_path_factory)
        copy = shutil.copytree(finished, tmp_path / "runs" / "en-de")
        search = tiny_run.CONFIG.decoding.replace(beam_size=3)  # The pages' n-best.
        (copy / "decoding.json").write_text(search.to_json(), encoding="utf-8")
    names, ran = run(DOCS / f"{page}.md", () if page == "start" else ("train",))
    assert ran == PAGES[page].split()
    if page == "start":
        assert names["found"].ids.shape[:2] == (2, 1)
    if page == "serving":
        lines = Path("news.de").read_text("utf-8").splitlines()
        assert len(lines) == len(tiny_run.VALID)


def test_the_chinese_page_has_the_commands_of_the_start():
    page, start = DOCS / "start_zh.md", DOCS / "start.md"
    assert set(commands(page)) <= set(commands(start))
    names = {}
    for language, block in blocks(page):
        if language == "python":
            exec(block, names)
    assert names["model"].output_shape == (None, 2)


@pytest.mark.slow
def test_training_at_scale_trains():
    names = {}
    (block,) = (b for lang, b in blocks(DOCS / "training_at_scale.md"))
    exec(block, names)
    # Four batches make an update.
    assert names["model"].updates == 5


@pytest.mark.slow
def test_the_page_on_litert_runs(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run.litert(tmp_path_factory), tmp_path / "lite" / "en-de")
    names = {}
    for language, block in blocks(DOCS / "litert.md"):
        if language == "python":
            exec(block, names)
    assert names["found"]["ids"].shape == (1, 1, 20)
    assert names["alternatives"][0][0].text == names["translations"][0]


def test_the_code_of_every_page_is_run():
    def has_code(page):
        return any(language == "python" for language, _ in blocks(page)) or any(
            line.startswith("keras-transformer ") for line in commands(page)
        )

    pages = {page.stem for page in DOCS.glob("*.md") if has_code(page)}
    assert pages <= ELSEWHERE | {*PAGES, "start_zh"}


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


def test_every_verb_is_shown():
    lines = [line for page in WITH_COMMANDS for line in commands(page)]
    shown = set(re.findall(r"\bkeras-transformer ([a-z]+)", "\n".join(lines)))
    assert {name.split()[0] for name in make_parser().verbs} <= shown


def section(page, title):
    text = (DOCS / page).read_text("utf-8")
    return text.split(f"# {title}\n")[1].split("\n## ")[0]


def test_the_signatures_and_their_inputs_are_those_of_an_export():
    text = section("serving.md", "Signatures")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE)
    inputs = {name: re.findall(r"`(\w+)`", cell) for name, cell in rows}
    assert inputs == {name: list(specs) for name, specs in INPUTS.items()}


def test_every_path_in_the_map_exists():
    text = section("source.md", "What is where")
    rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    paths = [path for row in rows for path in re.findall(r"`(\S+)`", row)]
    roots = ROOT, ROOT / "keras_transformer"
    lost = [p for p in paths if not any((root / p).exists() for root in roots)]
    assert len(paths) > 12 and not lost


# The page of all layers, and the examples of functions.

LAYERS = (DOCS / "layers.md").read_text("utf-8")
ROWS = re.findall(r"^\| \[`(\w+)`\]\(\.\./(\S+)\) \|(.*)\|$", LAYERS, re.MULTILINE)
PROGRAMS = [block for _, block in blocks(DOCS / "layers.md")]


def functions_of(module):
    members = inspect.getmembers(module, inspect.isfunction)
    public = getattr(module, "__all__", [name for name, _ in members])
    return [n for n, f in members if n in public and n[0] != "_"
            if inspect.unwrap(f).__module__.startswith(module.__name__)]  # fmt: skip


def test_every_public_layer_function_and_mask_has_one_row():
    of_masks = functions_of(masks)
    assert len(of_masks) > 7
    assert sorted(name for name, *_ in ROWS) == sorted([*layers.__all__, *of_masks])


@pytest.mark.parametrize("name, path, cells", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_links_to_the_file_that_defines_it(name, path, cells):
    pattern = rf"^(class|def) {name}\b"
    assert re.search(pattern, (ROOT / path).read_text("utf-8"), re.MULTILINE)
    assert len(cells.split(" | ")[0]) > 15


def test_the_options_that_it_names_are_options_and_every_kind_is_named():
    """Of a config or, where the cell says so, of something else."""
    cells = [cells.rpartition("|")[2] for *_, cells in ROWS if cells.count("|") == 2]
    options = [cell for cell in cells if " of `" not in cell]
    found = set(re.findall(r"`(\w+)[=`]", " ".join(options)))
    configs = TransformerConfig, EncoderConfig, LanguageModelConfig
    known = set().union(*(config.__dataclass_fields__ for config in configs))
    assert len(found) > 9 and found <= known
    kinds = [f'`attention="{kind}"`' for kind in ATTENTION_KINDS]
    kinds += [f'`positions="{kind}"`' for kind in RELATIVE_POSITIONS]
    assert [kind for kind in kinds if kind not in LAYERS] == []


def test_its_programs_run_and_give_what_they_say():
    names = {}
    for block in PROGRAMS:
        exec(block, names)
    assert names["model"].config.num_key_value_heads == 1
    assert names["language_model"].config.positions == "alibi"
    assert [x.shape for x in names["states"].values()] == [(1, 6, 64)] * 3
    assert names["outputs"].shape == (1, 40, 64)
    said = re.findall(r"^# (\[\[\[.*)$", LAYERS, re.MULTILINE)
    for name, values in zip(("weights", "of_nodes"), said, strict=True):
        found = ops.convert_to_numpy(names[name])
        np.testing.assert_allclose(found, eval(values), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_its_programs_run_on_every_backend(backend):
    run_python(backend, "-c", "\n".join(PROGRAMS))


@pytest.mark.parametrize(
    "module, name",
    [(module, name) for module in (layers, decoding) for name in functions_of(module)],
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
