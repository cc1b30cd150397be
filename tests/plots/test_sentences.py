"""The attention of all layers for a sentence, and the verb that draws it."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from PIL import Image

from keras_transformer import Translator, cli, plots
from keras_transformer.layers import recorded_attention
from tests import tiny_run
from tests.layers.reference_weights import model_weights_of
from tests.reference import numpy_transformer as reference

TEXT, TRANSLATION = "the old man sings.", "der alte Mann singt."


@pytest.fixture(scope="module")
def seen():
    return plots.sentence_attention(tiny_run.translator(), TEXT, TRANSLATION)


def ids_of(tokenizer, text):
    return [*tokenizer.tokenize([text])[0].numpy(), tokenizer.end_id]


def test_tokens_are_those_that_the_model_reads_and_writes(seen):
    tokenizers = tiny_run.tokenizers()
    source, target = (
        tokenizers.source.pieces(ids_of(tokenizers.source, TEXT)),
        tokenizers.target.pieces(ids_of(tokenizers.target, TRANSLATION)),
    )
    assert (seen.source_tokens, seen.target_tokens) == (source, target)
    assert seen.decoder_tokens == ["<s>", *target[:-1]]


def test_weights_of_every_kind_agree_with_the_reference(seen):
    tokenizers, model = tiny_run.tokenizers(), tiny_run.model()
    source = np.array([ids_of(tokenizers.source, TEXT)])
    target = np.array([[1, *ids_of(tokenizers.target, TRANSLATION)[:-1]]])
    weights, heads = model_weights_of(model), model.config.num_heads
    cross = reference.cross_attention_weights(source, target, weights, heads, 0)
    np.testing.assert_allclose(seen.of("cross")[0], cross[0], atol=1e-5)
    for kind, ids, side, mask in (
        ("encoder", source, "source", None),
        ("decoder", target, "target", reference.causal_mask(target.shape[1])),
    ):
        x = reference.positional_embedding(ids, weights[f"{side}_embeddings"])
        attention = weights[f"{kind}_layers"][0]["self_attention"]
        expected = reference.multi_head_attention(x, x, x, attention, heads, mask)[1]
        np.testing.assert_allclose(seen.of(kind, 0)[0], expected[0], atol=1e-5)


def test_without_a_translation_it_is_the_one_that_is_searched_for():
    translator = tiny_run.translator()
    seen = plots.sentence_attention(translator, TEXT)
    alignment = translator.align([TEXT], per_head=True)[0]
    assert seen.target_tokens == alignment.target_tokens
    np.testing.assert_allclose(seen.of("cross")[0], alignment.attention, atol=1e-5)


def test_an_ssru_has_no_weights_to_show_but_the_rest_has():
    model = tiny_run.model(decoder_self_attention="ssru")
    translator = Translator(model, tiny_run.tokenizers(), tiny_run.CONFIG.decoding)
    seen = plots.sentence_attention(translator, TEXT, TRANSLATION)
    weights, targets, sources = seen.of("cross")
    assert weights.shape == (2, len(targets), len(sources))
    with pytest.raises(ValueError, match="decoder's self-attention has no weights to"):
        seen.of("decoder")


def test_linear_attention_has_no_weights_to_show_and_local_attention_has():
    def seen_with(**options):
        model = tiny_run.model(**options)
        translator = Translator(model, tiny_run.tokenizers(), tiny_run.CONFIG.decoding)
        return plots.sentence_attention(translator, TEXT, TRANSLATION)

    for name in ("linear", "performer"):
        seen = seen_with(attention=name, attention_dropout_rate=0.0)
        for kind in ("encoder", "decoder"):
            with pytest.raises(ValueError, match=f"The {kind}'s self-attention has no"):
                seen.of(kind)
        seen.of("cross")
    weights, *_ = seen_with(attention="local", attention_window=1).of("encoder")
    far = np.abs(np.subtract.outer(*map(np.arange, weights.shape[1:]))) > 1
    assert far.any() and not weights[:, far].any() and weights[:, ~far].all()


def test_nothing_is_recorded_outside_of_the_block():
    model = tiny_run.model()
    inputs = (np.array([[5, 2]]), np.array([[1]]))
    with recorded_attention() as record:
        model(inputs)
        model(inputs)
    model(inputs)
    layer = model.encoder_layers[0]
    assert [x.shape for x in record[layer.self_attention]] == [(1, 2, 2, 2)] * 2
    assert len(record) == 3


def test_what_is_not_there_is_refused(seen):
    with pytest.raises(ValueError, match="`kind` must be one of encoder, decoder, cr"):
        seen.of("self")
    with pytest.raises(ValueError, match="`layer` must be from -1 to 0. .*layer=1"):
        seen.of("cross", 1)
    with pytest.raises(ValueError, match="`text` must not be empty"):
        plots.sentence_attention(tiny_run.translator(), " ")
    recurrent = SimpleNamespace(model=keras.Sequential(), tokenizers=None)
    with pytest.raises(ValueError, match="Only a `Transformer` .* a `Sequential`"):
        plots.sentence_attention(recurrent, "A man.")


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    return tiny_run.run_directory(tmp_path_factory)


def run(*words):
    return cli.main(["plot", *map(str, words)])


def test_verb_draws_attention_of_a_run(run_directory, tmp_path, capsys):
    png, svg = tmp_path / "new" / "cross.png", tmp_path / "encoder.svg"
    assert run("attention", run_directory, TEXT, "--output", png) == 0
    assert capsys.readouterr() == (f"{png}\n", "")
    with Image.open(png) as image:
        assert min(image.size) > 300
    words = ["--of", "encoder", "--head", 1, "--layer", 0, "--translation", TRANSLATION]
    assert run("attention", run_directory, TEXT, *words, "--output", svg) == 0
    assert svg.read_text(encoding="utf-8").rstrip().endswith("</svg>")


def test_verb_draws_the_training_of_a_run(run_directory, tmp_path):
    output = tmp_path / "training.png"
    assert run("training", run_directory, "--metrics", "loss", "--output", output) == 0
    assert output.is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training", ".", "--output", "a.doc"], "must end with the name of a kind"),
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
    assert run(*words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("keras-transformer: error: ") and message in line
    assert not list(tmp_path.iterdir())
