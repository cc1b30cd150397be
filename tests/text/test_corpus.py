"""Batches of a corpus: what they hold, their order, the files they are made from."""

import collections
import itertools
import json
import tracemalloc

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer import ExactModel, MaskedAccuracy, MaskedCrossentropy
from keras_transformer.config import DataConfig, TokenizerConfig
from keras_transformer.text import (
    Corpus,
    Tokenizer,
    learn_tokenizers,
    mixed_pairs,
    open_pairs,
)
from keras_transformer.text import corpus as corpus_module
from keras_transformer.text.buckets import (
    bucket_boundaries,
    check_boundaries,
    few_boundaries,
)
from keras_transformer.text.corpus import read_ids
from tests import tiny_run

WORDS = "one two three four five six seven eight nine ten".split()
NUM_PAIRS = 211
CONFIG = DataConfig(batch_tokens=200)
STRICT = DataConfig(bad_line_share=0.0)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Pairs of 1 to 17 words, each with a number that identifies it."""
    rng, lines = np.random.default_rng(7), []
    path = tmp_path_factory.mktemp("corpus") / "train.tsv"
    for number in range(NUM_PAIRS):
        sides = (rng.choice(WORDS, rng.integers(1, 18)) for _ in range(2))
        lines.append("\t".join(f"{number}th {' '.join(side)}" for side in sides) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return open_pairs(path)


@pytest.fixture(scope="module")
def tokenizers(text):
    return learn_tokenizers(text, TokenizerConfig(vocabulary_size=300))


@pytest.fixture(scope="module")
def corpus(text, tokenizers):
    return Corpus(text, tokenizers, CONFIG, seed=3)


def epoch(corpus, number=0, shuffle=True):
    first = number * corpus.num_batches
    return [corpus.batch(first + i, shuffle) for i in range(corpus.num_batches)]


def flat(batches):
    return [np.asarray(array) for (a, b), c in batches for array in (a, b, c)]


def same(first, second):
    first, second = flat(first), flat(second)
    return len(first) == len(second) and all(map(np.array_equal, first, second))


def texts(tokenizer, ids):
    return [text.decode() for text in tokenizer.detokenize(ids).numpy()]


def numbers(batches, tokenizers):
    """The identifying number of each pair, in order; both sides must have it."""
    found = []
    for (source, _), target in batches:
        sides = texts(tokenizers.source, source), texts(tokenizers.target, target)
        for sentences in zip(*sides, strict=True):
            (number,) = {int(sentence.split()[0][:-2]) for sentence in sentences}
            found.append(number)
    return found


def test_a_batch_holds_source_end_and_start_target_end(tokenizers):
    pairs = [("one", "two three"), ("four five six seven", "eight")]
    (((source, target_in), target_out),) = epoch(Corpus(pairs, tokenizers), 0, False)
    for row, pair in enumerate(pairs):
        x, y = tokenizers.source.tokenize(pair).to_list()
        expected = (source, x + [2]), (target_in, [1] + y), (target_out, y + [2])
        for found, ids in expected:
            assert found.dtype == np.int32
            assert found[row].tolist() == ids + [0] * (found.shape[1] - len(ids))


def test_every_pair_comes_once_an_epoch_in_well_filled_batches(corpus, tokenizers):
    batches = epoch(corpus)
    assert sorted(numbers(batches, tokenizers)) == list(range(NUM_PAIRS))
    assert corpus.num_pairs == NUM_PAIRS
    boundaries = bucket_boundaries(corpus.config.max_length)
    real = padded = filled = 0
    for (source, target_in), target in batches:
        assert target_in.shape == target.shape
        assert {source.shape[1], target.shape[1]} <= set(boundaries)
        tokens = len(source) * max(source.shape[1], target.shape[1])
        assert tokens <= 200
        filled += tokens > 150
        real += (source != 0).sum() + (target != 0).sum()
        padded += source.size + target.size
    assert corpus.num_tokens == real
    assert filled >= len(batches) - 2 and real / padded > 0.7
    # A pair larger than a batch gets its own.
    tiny = Corpus(corpus.text, tokenizers, DataConfig(batch_tokens=1))
    assert [len(target) for _, target in epoch(tiny)] == [1] * NUM_PAIRS


def test_seed_and_number_alone_determine_an_epoch(corpus, text, tokenizers):
    again, other = (Corpus(text, tokenizers, CONFIG, seed=seed) for seed in (3, 4))
    keras.utils.set_random_seed(int(np.random.default_rng().integers(10**6)))
    assert same(epoch(corpus, 5), epoch(again, 5))
    assert not same(epoch(corpus, 5), epoch(corpus, 6))
    assert not same(epoch(corpus, 5), epoch(other, 5))
    # Any batch is reached at once, whatever was asked for before.
    step = 7 * corpus.num_batches + 2
    assert same([again.batch(step)], [epoch(corpus, 7)[2]])
    widths = [source.shape[1] for (source, _), _ in epoch(corpus)]
    assert widths != sorted(widths)
    assert same(epoch(corpus, 0, shuffle=False), epoch(corpus, 6, shuffle=False))


def test_batches_are_those_of_any_steps(corpus):
    size = corpus.num_batches
    batches = corpus.batches(size - 2, 5)
    assert batches.cardinality() == 5
    expected = [*epoch(corpus, 0)[-2:], *epoch(corpus, 1)[:3]]
    assert same(batches, expected) and same(batches, expected)


def test_an_epoch_of_a_dataset_is_over_when_its_last_batch_was_read(corpus):
    size = corpus.num_batches
    data = corpus.dataset(first_epoch=1)
    assert data.cardinality() == size
    for part in (1, size - 1):
        assert same(data.take(part), epoch(corpus, 1)[:part])
    iterators = iter(data), iter(data)
    for batches in zip(epoch(corpus, 1), *iterators, strict=True):
        assert same(batches[:1], batches[1:2]) and same(batches[:1], batches[2:])
    assert same(data, epoch(corpus, 2)) and same(data, epoch(corpus, 3))
    unshuffled = corpus.dataset(shuffle=False)
    assert same(unshuffled, epoch(corpus, 0, False)) and same(unshuffled, unshuffled)


def small_model(kind):
    source, target_in = (keras.Input([None], dtype="int32") for _ in range(2))
    embedding = keras.layers.Embedding(300, 8)
    context = keras.layers.GlobalAveragePooling1D(keepdims=True)(embedding(source))
    logits = keras.layers.Dense(300)(embedding(target_in) + context)
    model = kind([source, target_in], logits)
    metrics = [MaskedAccuracy()]  # Keras builds them before the first batch.
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy(), metrics=metrics)
    return model


@pytest.mark.parametrize("kind", [keras.Model, ExactModel])
@pytest.mark.parametrize("looked_at", [False, True])
def test_fit_reads_all_epochs_in_order(text, tokenizers, kind, looked_at):
    config = DataConfig(batch_tokens=2000, batch_shapes=1)
    corpus, read = Corpus(text, tokenizers, config), []
    batch, size = corpus.batch, corpus.num_batches
    corpus.batch = lambda step, shuffle: read.append(step) or batch(step, shuffle)
    data, model = corpus.dataset(), small_model(kind)
    if looked_at:
        next(iter(data))
    losses = model.fit(data, epochs=3, shuffle=False, verbose=0).history["loss"]
    assert losses[2] < losses[1] < losses[0]
    assert model.optimizer.iterations == 3 * size
    # Keras may look at batches too; our models need none.
    assert read[-3 * size :] == list(range(3 * size))
    assert len(read) == 3 * size or looked_at or kind is keras.Model


# Shapes.


def test_static_shapes_give_each_bucket_one_shape(text, tokenizers, corpus):
    static = Corpus(text, tokenizers, CONFIG, seed=3, static_shapes=True)
    shapes = collections.Counter()
    for plain, padded in zip(epoch(corpus), epoch(static), strict=True):
        for array, wider in zip(flat([plain]), flat([padded]), strict=True):
            rows, columns = array.shape
            np.testing.assert_array_equal(wider[:rows, :columns], array)
            assert not wider[rows:].any() and not wider[:, columns:].any()
        (source, target_in), target = padded
        assert source.shape == target_in.shape == target.shape
        shapes[source.shape] += 1
    assert static.shapes == shapes == corpus.shapes
    tokens = sum(2 * rows * width * n for (rows, width), n in shapes.items())
    assert static.padding == pytest.approx(1 - static.num_tokens / tokens)
    assert corpus.padding is None


def test_few_shapes_serve_training_and_validation(text, tokenizers):
    config = DataConfig(batch_tokens=256, max_length=100, batch_shapes=3)
    training = Corpus(text, tokenizers, config)
    long = [("one two " * 14, "three")]
    validation = Corpus(long, tokenizers, config, boundaries=training.boundaries)
    shapes = {t.shape for n in range(3) for _, t in epoch(training, n)}
    assert 1 < len(shapes) <= 3
    # A pair longer than all of training has a bucket, too.
    assert [target.shape[1] for _, target in epoch(validation)] == [100]


@pytest.mark.parametrize("number", range(1, 8))
def test_few_boundaries_cost_no_more_than_any_others(number):
    lengths = np.random.default_rng(number).gamma(3.0, 6.0, 400).astype(int) + 1
    lengths = lengths[lengths <= 60]
    every = bucket_boundaries(60)
    last = every[np.searchsorted(every, lengths.max())]

    def cost(boundaries):
        return np.array(boundaries)[np.searchsorted(boundaries, lengths)].sum()

    inner = [b for b in every if b < last]
    sizes = range(min(number, len(inner) + 1))
    choices = (c for size in sizes for c in itertools.combinations(inner, size))
    found = few_boundaries(lengths, every, number)
    assert cost(found) == min(cost([*chosen, last]) for chosen in choices)
    assert found == sorted(found)
    assert found[-1] == 60
    assert len([b for b in found if b <= last]) <= number


def test_boundaries_rise_by_4_then_by_a_fifth_and_end_at_the_maximum():
    rest = [48, 56, 64, 76, 88, 100]
    assert bucket_boundaries(100) == [*range(4, 44, 4), *rest]
    assert bucket_boundaries(3) == [3]


@pytest.mark.parametrize("boundaries", [[8, 16], [], [8, 8, 99], [0, 99], [99, 8]])
def test_boundaries_that_do_not_fit_are_told(boundaries):
    with pytest.raises(ValueError, match=r"longest pair.*has 26 tokens.*boundaries=\["):
        check_boundaries(boundaries, 26)
    check_boundaries([8, 26], 26)


def test_boundaries_must_reach_the_longest_pair(text, tokenizers, corpus):
    longest = max(width for _, width in corpus.shapes)
    with pytest.raises(ValueError, match=r"leave out longer pairs.*=\[8, 16\]"):
        Corpus(text, tokenizers, CONFIG, boundaries=[8, 16])
    same_shapes = Corpus(text, tokenizers, CONFIG, boundaries=[longest])
    assert {source.shape[1] for (source, _), _ in epoch(same_shapes)} == {longest}


def test_ends_of_sentences_are_found_block_by_block(tmp_path, monkeypatch):
    ids, path = np.array([5, 2, 7, 8, 2, 2, 9, 2], "uint16"), tmp_path / "pairs.ids"
    ids.tofile(path)
    path.with_suffix(".json").write_text('{"made_of": {"dtype": "uint16"}}')
    monkeypatch.setattr(corpus_module, "_BLOCK", 3)
    found, ends = read_ids(path)
    assert found.tolist() == ids.tolist() and ends.tolist() == [0, 2, 5, 6, 8]


def test_tokens_need_no_memory(tmp_path):
    ids = np.full(1 << 24, 7, "uint16")
    ids[-1] = 2
    ids.tofile(tmp_path / "pairs.ids")
    (tmp_path / "pairs.json").write_text('{"made_of": {"dtype": "uint16"}}')
    tracemalloc.start()
    try:
        read_ids(tmp_path / "pairs.ids")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < len(ids) / 2


def test_what_fills_no_batch_joins_the_next_bucket(tokenizers):
    names = tokenizers.source.pieces(range(300))
    word = next(name[1:] for name in names if name[0] == "▁" != name)
    pairs = [(f"{word} " * (length - 1), word) for length in (3, 9, 4, 2, 2, 2, 8)]
    # Batches of 4 rows of 4 tokens, 2 of 8, 1 of 12.
    corpus = Corpus(pairs, tokenizers, DataConfig(batch_tokens=16, max_length=12))
    lengths = [(s != 0).sum(1).tolist() for (s, _), _ in epoch(corpus, shuffle=False)]
    assert lengths == [[3, 4, 2, 2], [2, 8], [9]]


# Bad lines.


def test_over_long_and_invisible_pairs_are_left_out(tmp_path, tokenizers):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("one\n" + "two " * 20 + "\nthree\n\u200b\nfive\n")
    target.write_text("one\ntwo\n" + "three " * 9 + "\nfour\nfive\n")
    config = DataConfig(max_length=8, bad_line_share=0.1)
    corpus = Corpus(open_pairs(source, target), tokenizers, config)
    assert (corpus.num_pairs, corpus.bad_lines.count) == (2, 3)
    assert f"{corpus.bad_lines}".startswith(f"bad lines: 1, too long: 2 ({source}:2: ")
    long = [
        len(tokenizers.source.tokenize([text])[0]) + 1
        for text in ("two " * 20, "three " * 9)
    ]
    rest = "tokens with the end token; `max_length` is 8"
    assert sorted(corpus.bad_lines.examples) == [
        f"{target}:3: target has {long[1]} {rest}",
        f"{source}:2: source has {long[0]} {rest}",
        f"{source}:4: source has no visible character",
    ]
    with pytest.raises(ValueError, match=r":4: .*: 1 of 5 lines.* 0 allows 0"):
        Corpus(corpus.text, tokenizers, config.replace(bad_line_share=0.0))


def test_max_length_counts_the_end_token(tokenizers):
    pairs = [("one two three", "one")]
    pieces = len(tokenizers.source.tokenize(["one two three"])[0])
    fits = Corpus(pairs, tokenizers, DataConfig(max_length=pieces + 1))
    assert fits.batch(0)[0][0].shape == (1, pieces + 1)
    with pytest.raises(ValueError, match=rf"no good pair.*has {pieces + 1} tokens"):
        Corpus(pairs, tokenizers, DataConfig(max_length=pieces))


# What a directory keeps.


@pytest.fixture
def made(tmp_path, text, tokenizers, monkeypatch):
    """Makes a corpus in a folder; returns it, and whether a text was cut for it."""
    cut, tokenize = [], Tokenizer.tokenize

    def counted(self, texts):
        cut.append(1)
        return tokenize(self, texts)

    monkeypatch.setattr(Tokenizer, "tokenize", counted)

    def make(text=text, config=CONFIG, tokenizers=tokenizers):
        cut.clear()
        folder = tmp_path / "run" / "training"
        return Corpus(text, tokenizers, config, directory=folder), bool(cut)

    make.folder = tmp_path / "run" / "training"
    return make


def cut_to(size):
    return lambda content: content[:size]


# One byte of a file, a file cut off, a damaged or missing list.
DAMAGED = [
    ("pairs.ids", lambda content: content[:7] + b"\x09" + content[8:]),
    ("pairs.ids", cut_to(-8)), ("pairs.json", cut_to(40)),
    ("pairs.json", lambda content: b"[]"),
]  # fmt: skip


def test_what_a_directory_keeps_is_not_made_again(made, text, tokenizers):
    expected = Corpus(text, tokenizers, CONFIG)
    first, was_made = made()
    assert was_made and same(epoch(first, 1), epoch(expected, 1))
    times = {path: path.stat().st_mtime_ns for path in made.folder.iterdir()}
    assert len(times) == 2
    found, was_made = made()
    assert not was_made and same(epoch(found, 1), epoch(expected, 1))
    assert found.bad_lines.count == 0 and found.num_tokens == expected.num_tokens
    assert times == {path: path.stat().st_mtime_ns for path in made.folder.iterdir()}
    for name, damage in DAMAGED:
        path = made.folder / name
        path.write_bytes(damage(path.read_bytes()))
        found, was_made = made()
        assert was_made and same(epoch(found, 1), epoch(expected, 1))
        assert not made()[1]
    assert not made(config=CONFIG.replace(batch_tokens=9))[1]
    # Another text, length or vocabulary.
    assert made(text=open_pairs([("one", "two")]))[1]
    assert made()[1] and made(config=CONFIG.replace(max_length=90))[1]
    other = learn_tokenizers(text, TokenizerConfig(vocabulary_size=310))
    assert made(tokenizers=other)[1]


def test_bad_lines_are_kept_and_the_share_is_asked_again(tmp_path, tokenizers):
    path, options = tmp_path / "a.tsv", {"directory": tmp_path / "corpus"}
    path.write_text("bad\none\ttwo\n")
    bad = f"{path}:1: not source, one tab, target ("
    for _ in range(2):
        corpus = Corpus(open_pairs(path), tokenizers, **options)
        assert [x[: len(bad)] for x in corpus.bad_lines.examples] == [bad]
    with pytest.raises(ValueError, match=r"a\.tsv:1: not source.*share` 0 allows 0"):
        Corpus(open_pairs(path), tokenizers, STRICT, **options)
    facts = json.loads((tmp_path / "corpus" / "pairs.json").read_text())
    assert facts["bad_lines"][:2] == [1, 0]
    ids, ends = read_ids(tmp_path / "corpus" / "pairs.ids")
    assert ends[[0, -1]].tolist() == [0, len(ids)] and len(ends) == 3
    (tmp_path / "corpus" / "pairs.json").write_text("{}")
    with pytest.raises(ValueError, match=r"pairs\.ids is missing or damaged; `train`"):
        read_ids(tmp_path / "corpus" / "pairs.ids")


def test_an_error_and_a_change_while_it_is_read_leave_no_file(tmp_path, tokenizers):
    path, folder = tmp_path / "a.tsv", tmp_path / "corpus"
    path.write_text("one\ttwo\n" * 3000 + "bad\n")
    with pytest.raises(ValueError, match=r"a\.tsv:3001: not source"):
        Corpus(open_pairs(path), tokenizers, STRICT, directory=folder)
    assert not list(folder.iterdir())
    path.write_text("one\ttwo\n" * 9)
    text = open_pairs(path)
    assert text.count() == 9
    path.write_text("one\ttwo\n" * 8 + "two\ttwo\n")
    with pytest.raises(ValueError, match=r"a\.tsv changed after it was first read"):
        Corpus(text, tokenizers, directory=folder)
    assert not list(folder.iterdir())


def test_the_text_is_needed_no_more_and_a_bar_moves(tmp_path, tokenizers):
    path = tmp_path / "a.tsv"
    path.write_text("one\ttwo\n" * 9)
    with open(tmp_path / "screen", "w+") as file:
        console = Console(file=file, force_terminal=True, width=80)
        corpus = Corpus(open_pairs(path), tokenizers, console=console)
        file.seek(0)
        assert "tokenising" in file.read()
    path.unlink()
    assert texts(tokenizers.target, corpus.batch(0)[1]) == ["two"] * 9


# Mixes.


def test_a_mix_has_each_pair_as_often_as_its_weight(tmp_path):
    general, domain = tiny_run.TRAIN, tiny_run.VALID  # 40 and 8 pairs.
    mixed = mixed_pairs([(general, 1), (domain, 4)])
    corpus = Corpus(mixed, tiny_run.tokenizers(), DataConfig(batch_tokens=64))
    assert corpus.num_pairs == mixed.count() == 72
    first, second = (
        [tuple(r[r > 0]) for (s, _), _ in epoch(corpus, n) for r in s] for n in range(2)
    )
    assert first != second and sorted(first) == sorted(second)
    assert sorted(collections.Counter(first).values()) == [1] * 40 + [4] * 8
    # A pair that is too long is one bad line, whatever its weight.
    path = tmp_path / "domain.tsv"
    path.write_text("word " * 90 + "\tb\na\tb\n", encoding="utf-8")
    mixed = mixed_pairs([(general, 1), (path, 4)])
    corpus = Corpus(mixed, tiny_run.tokenizers(), DataConfig(max_length=40))
    assert corpus.bad_lines.count == 1 and corpus.num_pairs == 44
    assert corpus.bad_lines.examples[0].startswith(f"{path}:1: source has ")


def sources(corpus, *epochs):
    """How often each source comes in some epochs."""
    batches = (batch for number in epochs for batch in epoch(corpus, number))
    rows = (row[row > 0] for (source, _), _ in batches for row in source)
    return collections.Counter(tuple(row.tolist()) for row in rows)


@pytest.mark.parametrize(("before", "now"), [(False, True), (True, False)])
def test_pairs_of_another_corpus_are_replayed_in_turn(tmp_path, before, now):
    sides, path = tiny_run.tokenizers(), tmp_path / "a" / "pairs.ids"
    first = Corpus(tiny_run.TRAIN, sides, robust=before, directory=path.parent)
    digest = json.loads(path.with_suffix(".json").read_text())["digest"]

    def made(text=tiny_run.VALID, seed=1, digest=digest, **options):
        config, replayed = DataConfig(batch_tokens=64, **options), (path, digest)
        folder = tmp_path / f"b{config.max_length}"
        others = {"robust": now, "seed": seed, "directory": folder}
        return Corpus(text, sides, config, replayed=replayed, **others)

    # Of 40 pairs 12 come with 8 new ones: in ten epochs each comes three times.
    corpus = made(replay=1.5)
    assert (corpus.num_replayed, corpus.num_pairs) == (12, 20)
    found = sources(corpus, *range(10))
    plain = sources(Corpus(tiny_run.TRAIN, sides), 0)
    assert [found[row] for row in plain] == [3] * 40 or now
    own = sources(Corpus(tiny_run.VALID, sides), 0)
    assert [found[row] for row in own] == [10] * 8 or now
    assert sum(found.values()) == 200 == sum(sources(corpus, *range(250, 260)).values())
    assert sources(corpus, 0) != sources(corpus, 1)
    assert sources(made(replay=1.5, seed=2), 0) != sources(corpus, 0)
    # Each comes once in an epoch at most, and a longer one than fits in none.
    assert made(replay=9.0).num_replayed == 40
    lengths = np.sort(np.diff(first._ends).reshape(40, -1).max(axis=1))
    short = made([("a", "a")], replay=99.0, max_length=int(lengths[20]))
    assert 20 < short.num_replayed == np.sum(lengths <= lengths[20]) < 40
    # They are its own by now, and the same to the last id.
    path.unlink()
    assert all(same(epoch(corpus, n), epoch(made(replay=1.5), n)) for n in (0, 3, 250))
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"pairs\.ids is not what the training began"):
        made(digest="another")


def test_spans_of_both_sides_are_stored_as_pieces(tokenizers):
    pairs = [("see https://a.b/c in 1998", "1998: https://a.b/c"), ("3.5", "3,5")]
    stored = Corpus(pairs, tokenizers)
    spans = tokenizers.source.spans
    (source, _), target = stored.batch(0, shuffle=False)
    carried = [[id for id in row if id in spans] for row in (*source, *target)]
    assert [row for row in carried if row] == [spans[:2], spans[1::-1]]
