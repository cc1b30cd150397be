"""The wheel and the source distribution, built from a copy of the project."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

pytest.importorskip(
    "setuptools", minversion="77", reason="what pyproject.toml builds with"
)

ROOT = Path(__file__).parents[1]
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2])
"""
INFO = re.compile(r"keras_transformer_seq2seq-[\w.]+\.dist-info/")


def build(kind, source, target):
    """Builds in a directory, as `pip` does without isolation; returns the file."""
    target.mkdir()
    subprocess.run(
        [sys.executable, "-c", BUILD, kind, target], cwd=source, check=True,
        capture_output=True,
    )  # fmt: skip
    (file,) = target.iterdir()
    return file


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """A copy of the project, its source distribution, and the wheel made of that."""
    folder = tmp_path_factory.mktemp("distributions")
    ignored = shutil.ignore_patterns(
        "__pycache__", ".git", "*.egg-info", "build", "dist", "runs", "saved_models",
        ".venv", ".pytest_cache", ".ruff_cache", "data", "shared",
    )  # fmt: skip
    shutil.copytree(ROOT, folder / "project", ignore=ignored)
    sdist = build("sdist", folder / "project", folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return folder / "project", sdist, build("wheel", unpacked, folder / "wheel")


@pytest.fixture
def wheel(distributions):
    with zipfile.ZipFile(distributions[2]) as archive:
        yield archive


@pytest.fixture
def metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def package_files():
    package = ROOT / "keras_transformer"
    return {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if not INFO.match(name)}
    assert names == package_files()
    for name in (
        "py.typed",
        "__init__.pyi",
        "export/web_page/index.html",
        "cli/verbs.toml",
    ):
        assert f"keras_transformer/{name}" in names
    about = {INFO.sub("", name) for name in wheel.namelist() if INFO.match(name)}
    assert {"METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"} <= about


def test_the_source_distribution_holds_what_builds_it_and_no_tests(distributions):
    with tarfile.open(distributions[1]) as archive:
        files = [item.name for item in archive.getmembers() if item.isfile()]
    names = {name.partition("/")[2] for name in files}
    package = {name for name in names if name.startswith("keras_transformer/")}
    assert package == package_files()
    assert {name for name in names - package if ".egg-info/" not in name} == {
        "CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "PYPI.md", "README.md",
        "pyproject.toml", "setup.cfg",
    }  # fmt: skip


def test_the_project_itself_builds_the_same_wheel(distributions, tmp_path):
    project, _, of_sdist = distributions
    contents = []
    for file in (of_sdist, build("wheel", project, tmp_path / "wheel")):
        with zipfile.ZipFile(file) as archive:
            contents.append({item.filename: item.CRC for item in archive.infolist()})
    assert contents[0] == contents[1]


def test_the_metadata_is_what_an_index_shows(metadata):
    assert metadata["Name"] == "keras-transformer-seq2seq"
    assert metadata["License"] == "Apache-2.0"
    assert SpecifierSet(metadata["Requires-Python"]) == SpecifierSet(">=3.11,<3.14")
    # There is no address of the project to name.
    assert metadata["Home-page"] is None and metadata["Project-URL"] is None
    needs = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    always = {need.name for need in needs if "extra" not in str(need.marker)}
    assert {"tensorflow", "keras", "tensorflow-text", "keras-nlp"} <= always
    assert "pytest" not in always


def test_the_description_has_no_link_into_the_project(metadata):
    """They lead nowhere on an index, and pictures are not shown."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload(decode=True).decode("utf-8")
    assert text.strip() == (ROOT / "PYPI.md").read_text("utf-8").strip()
    tokens = [
        inner
        for token in MarkdownIt().parse(text)
        for inner in (token, *(token.children or ()))
    ]
    links = [t.attrs["href"] for t in tokens if t.type == "link_open"]
    links += [t.attrs["src"] for t in tokens if t.type == "image"]
    assert links and all(link.startswith("https://") for link in links)
    readme = (ROOT / "README.md").read_text("utf-8")
    code = [token.content for token in tokens if token.type == "fence"]
    assert code and all(block in readme for block in code)
