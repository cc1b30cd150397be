"""Writes the outputs of the notebooks anew, in minutes each.

python -m tests.docs.run_notebooks layers train_and_serve read_attention
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import nbclient
import nbformat

from tests.docs.document import ROOT

FOLDER = ROOT / "examples" / "notebooks"
# Of what Jupyter knows of the language; its version would change with the machine.
LANGUAGE = ("file_extension", "mimetype", "name", "pygments_lexer")


def read(name):
    """Returns the notebook of that name."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def execute(notebook, folder):
    """Runs all cells, of which the notebook keeps the outputs.

    Args:
        notebook: A notebook, in which cells may have been put.
        folder: Where it runs, and leaves what it writes.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails.
    """
    client = nbclient.NotebookClient(
        notebook, timeout=1200, coalesce_streams=True, record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # As a reader has it.
    with tempfile.TemporaryDirectory() as profile:
        client.execute(env=environment | {"IPYTHONDIR": profile})
    language = notebook.metadata["language_info"]
    notebook.metadata["language_info"] = {key: language[key] for key in LANGUAGE}


def main(names):
    for name in names:
        notebook = read(name)
        execute(notebook, FOLDER)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
