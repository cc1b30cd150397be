"""Marian's models against Marian's formulas in float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import sentencepiece

from keras_transformer.importers import import_marian
from tests.importers import foreign
from tests.importers.witness import ids_of, log_softmax, logits_of
from tests.reference import numpy_marian
from tests.reference.numpy_marian import Form

FORMS = {
    "post-norm, attention": dict(ssru=False),
    "post-norm, ssru": dict(),
    "pre-norm, attention, swish": dict(ssru=False, pre_norm=True, swish=True),
    "pre-norm, ssru": dict(pre_norm=True),
    "normalised embeddings": dict(ssru=False, emb_norm=True, swish=True),
}


def padded(rows):
    """Rows of ids with the end, 0, and their lengths; what follows is padding."""
    lengths = [len(row) + 1 for row in rows]
    source = np.full((len(rows), max(lengths)), 7)
    for i, row in enumerate(rows):
        source[i, : lengths[i]] = [*row, 0]
    return source, lengths


def random_pairs(rng, size):
    """Sources of different lengths and targets of one, their ids, no special ones."""
    sources = [rng.integers(2, size, n).tolist() for n in (5, 1, 3)]
    return sources, rng.integers(2, size, (3, 7)).tolist()


@pytest.mark.one_case
@pytest.mark.parametrize("tied", ["all", "target", "none"])
@pytest.mark.parametrize("name", FORMS)
def test_the_logits_of_an_npz_are_those_of_the_formulas(tmp_path, rng, name, tied):
    form = Form(2, 2, foreign.HEADS, **FORMS[name])
    tensors, pieces = foreign.write_opus(tmp_path, rng, form, tied=tied)
    translator = import_marian(tmp_path)
    sources, targets = random_pairs(rng, len(pieces))
    found, raw = logits_of(translator, sources, targets, pieces, pieces)
    tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
    expected = numpy_marian.teacher_forced(
        tensors, form, *padded(sources), np.array(targets)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    # Pieces that Marian has not take nothing from the others' probabilities.
    ours = ids_of(translator.tokenizers.target)
    order = [ours[piece] for piece in pieces]
    np.testing.assert_allclose(
        log_softmax(raw)[..., order], log_softmax(expected), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("quantised", [True, False])
def test_a_student_of_firefox_translates_as_the_formulas_do(tmp_path, rng, quantised):
    foreign.write_student(tmp_path, rng, quantised)
    read, _ = numpy_marian.read_bin(tmp_path / "model.ende.bin")
    translator = import_marian(tmp_path)
    assert translator.config.beam_size == 1
    form = Form(2, 1, foreign.HEADS)
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=foreign.sentencepiece_model()
    )
    texts = foreign.TEXTS
    source, lengths = padded(processor.encode(texts))
    longest = [length + translator.config.max_extra_length for length in lengths]
    words = numpy_marian.greedy(read, form, source, lengths, longest)
    expected = [processor.decode(row) for row in words]
    assert translator(texts) == expected
    assert len(set(expected)) > 1
