"""Digests of the files that a model was made with, in a list beside their directory.

The list has the directory's name with ".sha256" added; `sha256sum --check` reads it,
too. It is not inside, so that replacing the whole directory is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from keras_transformer.files import replacing


def write_digests(paths: Sequence[Path]):
    """Writes the digests of files of one directory beside that directory."""
    with replacing(_list_of(paths)) as temporary:
        temporary.write_text("".join(map(_line, paths)), encoding="utf-8")


def check_digests(paths: Sequence[Path]):
    """Compares files of one directory with their digests, if those were written.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file differs from its digest.
    """
    listed = _list_of(paths)
    if not listed.exists():
        return  # No model goes with them, or it is older than the digests.
    known = listed.read_text(encoding="utf-8", errors="replace")
    for path in paths:
        if _line(path) not in known:
            raise ValueError(
                f"{path} is not the file that the model beside it was made with: "
                f"{listed} has another SHA-256. Restore the model's own file."
            )


def _list_of(paths):
    directory = paths[0].parent
    return directory.parent / f"{directory.name}.sha256"


def _line(path):
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{digest}  {path.parent.name}/{path.name}\n"
