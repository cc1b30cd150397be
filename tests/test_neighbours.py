"""Neighbours and analogies of pieces, in vectors made by hand and a model's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from keras import ops

from keras_transformer import PieceVectors, Translator, cli
from keras_transformer.cli import make_parser
from tests import tiny_run


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_run.tokenizers().source


def id_of(tokenizer, word):
    (ids,) = tokenizer.tokenize([word]).to_list()
    assert len(ids) == 1
    return ids[0]


def vectors_of(tokenizer, known):
    """Vectors (V, 3) that point away from everything, but for the known words."""
    vectors = np.tile([0.0, 0.0, -1.0], (tokenizer.vocabulary_size, 1))
    for word, vector in known.items():
        vectors[id_of(tokenizer, word)] = vector
    return vectors


def words(found):
    return [piece.removeprefix("\u2581") for piece, _ in found]


def test_the_nearest_by_angle_come_first_whatever_their_length(tokenizer):
    known = {"the": [9, 0, 0], "der": [0.4, 0.3, 0], "b": [0.1, 2, 0], "g": [-1, 0, 0]}
    vectors = vectors_of(tokenizer, known)
    vectors[:4] = [1, 0, 0]  # Special pieces and bytes are no answers,
    vectors[4:260] = [1, 0, 0]
    found = PieceVectors(vectors, tokenizer).neighbours("the", 3)
    assert words(found)[:2] == ["der", "b"]  # nor is the word itself.
    np.testing.assert_allclose([x.similarity for x in found], [0.8, 0.05, 0], atol=1e-3)


def test_an_analogy_adds_directions_and_leaves_out_what_was_given(tokenizer):
    known = {
        "the": [5, 5, 0], "der": [1, 0, 0], "b": [0, 0, 3],
        "g": [0, 1, 1.4], "r": [1, 0, 1],
    }  # fmt: skip
    vectors = PieceVectors(vectors_of(tokenizer, known), tokenizer)
    expected = np.array([0.5**0.5 - 1, 0.5**0.5, 1])
    expected /= np.linalg.norm(expected)
    (found,) = vectors.analogy("the", "der", "b", 1)
    assert words([found]) == ["g"]
    g = np.array(known["g"]) / np.linalg.norm(known["g"])
    assert found.similarity == pytest.approx(expected @ g, abs=1e-6)


def test_a_word_that_is_no_piece_is_named(tokenizer):
    vectors = PieceVectors(vectors_of(tokenizer, {}), tokenizer)
    for word in ("Donaudampfschiff", "日本語", "the dog"):
        (ids,) = tokenizer.tokenize([word]).to_list()
        pieces = " ".join(tokenizer.pieces(ids))
        with pytest.raises(ValueError) as raised:
            vectors.neighbours(word)
        assert f"{word!r}, which is cut into {len(ids)}: {pieces}" in str(raised.value)
    with pytest.raises(ValueError, match="'', of which it lacks a part"):
        vectors.id_of("")
    with pytest.raises(ValueError, match="`count` must be at least 1.*count=0"):
        vectors.neighbours("the", 0)
    with pytest.raises(ValueError, match="a row for each piece"):
        PieceVectors(np.ones((3, 2)), tokenizer)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_models_own_vectors_are_searched(side):
    translator = tiny_run.translator()
    embedding = getattr(translator.model, f"{side}_embedding")
    matrix = ops.convert_to_numpy(embedding.embeddings)
    directions = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    id = id_of(translator.tokenizers.source, "der")
    similarities = directions[260:] @ directions[id]
    similarities[id - 260] = -2
    found = PieceVectors.of(translator, side).neighbours("der", 4)
    best = np.argsort(-similarities)[:4]
    pieces = translator.tokenizers.source.pieces(260 + best)
    assert [x.piece for x in found] == pieces
    np.testing.assert_allclose(
        [x.similarity for x in found], similarities[best], rtol=1e-5
    )
    with pytest.raises(ValueError, match='`side` must be "source" or "target"'):
        PieceVectors.of(translator, "both")
    ensemble = Translator.ensemble([translator, translator])
    with pytest.raises(TypeError, match="must have one model.*Ensemble"):
        PieceVectors.of(ensemble)


def test_the_command_line_answers_and_names_what_it_cannot(tmp_path, capsys):
    translator = tiny_run.translator()
    translator.save(tmp_path)
    command = ["neighbours", str(tmp_path)]
    rest = ["--count", "2", "--analogy", "der", "the", "b"]
    assert cli.main([*command, "der", "Donaudampfschiff", *rest]) == 0
    printed = capsys.readouterr()
    vectors = PieceVectors.of(translator)
    lines = [
        "  ".join(f"{piece} {similarity:.2f}" for piece, similarity in found)
        for found in (
            vectors.neighbours("der", 2), vectors.analogy("der", "the", "b", 2)
        )
    ]  # fmt: skip
    assert printed.out.splitlines() == [
        f"der: {lines[0]}",
        f"der - the + b: {lines[1]}",
    ]
    assert "'Donaudampfschiff', which is cut into" in printed.err
    assert cli.main([*command, "Donaudampfschiff"]) == 1
    assert "give words that are one piece each" in capsys.readouterr().err
    assert cli.main(command) == 1
    assert "Give words, or `--analogy A B C`" in capsys.readouterr().err


def test_the_page_on_embeddings_is_understood(monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "embeddings.md").read_text("utf-8")
    blocks = dict(re.findall(r"```(bash|python)\n(.*?)```", page, re.DOTALL))
    for command in blocks["bash"].splitlines():
        options = make_parser().parse_args(shlex.split(command)[1:])
        assert options.words or options.analogy
    translator = tiny_run.translator()
    monkeypatch.setattr(Translator, "load", lambda directory: translator)
    known = {"king": "der", "man": "the", "woman": "b", "dog": "g"}
    for word, piece in known.items():
        blocks["python"] = blocks["python"].replace(f'"{word}"', f'"{piece}"')
    names = {}
    exec(blocks["python"], names)
    assert isinstance(names["vectors"], PieceVectors)
