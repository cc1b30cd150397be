"""Tokens as labels: fonts that have their characters, signs for what is invisible."""

from __future__ import annotations

import functools
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import font_manager

_SIGNS = {" ": "\N{OPEN BOX}", "\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"}
_SIGNS["\t"] = "\N{RIGHTWARDS ARROW TO BAR}"


def add_font(path: str | Path):
    """Makes a font file known, for tokens whose characters no installed font has.

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
    except RuntimeError as error:
        raise ValueError(f"{path}: not a font: {error}") from error


def labels_of(tokens: Sequence[str]) -> tuple[list[str], dict]:
    """Makes labels of tokens that can be read, whatever script they are in.

    Spaces, line ends and tabs get a sign. A character that no font has is written as
    its number, such as U+8BD1, and a warning says so.

    Args:
        tokens: Any strings.

    Returns:
        A label for each, and the properties of `matplotlib.text.Text` to draw them
        with.
    """
    labels = ["".join(map(_visible, str(token))) for token in tokens]
    families, missing = families_for(set("".join(labels)))
    if missing:
        _warn(missing)
        labels = ["".join(_numbered(c, missing) for c in label) for label in labels]
    # A dollar sign is a token, not the begin of a formula.
    return labels, {"fontfamily": families, "parse_math": False}


def families_for(characters: Iterable[str]) -> tuple[list[str], set[str]]:
    """Chooses fonts that together have all characters, the usual one first.

    Args:
        characters: Single characters.

    Returns:
        Font families, in the order in which matplotlib is to try them, and the
        characters that none of the installed fonts has.
    """
    usual = font_manager.findfont(font_manager.FontProperties())
    families = [font_manager.get_font(usual).family_name]
    missing = set(characters) - _characters_of(str(usual))
    for look in (_known_families, _new_families):
        candidates = look() if missing else {}
        while missing and candidates:
            best = max(candidates, key=lambda name: len(candidates[name] & missing))
            if not candidates[best] & missing:
                break
            families.append(best)
            missing -= candidates.pop(best)
    return families, missing


def _known_families():
    """Characters of each font family that matplotlib knows."""
    return _families(font_manager.fontManager.ttflist)


def _new_families():
    """Characters of the families that were installed since matplotlib looked."""
    fonts = font_manager.fontManager.ttflist
    known = {font.fname for font in fonts}
    for path in set(font_manager.findSystemFonts()) - known:
        try:
            font_manager.fontManager.addfont(path)
        except (OSError, RuntimeError):
            continue  # A font that FreeType cannot read draws nothing either.
    return _families([font for font in fonts if font.fname not in known])


def _families(fonts):
    """Characters of each family, by the font that is nearest to upright and regular."""
    characters = {}
    for font in sorted(fonts, key=_distance_from_regular):
        # The last resort has a box for every character, which is what nobody can read.
        if font.name in characters or "Last Resort" in font.name:
            continue
        try:
            characters[font.name] = _characters_of(font.fname)
        except (OSError, RuntimeError):
            continue
    return characters


def _distance_from_regular(font):
    weight = font_manager.weight_dict.get(font.weight, font.weight)
    return font.style != "normal", abs(int(weight) - 400), font.name, font.fname


@functools.cache
def _characters_of(path):
    return frozenset(map(chr, font_manager.get_font(path).get_charmap()))


def _visible(character):
    if character in _SIGNS:
        return _SIGNS[character]
    if unicodedata.category(character) in ("Cc", "Zl", "Zp", "Zs"):
        return _number(character)
    return character


def _numbered(character, missing):
    return _number(character) if character in missing else character


def _number(character):
    return f"U+{ord(character):04X}"


def _warn(missing):
    shown = " ".join(sorted(missing)[:8])
    warnings.warn(
        f"No installed font has {len(missing)} of the characters to draw: {shown}. "
        "They are written as numbers. Install a font that has them, such as Noto "
        "(Debian and Ubuntu: apt-get install fonts-noto-cjk for Chinese, Japanese and "
        "Korean, fonts-noto for others; https://fonts.google.com/noto), or name a font "
        "file with keras_transformer.plots.add_font(path), --font on the command line.",
        stacklevel=6,  # Who called the function that draws.
    )
