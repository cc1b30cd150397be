"""The notebooks: they run, at a tiny size, and what is kept of them is fit to read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra `docs`")
pytest.importorskip("nbclient", reason="needs the extra `docs`")

from tests.docs.run_notebooks import FOLDER, execute, read  # noqa: E402

# What takes the place of the values in the cell with the tag `parameters`.
TINY = {
    "layers": "ROWS, EPOCHS = 64, 1",
    "read_attention": (
        "PAIRS, SENTENCES = 200, 2\n"
        "OPTIONS = dict(d_model=16, d_ff=32, num_heads=2, epochs=1, max_extra_length=3)"
    ),
}
KEPT = [*TINY, "tutorial"]  # test_tutorial.py runs the code of the last.
LARGEST = 350_000  # Bytes.


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def parameters(notebook):
    """The number of the one cell with the tag."""
    (number,) = (
        number
        for number, cell in enumerate(notebook.cells)
        if "parameters" in cell.metadata.get("tags", ())
    )
    return number


def check_outputs(notebook):
    """Nothing went wrong, no line of TensorFlow and no HTML of Rich is there."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            assert output.output_type != "error", output
            assert output.get("name") != "stderr", output.text
            assert "text/html" not in output.get("data", {}), cell.source
            text = str(output.get("text", output.get("data", {}).get("text/plain")))
            assert not re.search("warning|tensorflow:", text, re.IGNORECASE), text


def tiny(name):
    """A notebook at its tiny size."""
    notebook = read(name)
    cell = nbformat.v4.new_code_cell(TINY[name])
    notebook.cells.insert(parameters(notebook) + 1, cell)
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_notebook_runs(name, tmp_path):
    notebook = tiny(name)
    execute(notebook, tmp_path)
    check_outputs(notebook)


def test_every_notebook_has_its_tiny_size():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {*KEPT}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_is_fit_to_read(name):
    notebook = read(name)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    check_outputs(notebook)
    shown = [output for cell in cells for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in shown) >= 1
    assert len(shown) >= len(cells) // 2
    text = (FOLDER / f"{name}.ipynb").read_text("utf-8")
    assert len(text.encode()) < LARGEST
    place = r"/(home|root|work|tmp|Users|usr|opt)/"  # A machine's, not a page's.
    assert not re.search(place, re.sub(r"\.\./|https?://\S*", "", text))
    assert set(notebook.metadata) == {"kernelspec", "language_info"}


@pytest.mark.parametrize("name", KEPT)
def test_links_lead_somewhere(name):
    text = "".join(c.source for c in read(name).cells if c.cell_type == "markdown")
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)\)", text)
    assert links
    assert [link for link in links if not (FOLDER / Path(link)).is_file()] == []
