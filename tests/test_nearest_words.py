"""The example of neighbours and analogies, in vectors made by hand and a model's."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from tests import tiny_run
from tests.test_examples import load

example = load("nearest_words")


def test_the_nearest_by_angle_come_first_and_what_was_given_is_left_out():
    tokenizer = tiny_run.tokenizers().source
    known = {
        "the": [1, 0, 0],
        "der": [0.8, 0.6, 0],
        "b": [0.28, 0.96, 0],
        "g": [0.6, 0, 0.8],
    }
    directions = np.tile([0.0, 0.0, -1.0], (tokenizer.vocabulary_size, 1))
    directions[:260] = [1, 0, 0]  # Special pieces and bytes are no answers.
    ids = {word: example.id_of(tokenizer, word) for word in known}
    for word, vector in known.items():
        directions[ids[word]] = vector
    vector = directions[ids["the"]] * 7
    found = example.nearest(directions, tokenizer, vector, [ids["the"]], 3)
    assert [piece.strip("▁") for piece, _ in found] == ["der", "g", "b"]
    np.testing.assert_allclose([cosine for _, cosine in found], [0.8, 0.6, 0.28])
    given = [ids[word] for word in ("the", "der", "b")]
    vector = np.array([1, -1, 1]) @ directions[given]  # (0.48, 0.36, 0)
    (found,) = example.nearest(directions, tokenizer, vector, given, 1)
    assert found[0].strip("▁") == "g"
    assert found[1] == pytest.approx(0.6 * 0.48 / 0.6)


def test_a_models_own_vectors_are_searched(tmp_path, capsys):
    translator = tiny_run.translator()
    translator.save(tmp_path)
    words = ["der", "Donaudampfschiff", "--count", "4"]
    found = example.main([str(tmp_path), *words, "--analogy", "der", "the", "b"])
    assert "'Donaudampfschiff' must be one piece" in capsys.readouterr().out
    assert list(found) == ["der", "der - the + b"]
    matrix = ops.convert_to_numpy(translator.model.source_embedding.embeddings)
    directions = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    tokenizer = translator.tokenizers.source
    id = example.id_of(tokenizer, "der")
    cosines = directions[260:] @ directions[id]
    cosines[id - 260] = -2
    best = np.argsort(-cosines)[:4]
    assert [piece for piece, _ in found["der"]] == tokenizer.pieces(260 + best)
    np.testing.assert_allclose(
        [cosine for _, cosine in found["der"]], cosines[best], rtol=1e-5
    )
