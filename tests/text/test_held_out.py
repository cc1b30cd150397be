"""Pairs that are held out of a training text."""

import itertools
import json
import random

import pytest
import sacrebleu

import keras_transformer as kt
from keras_transformer.text import BadLines, mixed_pairs, open_pairs
from keras_transformer.text.held_out import split
from tests import tiny_run


def pairs_of(number, seed=1):
    """Pairs whose sentences often occur in others, on either side, and again."""
    draw = random.Random(seed).randrange
    return [
        (f"Word {draw(2 * number)}", f"wort {draw(number)}.") for _ in range(number)
    ]


def sides(text):
    """Each side's sentences in one spelling, and the pairs."""
    pairs = [pair[1:] for pair in text.pairs()] if text else []
    spelt = [[" ".join(one.casefold().split()) for one in pair] for pair in pairs]
    return *map(set, zip(*spelt, strict=True)), pairs


@pytest.mark.parametrize("seed", range(3))
def test_no_sentence_of_a_set_stands_in_another_on_either_side(seed):
    pairs = pairs_of(600, seed)
    pairs += [(f"  {source.upper()}", target) for source, target in pairs[:99]]
    sets = split(open_pairs(pairs), 60, 40)
    found = [sides(text) for text in sets[:3]]
    for one, other in itertools.combinations(found, 2):
        assert not one[0] & other[0] and not one[1] & other[1]
    training, validation, test = (len(pairs) for *_, pairs in found)
    assert (validation, test) == (60, 40)
    assert training + 100 + sets.num_others == len(pairs)
    assert sets.num_others > 20
    for sources, targets, held_out in found[1:]:  # Each sentence once.
        assert len(sources) == len(targets) == len(held_out)


def test_the_same_pairs_are_held_out_in_any_order_and_from_any_files(tmp_path):
    pairs = pairs_of(700)
    expected = [sorted(sides(text)[2]) for text in split(open_pairs(pairs), 50, 20)[:3]]
    # The sets are those of today on every machine.
    assert expected[1][0] == ("Word 1108", "wort 9.")
    random.Random(2).shuffle(pairs)
    first = tiny_run.write_pairs(tmp_path / "a.tsv", pairs[:200])
    rest = tiny_run.write_pairs(tmp_path / "b.tsv", pairs[200:])
    mix = mixed_pairs([(first, 1), (rest, 3)])
    sets = split(mix, 50, 20)
    found = [sorted(sides(text)[2]) for text in sets[:3]]
    assert found[1:] == expected[1:]
    assert sorted({*found[0]}) == sorted({*expected[0]})
    own = [len([*part.pairs()]) for part, _ in sets.training.parts]
    assert [weight for _, weight in sets.training.parts] == [1, 3]
    assert len(found[0]) == own[0] + 3 * own[1]
    # One set's size leaves the other's pairs as they are.
    assert sorted(sides(split(mix, 50).validation)[2]) == expected[1]
    assert sorted(sides(split(mix, 9, 20).test)[2]) == expected[2]


@pytest.mark.parametrize(
    "number, held_out", [(99, 0), (499, 49), (500, 50), (5_100, 51), (250_000, 2_000)]
)
def test_the_default_is_a_hundredth_within_bounds(number, held_out):
    pairs = [(f"a {n}", f"b {n}") for n in range(number)]
    sets = split(open_pairs(pairs))
    assert sets.training.count() == number - held_out
    assert (sets.validation.count() if held_out else sets.validation or 0) == held_out
    assert sets.test is None and sets.num_others == 0


def test_a_large_group_stays_in_the_training():
    pairs = [(f"a {n}", "same" if n < 30 else f"b {n}") for n in range(130)]
    sets = split(open_pairs(pairs), 50)
    assert sides(sets.validation)[1].isdisjoint({"same"})
    with pytest.raises(ValueError, match="has 100 pairs .*hold_out=50, test_size=1"):
        split(open_pairs(pairs), 50, 1)


def test_bad_lines_count_once_and_fingerprints_tell_the_sets_apart(tmp_path):
    path = tiny_run.write_pairs(tmp_path / "a.tsv", [("", "b"), *pairs_of(99)])
    text = open_pairs(path)
    sets = split(text, 5, 5)
    bad_lines = BadLines(1.0)
    assert len([*sets.training.pairs(bad_lines)]) + 10 + sets.num_others == 99
    assert (bad_lines.count, bad_lines.lines) == (1, 100)
    [(part, _)] = sets.training.parts
    assert part.place(7, "source") == f"{path}:7" and part.origin == str(path)
    assert sets.test.place(2, "target") == f"pair 2 held out of {path}"
    digests = [one.fingerprint() for one in [text, *sets[:3], split(text, 6).training]]
    assert len({*digests}) == 5
    assert split(open_pairs(path), 5, 5).test.fingerprint() == digests[3]


def test_a_run_scores_its_own_test_set_and_resumes_with_it(tmp_path):
    draw = random.Random(3).sample
    words = [f"{a}{b}" for a, b in itertools.product("bdgklmnprst", "aeiou")]
    pairs = [
        (" ".join(row), " ".join(row[::-1]))
        for row in (draw(words, 4) for _ in range(540))
    ]
    given = {"text": pairs, "epochs": 2, "test_size": 20, "save_every": 3}
    whole = tiny_run.run_toy(tmp_path / "whole", **given)
    with pytest.raises(tiny_run.Killed):
        tiny_run.run_toy(tmp_path / "run", tiny_run.KillAfter(5), **given)
    again = tiny_run.run_toy(tmp_path / "run", **given)
    tiny_run.assert_equal(again.model.get_weights(), whole.model.get_weights())
    files = [tmp_path / name / "test.tsv" for name in ("whole", "run")]
    assert files[0].read_bytes() == files[1].read_bytes()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["data"]["validation"]["pairs"] == 50
    assert summary["data"]["training"]["pairs"] == 470
    [recorded] = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert recorded["name"] == "test.tsv" and recorded["scores"]["sentences"] == 20
    assert recorded["fingerprint"] == open_pairs(files[0]).fingerprint()
    assert recorded["scores"] == summary["test"]
    assert "val_loss" in summary["final"]
    # How many of the validation's translations are wrong, by their score.
    steps = again.config.doubt_steps
    assert kt.Translator.load(tmp_path / "run").config.doubt_steps == steps
    rows = [pair[1:] for pair in split(open_pairs(pairs), None, 20).validation.pairs()]
    told = again.translate([source for source, _ in rows])
    assert steps[0][0] == pytest.approx(min(one.score for one in told), abs=1e-3)
    chrf = sacrebleu.CHRF().sentence_score
    wrong = [
        chrf(one.text, [target]).score < 40
        for one, (_, target) in zip(told, rows, strict=True)
    ]
    assert sum(one.doubt for one in told) == pytest.approx(sum(wrong), abs=0.05)
    assert [("score" in one.doubts) for one in told] == [
        one.doubt > 0.5 for one in told
    ]
    with pytest.raises(ValueError, match="must be left out or 0 where validation"):
        tiny_run.run_toy(tmp_path / "no", validation=pairs[:9], hold_out=5)
    with pytest.raises(ValueError, match="`test_size` is 0 and was 20"):
        tiny_run.run_toy(tmp_path / "run", **given | {"test_size": 0})
