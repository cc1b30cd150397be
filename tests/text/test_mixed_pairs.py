"""Several corpora in one, each as often as its weight says."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from keras_transformer import Corpus, DataConfig, cli
from keras_transformer.text import BadLines, mixed_pairs, open_pairs
from keras_transformer.text.parallel_text import ParallelText
from tests import tiny_run

GENERAL, DOMAIN = tiny_run.TRAIN, tiny_run.VALID  # 40 and 8 pairs.


def texts(pairs):
    return [(pair.source, pair.target) for pair in pairs]


@pytest.fixture
def files(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    return write


def test_an_epoch_has_each_pair_as_often_as_its_weight():
    mixed = mixed_pairs([(GENERAL, 1), (DOMAIN, 4)])
    assert mixed.count() == 40 + 4 * 8
    found = texts(mixed.pairs())
    assert found == texts(mixed.pairs())  # again and again
    counts = collections.Counter(found)
    assert counts == dict.fromkeys(GENERAL, 1) | dict.fromkeys(DOMAIN, 4)


def test_each_corpus_is_spread_evenly_and_in_its_order():
    mixed = mixed_pairs([(GENERAL, 1), (DOMAIN, 2), (GENERAL[:3], 1)])
    found = list(mixed.pairs())
    parts = np.array([mixed.part_of(pair.line) for pair in found])
    # Of any first n of N pairs, a corpus of k has n k / N, to within one.
    for number, size in enumerate((40, 16, 3)):
        seen = np.cumsum(parts == number)
        expected = np.arange(1, len(parts) + 1) * size / len(parts)
        assert np.abs(seen - expected).max() < 1.5
    of_domain = [pair for pair in found if mixed.part_of(pair.line) == 1]
    assert texts(of_domain) == DOMAIN * 2


def test_a_bad_line_names_its_own_file_and_is_counted_once(files):
    good = "".join(f"a{i}\tb{i}\n" for i in range(9))
    first = files("general.tsv", good + "no tab\n")
    second = [files("domain.en", "one\n\nthree\n"), files("domain.de", "x\ny\nz\n")]
    rows = [("a", "b"), ("c", "")]
    parts = [(first, 1), (open_pairs(*second), 5), (rows, 2), ([("", "d")] * 2, 3)]
    mixed = mixed_pairs([(open_pairs(pairs), weight) for pairs, weight in parts])
    bad_lines = BadLines(9)
    pairs = list(mixed.pairs(bad_lines))
    assert len(pairs) == 9 + 5 * 2 + 2 * 1
    assert sorted(bad_lines.examples) == sorted(
        [
            f"{first}:10: no tab, expected source, one tab, target",
            f"{second[0]}:2: source is empty",
            "row 2 of corpus 3: target is empty",
            "row 1 of corpus 4: source is empty",
            "row 2 of corpus 4: source is empty",
        ]
    )
    assert bad_lines.count == 5
    with pytest.raises(ValueError, match="bad line number 5, and .* is 4"):
        list(mixed.pairs(BadLines(4)))
    places = {mixed.place(pair.line, "target") for pair in pairs}
    assert f"{first}:9" in places and f"{second[1]}:3" in places
    assert "row 1 of corpus 3" in places


def test_a_pair_that_is_too_long_is_one_bad_line_too(files):
    path = files("domain.tsv", "word " * 90 + "\tb\na\tb\n")
    mixed = mixed_pairs([(GENERAL, 1), (path, 4)])
    config = DataConfig(batch_tokens=256, max_length=40, bad_line_budget=1)
    corpus = Corpus(mixed, tiny_run.tokenizers(), config)
    assert corpus.bad_lines.count == 1
    assert corpus.bad_lines.examples[0].startswith(f"{path}:1: source has ")
    assert corpus.pairs_of_part == [40, 4]
    assert (corpus.num_pairs, corpus.num_lines) == (44, 48)


def test_the_fingerprint_is_of_corpora_and_weights(files):
    made = [((GENERAL, 1), (DOMAIN, 4)), ((GENERAL, 1), (DOMAIN, 3)),
            ((DOMAIN, 1), (GENERAL, 4)), ((GENERAL, 1), (DOMAIN[1:], 4))]  # fmt: skip
    prints = [mixed_pairs(parts).fingerprint() for parts in made]
    assert len(set(prints)) == 4
    path = tiny_run.write_pairs(files("a.tsv", ""), DOMAIN)
    assert mixed_pairs([(GENERAL, 1), (path, 4)]).fingerprint() == prints[0]
    assert isinstance(mixed_pairs(made[0]), ParallelText)


def rows_of(corpus, epoch, first_batch=0):
    """The source and target ids of each pair of an epoch."""
    return [
        (tuple(source[source > 0]), tuple(target[target > 0]))
        for (sources, _), targets in corpus.epoch(epoch, first_batch=first_batch)
        for source, target in zip(sources, targets, strict=True)
    ]


@pytest.mark.parametrize("buffer", (100, 12), ids=("in memory", "streamed"))
def test_a_corpus_shuffles_the_mix_and_is_resumed_exactly(buffer):
    mixed = mixed_pairs([(GENERAL, 1), (DOMAIN, 4)])
    config = DataConfig(batch_tokens=64, shuffle_buffer=buffer)
    corpus = Corpus(mixed, tiny_run.tokenizers(), config)
    assert (corpus.num_pairs, corpus.pairs_of_part) == (72, [40, 32])
    first, second = rows_of(corpus, 0), rows_of(corpus, 1)
    assert first != second and sorted(first) == sorted(second)
    assert sorted(collections.Counter(first).values()) == [1] * 40 + [4] * 8
    again = Corpus(mixed, tiny_run.tokenizers(), config)
    assert rows_of(again, 1) == second
    rest = rows_of(again, 1, first_batch=3)
    assert second[-len(rest) :] == rest and 0 < len(rest) < len(second)


BAD = {
    "`parts` must have at least one corpus": (ValueError, []),
    r"`parts` must be \(pairs, weight\)": (TypeError, [GENERAL]),
    "A weight must be an integer, .* Received: 0.5": (TypeError, [(GENERAL, 0.5)]),
    "A weight must be an integer, .* Received: True": (TypeError, [(GENERAL, True)]),
    "A weight must be at least 1. Received: 0": (ValueError, [(GENERAL, 0)]),
    "A mix cannot be mixed again": (ValueError, [(mixed_pairs([(DOMAIN, 1)]), 1)]),
    "Pairs must be": (TypeError, [(3, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_mix_is_told(message):
    error, parts = BAD[message]
    with pytest.raises(error, match=message):
        mixed_pairs(parts)


SIZES = (
    "--num-encoder-layers 1 --num-decoder-layers 1 --d-model 16 --d-ff 32 "
    "--num-heads 2 --vocabulary-size 290 --dry-run"
).split()


def dry_run(tmp_path, *words):
    files = [tiny_run.write_pairs(tmp_path / "a.tsv", GENERAL)]
    for side, lines in zip("sd", zip(*DOMAIN, strict=True), strict=True):
        path = tmp_path / f"b.{side}"
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        files.append(path)
    given = ["--train", files[0], "--train", *files[1:], "--run", tmp_path / "run"]
    return files, cli.main(["train", *map(str, given), *words, *SIZES])


def test_the_command_takes_several_corpora_and_weights(tmp_path, capsys):
    (a, b, c), status = dry_run(tmp_path, "--train-weights", "1", "4")
    assert status == 0
    printed = capsys.readouterr().out.replace("\n", " ")
    assert "training data: 72 pairs, " in printed
    said = f"mixed of 1 x 40 pairs of {a}, 4 x 8 pairs of {b} and {c}".split()
    assert " ".join(said) in " ".join(printed.split())
    _, status = dry_run(tmp_path)
    assert status == 0
    assert "training data: 48 pairs, " in capsys.readouterr().out


def test_the_command_needs_a_weight_for_each_corpus(tmp_path, capsys):
    assert dry_run(tmp_path, "--train-weights", "4")[1] == 1
    error = capsys.readouterr().err
    assert "`--train-weights` must have a number for each `--train`" in error
    assert "Received: 1 and 2" in error
