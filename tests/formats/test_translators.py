"""Imports as users see them, their vocabularies, and the rows of their matrices."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import sentencepiece

from keras_transformer import Adam, MaskedCrossentropy, Translator
from keras_transformer.apps.cli import main
from keras_transformer.formats import (
    ExportedTranslator,
    format_of,
    import_marian,
    import_model,
)
from keras_transformer.formats.lite_translator import _ids_of
from keras_transformer.formats.vocabulary import Vocabulary, tokenizers_of
from keras_transformer.text.sentencepiece_model import cut_pieces, fitted
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.tokenizer_pair import TokenizerPair
from tests import tiny_run
from tests.formats import foreign

WRITERS = {
    "student": foreign.write_student,
    "opus": foreign.write_opus,
    "hugging_face": foreign.write_hugging_face,
}


def test_formats_are_told_apart_by_their_files(tmp_path, rng):
    for name, write in WRITERS.items():
        write(tmp_path / name, rng)
    names = (*WRITERS, "opus/opus.npz")
    found = [format_of(tmp_path / name) for name in names]
    assert found == ["marian", "marian", "hugging_face", "marian"]
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match="nothing must be a folder of"):
        format_of(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="missing"):
        import_model(tmp_path / "missing")


def test_the_command_writes_a_run_that_the_others_take(tmp_path, rng, capsys):
    foreign.write_student(tmp_path / "student", rng)
    run = tmp_path / "runs" / "student"
    assert main(["import", str(tmp_path / "student"), "--output", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run)
    # A directory that exists is refused before anything is read.
    (tmp_path / "none").mkdir()
    assert main(["import", str(tmp_path / "none"), "--output", str(run)]) == 1
    assert "exists" in capsys.readouterr().err
    names = {path.name for path in run.iterdir()}
    assert names == {"model.keras", "tokenizer", "decoding.json"}
    expected = import_marian(tmp_path / "student")(foreign.TEXTS)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{text}\tx y\n" for text in foreign.TEXTS))
    arguments = ["--test", str(pairs), "--output", str(tmp_path / "out.txt")]
    assert main(["evaluate", str(run), *arguments]) == 0
    assert (tmp_path / "out.txt").read_text().splitlines() == expected
    output = tmp_path / "saved" / "1"
    assert main(["export", str(run), "--output", str(output)]) == 0
    assert ExportedTranslator(output)(foreign.TEXTS) == expected


@pytest.mark.slow
def test_target_languages_and_added_pieces_are_in_the_saved_model(tmp_path, rng):
    foreign.write_hugging_face(tmp_path / "model", rng)
    translator = import_model(tmp_path / "model")
    texts = [">>deu<< the old man", "the old man", ">>xyz<< dogs", "Vögel und Bären"]
    expected = translator(texts)
    translator.export(tmp_path / "saved" / "1")
    assert ExportedTranslator(tmp_path / "saved")(texts) == expected
    translator.save(tmp_path / "run")
    assert Translator.load(tmp_path / "run")(texts) == expected
    with pytest.raises(ValueError, match=">>deu<<"):
        translator.export(tmp_path / "lite", "litert")
    foreign.write_opus(tmp_path / "opus", rng)
    with pytest.raises(ValueError, match="vocabulary has pieces besides"):
        import_marian(tmp_path / "opus").export(tmp_path / "site", "web")


def test_the_page_on_other_systems_runs(tmp_path, rng, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "other_systems.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    taken_in, given_out = blocks
    foreign.write_hugging_face(tmp_path / "opus-mt-en-de", rng)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(taken_in, names)
    again = Translator.load("runs/opus")(["The old man sleeps."])
    assert again == names["translations"]
    pytest.importorskip("ctranslate2")
    tiny_run.translator().export("ctranslate2/en-de", "ctranslate2")
    exec(given_out, names)
    assert names["result"].hypotheses


def test_the_dropout_of_a_training_is_where_marian_tells_it(tmp_path, rng):
    def rates_of(path):
        config = import_model(path).model.config
        rates = config.dropout_rate, config.attention_dropout_rate
        return *rates, config.activation_dropout_rate

    opus = tmp_path / "opus"
    foreign.write_opus(opus, rng)
    assert rates_of(opus) == (0, 0, 0)
    training = "transformer-dropout: 0.3\ntransformer-dropout-ffn: 0.2\n"
    (opus / "opus.npz.yml").write_text(training)
    assert rates_of(opus) == (0.3, 0, 0.2)
    student = tmp_path / "student"
    foreign.write_student(student, rng, **{"transformer-dropout-attention": 0.1})
    with open(student / "config.yml", "a") as file:
        file.write("transformer-dropout-attention: 0.4\ntransformer-dropout: 0.5\n")
    assert rates_of(student) == (0.5, 0.1, 0)


def test_an_import_trains(tmp_path, rng):
    foreign.write_student(tmp_path / "student", rng)
    translator = import_marian(tmp_path / "student")
    model, pair = translator.model, translator.tokenizers
    source = pair.source.tokenize(foreign.TEXTS[:2]).to_tensor(0).numpy()
    target = pair.target.tokenize(foreign.TEXTS[2:4]).to_tensor(0).numpy()
    target_in = np.pad(target, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    model.compile(Adam(1e-3), MaskedCrossentropy(0.1), run_eagerly=True)
    inputs = (source, target_in)
    losses = [model.train_on_batch(inputs, target) for _ in range(3)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


# Other systems' pieces by our ids, and the rows of the matrices in our order.

PIECES = ["</s>", "<unk>", "▁the", "▁old", "<pad>", "<s>"]


@pytest.mark.parametrize(
    ("special", "theirs", "banned", "names"),
    [
        # Marian: zeros before the first word, no padding.
        ({}, [-1, -1, 0, 1, 2, 3], [True, True, False, False], ["<pad>_", "<s>_"]),
        # Hugging Face: the start is padding, which keeps its share of the probability.
        (dict(start=4, pad=4), [4, 4, 0, 1, 2], [False, True, False, False],
         ["<pad>", "<s>_"]),
        (dict(start=4, pad=4, banned=(4,)), [4, 4, 0, 1, 2],
         [True, True, False, False], ["<pad>", "<s>_"]),
        # All four are there.
        (dict(start=5, pad=4), [4, 5, 0, 1, 2], [False] * 4, ["<pad>", "<s>"]),
        # A start that is the end is never produced, the end is.
        (dict(start=0), [-1, 0, 0, 1, 2], [True, True, False, False],
         ["<pad>_", "<s>_"]),
    ],
)  # fmt: skip
def test_special_rows_are_found_added_or_copied(special, theirs, banned, names):
    model = foreign.sentencepiece_model()
    side = Vocabulary(PIECES, model, end=0, unknown=1, **special)
    pair, rows, _ = tokenizers_of(side, side)
    assert rows.theirs[: len(theirs)].tolist() == theirs
    assert rows.banned[:4].tolist() == banned
    found = pair.source.pieces(range(pair.source.vocabulary_size))
    assert found[:4] == [*names, "</s>", "<unk>"]
    # Pieces that the vocabulary lacks come last, with the row of the unknown one.
    cut = [piece for piece in cut_pieces(model) if piece not in PIECES]
    assert found[-len(cut) :] == cut
    assert (rows.theirs[-len(cut) :] == 1).all() and rows.banned[-len(cut) :].all()


@pytest.fixture(scope="module")
def opus():
    """Two SentencePiece models with one vocabulary, as tokenizers."""
    models = foreign.opus_models()
    pieces = foreign.opus_pieces(models)
    sides = [Vocabulary(pieces, model, 0, 1) for model in models.values()]
    return tokenizers_of(*sides)


def test_two_models_with_one_vocabulary_are_joint(opus, tmp_path):
    pair, source, target = opus
    assert pair.config.joint_vocabulary and pair.source is not pair.target
    np.testing.assert_array_equal(source.theirs, target.theirs)
    pair.save(tmp_path)
    loaded = TokenizerPair.load(tmp_path)
    assert loaded.same_as(pair) and loaded.source is not loaded.target
    models = foreign.opus_models().values()
    for side, model in zip((pair.source, pair.target), models, strict=True):
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        known = set(foreign.pieces_of(model)[3:])
        for text in foreign.TEXTS:
            found = side.pieces(side.tokenize([text])[0].numpy())
            expected = processor.encode(text, out_type=str)
            assert [p for p in found if p in known] == [
                p for p in expected if p in known
            ]


def test_a_litert_translator_cuts_text_as_the_graph_does(opus):
    source = opus[0].source
    assert source.additions
    processor = sentencepiece.SentencePieceProcessor(model_proto=source.content)
    for text in [*foreign.TEXTS, "жж", "the ß!"]:
        expected = source.tokenize([text])[0].numpy().tolist()
        assert _ids_of(processor, text) == expected


SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def test_unknown_characters_that_spell_an_added_piece_are_that_piece():
    model = foreign.opus_models()["source"]
    names = [*SPECIAL, *cut_pieces(model), "жж", "ж"]
    tokenizer = Tokenizer(fitted(model, names))
    two, one = len(names) - 2, len(names) - 1
    for seed in range(2):
        rows = tokenizer.tokenize(["old жж", "ж", "жжж", "я"]).to_list()
        # A run is one piece, as in theirs.
        assert [row[-1] for row in rows] == [two, one, 3, 3]
        keras.utils.set_random_seed(seed)  # TensorFlow drops its cached kernels.
    assert tokenizer.detokenize([[two, one]]).numpy()[0].decode() == "жжж"


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_added_pieces_do_not_change_how_text_is_cut(algorithm):
    model = foreign.sentencepiece_model(size=70, algorithm=algorithm)
    pieces = cut_pieces(model)
    names = [*SPECIAL, *pieces[::-1], "qqq", ">>deu<<", "▁neither"]
    tokenizer, plain = Tokenizer(fitted(model, names)), Tokenizer(model)
    for text in [*foreign.TEXTS, "neither >>deu<<", "the neither"]:
        ids = [t.tokenize([text])[0].numpy() for t in (tokenizer, plain)]
        assert tokenizer.pieces(ids[0]) == plain.pieces(ids[1])
    if algorithm == "bpe":
        # Merges would come by it.
        two = next(a + b for a in "dog" for b in "xyz!" if a + b not in pieces)
        with pytest.raises(ValueError, match=two):
            fitted(model, [*SPECIAL, *pieces, two])
