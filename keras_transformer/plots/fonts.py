"""Tokens as labels: invisible characters as signs, those no font has as numbers."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path

from matplotlib import font_manager, rcParams

_SIGNS = {" ": "\N{OPEN BOX}", "\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"}
_SIGNS["\t"] = "\N{RIGHTWARDS ARROW TO BAR}"


def add_font(path: str | Path) -> None:
    """Makes matplotlib use a font file for the characters that its other fonts lack.

    The font is added at the end of `matplotlib.rcParams["font.family"]`, the list that
    matplotlib searches for each character. It is used in every picture drawn later.

    Args:
        path: A .ttf, .otf or .ttc file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a font.

    Example:
        >>> plots.add_font("fonts/NotoSansCJK-Regular.ttc")
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not a file.")
    try:
        font_manager.fontManager.addfont(path)
        name = font_manager.get_font(path).family_name
    except RuntimeError as error:
        raise ValueError(f"{path}: not a font: {error}") from error
    if name not in rcParams["font.family"]:
        rcParams["font.family"] = [*rcParams["font.family"], name]


def labels_of(tokens: Sequence[str]) -> tuple[list[str], dict]:
    """Makes readable labels of tokens, whatever their script.

    Spaces, line ends and tabs get a sign. A character that no font in use has is
    written as its number, such as U+8BD1; several in a row, as the number of the first
    and "…". A warning says so.

    Args:
        tokens: Any strings.

    Returns:
        A label for each, and the properties of `matplotlib.text.Text` to draw them
        with.
    """
    labels = ["".join(map(_visible, str(token))) for token in tokens]
    missing = _missing(set("".join(labels)))
    if missing:
        warnings.warn(
            f"No font in use has {len(missing)} of the characters to draw: "
            f"{' '.join(sorted(missing)[:8])}. They are written as numbers. Add a font "
            "file that has them with keras_transformer.plots.add_font(path) or, on the "
            "command line, --font; or add the name of an installed font to "
            "rcParams['font.family']. Noto has most scripts (Debian and Ubuntu: "
            "apt-get install fonts-noto-cjk for Chinese, Japanese and Korean, "
            "fonts-noto for others; https://fonts.google.com/noto).",
            stacklevel=5,  # The caller of the function that draws.
        )
        runs = re.compile(f"[{re.escape(''.join(missing))}]+")
        labels = [runs.sub(_number_of_run, label) for label in labels]
    # A dollar sign is a token, not the start of a formula.
    return labels, {"parse_math": False}


def _missing(characters):
    """Returns the characters that no font of matplotlib's list has."""
    for family in rcParams["font.family"]:
        path = font_manager.findfont(font_manager.FontProperties(family=[family]))
        had = font_manager.get_font(path).get_charmap()
        characters = {c for c in characters if ord(c) not in had}
    return characters


def _visible(character):
    if character in _SIGNS:
        return _SIGNS[character]
    if unicodedata.category(character) in ("Cc", "Zl", "Zp", "Zs"):
        return _number(character)
    return character


def _number_of_run(match):
    return _number(match[0][0]) + "…" * (len(match[0]) > 1)


def _number(character):
    return f"U+{ord(character):04X}"
