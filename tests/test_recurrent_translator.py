"""The recurrent translator of the examples: its laws, its search, on text."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedCrossentropy
from keras_transformer.testing import assert_causal, assert_padding_invariant
from tests import tiny_run
from tests.layers.reference_weights import randomise
from tests.models.transformer_cases import SOURCE, TARGET_IN, TARGET_OUT
from tests.test_examples import load

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


@pytest.fixture(params=VARIANTS)
def model(request, rng):
    sizes = SIZES | VARIANTS[request.param]
    return randomise(recurrent.make_model(**sizes), rng)


@pytest.mark.one_case
def test_padding_and_later_tokens_change_nothing(model):
    def scores(target, source):
        return model((source, target))

    assert_causal(scores, (TARGET_IN, SOURCE), ids_below=29, tolerance=0)
    assert_padding_invariant(scores, (TARGET_IN, SOURCE))


def test_it_learns_to_reverse():
    model = recurrent.make_model(**SIZES, rate=0.0)
    model.compile(keras.optimizers.Adam(0.03), MaskedCrossentropy(), jit_compile=False)
    data = (SOURCE, TARGET_IN), TARGET_OUT
    losses = model.fit(*data, epochs=30, batch_size=2, verbose=0).history["loss"]
    assert losses[-1] < 0.05 < 3.0 < losses[0]
    found = recurrent.Translator(model, extra=0).search(SOURCE)
    np.testing.assert_array_equal(numpy(found.ids)[:, 0, :5], TARGET_OUT)


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


@pytest.mark.slow
def test_the_books_sentences_are_learned_from_pairs(tmp_path):
    example = load("recurrent_sentences")
    pairs = [*example.FOUR.items(), *tiny_run.TRAIN[:60]]
    text = tiny_run.write_pairs(tmp_path / "pairs.tsv", pairs)
    words = ["--pairs", str(text), "--epochs", "60", "--layers", "1"]
    assert sum(example.main(words)) > 3


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
