"""What attention is set against: a word alone, windows, convolutions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.test_why import load  # noqa: F401


def test_heads_of_one_neighbour_each_are_a_convolution(load):  # noqa: F811
    found = load("neighbour_heads").main(["--length", "12"])
    for taps in ((3,), (11,), (3, 3)):
        assert found[taps] < 1e-6
    # With a bias they become one as it grows: the next place gets exp(-strength).
    assert found[0.1] > 0.1
    assert found[3.0] < 0.2
    assert found[10.0] < 1e-3
    assert found[100.0] < 1e-6


def test_mask_of_neighbours(load):  # noqa: F811
    places = np.arange(3)[:, None]
    mask = load("neighbour_parts").neighbours(places, np.array([[-1], [0], [1]]))
    before = [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    expected = [[before, np.eye(3), np.transpose(before)]]
    np.testing.assert_array_equal(mask, expected)


def test_verbs_of_the_generated_sentences_have_the_time_of_the_first_word(load):  # noqa: F811
    sentences = load("window_sentences")
    distances = set()
    for sentence in sentences.make_sentences(300, seed=3):
        assert len(sentence) <= sentences.LONGEST
        (place,) = (
            n for n, (word, tag) in enumerate(sentence) if tag in ("PAST", "PRES")
        )
        time, (verb, tag) = sentence[0][0], sentence[place]
        if sentence[0][1] == "ADV":
            assert tag == {"yesterday": "PAST", "nowadays": "PRES"}[time]
            assert verb in sentences.BOTH
            distances.add(place)
        else:
            assert tag == {"saw": "PAST", "see": "PRES"}[verb]
    assert min(distances) <= 3 and max(distances) > 25


def test_shares_of_the_parts_of_interest(load):  # noqa: F811
    program = load("windows")
    words = {"yesterday": 2, "nowadays": 3, **dict.fromkeys(program.BOTH, 4)}
    names = {"ADV": 1, "NOUN": 2, "PAST": 3, "PRES": 4}
    ids = np.zeros((2, program.LONGEST), int)
    tags = np.zeros_like(ids)
    ids[:, :3], tags[:, :3] = [[2, 4, 4], [3, 9, 9]], [[1, 2, 3], [1, 2, 2]]
    ids[1, 20], tags[1, 20] = 4, 4
    guesses = tags.copy()
    guesses[1, 20] = 3  # A verb it is, of another time.
    guesses[0, 1] = 3  # A noun that is taken for a verb.
    found = program.shares_right(guesses, ids, tags, words, names)
    assert found == [2 / 3, 1.0, 0.0]


def test_net_of_a_window_sees_five_words_to_each_side(load):  # noqa: F811
    nets = load("window_nets")
    ids = np.full((1, 15), 3)
    for kind, reach in (("one word", 0), ("window", 5)):
        model = nets.make_model(kind, 9, 4)
        before = model.predict(ids, verbose=0)
        changed = ids.copy()
        changed[0, 7] = 4
        is_other = (np.abs(model.predict(changed, verbose=0) - before) > 1e-6).any(-1)
        assert np.flatnonzero(is_other).tolist() == [*range(7 - reach, 8 + reach)]
        longer = np.pad(ids, [(0, 0), (0, 4)])
        after = model.predict(longer, verbose=0)[:, :15]
        np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.slow
def test_a_net_of_one_word_tags_both_saws_alike(load):  # noqa: F811
    arguments = ["--sentences", "200", "--epochs", "1", "--seeds", "1"]
    found = load("windows").main([*arguments, "--kinds", "one word", "ReLU attention"])
    shares, (_, verb, _, noun) = found["one word"]
    assert verb == noun and np.shape(shares) == (4, 1)
    assert np.shape(found["ReLU attention"][0]) == (4, 1)


@pytest.mark.slow
def test_only_attention_looks_beyond_the_window(load):  # noqa: F811
    found = load("windows").main(["--seeds", "1", "--kinds", "window", "attention"])
    assert found["window"][0][3][0] < 0.65 and found["attention"][0][3][0] > 0.9
