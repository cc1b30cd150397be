"""Pictures: their values, tokens and curves; what all layers attend to; the verb."""

import keras
import numpy as np
import pytest
from keras import ops
from PIL import Image

from keras_transformer import Translator, plots
from keras_transformer.apps import cli
from tests import tiny_run
from tests.nn.layers.reference_weights import model_weights_of
from tests.reference import numpy_transformer as reference

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
    assert keys == ["a", "good", "$5", "$6", "</s>"]
    assert queries == QUERIES


def test_every_head_has_axes_and_all_have_one_scale(weights):
    tensor = ops.convert_to_tensor(weights.astype("float32"))
    figure = plots.attention(tensor, QUERIES, KEYS, title="layer $0$")
    figure.canvas.draw()
    for head, ax in enumerate(figure.axes[:2]):
        image = ax.images[0]
        np.testing.assert_allclose(image.get_array(), weights[head], rtol=1e-6)
        assert image.get_clim() == (0, pytest.approx(weights.max()))
        assert ax.get_title() == f"head {head}"
    assert figure.get_suptitle() == "layer $0$"


def test_no_token_is_a_formula_and_a_words_start_has_no_mark():
    tokens = ["▁a", "$x$", "▁", "<s>"]
    figure = plots.attention(np.eye(4), tokens, title="$x$")
    assert drawn(figure)[2] == ["a", "$x$", "␣", "<s>"]
    assert figure.get_suptitle() == "$x$"


LOG = """epoch,loss,masked_accuracy,val_bleu,val_loss
1,3.5,0.25,,3.75
2,1.5,0.5,12.5,2.25
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")
    return tmp_path


def test_training_curves_come_from_the_log_of_a_run(run):
    ax = plots.training_curves(run, ["loss"]).axes[0]
    training, validation = (line.get_xydata().tolist() for line in ax.lines)
    assert training == [[1, 3.5], [2, 1.5]]
    assert validation == [[1, 3.75], [2, 2.25]]
    figure = plots.training_curves(run)
    assert [ax.get_title() for ax in figure.axes] == ["loss", "masked_accuracy", "bleu"]
    assert np.isnan(figure.axes[2].lines[0].get_ydata()[0])


def test_training_curves_come_from_what_fit_returned():
    history = keras.callbacks.History()
    history.history = {"loss": [3.0, 2.0, 1.0], "val_loss": [4.0, 3.0, 2.0]}
    ax = plots.training_curves(history).axes[0]
    assert ax.lines[1].get_xydata().tolist() == [[1, 4], [2, 3], [3, 2]]


SQUARE = np.eye(3)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.attention(np.ones(3)), "`weights` must have 2 or 3 axes"),
        (lambda: plots.attention(SQUARE, ["a"]), r"\(3\).* number of labels \(1\)"),
        (lambda: plots.attention(SQUARE, None, ["a"]), "number of labels"),
        (
            lambda: plots.training_curves({"loss": [1]}, ["bleu"]),
            r"of the log: loss. Received: metrics=\['bleu'\]",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_a_run_without_a_log_and_an_empty_log_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        plots.training_curves(tmp_path)
    for empty in ({}, {"epoch": [1]}):
        with pytest.raises(ValueError, match="must be some of those"):
            plots.training_curves(empty)


# The attention of all layers for a sentence, and the verb that draws it.

TEXT, TRANSLATION = "the old man sings.", "der alte Mann singt."


def ids_of(tokenizer, text):
    return [*tokenizer.tokenize([text])[0].numpy(), tokenizer.end_id]


def test_weights_and_tokens_of_every_kind_agree_with_the_reference():
    tokenizers, model = tiny_run.tokenizers(), tiny_run.model()
    source = np.array([ids_of(tokenizers.source, TEXT)])
    target_out = ids_of(tokenizers.target, TRANSLATION)
    target = np.array([[1, *target_out[:-1]]])
    sources = tokenizers.source.pieces(source[0])
    targets = tokenizers.target.pieces(target_out)
    starts = ["<s>", *targets[:-1]]
    weights, heads = model_weights_of(model), model.config.num_heads
    cross = reference.cross_attention_weights(source, target, weights, heads, 0)
    expected = {"cross": (cross, targets, sources)}
    for kind, ids, side, mask, tokens in (
        ("encoder", source, "source", None, sources),
        ("decoder", target, "target", reference.causal_mask(target.shape[1]), starts),
    ):
        x = reference.positional_embedding(ids, weights[f"{side}_embeddings"])
        attention = weights[f"{kind}_layers"][0]["self_attention"]
        own = reference.multi_head_attention(x, x, x, attention, heads, mask)[1]
        expected[kind] = own, tokens, tokens
    for kind, (values, *tokens) in expected.items():
        seen, *seen_tokens = plots.sentence_attention(
            tiny_run.translator(), TEXT, TRANSLATION, kind=kind
        )
        assert seen_tokens == tokens
        np.testing.assert_allclose(seen, values, atol=1e-5)


def test_without_a_translation_it_is_the_translators():
    translator = tiny_run.translator()
    weights, *tokens = plots.sentence_attention(translator, TEXT)
    (translation,) = translator([TEXT])
    same, *expected = plots.sentence_attention(translator, TEXT, translation)
    assert tokens == expected
    np.testing.assert_array_equal(weights, same)


def test_an_ssru_has_no_weights_to_show_but_the_rest_has():
    model = tiny_run.model(decoder_self_attention="ssru")
    translator = Translator(model, tiny_run.tokenizers(), tiny_run.CONFIG.decoding)
    weights, targets, sources = plots.sentence_attention(translator, TEXT, TRANSLATION)
    assert weights.shape == (1, 2, len(targets), len(sources))
    with pytest.raises(ValueError, match="kind='decoder' records no weights"):
        plots.sentence_attention(translator, TEXT, TRANSLATION, kind="decoder")


def test_what_is_not_there_is_refused():
    translator = tiny_run.translator()
    with pytest.raises(ValueError, match="`kind` must be one of cross, encoder, dec"):
        plots.sentence_attention(translator, TEXT, kind="self")


def plot(kind, *words):
    return cli.main([f"plot-{kind}", *map(str, words)])


def test_verb_draws_attention_of_a_run(run_directory, tmp_path, capsys):
    png, svg = tmp_path / "new" / "cross.png", tmp_path / "encoder.svg"
    assert plot("attention", run_directory, TEXT, "--output", png) == 0
    assert capsys.readouterr() == (f"{png}\n", "")
    with Image.open(png) as image:
        assert min(image.size) > 300
    words = ["--of", "encoder", "--layer", 0, "--translation", TRANSLATION]
    assert plot("attention", run_directory, TEXT, *words, "--output", svg) == 0
    assert svg.read_text(encoding="utf-8").rstrip().endswith("</svg>")
    words = ["--layer", 9, "--translation", TRANSLATION]
    assert plot("attention", run_directory, TEXT, *words, "--output", svg) == 1
    assert "must be at least -1 and at most 0" in capsys.readouterr().err


def test_verb_draws_the_training_of_a_run(run_directory, tmp_path):
    output = tmp_path / "training.png"
    assert plot("training", run_directory, "--metrics", "loss", "--output", output) == 0
    assert output.is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training", "none", "--output", "a.png"], "none: No such file"),
        (
            ["attention", ".", "a", "--output", "a.png"],
            ". holds no trained translator: model.keras",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_verb_reports_errors_in_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert plot(*words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("keras-transformer: error: ") and message in line
    assert not list(tmp_path.iterdir())
