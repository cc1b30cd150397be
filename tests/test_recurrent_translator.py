"""The recurrent translator of the examples: against NumPy, searched, on text."""

from __future__ import annotations

import functools
import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedCrossentropy
from keras_transformer.testing import assert_causal, assert_padding_invariant
from tests import tiny_run
from tests.decoding.table_steps import all_outputs
from tests.layers.reference_weights import assert_close, randomise
from tests.models.transformer_cases import SOURCE, TARGET_IN, TARGET_OUT
from tests.reference import numpy_recurrent as reference
from tests.reference.numpy_transformer import log_softmax
from tests.test_examples import Answers, load

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="it translates with TensorFlow"
)
pytest.importorskip("matplotlib")
recurrent = load("recurrent_translator")
numpy = ops.convert_to_numpy
# Every size another prime, so that no two axes can be taken for each other.
SIZES = {
    "source_vocabulary_size": 29, "target_vocabulary_size": 29, "width": 17,
    "units": 11, "attention_units": 13,
}  # fmt: skip
VARIANTS = {
    "bidirectional, three-way": {},
    "two layers, two-way": {
        "encoder_layers": 2, "tied": "two-way", "source_vocabulary_size": 31,
    },
    "forward alone, two and three layers, untied": {
        "encoder_layers": 2, "decoder_layers": 3, "bidirectional": False,
        "tied": "none", "source_vocabulary_size": 31,
    },
    "LSTM": {"cell": "lstm"},
    "LSTM, two and three layers": {
        "cell": "lstm", "encoder_layers": 2, "decoder_layers": 3,
    },
}  # fmt: skip
REAL = TARGET_IN != 0


def random_model(rng, **options):
    return randomise(recurrent.make_model(**(SIZES | options)), rng)


@pytest.fixture(params=VARIANTS)
def model(request, rng):
    return random_model(rng, **VARIANTS[request.param])


def weights_of(model):
    """Float64 weights, as `numpy_recurrent.recurrent` wants them."""

    def array(variable):
        return numpy(variable).astype(np.float64)

    def arrays(layer, *names):
        return {name: array(getattr(layer, name)) for name in names}

    def cell(layer):
        return arrays(layer, "kernel", "recurrent_kernel", "bias")

    both = [x for x in model.layers if isinstance(x, keras.layers.Bidirectional)]
    forward = [x.forward_layer for x in both] or [
        x for x in model.layers if isinstance(x, (keras.layers.GRU, keras.layers.LSTM))
    ]
    decoder, embedding = map(model.get_layer, ("decoder", "embedding"))
    names = [layer.name for layer in model.layers]
    source = "source_embedding" if "source_embedding" in names else "embedding"
    target = array(embedding.embeddings)
    output = target if embedding.tie_weights else array(embedding.reverse_embeddings).T
    return {
        "source_embeddings": array(model.get_layer(source).embeddings),
        "target_embeddings": target,
        "output_embeddings": output,
        "forward": [cell(layer.cell) for layer in forward],
        "backward": [cell(layer.backward_layer.cell) for layer in both],
        "initial": arrays(decoder.first_states, "kernel", "bias"),
        "readout": arrays(decoder.readout, "kernel", "bias"),
        "attention": {
            "query_kernel": array(decoder.attention.query_dense.kernel),
            "key_kernel": array(decoder.attention.key_dense.kernel),
            "score_kernel": array(decoder.attention.score_kernel),
        },
        "cells": [cell(layer) for layer in decoder.cells],
    }


@pytest.mark.one_case
def test_logits_and_attention_agree_with_the_reference(model):
    expected, attention = reference.recurrent(SOURCE, TARGET_IN, weights_of(model))
    logits = numpy(model((SOURCE, TARGET_IN)))
    assert logits.shape == (2, 5, 29)
    assert_close(logits[REAL], expected[REAL])
    weights = numpy(recurrent.Translator(model).attention(SOURCE, TARGET_OUT))
    assert weights.shape == (2, 5, 7)
    assert_close(weights[REAL], attention[REAL])


@pytest.mark.one_case
def test_padding_and_later_tokens_change_nothing(model):
    def scores(target, source):
        return model((source, target))

    assert_causal(scores, (TARGET_IN, SOURCE), ids_below=29, tolerance=0)
    assert_padding_invariant(scores, (TARGET_IN, SOURCE))


@pytest.mark.one_case
def test_steps_of_hypotheses_equal_the_whole(model, rng):
    """Two hypotheses of each sentence, which change places after the second token."""
    target = rng.integers(4, 29, size=(2, 2, 5))
    translator = recurrent.Translator(model)
    states, mask, whole = translator.encode(SOURCE)
    decoder = translator.decoder
    source = decoder.attention.key_dense(states), states, mask
    hidden, found = ops.repeat(decoder.start(whole), 2, axis=1), []
    for position in range(5):
        if position == 2:
            target, hidden = target[:, ::-1], hidden[:, ::-1]
            found = [x[:, ::-1] for x in found]
        tokens = translator.embed(target[..., position])
        output, context, _, hidden = decoder.step(tokens, hidden, source)
        readouts = decoder.read_out(output, tokens, context)
        found.append(numpy(translator.embedding(readouts, reverse=True)))
    for n in range(2):
        expected = numpy(model((SOURCE, target[:, n])))
        assert_close(np.stack([x[:, n] for x in found], axis=1), expected)


@pytest.mark.one_case
def test_saved_file_gives_identical_outputs(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights)
    given = SOURCE, TARGET_IN
    np.testing.assert_array_equal(numpy(loaded(given)), numpy(model(given)))


def test_it_learns_to_reverse():
    model = recurrent.make_model(**SIZES, rate=0.0)
    model.compile(keras.optimizers.Adam(0.03), MaskedCrossentropy(), jit_compile=False)
    data = (SOURCE, TARGET_IN), TARGET_OUT
    losses = model.fit(*data, epochs=30, batch_size=2, verbose=0).history["loss"]
    assert losses[-1] < 0.05 < 3.0 < losses[0]
    found = recurrent.Translator(model, extra=0).search(SOURCE)
    np.testing.assert_array_equal(numpy(found.ids)[:, 0, :5], TARGET_OUT)


def test_dropout_acts_between_cells_and_in_training_only(rng):
    model = random_model(rng, decoder_layers=3, rate=0.5)
    given = SOURCE, TARGET_IN
    np.testing.assert_array_equal(numpy(model(given)), numpy(model(given)))
    moved = numpy(model(given, training=True)) - numpy(model(given))
    assert np.abs(moved).max() > 1e-2
    # The middle cell gets nothing, as from weights of 0, and the last one half.
    weights, decoder = weights_of(model), model.get_layer("decoder")
    weights["cells"][1]["kernel"] *= 0.0
    weights["cells"][2]["kernel"] *= 0.5
    expected, _ = reference.recurrent(SOURCE, TARGET_IN, weights)
    kept = np.repeat([0.0, 0.5], 11).astype("float32")

    def fixed(inputs, training=None):
        return inputs * kept if inputs.shape[-1] == 22 else inputs

    decoder.dropout = fixed
    assert_close(numpy(model(given))[REAL], expected[REAL])


def test_the_paper_model_has_its_size():
    """A.2.3: 1000 units, embeddings of 620, here shared with the output."""
    model = recurrent.make_model(11, 11, 620, 1000)
    # Keras' layers of both directions, whose GRU has two biases.
    gru = 3 * 1000 * (620 + 1000 + 2)
    cell = 3 * 1000 * (620 + 2000 + 1000 + 2)
    attention = 1000 * 1000 + 2000 * 1000 + 1000
    initial, readout = 1000 * 1000 + 1000, (1000 + 620 + 2000) * 620 + 620
    total = 11 * 620 + 2 * gru + cell + attention + initial + readout
    assert model.count_params() == total


# Search, against every output of a tiny vocabulary.

TINY = {
    "source_vocabulary_size": 7, "target_vocabulary_size": 7, "width": 11, "units": 13,
    "attention_units": 5, "tied": "none",
}  # fmt: skip
SOURCES = np.array([[4, 5, 3, 6, 2], [6, 3, 2, 0, 0], [5, 5, 4, 2, 0]], "int32")
LENGTHS = np.array([5, 3, 4])


def test_a_wide_beam_finds_the_best_of_all_outputs():
    """No hypothesis is ever dropped: at most 64 with 5 continuations each."""
    model = randomise(recurrent.make_model(**TINY), np.random.default_rng(61))
    table = model.get_layer("embedding").reverse_embeddings
    table.assign(numpy(table) * 3.0)
    weights = weights_of(model)
    # Outputs of up to 4 tokens, the end counted: one sentence at a time.
    best = []
    for source, length in zip(SOURCES, LENGTHS, strict=True):
        translator = recurrent.Translator(model, beam_size=160, extra=4 - length)
        result = translator.search(source[None, :length])
        scores = {}
        for ids in all_outputs(7, 4):
            if recurrent.UNKNOWN in ids:
                continue
            given = source[:length], np.array([1, *ids[:-1]])
            logits, _ = reference.translate_one(*given, weights)
            total = log_softmax(logits)[np.arange(len(ids)), list(ids)].sum()
            scores[ids] = total / ((5 + len(ids)) / 6) ** 0.6
        ids = max(scores, key=scores.get)
        found = numpy(result.ids)[0, 0, : int(result.lengths[0, 0])]
        assert tuple(found.tolist()) == ids
        np.testing.assert_allclose(result.scores[0, 0], scores[ids], rtol=1e-4)
        best.append(ids)
    assert len(set(best)) > 1


# Text.

TEXTS = [source for source, _ in tiny_run.PAIRS[:9]] + ["", "dog", "日本語 " * 30]


@functools.cache
def translator():
    """A translator of random weights: its words make no sense, but they differ."""
    tokenizers = tiny_run.tokenizers()
    sizes = {"width": 16, "units": 12, "cell": "lstm", "decoder_layers": 2}
    model = recurrent.make_model(**tokenizers.vocabulary_sizes, **sizes, tied="none")
    randomise(model, np.random.default_rng(16))
    scale = np.full(tokenizers.target.vocabulary_size, 3.0, "float32")
    scale[4:260] = 0.0  # Bytes: seldom good UTF-8 together.
    table = model.get_layer("embedding").reverse_embeddings
    table.assign(numpy(table) * scale)
    return recurrent.Translator(model, tokenizers, beam_size=3, extra=20)


@pytest.mark.slow
def test_export_gives_the_live_translations(tmp_path):
    import tensorflow as tf

    live = translator()(TEXTS)
    assert len({*live}) >= 6
    translator().export(tmp_path / "recurrent" / "1")
    loaded = tf.saved_model.load(tmp_path / "recurrent" / "1")
    found = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    found = [text.decode("utf-8") for text in found["translation"].numpy()]
    assert found == live


def test_alignments_have_a_row_for_each_piece_and_sum_to_one():
    (seen,) = translator().align(TEXTS[:1])
    rows, columns = len(seen.target_tokens), len(seen.source_tokens)
    assert seen.attention.shape == (rows, columns)
    assert seen.source_tokens[-1] == "</s>"
    np.testing.assert_allclose(seen.attention.sum(axis=-1), 1.0, rtol=1e-5)


# The two programs that use it.


@pytest.mark.slow
def test_both_models_train_score_show_their_attention_and_export(
    tmp_path, capsys, monkeypatch
):
    example = load("recurrent_translation")
    train = tiny_run.write_pairs(tmp_path / "train.tsv")
    test = str(tiny_run.write_pairs(tmp_path / "test.tsv", tiny_run.VALID))
    config = tiny_run.CONFIG.replace(decoding=example.CONFIG.decoding)
    sizes = {"d_model": 16, "d_ff": 16, "num_heads": 2}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    monkeypatch.setitem(example.WIDTHS, "tiny", 16)
    monkeypatch.setitem(example.kt.TransformerConfig.PRESETS, "tiny", sizes)
    files = ["--train", str(train), "--valid", test, "--test", test]
    options = ["--pairs", "33", "--epochs", "1", "--pictures", str(tmp_path)]
    exports = ["--export", str(tmp_path / "saved_models")]
    scores = example.main([*files, *options, *exports], config)
    assert list(scores) == ["recurrent", "transformer"]
    printed = capsys.readouterr().out
    assert "33 pairs" in printed
    for name, score in scores.items():
        assert score.sentences == len(tiny_run.VALID)
        assert f"{name}: 0." in printed
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "saved_models" / name / "1" / "saved_model.pb").is_file()
    assert printed.count("80 tokens to 80 tokens: ") == 2


def test_each_model_gets_the_bleu_worked_by_hand(tmp_path, monkeypatch):
    example = load("recurrent_translation")
    pair = "The old dog", "le vieux chien court très vite ce matin"
    answers = {
        # The first six of eight tokens: all right, and too short by exp(1 - 8 / 6).
        "recurrent": "le vieux chien court très vite",
        # The last of eight is wrong: 7/8, 6/7, 5/6 and 4/5 of the n-grams are right.
        "transformer": "le vieux chien court très vite ce soir",
    }
    models = {
        name: lambda *given, answer=answer: Answers({pair[0]: answer})
        for name, answer in answers.items()
    }
    monkeypatch.setattr(example, "MODELS", models)
    monkeypatch.setattr(example, "print_times", lambda translator: None)
    text = str(tiny_run.write_pairs(tmp_path / "test.tsv", [pair]))
    files = ["--train", text, "--valid", text, "--test", text]
    scores = example.main([*files, "--pictures", str(tmp_path)])
    found = {name: score.bleu for name, score in scores.items()}
    assert found == pytest.approx(
        {
            "recurrent": 100 * math.exp(1 - 8 / 6),
            "transformer": 100 * (4 / 8) ** 0.25,
        }
    )


def test_pairs_are_drawn_from_the_whole_file(tmp_path):
    sampled = load("recurrent_translation").sampled
    train = tiny_run.write_pairs(tmp_path / "train.tsv")
    drawn = [(p.source, p.target) for p in sampled(train, 9, tmp_path).pairs()]
    assert len(set(drawn)) == 9
    assert set(drawn) < set(tiny_run.TRAIN)
    assert drawn != tiny_run.TRAIN[:9]


@pytest.mark.slow
def test_the_books_sentences_are_learned_from_pairs(tmp_path):
    example = load("recurrent_sentences")
    pairs = [*example.FOUR.items(), *tiny_run.TRAIN[:60]]
    text = tiny_run.write_pairs(tmp_path / "pairs.tsv", pairs)
    words = ["--pairs", str(text), "--epochs", "60", "--layers", "1"]
    assert sum(example.main(words)) > 3


def test_the_sentences_are_cut_into_the_books_words():
    example = load("recurrent_sentences")
    assert example.words_of("J’ai perdu.") == ["j'ai", "perdu", "."]
    assert example.words_of("Va !") == example.words_of("va!") == ["va", "!"]
    ids = example.ids_of([["va", "!"], ["?"]], [*example.SPECIAL, "!", "va"])
    assert ids.tolist() == [[5, 4, 2], [3, 2, 0]]


@pytest.mark.parametrize(
    "prediction, label, order, expected",
    [
        # The book's examples: p1 = 4/5, p2 = 3/4; and 1 of three words in six is short.
        ("A B B C D", "A B C D E F", 2, math.exp(-1 / 5) * 0.8**0.5 * 0.75**0.25),
        ("A B", "A B C D E F", 2, math.exp(1 - 6 / 2)),
        # p3 = 1/3 and p4 = 0.
        (
            "A B B C D", "A B C D E F", 3,
            math.exp(-1 / 5) * 0.8**0.5 * 0.75**0.25 * (1 / 3) ** 0.125,
        ),
        ("A B B C D", "A B C D E F", 4, 0.0),
        # A word counts as often as the label has it, and longer is no better.
        ("va va va !", "va !", 2, (2 / 4) ** 0.5 * (1 / 3) ** 0.25),
        ("va", "va !", 2, math.exp(-1)),
        ("va !", "va !", 2, 1.0),
        ("il court", "va !", 2, 0.0),
        ("", "va !", 2, 0.0),
    ],
)  # fmt: skip
def test_the_bleu_of_the_book_is_that_worked_by_hand(
    prediction, label, order, expected
):
    ngram_bleu = load("recurrent_sentences").ngram_bleu
    found = ngram_bleu(prediction.split(), label.split(), order)
    assert found == pytest.approx(expected, rel=1e-12)
