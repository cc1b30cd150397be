"""What the pictures show: their values, tokens and curves, on given axes too."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops
from matplotlib.figure import Figure

from keras_transformer import TransformerSchedule, causal_mask, plots
from keras_transformer import sinusoidal_encoding as encoding

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
    assert (keys, queries) == (KEYS, QUERIES)


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


def test_a_mask_shows_where_a_query_may_attend():
    figure = plots.mask(causal_mask(4), list("abcd"), list("abcd"))
    image, keys, _ = drawn(figure)
    np.testing.assert_array_equal(image, np.tri(4))
    assert keys == list("abcd")


def test_positions_show_matrix_dimensions_and_similarity():
    vectors = encoding(np.arange(7), 10)
    array = ops.convert_to_numpy(vectors)
    image = drawn(plots.positional_encoding(vectors))[0]
    np.testing.assert_allclose(image, array)
    ax = plots.position_dimensions(vectors, [3, 8]).axes[0]
    for line, dimension in zip(ax.lines, (3, 8), strict=True):
        np.testing.assert_allclose(line.get_ydata(), array[:, dimension])
    image = drawn(plots.position_similarity(vectors))[0]
    # Unit circles: the cosine is the mean of the cosines of the angles between.
    for distance in (1, 4):
        angles = distance / 10000 ** (np.arange(0, 10, 2) / 10)
        expected = np.full(7 - distance, np.cos(angles).mean())
        np.testing.assert_allclose(np.diag(image, distance), expected, atol=1e-6)


def test_learning_rates_show_equation_3_and_its_peak():
    schedules = [TransformerSchedule(16, 137), TransformerSchedule(64, 137, 2.0)]
    figure = plots.learning_rate(schedules, steps=1001)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["d_model 16, warm-up 137", "d_model 64, warm-up 137, scale 2"]
    for line, factor in zip(
        figure.axes[0].lines, (16**-0.5, 2 * 64**-0.5), strict=True
    ):
        step, rate = line.get_data()
        expected = factor * np.minimum(step**-0.5, step * 137**-1.5)
        np.testing.assert_allclose(rate, expected, rtol=1e-5)
        assert step[rate.argmax()] == 137


def test_learning_rates_take_any_schedule_with_a_name():
    decay = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.1)
    figure = plots.learning_rate({"falling": decay}, steps=11)
    np.testing.assert_allclose(
        figure.axes[0].lines[0].get_ydata()[[0, 10]], [0.5, 0.05]
    )
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["falling"]


LOG = """epoch,accuracy,loss,val_bleu,val_loss
0,0.25,3.5,,3.75
1,0.5,1.5,12.5,2.25
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")
    return tmp_path


def test_training_curves_come_from_the_log_of_a_run(run):
    ax = plots.training_curve(run, "loss").axes[0]
    training, validation = (line.get_xydata().tolist() for line in ax.lines)
    assert training == [[1, 3.5], [2, 1.5]]
    assert validation == [[1, 3.75], [2, 2.25]]
    figure = plots.training_curves(run / "log.csv")
    names = [ax.get_ylabel() for ax in figure.axes if ax.get_visible()]
    assert names == ["loss", "accuracy", "bleu"]
    assert np.isnan(figure.axes[2].lines[0].get_ydata()[0])


def test_training_curves_come_from_what_fit_returned():
    history = keras.callbacks.History()
    history.history = {"loss": [3.0, 2.0, 1.0], "val_loss": [4.0, 3.0, 2.0]}
    ax = plots.training_curve(history).axes[0]
    assert ax.lines[1].get_xydata().tolist() == [[1, 4], [2, 3], [3, 2]]


SQUARE = np.eye(3)


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: plots.attention(SQUARE, ax=ax),
        lambda ax: plots.attention_heads(SQUARE[None], axes=[ax]),
        lambda ax: plots.mask(SQUARE > 0, ax=ax),
        lambda ax: plots.positional_encoding(SQUARE, ax=ax),
        lambda ax: plots.position_dimensions(SQUARE, [1], ax=ax),
        lambda ax: plots.position_similarity(SQUARE, ax=ax),
        lambda ax: plots.learning_rate(TransformerSchedule(16, 5), ax=ax),
        lambda ax: plots.training_curve({"loss": [1.0]}, ax=ax),
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
        (lambda: plots.mask(np.ones((2, 1, 1)) > 0), "`mask` must be of one sentence"),
        (lambda: plots.position_dimensions(SQUARE, [3]), "from 0 to 2. .*\\[3\\]"),
        (lambda: plots.learning_rate([]), "`schedules` must hold at least one"),
        (lambda: plots.learning_rate(TransformerSchedule(1, 1), 0), "`steps` .* at le"),
        (lambda: plots.training_curve({"loss": [1]}, "bleu"), "no 'bleu'. It has: l"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_a_mask_of_numbers_is_refused():
    with pytest.raises(TypeError, match="`mask` must be boolean"):
        plots.mask(SQUARE)


def test_a_bad_log_is_named_with_its_line(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("epoch,loss\n0,1.0\n1,much\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"other.csv:3: could not convert .*'much'"):
        plots.training_curve(path)
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="not the log of a training run"):
        plots.training_curve(path)
    path.write_text("epoch,loss,loss\n0,1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="columns, each once"):
        plots.training_curve(path)
    path.write_bytes(b"epoch,lo\xe9\n0,1\n")
    with pytest.raises(ValueError, match="other.csv: not valid UTF-8"):
        plots.training_curve(path)
    with pytest.raises(FileNotFoundError):
        plots.training_curve(tmp_path / "none")
    for empty in ({}, {"epoch": [1]}):
        with pytest.raises(ValueError, match="no quantity to draw"):
            plots.training_curves(empty)
