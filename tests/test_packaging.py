"""The wheel and the source distribution, and what an installed package says."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import email
import importlib.metadata
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

import keras_transformer
from keras_transformer import config

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


# What an installed package says of itself.

CONFIGS = [value for value in vars(config).values() if dataclasses.is_dataclass(value)]


@pytest.fixture
def setup():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_the_version_is_that_of_the_distribution(setup, monkeypatch):
    name = setup["metadata"]["name"]
    assert keras_transformer.__version__ == importlib.metadata.version(name)
    assert keras_transformer.__version__ == setup["metadata"]["version"]
    monkeypatch.setattr(keras_transformer, "_DISTRIBUTION", "not-installed-at-all")
    with pytest.raises(AttributeError, match="once not-installed-at-all is installed"):
        keras_transformer.__version__  # noqa: B018


def test_dir_holds_the_public_names_alone():
    assert dir(keras_transformer) == sorted([*keras_transformer.__all__, "__version__"])


def test_every_version_has_its_changes(setup):
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] in ("Unreleased", setup["metadata"]["version"])
    assert setup["metadata"]["version"] in headings


def test_the_package_says_that_it_is_typed(setup):
    assert "Typing :: Typed" in setup["metadata"]["classifiers"]
    assert (Path(keras_transformer.__file__).parent / "py.typed").is_file()
    assert "py.typed" in setup["options.package_data"]["keras_transformer"]
    assert setup["metadata"]["author"]


def test_an_extra_has_all_that_it_needs_of_another(setup):
    """Each extra spells out what it needs, which one may forget in the second place."""
    extras = {
        name: {line for line in text.split("\n") if line and line[0] != "#"}
        for name, text in setup["options.extras_require"].items()
    }
    # The reference imports the plots; `dev` runs every test and more.
    assert extras["plots"] <= extras["docs"]
    assert extras["plots"] <= extras["examples"] <= extras["test"]
    assert extras["serve"] == extras["playground"] <= extras["test"] <= extras["dev"]
    assert extras["docs"] <= extras["test"]


@pytest.mark.parametrize("options", CONFIGS, ids=lambda options: options.__name__)
def test_every_option_has_its_line_in_the_docstring(options):
    arguments = options.__doc__.split("\nArgs:\n")[1]
    names = re.findall(r"^    (\w+): [A-Z0-9].*", arguments, re.MULTILINE)
    assert names == [field.name for field in dataclasses.fields(options)]
    assert max(map(len, arguments.splitlines())) <= 84


def test_the_stub_is_the_list_of_the_public_names(setup):
    stub = Path(keras_transformer.__file__).with_suffix(".pyi").read_text("utf-8")
    names = []
    for node in ast.parse(stub).body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            module = importlib.import_module(f"keras_transformer.{node.module}")
            value = getattr(keras_transformer, alias.name)
            assert value is getattr(module, alias.name)
            assert alias.asname == alias.name  # Else it is private to type checkers.
            names.append(alias.name)
    assert sorted(names) == keras_transformer.__all__
    assert "**/*.pyi" in setup["options.package_data"]["keras_transformer"]
