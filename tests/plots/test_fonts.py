"""Tokens of any script are drawn or named, never a box without a word."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager

from keras_transformer import plots
from keras_transformer.plots import fonts

# Private characters: no font of any machine has them.
FOREIGN, OTHER = "\U0010abc0", "\U0010abc1"


@pytest.fixture
def font(tmp_path):
    """A font file with one character, FOREIGN, drawn as a square."""
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for point in ((100, 700), (800, 700), (800, 0)):
        pen.lineTo(point)
    pen.closePath()
    square = pen.glyph()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "square"])
    builder.setupCharacterMap({ord(FOREIGN): "square"})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "square": square})
    builder.setupHorizontalMetrics({".notdef": (500, 0), "square": (900, 100)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Squares", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "squares.ttf")
    return tmp_path / "squares.ttf"


@pytest.fixture(autouse=True)
def known_fonts(monkeypatch):
    """Forgets the fonts that a test adds."""
    manager = font_manager.fontManager
    monkeypatch.setattr(manager, "ttflist", list(manager.ttflist))
    manager._findfont_cached.cache_clear()
    yield
    manager._findfont_cached.cache_clear()


def test_a_font_that_has_the_characters_is_found_after_the_usual_one(font):
    plots.add_font(font)
    families, missing = fonts.families_for({"a", FOREIGN})
    assert (families, missing) == (["DejaVu Sans", "Squares"], set())
    assert fonts.families_for("a▁") == (["DejaVu Sans"], set())


def test_foreign_tokens_are_drawn_and_not_as_boxes(font):
    plots.add_font(font)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of every missing glyph.
        figure = plots.attention(np.eye(2), [FOREIGN + "a", "b"], ["c", FOREIGN])
        figure.canvas.draw()
    assert figure.axes[0].get_yticklabels()[0].get_text() == FOREIGN + "a"


def test_a_font_installed_since_matplotlib_looked_is_found(font, monkeypatch):
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(font)])
    assert fonts.families_for({FOREIGN})[0] == ["DejaVu Sans", "Squares"]


def test_characters_without_a_font_are_written_as_numbers_and_named_once(monkeypatch):
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    with pytest.warns(UserWarning, match="No installed font .* fonts-noto-cjk") as all_:
        labels, _ = fonts.labels_of(["a" + OTHER, OTHER, "b"])
    assert labels == ["aU+10ABC1", "U+10ABC1", "b"]
    assert len(all_) == 1


def test_what_is_invisible_gets_a_sign():
    labels, properties = fonts.labels_of([" ", "\n", "a\tb", "\x00", "$x$"])
    assert labels == ["␣", "↵", "a⇥b", "U+0000", "$x$"]
    assert properties == {"fontfamily": ["DejaVu Sans"], "parse_math": False}


def test_a_font_file_must_be_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.ttf is not a file"):
        plots.add_font(tmp_path / "none.ttf")
    (tmp_path / "bad.ttf").write_text("no font")
    with pytest.raises(ValueError, match="bad.ttf: not a font"):
        plots.add_font(tmp_path / "bad.ttf")
