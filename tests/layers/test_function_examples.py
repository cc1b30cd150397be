"""The public functions of layers are documented, and their examples are true."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import numpy as np
import pytest
from keras import ops

from keras_transformer import layers

PAGE = Path(__file__).parents[2] / "docs" / "layers.md"
FUNCTIONS = [
    name for name in layers.__all__ if inspect.isfunction(getattr(layers, name))
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_function_is_true(name):
    names = {"np": np, "ops": ops} | vars(layers)
    function = inspect.unwrap(getattr(layers, name))
    (example,) = doctest.DocTestFinder().find(function, name, globs=names)
    assert any(part.want for part in example.examples)
    printed = []
    failed, _ = doctest.DocTestRunner().run(example, out=printed.append)
    assert not failed, "".join(printed)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_on_the_page_of_layers(name):
    assert f"`{name}" in PAGE.read_text("utf-8")
