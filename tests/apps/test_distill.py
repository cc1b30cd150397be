"""Training pairs that a teacher's translations make."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedCrossentropy, TokenDistillation, Translator
from keras_transformer.apps.bulk import distill
from keras_transformer.apps.cli import main
from keras_transformer.search.translation import Translation
from keras_transformer.text import open_pairs
from keras_transformer.text.doubts import doubts_of
from tests import tiny_run
from tests.models.cases import SOURCE, TARGET_IN, TARGET_OUT, random_model

PAIRS = [
    ("one two", "eins zwei"),
    ("a loop", "eine Schleife"),
    ("nothing", "nichts"),
    ("the\ttab", "der Tab"),
    ("no no no no no no", "nein nein nein nein nein nein"),
    ("three", "drei"),
]
FOUND = {
    "one two": ["ein zwei", "eins zwo", "eins zwei!"],
    "a loop": ["und so weiter und so weiter und so weiter und so weiter"] * 3,
    "nothing": [" "] * 3,
    "the tab": ["der\tTab", "ein Tab", "Tab"],
    "no no no no no no": ["nein nein nein nein nein nein"] * 3,
    "three": ["drei\n", "vier", "zwei"],
}


class Teacher:
    """Finds what is in the table; ends at a given number of texts, as if killed."""

    most, end = 3, 1000

    def __repr__(self):
        return "<a teacher>"

    def nbest(self, texts, n_best):
        self.end -= len(texts)
        if self.end < 0:
            raise KeyboardInterrupt
        return [
            [
                Translation(x, 0.0, "the" in text, doubts=doubts_of(text, x))
                for x in FOUND[text][:n_best]
            ]
            for text in texts
        ]


def lines_of(path):
    return path.read_text("utf-8").splitlines()


EXPECTED = [
    "one two\tein zwei", "the tab\tder Tab",
    "no no no no no no\tnein nein nein nein nein nein", "three\tdrei",
]  # fmt: skip


def test_translations_are_pairs_without_empty_and_looping_ones(tmp_path):
    path = tmp_path / "new" / "pairs.tsv"
    summary = distill(Teacher(), PAIRS, path, fingerprint="t", facts={"more": 1})
    assert lines_of(path) == EXPECTED and summary.sentences == 6
    assert "; 2 of all were empty or looped and are left out" in str(summary)
    assert list(open_pairs(path).pairs())[1].target == "der Tab"
    facts = json.loads(Path(f"{path}.json").read_text())
    expected = dict(teacher="<a teacher>", fingerprint="t", best_of=1, more=1)
    expected |= dict(pairs=4, left_out=2, bad_lines=0, pairs_of="the program's rows")
    expected["truncated"] = 1
    expected["pairs_digest"] = open_pairs(PAIRS).fingerprint()
    assert facts == expected


def test_of_several_the_nearest_to_the_reference_is_taken(tmp_path):
    distill(Teacher(), PAIRS, tmp_path / "pairs.tsv", best_of=3)
    assert lines_of(tmp_path / "pairs.tsv")[0] == "one two\teins zwei!"
    for number in (0, 4):
        with pytest.raises(ValueError, match=f"and at most 3.*best_of={number}"):
            distill(Teacher(), PAIRS, tmp_path / "other.tsv", best_of=number)
    assert not list(tmp_path.glob("other*"))


def test_an_interrupted_call_resumes_with_the_same_teacher_only(tmp_path):
    path, killed = tmp_path / "pairs.tsv.gz", Teacher()
    distill(Teacher(), PAIRS, tmp_path / "whole.tsv.gz", window=2)
    killed.end = 4
    with pytest.raises(KeyboardInterrupt):
        distill(killed, PAIRS, path, window=2)
    assert not path.exists()
    for options in ({"best_of": 2}, {"fingerprint": "another"}):
        with pytest.raises(ValueError, match="another model or other options"):
            distill(Teacher(), PAIRS, path, window=2, **options)
    with pytest.raises(ValueError, match="the first lines of the input have changed"):
        distill(Teacher(), PAIRS[1:], path, window=2)
    summary = distill(Teacher(), PAIRS, path, window=2)
    assert (summary.resumed, summary.sentences) == (4, 6)
    assert (summary.truncated, summary.first_truncated) == (1, 4)
    assert path.read_bytes() == (tmp_path / "whole.tsv.gz").read_bytes()


def test_the_pairs_themselves_are_no_output(tmp_path):
    path = tmp_path / "pairs.tsv"
    distill(Teacher(), PAIRS, path)
    given = path.read_bytes()
    with pytest.raises(ValueError, match=f"another file than the input {path}"):
        distill(Teacher(), path, path)
    assert path.read_bytes() == given


def test_the_verb_writes_what_a_run_and_an_ensemble_translate(tmp_path, capsys):
    run, output = tmp_path / "run", tmp_path / "pairs.tsv"
    tiny_run.translator().save(run)
    train = tmp_path / "train.tsv"
    train.write_text("".join(f"{a}\t{b}\n" for a, b in tiny_run.VALID))
    words = [*map(str, ("--train", train, "--output", output, "--json"))]
    assert main(["distill", str(run), *words]) == 0
    result = json.loads(capsys.readouterr().out)
    sources = [source for source, _ in tiny_run.VALID]
    found = Translator.load(run)(sources)
    pairs = [f"{a}\t{b}" for a, b in zip(sources, found, strict=True) if b.strip()]
    assert lines_of(output) == pairs and result["sentences"] == len(sources)
    facts = json.loads(Path(f"{output}.json").read_text())
    assert facts["search"] == json.loads((run / "decoding.json").read_text())
    assert facts["command"].startswith(f"keras-transformer distill {run} --train")
    assert main(["distill", str(run), str(run), *words]) == 0
    assert lines_of(output) == pairs  # The mean of equal probabilities.


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def test_the_loss_of_tokens_is_their_mean_divergence(rng):
    """By the closed form in float64, through Keras' `Distiller`."""
    teacher, student = random_model(rng), random_model(rng, num_decoder_layers=1)
    x = SOURCE, np.pad(TARGET_IN, ((0, 0), (0, 3)))
    is_token = x[1] != 0
    assert not is_token.all(axis=1).any()
    logits = [
        ops.convert_to_numpy(model(x)).astype(float) for model in (teacher, student)
    ]
    p, q = (softmax(one / 3.0) for one in logits)
    divergences = np.sum(p * np.log(p / q), axis=-1)
    expected = 9.0 * divergences[is_token].mean()
    loss = TokenDistillation(temperature=3.0)
    found = loss.compute_loss(teacher(x), student(x))
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-5)
    distiller = keras.distillation.Distiller(
        teacher, student, loss, student_loss_weight=0.25
    )
    distiller.compile("adam", loss=MaskedCrossentropy())
    of_tokens = ops.convert_to_numpy(MaskedCrossentropy()(x[1], student(x)))
    total = ops.convert_to_numpy(distiller.compute_loss(x, x[1], student(x)))
    np.testing.assert_allclose(total, 0.25 * of_tokens + 0.75 * expected, rtol=1e-5)


def test_a_student_learns_from_a_teacher_in_keras_own_way(rng):
    teacher, student = random_model(rng), random_model(rng, num_decoder_layers=1)
    distiller = keras.distillation.Distiller(
        teacher, student, TokenDistillation(), student_loss_weight=0.0
    )
    distiller.compile(
        keras.optimizers.Adam(0.02), loss=MaskedCrossentropy(), run_eagerly=True
    )
    before = ops.convert_to_numpy(teacher((SOURCE, TARGET_IN)))
    losses = distiller.fit(
        (SOURCE, TARGET_IN), TARGET_OUT, epochs=8, verbose=0
    ).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    np.testing.assert_array_equal(
        ops.convert_to_numpy(teacher((SOURCE, TARGET_IN))), before
    )


def test_losses_of_keras_leave_padding_out(rng):
    """The logits say what is padding, to Keras' losses as to distillation."""
    logits = random_model(rng)((SOURCE, TARGET_IN))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = ops.convert_to_numpy(loss(TARGET_OUT, logits))
    expected = ops.convert_to_numpy(MaskedCrossentropy()(TARGET_OUT, logits))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_loss_refuses_logits_that_do_not_say_what_is_padding():
    logits = ops.zeros((1, 2, 5))
    with pytest.raises(ValueError, match="Keras mask"):
        TokenDistillation().compute_loss(logits, logits)
    with pytest.raises(ValueError, match="temperature"):
        TokenDistillation(0.0)
    again = keras.saving.serialize_keras_object(TokenDistillation(2.0))
    assert keras.saving.deserialize_keras_object(again).temperature == 2.0
