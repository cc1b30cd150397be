"""Tokens of any script are drawn or named, never a box without a word."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager, rc_context, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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
    with rc_context():
        yield
    manager._findfont_cached.cache_clear()


def test_a_font_is_added_once_and_after_the_usual_one(font):
    usual = list(rcParams["font.family"])
    plots.add_font(font)
    plots.add_font(font)
    assert rcParams["font.family"] == [*usual, "Squares"]


def test_foreign_tokens_are_drawn_with_an_added_font(font):
    plots.add_font(font)
    (label,), properties = fonts.labels_of([FOREIGN])
    canvas = FigureCanvasAgg(Figure(figsize=(2, 2), dpi=100))
    canvas.figure.text(0.2, 0.2, label, fontsize=72, **properties)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of every missing glyph.
        canvas.draw()
    # The square's sides are 0.7 of the 72 points, which are 100 pixels: no empty box.
    dark = (np.asarray(canvas.buffer_rgba())[..., 0] < 128).sum()
    assert dark == pytest.approx(70 * 70, rel=0.05)


def test_a_font_that_is_installed_is_used_once_it_is_in_matplotlibs_list(font):
    font_manager.fontManager.addfont(font)
    with pytest.warns(UserWarning, match="No font in use has 1 of"):
        assert fonts.labels_of([FOREIGN])[0] == ["U+10ABC0"]
    rcParams["font.family"] = ["sans-serif", "Squares"]
    assert fonts.labels_of([FOREIGN])[0] == [FOREIGN]


def test_characters_without_a_font_are_written_as_numbers_and_named_once():
    with pytest.warns(UserWarning, match="No font in use .* fonts-noto-cjk") as all_:
        labels, _ = fonts.labels_of(["a" + OTHER, f"{OTHER}{FOREIGN}]", "b"])
    # The numbers of a whole word would leave no room for the picture.
    assert labels == ["aU+10ABC1", "U+10ABC1…]", "b"]
    assert len(all_) == 1


def test_the_warning_names_the_line_that_draws():
    for draw in (
        lambda: plots.attention(np.eye(1), [OTHER]),
        lambda: plots.mask(np.ones((1, 1), bool), title=OTHER),
    ):
        with pytest.warns(UserWarning, match="No font in use") as caught:
            draw()
        assert caught[0].filename == __file__


def test_what_is_invisible_gets_a_sign():
    labels, properties = fonts.labels_of([" ", "\n", "a\tb", "\x00", "$x$"])
    assert labels == ["␣", "↵", "a⇥b", "U+0000", "$x$"]
    assert properties == {"parse_math": False}


def test_a_font_file_must_be_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.ttf is not a file"):
        plots.add_font(tmp_path / "none.ttf")
    (tmp_path / "bad.ttf").write_text("no font")
    with pytest.raises(ValueError, match="bad.ttf: not a font"):
        plots.add_font(tmp_path / "bad.ttf")
