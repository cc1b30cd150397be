"""Evaluation against sacreBLEU's own functions."""

from __future__ import annotations

import pytest
import sacrebleu

from keras_transformer import evaluate

REFERENCES = [
    "Der alte Mann schläft heute nicht.",
    "Zwei Hunde laufen durch den Schnee.",
    "Ein Vogel singt auf dem Baum vor dem Haus.",
]
TRANSLATIONS = [
    "Der alte Mann schläft nicht.",
    "Zwei Hunde rennen durch den Schnee.",
    "ein Vogel singt auf dem Baum vor dem Haus",
]
PAIRS = [(f"sentence {i}", reference) for i, reference in enumerate(REFERENCES)]


def translate(texts):
    return [TRANSLATIONS[int(text.split()[1])] for text in texts]


def test_scores_are_those_of_sacrebleu():
    scores = evaluate(translate, PAIRS)
    bleu = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES])
    chrf = sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES])
    lower = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES], lowercase=True)
    assert 20 < bleu.score < lower.score < 90
    assert scores.lowercase_bleu == pytest.approx(lower.score, abs=1e-12)
    assert scores.bleu == pytest.approx(bleu.score, abs=1e-12)
    assert scores.chrf == pytest.approx(chrf.score, abs=1e-12)
    assert scores.sentences == 3


def test_signatures_say_how_the_scores_were_computed():
    scores = evaluate(translate, PAIRS)
    version = sacrebleu.__version__
    assert scores.bleu_signature == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    )
    assert scores.chrf_signature == (
        f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}"
    )
    lines = str(scores).splitlines()
    assert lines[0] == f"BLEU {scores.bleu:.2f}  {scores.bleu_signature}"
    assert lines[1] == f"chrF {scores.chrf:.2f}  {scores.chrf_signature}"
    assert lines[2].startswith("3 sentences in ")


def test_every_source_is_translated_once_and_in_order():
    pairs = [(f"sentence {i}", f"reference {i}") for i in range(600)]
    asked = []

    def remember(texts):
        asked.extend(texts)
        return [text.replace("sentence", "reference") for text in texts]

    assert evaluate(remember, iter(pairs)).sentences == 600
    assert asked == [source for source, _ in pairs]


def test_progress_is_for_terminals_and_changes_no_score(capsys):
    shown = evaluate(translate, PAIRS, show_progress=True)
    assert shown.bleu == evaluate(translate, PAIRS).bleu
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r", "\u2028", "\x0b"])
def test_the_output_has_one_line_a_sentence(tmp_path, breaks):
    output = tmp_path / "new" / "translations.txt"
    evaluate(lambda texts: ["a" + breaks + "b", "", "ü"], PAIRS, output)
    assert output.read_bytes() == "a b\n\nü\n".encode()
    assert [path.name for path in output.parent.iterdir()] == ["translations.txt"]


def test_without_a_translator_or_a_pair_nothing_is_written(tmp_path):
    def fail(texts):
        raise RuntimeError("no translator")

    with pytest.raises(RuntimeError, match="no translator"):
        evaluate(fail, PAIRS, tmp_path / "translations.txt")
    with pytest.raises(ValueError, match="no pairs"):
        evaluate(translate, [], tmp_path / "translations.txt")
    assert not list(tmp_path.iterdir())
