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


def stub_of(module):
    """What the stub beside a module says: where each name is from, and `__all__`."""
    tree = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text("utf-8"))
    homes, public = {}, None
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.name: node.module for alias in node.names}
        elif isinstance(node, ast.Assign):
            public = ast.literal_eval(node.value)
    return homes, public


def test_the_stubs_list_the_names_that_are_loaded_when_asked_for(setup):
    homes, public = stub_of(keras_transformer)
    assert public == keras_transformer.__all__
    modules = keras_transformer._HOMES.items()
    assert homes == {name: f"keras_transformer.{module}" for name, module in modules}
    assert "**/*.pyi" in setup["options.package_data"]["keras_transformer"]
    package = ROOT / "keras_transformer"
    lazy = [path for path in package.rglob("*.py") if is_lazy(path)]
    stubs = sorted(package.rglob("*.pyi"))
    assert sorted(path.with_suffix(".pyi") for path in lazy) == stubs


def is_lazy(path):
    return "\ndef __getattr__(" in path.read_text("utf-8")
