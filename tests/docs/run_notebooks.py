"""Writes the outputs of the notebooks anew, in minutes each.

python -m tests.docs.run_notebooks layers read_attention tutorial

`tutorial` is made from docs/tutorial.md, needs fra.txt beside the notebooks, and writes
its outputs into the page too.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import tempfile

import nbclient
import nbformat

from tests.docs.document import ROOT

FOLDER = ROOT / "examples" / "notebooks"
# Of what Jupyter knows of the language; its version would change with the machine.
LANGUAGE = ("file_extension", "mimetype", "name", "pygments_lexer")


PAGE = ROOT / "docs" / "tutorial.md"
PICTURE = PAGE.with_name("tutorial_attention.png")
CODE = re.compile(r"(```python\n.*?\n```\n)(?:\n```text\n.*?\n```\n)?", re.DOTALL)


def read(name):
    """Returns the notebook of that name."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def made_of(page):
    """Returns the notebook of a page's text, without the outputs that the page shows.

    Each block of Python is a cell of code; pictures are drawn in their cells.
    """
    text = re.sub(r"^!\[[^\n]*\n", "", page, flags=re.MULTILINE)
    text = re.sub(r"\]\((?!https?:)", "](../../docs/", CODE.sub(r"\1", text))
    cells = []
    for number, part in enumerate(
        re.split(r"```python\n(.*?)\n```\n", text, flags=re.S)
    ):
        is_code = number % 2
        part = f"%matplotlib inline\n{part}" if number == 1 else part.strip("\n")
        make = nbformat.v4.new_code_cell if is_code else nbformat.v4.new_markdown_cell
        if part:
            cells.append(make(part, id=f"part-{number}"))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def printed(cell):
    """Returns what a cell printed, without the line's end."""
    streams = [o.text for o in cell.outputs if o.output_type == "stream"]
    return "".join(streams).rstrip("\n")


def with_outputs(page, notebook):
    """Returns the page with what each cell of its notebook printed below the block."""
    cells = iter([cell for cell in notebook.cells if cell.cell_type == "code"])

    def block(match):
        text = printed(next(cells))
        return match[1] + (f"\n```text\n{text}\n```\n" if text else "")

    return CODE.sub(block, page)


def write_outputs(notebook):
    """Writes the outputs of the tutorial into its page, and its picture."""
    page = with_outputs(PAGE.read_text("utf-8"), notebook)
    PAGE.write_text(page, encoding="utf-8")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    (picture,) = (
        o.data["image/png"] for o in outputs if "image/png" in o.get("data", ())
    )
    PICTURE.write_bytes(base64.b64decode(picture))


def execute(notebook, folder):
    """Runs all cells, of which the notebook keeps the outputs.

    Args:
        notebook: A notebook, in which cells may have been put.
        folder: Where it runs, and leaves what it writes.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails.
    """
    client = nbclient.NotebookClient(
        notebook,
        timeout=1200,
        coalesce_streams=True,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # As a reader has it.
    with tempfile.TemporaryDirectory() as profile:
        client.execute(env=environment | {"IPYTHONDIR": profile})
    language = notebook.metadata["language_info"]
    notebook.metadata["language_info"] = {key: language[key] for key in LANGUAGE}


def main(names):
    for name in names:
        is_page = name == "tutorial"
        notebook = made_of(PAGE.read_text("utf-8")) if is_page else read(name)
        execute(notebook, FOLDER)
        if is_page:
            write_outputs(notebook)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
