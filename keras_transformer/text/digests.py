"""Which files a model was made with: a list of their digests, beside their directory.

It has the directory's name and ".sha256", and `sha256sum --check` reads it too. It is
not within, so that another directory put in the place of the whole is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from keras_transformer.files import replacing


def write_digests(paths: Sequence[Path]):
    """Writes the digests of some files of one directory beside it."""
    with replacing(_list_of(paths)) as temporary:
        temporary.write_text("".join(map(_line, paths)), encoding="utf-8")


def check_digests(paths: Sequence[Path]):
    """Compares files of one directory with what `write_digests` wrote, if it did.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is another one.
    """
    listed = _list_of(paths)
    if not listed.exists():
        return  # No model goes with them, or one of before there were digests.
    known = listed.read_text(encoding="utf-8", errors="replace")
    for path in paths:
        if _line(path) not in known:
            raise ValueError(
                f"{path} is not the file that the model beside it was made with: "
                f"{listed} has another SHA-256. Put the model's own back."
            )


def _list_of(paths):
    directory = paths[0].parent
    return directory.parent / f"{directory.name}.sha256"


def _line(path):
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{digest}  {path.parent.name}/{path.name}\n"
