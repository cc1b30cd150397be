"""What an installed package says of itself."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import importlib.metadata
import re
from pathlib import Path

import pytest

import keras_transformer
from keras_transformer import config

ROOT = Path(__file__).parents[1]
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
