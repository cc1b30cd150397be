"""The page of all layers names each of them, and its programs run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    EncoderConfig,
    LanguageModelConfig,
    TransformerConfig,
    layers,
    masks,
)
from keras_transformer.config.layers import ATTENTION_KINDS, RELATIVE_POSITIONS
from tests.models.test_backends import BACKENDS, run_python

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "layers.md"
ROWS = re.findall(r"^\| \[`(\w+)`\]\(\.\./(\S+)\) \|(.*)\|$", PAGE.read_text(), re.M)
MASKS = [
    name
    for name, value in inspect.getmembers(masks, inspect.isfunction)
    if value.__module__ == masks.__name__ and not name.startswith("_")
]


def test_every_public_layer_function_and_mask_has_one_row():
    assert len(MASKS) > 7
    assert sorted(name for name, *_ in ROWS) == sorted([*layers.__all__, *MASKS])


@pytest.mark.parametrize("name, path, cells", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_links_to_the_file_that_defines_it(name, path, cells):
    pattern = rf"^(class|def) {name}\b"
    assert re.search(pattern, (ROOT / path).read_text("utf-8"), re.MULTILINE)
    assert len(cells.split(" | ")[0]) > 15


def test_the_options_that_it_names_are_options():
    """Of a config or, where the cell says so, of something else."""
    cells = [cells.rpartition("|")[2] for *_, cells in ROWS if cells.count("|") == 2]
    options = [cell for cell in cells if " of `" not in cell]
    found = set(re.findall(r"`(\w+)[=`]", " ".join(options)))
    configs = TransformerConfig, EncoderConfig, LanguageModelConfig
    known = set().union(*(config.__dataclass_fields__ for config in configs))
    assert len(found) > 9 and found <= known


def test_every_kind_and_position_has_its_option():
    text = PAGE.read_text("utf-8")
    for kind in ATTENTION_KINDS:
        assert f'`attention="{kind}"`' in text
    for kind in RELATIVE_POSITIONS:
        assert f'`positions="{kind}"`' in text


def blocks():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_its_programs_run_and_give_what_they_say():
    names = {}
    for block in blocks():
        exec(block, names)
    assert names["model"].config.num_key_value_heads == 1
    assert names["language_model"].config.positions == "alibi"
    assert [x.shape for x in names["states"].values()] == [(1, 6, 64)] * 3
    assert names["outputs"].shape == (1, 40, 64)
    said = re.findall(r"^# (\[\[\[.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    for name, values in zip(("weights", "of_nodes"), said, strict=True):
        found = ops.convert_to_numpy(names[name])
        np.testing.assert_allclose(found, eval(values), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_its_programs_run_on_every_backend(backend):
    run_python(backend, "-c", "\n".join(blocks()))
