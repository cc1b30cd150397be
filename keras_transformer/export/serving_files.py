"""The files beside the versions of an export, which configure TensorFlow Serving.

They are filled from templates/, and start a server with Docker or Kubernetes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from string import Template

from keras_transformer.files import replacing

TEMPLATES = Path(__file__).with_name("templates")
NAMES = (
    "models.config", "batching_parameters.txt", "monitoring.config",
    "docker-compose.yml", "docker-compose.gpu.yml", "kubernetes.yml",
)  # fmt: skip


def model_name(path: str | Path) -> str:
    """Returns the name under which TensorFlow Serving serves NAME/VERSION.

    It is NAME, with "-" for what a URL or a configuration file would have to escape.
    """
    name = Path(os.path.abspath(path)).parent.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name) or "model"


def filled(template: str, **values: str) -> str:
    """Returns the text of a file of templates/ with its `$names` replaced."""
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    return Template(text).substitute(values)


def write_serving_files(version: Path) -> list[Path]:
    """Writes the files of `NAMES` beside NAME/VERSION where they are missing.

    They serve all versions, so one that is there stays as it is.
    """
    name = model_name(version)
    # A host's name, which alone a Service of Kubernetes may have: at most 63 small
    # letters, digits and "-", the first a letter.
    word = re.sub("[^a-z0-9]+", "-", f"translator-{name}".lower())[:63].strip("-")
    written = []
    for file in (version.parent / file_name for file_name in NAMES):
        if not file.exists():
            with replacing(file) as temporary:
                text = filled(file.name, name=name, object=word)
                temporary.write_text(text, encoding="utf-8", newline="\n")
            written.append(file)
    return written
