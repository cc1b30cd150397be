"""Every message that the page on failures quotes is still in the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "when_it_fails.md").read_text("utf-8")
QUOTED = re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL)
HOLE = "\0"


def texts():
    """Every string of the package, a hole where an f-string has an expression."""
    for path in sorted((ROOT / "keras_transformer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    part.value if isinstance(part, ast.Constant) else HOLE
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


SOURCE = "\n".join(texts())


@pytest.mark.parametrize("message", QUOTED)
def test_the_message_is_in_the_source(message):
    parts = [re.escape(part) for part in message.split("...")]
    pattern = f"[^\n{HOLE}]*{HOLE}[^\n{HOLE}]*".join(parts)
    assert re.search(pattern, SOURCE), message


def test_there_are_about_twenty():
    assert len(QUOTED) >= 20
    assert len(set(QUOTED)) == len(QUOTED)
