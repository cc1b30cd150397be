"""The tutorial: a page and a notebook of one text, run once on a few lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from keras_transformer import Translator
from tests import tiny_run
from tests.docs.document import run
from tests.models.test_own_model import by_loader

pytest.importorskip("nbformat", reason="needs the extra `docs`")
pytest.importorskip("nbclient", reason="needs the extra `docs`")

from tests.docs.run_notebooks import PAGE, made_of, read, with_outputs  # noqa: E402

SMALLER = {
    "// 50": "// 5", "vocabulary_size=2000": "vocabulary_size=300",
    "d_model=128": "d_model=16",
    '"tiny", ': '"tiny", d_model=16, d_ff=32, num_heads=2, ',
    "beam_size=4": "beam_size=4, max_extra_length=3",
    "dataset(0, 100)": "dataset(0, 1)",
}  # fmt: skip


def test_the_notebook_is_the_page():
    page, kept = PAGE.read_text("utf-8"), read("tutorial")
    made = made_of(page)
    assert [(c.cell_type, c.source) for c in kept.cells] == [
        (c.cell_type, c.source) for c in made.cells
    ]
    assert with_outputs(page, kept) == page


def test_it_is_short():
    text = PAGE.read_text("utf-8")
    assert len(text.split()) <= 1600
    (model,) = re.findall(r"```python\n(@keras.*?)\n\n\n", text, re.DOTALL)
    assert 30 < len(model.splitlines()) <= 45


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of TensorFlow's libraries")
def test_its_own_model_goes_all_the_way(tmp_path, monkeypatch, capsys):
    """Trained, saved, exported; the C API answers with the strings of the live one."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{source}\t{target}\tCC-BY 2.0" for source, target in tiny_run.PAIRS]
    Path("fra.txt").write_text("\n".join(lines), encoding="utf-8")
    tiny_run.write_pairs(Path("fra.tsv"))
    names, ran = run(PAGE, smaller=SMALLER)
    assert ran == ["train", "translate", "export"]
    assert "\nTrue\n" in capsys.readouterr().out  # The export's strings are its own.
    assert len(names["history"].history["val_loss"]) == 3
    assert Path("attention.png").stat().st_size > 5000
    assert Path("saved_models/en-fr-run/1/saved_model.pb").is_file()

    texts = [source for source, _ in tiny_run.PAIRS]
    found = by_loader(names["version"], texts)
    assert (
        found == names["translator"](texts) == Translator.load("runs/tutorial")(texts)
    )
    assert len(set(found)) > 1
