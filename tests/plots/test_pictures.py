"""What the pictures show: their values, tokens and curves, on given axes too."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops
from matplotlib.figure import Figure

from keras_transformer import RunConfig, plots

QUERIES, KEYS = ["Guten", "Tag", "</s>"], ["▁a", "good", "$5", "$6", "</s>"]


@pytest.fixture
def weights(rng):
    """Attention weights (2, 3, 5)."""
    raw = rng.random((2, 3, 5))
    return raw / raw.sum(axis=-1, keepdims=True)


def drawn(figure):
    """The image of the first axes and the labels of its axes."""
    figure.canvas.draw()
    ax = figure.axes[0]
    labels = [[x.get_text() for x in a.get_ticklabels()] for a in (ax.xaxis, ax.yaxis)]
    return np.asarray(ax.images[0].get_array()), *labels


def test_attention_shows_the_weights_with_the_tokens_on_both_axes(weights):
    image, keys, queries = drawn(plots.attention(weights[1], QUERIES, KEYS))
    np.testing.assert_array_equal(image, weights[1])
    assert keys == ["a", "good", "$5", "$6", "(end)"]
    assert queries == ["Guten", "Tag", "(end)"]


def test_attention_shows_one_head_or_the_mean_of_all(weights):
    tensor = ops.convert_to_tensor(weights.astype("float32"))
    for head, expected in ((1, weights[1]), (-2, weights[0])):
        image = drawn(plots.attention(tensor, QUERIES, KEYS, head=head))[0]
        np.testing.assert_allclose(image, expected, rtol=1e-6)
    image = drawn(plots.attention(weights))[0]
    np.testing.assert_allclose(image, weights.mean(axis=0))


def test_every_head_has_axes_and_all_have_one_scale(weights):
    figure = plots.attention_heads(weights, QUERIES, KEYS, title="layer $0$")
    figure.canvas.draw()
    for head, ax in enumerate(figure.axes[:2]):
        np.testing.assert_array_equal(ax.images[0].get_array(), weights[head])
        assert ax.images[0].get_clim() == (0, weights.max())
        assert ax.get_title() == f"head {head}"
    assert figure.get_suptitle() == "layer $0$"


def test_what_is_invisible_gets_a_sign_and_nothing_is_a_formula():
    figure = plots.attention(np.eye(4), [" ", "\n", "a\tb", "$x$"], title="$x$")
    assert drawn(figure)[2] == ["␣", "↵", "a⇥b", "$x$"]
    assert figure.axes[0].get_title() == "$x$"


LOG = """epoch,accuracy,loss,val_bleu,val_loss
1,0.25,3.5,,3.75
2,0.5,1.5,12.5,2.25
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")
    return tmp_path


def test_training_curves_come_from_the_log_of_a_run(run):
    ax = plots.training_curves(run, ["loss"]).axes[0]
    training, validation, best = (line.get_xydata().tolist() for line in ax.lines)
    assert training == [[1, 3.5], [2, 1.5]]
    assert validation == [[1, 3.75], [2, 2.25]]
    assert best == [[2, 0], [2, 1]]  # From the bottom of the axes to their top.
    assert ax.get_legend().get_texts()[2].get_text() == "best epoch: 2"
    figure = plots.training_curves(run / "log.csv")
    names = [ax.get_title() for ax in figure.axes if ax.get_visible()]
    assert names == ["loss (nats a token)", "BLEU", "accuracy"]
    assert figure.get_suptitle() == f"training of {run.name}"
    assert np.isnan(figure.axes[1].lines[0].get_ydata()[0])


def test_the_best_epoch_is_that_of_the_runs_monitor(run):
    config = RunConfig().with_options(monitor="bleu")
    (run / "config.json").write_text(config.to_json(), encoding="utf-8")
    row = "3,0.5,1.5,11.5,2.0\n"
    (run / "log.csv").write_text(LOG + row, encoding="utf-8")
    labels = plots.training_curves(run, ["loss"]).axes[0].get_legend().get_texts()
    assert labels[2].get_text() == "best epoch: 2"


def test_training_curves_come_from_what_fit_returned():
    history = keras.callbacks.History()
    history.history = {"loss": [3.0, 2.0, 1.0], "val_loss": [4.0, 3.0, 2.0]}
    ax = plots.training_curves(history).axes[0]
    assert ax.lines[1].get_xydata().tolist() == [[1, 4], [2, 3], [3, 2]]


SQUARE = np.eye(3)


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: plots.attention(SQUARE, ax=ax),
        lambda ax: plots.attention_heads(SQUARE[None], axes=[ax]),
        lambda ax: plots.training_curves({"loss": [1.0]}, axes=ax),
    ],
)
def test_every_picture_is_drawn_on_given_axes(draw):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert draw(right) is figure
    assert right.has_data() and not left.has_data()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.attention(np.ones(3)), "`weights` must have 2 or 3 axes"),
        (lambda: plots.attention(SQUARE, ["a"]), "`queries` must be as many .* 1 tok"),
        (lambda: plots.attention(SQUARE, None, ["a"]), "`keys` must be as many"),
        (lambda: plots.attention(SQUARE[None], head=1), "`head` must be one of the 1"),
        (lambda: plots.attention_heads(SQUARE), "`weights` must have 3 axes"),
        (lambda: plots.attention_heads(np.ones((2, 1, 1)), axes=[]), "`axes` .* 2"),
        (
            lambda: plots.training_curves({"loss": [1]}, ["bleu"]),
            "no 'bleu'. It has: l",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_a_bad_log_is_named_with_its_line(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("epoch,loss\n0,1.0\n1,much\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"other.csv:3: could not convert .*'much'"):
        plots.training_curves(path)
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="not the log of a training run"):
        plots.training_curves(path)
    with pytest.raises(FileNotFoundError):
        plots.training_curves(tmp_path / "none")
    for empty in ({}, {"epoch": [1]}):
        with pytest.raises(ValueError, match="no quantity to draw"):
            plots.training_curves(empty)
