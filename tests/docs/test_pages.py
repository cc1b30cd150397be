"""The code of the site's pages runs as it stands there."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from keras_transformer.cli import make_parser
from tests import tiny_run
from tests.docs.document import ROOT, blocks, commands, run, write_files

DOCS = ROOT / "docs"
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


def has_code(page):
    return any(language == "python" for language, _ in blocks(page)) or any(
        line.startswith("keras-transformer ") for line in commands(page)
    )


def test_the_code_of_every_page_is_run():
    pages = {page.stem for page in DOCS.glob("*.md") if has_code(page)}
    assert pages <= ELSEWHERE | {*PAGES, "start_zh"}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_every_command_is_understood(page):
    for command in commands(page):
        command = command.partition(" > ")[0]
        program, *words = shlex.split(command, comments=True)
        if program == "keras-transformer":
            assert make_parser().parse_args(words).verb == words[0]
        elif program == "python" and words[0].endswith(".py"):
            assert (ROOT / words[0]).is_file(), command
