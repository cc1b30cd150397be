import gzip
import itertools
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import DataConfig, TokenizerConfig
from keras_transformer.text import (
    Corpus,
    TokenizerPair,
    TsvFile,
    learn_tokenizers,
    open_pairs,
)
from keras_transformer.text.batches import bucket_boundaries, few_boundaries

WORDS = "one two three four five six seven eight nine ten".split()
NUM_PAIRS = 211


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Pairs of 1 to 17 words, each with a number that identifies it."""
    rng = np.random.default_rng(7)
    path = tmp_path_factory.mktemp("corpus") / "train.tsv"
    lines = []
    for number in range(NUM_PAIRS):
        source, target = (rng.choice(WORDS, rng.integers(1, 18)) for _ in range(2))
        lines.append(f"{number} {' '.join(source)}\t{number} {' '.join(target)}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return TsvFile(path)


@pytest.fixture(scope="module")
def tokenizers(text):
    return learn_tokenizers(text, TokenizerConfig(vocabulary_size=300))


@pytest.fixture(scope="module")
def corpus(text, tokenizers):
    return Corpus(text, tokenizers, DataConfig(batch_tokens=200), seed=3)


def flat(batches):
    return [np.asarray(array) for (a, b), c in batches for array in (a, b, c)]


def same(first, second):
    first, second = flat(first), flat(second)
    return len(first) == len(second) and all(map(np.array_equal, first, second))


def texts(tokenizer, ids):
    return [text.decode() for text in tokenizer.detokenize(ids).numpy()]


def numbers(batches, tokenizers):
    """Returns the identifying number of each pair, in order."""
    return [
        int(text.split()[0])
        for (source, _), _ in batches
        for text in texts(tokenizers.source, source)
    ]


def test_a_batch_holds_source_end_and_start_target_end(tmp_path, tokenizers):
    path = tmp_path / "a.tsv"
    path.write_text("one\ttwo three\nfour five six seven\teight\n")
    ((source, target_in), target_out), *rest = Corpus(TsvFile(path), tokenizers).epoch(
        0, shuffle=False
    )
    assert not rest
    pieces = tokenizers.source.tokenize(
        ["one", "two three", "four five six seven", "eight"]
    ).to_list()

    def padded(row, array):
        return row + [0] * (array.shape[1] - len(row))

    for row, (x, y) in enumerate((pieces[:2], pieces[2:])):
        assert source[row].tolist() == padded(x + [2], source)
        assert target_in[row].tolist() == padded([1] + y, target_in)
        assert target_out[row].tolist() == padded(y + [2], target_out)
    assert {array.dtype for array in (source, target_in, target_out)} == {
        np.dtype("int32")
    }


def test_every_pair_comes_once_an_epoch_and_stays_a_pair(corpus, tokenizers):
    batches = list(corpus.epoch(0))
    assert sorted(numbers(batches, tokenizers)) == list(range(NUM_PAIRS))
    assert corpus.num_lines == corpus.num_pairs == NUM_PAIRS
    real = sum((s != 0).sum() + (t != 0).sum() for (s, _), t in batches)
    assert corpus.num_tokens == real
    for (source, _), target in batches:
        pairs = zip(
            texts(tokenizers.source, source),
            texts(tokenizers.target, target),
            strict=True,
        )
        assert all(s.split()[0] == t.split()[0] for s, t in pairs)


def test_batches_have_at_most_the_given_tokens_and_are_well_filled(corpus):
    boundaries = bucket_boundaries(corpus.config.max_length)
    batches = list(corpus.epoch(0))
    filled = 0
    for (source, target_in), target_out in batches:
        assert target_in.shape == target_out.shape
        assert source.shape[1] in boundaries and target_out.shape[1] in boundaries
        tokens = len(source) * max(source.shape[1], target_out.shape[1])
        assert tokens <= 200
        filled += tokens > 150
    assert filled >= len(batches) - 2


def test_pairs_of_a_batch_have_similar_lengths(corpus):
    real = padded = 0
    for (source, _), target in corpus.epoch(0):
        longer = max((source != 0).sum(1).max(), (target != 0).sum(1).max())
        real += np.maximum((source != 0).sum(1), (target != 0).sum(1)).sum()
        padded += longer * len(source)
    assert real / padded > 0.85


def test_a_pair_larger_than_a_batch_gets_its_own(text, tokenizers):
    tiny = Corpus(text, tokenizers, DataConfig(batch_tokens=1))
    assert [len(source) for (source, _), _ in tiny.epoch(0)] == [1] * NUM_PAIRS


def widths(batches):
    return [source.shape[1] for (source, _), _ in batches]


def test_batches_are_not_sorted_by_length(corpus):
    assert widths(corpus.epoch(0)) != sorted(widths(corpus.epoch(0)))


def test_batches_of_leftovers_are_not_sorted_by_length(text, tokenizers):
    # So large that no bucket fills before the end, where they join one another.
    corpus = Corpus(text, tokenizers, DataConfig(batch_tokens=4000))
    in_order = widths(corpus.epoch(0, shuffle=False))
    assert len(in_order) > 1 and in_order == sorted(in_order)
    assert any(widths(corpus.epoch(n)) != in_order for n in range(5))


def test_seed_and_epoch_determine_the_order(corpus, text, tokenizers):
    again = Corpus(text, tokenizers, corpus.config, seed=3)
    other = Corpus(text, tokenizers, corpus.config, seed=4)
    assert same(corpus.epoch(5), again.epoch(5))
    assert not same(corpus.epoch(5), corpus.epoch(6))
    assert not same(corpus.epoch(5), other.epoch(5))


def test_the_order_depends_on_nothing_but_seed_and_epoch(tmp_path, tokenizers):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{n} one\t{n} two\n" for n in range(8)))
    expected = list(range(8))
    np.random.default_rng((1, 2)).shuffle(expected)
    keras.utils.set_random_seed(int(np.random.default_rng().integers(10**6)))
    corpus = Corpus(TsvFile(path), tokenizers, seed=1)
    assert numbers(corpus.epoch(2), tokenizers) == expected


def test_each_iteration_of_the_dataset_is_the_next_epoch(corpus):
    dataset = corpus.dataset()
    for epoch in range(3):
        assert same(dataset, corpus.epoch(epoch))
    assert same(corpus.dataset(first_epoch=2), corpus.epoch(2))


def test_without_shuffling_every_epoch_is_the_same(corpus, tokenizers):
    dataset = corpus.dataset(shuffle=False)
    assert same(dataset, dataset)
    one_bucket = DataConfig(batch_tokens=10000, max_length=128)
    whole = Corpus(corpus.text, tokenizers, one_bucket).epoch(0, shuffle=False)
    assert sorted(numbers(whole, tokenizers)) == list(range(NUM_PAIRS))


def test_a_corpus_larger_than_the_buffer_is_shuffled_in_windows(text, tokenizers):
    config = DataConfig(batch_tokens=1, shuffle_buffer=50)
    order = numbers(Corpus(text, tokenizers, config).epoch(0), tokenizers)
    assert sorted(order[:50]) == list(range(50)) != order[:50]
    assert sorted(order[200:]) == list(range(200, NUM_PAIRS))


def test_only_a_window_of_the_corpus_is_read_ahead(text, tokenizers):
    read = []

    class Watched(TsvFile):
        def pairs(self, bad_lines=None):
            for pair in super().pairs(bad_lines):
                read.append(pair.line)
                yield pair

    config = DataConfig(batch_tokens=1, shuffle_buffer=50)
    corpus = Corpus(Watched(text.path), tokenizers, config)
    read.clear()
    next(corpus.epoch(0))
    assert len(read) == 50


def test_over_long_and_invisible_pairs_are_bad_lines(tmp_path, tokenizers):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("one\n" + "two " * 20 + "\nthree\n\u200b\nfive\n")
    target.write_text("one\ntwo\n" + "three " * 9 + "\nfour\nfive\n")
    config = DataConfig(max_length=8, bad_line_budget=3)
    corpus = Corpus(open_pairs(source, target), tokenizers, config)
    assert len(flat(corpus.epoch(0))[0]) == 2
    assert (corpus.num_lines, corpus.num_pairs, corpus.bad_lines.count) == (5, 2, 3)
    long_source, long_target = (
        len(tokenizers.source.tokenize([text])[0]) + 1
        for text in ("two " * 20, "three " * 9)
    )
    rest = "tokens, including the end token: more than `max_length` 8"
    assert sorted(corpus.bad_lines.examples) == [
        f"{target}:3: target has {long_target} {rest}",
        f"{source}:2: source has {long_source} {rest}",
        f"{source}:4: source has no visible character",
    ]


def test_max_length_counts_the_end_token(tmp_path, tokenizers):
    path = tmp_path / "a.tsv"
    path.write_text("one two three\tone\n")
    pieces = len(tokenizers.source.tokenize(["one two three"])[0])
    fits = Corpus(TsvFile(path), tokenizers, DataConfig(max_length=pieces + 1))
    (((source, _), _),) = fits.epoch(0)
    assert source.shape == (1, pieces + 1)
    short = DataConfig(max_length=pieces, bad_line_budget=0)
    with pytest.raises(ValueError, match=rf"a\.tsv:1: source has {pieces + 1} tokens"):
        Corpus(TsvFile(path), tokenizers, short)


def test_the_budget_holds_for_each_pass_anew(tmp_path, tokenizers):
    path = tmp_path / "a.tsv"
    path.write_text("bad\none\ttwo\n")
    corpus = Corpus(TsvFile(path), tokenizers, DataConfig(bad_line_budget=1))
    assert [len(list(corpus.epoch(epoch))) for epoch in range(3)] == [1, 1, 1]
    assert corpus.bad_lines.count == 1


def test_too_many_bad_lines_are_an_error_before_training(tmp_path, tokenizers):
    path = tmp_path / "a.tsv"
    path.write_text("one\ttwo\nbad\n")
    with pytest.raises(ValueError, match=r"a\.tsv:2: no tab.*`bad_line_budget` is 0"):
        Corpus(TsvFile(path), tokenizers, DataConfig(bad_line_budget=0))


def test_a_corpus_without_a_good_pair_is_an_error(tmp_path, tokenizers):
    path = tmp_path / "a.tsv"
    path.write_text("bad\t\n")
    with pytest.raises(ValueError, match=r"no good pair; bad lines: 1 \(.*a\.tsv:1"):
        Corpus(TsvFile(path), tokenizers)


def test_every_epoch_has_the_number_of_batches_that_was_counted(corpus):
    lengths = {len(list(corpus.epoch(epoch))) for epoch in range(5)}
    lengths.add(len(list(corpus.epoch(0, shuffle=False))))
    assert lengths == {corpus.num_batches}
    assert corpus.dataset().cardinality() == corpus.num_batches


def test_misaligned_files_are_refused_before_anything_is_read(tmp_path, tokenizers):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("one\ntwo\n")
    target.write_text("one\n")
    text = open_pairs(source, target)
    with pytest.raises(ValueError, match="has 2 lines but .* has 1"):
        Corpus(text, tokenizers)
    with pytest.raises(ValueError, match="has 2 lines but .* has 1"):
        learn_tokenizers(text, TokenizerConfig())


def test_model_fit_takes_one_epoch_after_the_other(text, tokenizers):
    epochs = []

    class Watched(Corpus):
        def epoch(self, epoch, **options):
            epochs.append(epoch)
            return super().epoch(epoch, **options)

    corpus = Watched(text, tokenizers, DataConfig(batch_tokens=200))
    source = keras.Input([None], dtype="int32")
    target_in = keras.Input([None], dtype="int32")
    embedding = keras.layers.Embedding(300, 8)
    context = keras.layers.GlobalAveragePooling1D(keepdims=True)(embedding(source))
    logits = keras.layers.Dense(300)(embedding(target_in) + context)
    model = keras.Model([source, target_in], logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(keras.optimizers.Adam(0.01), loss)
    fitted = model.fit(corpus.dataset(), epochs=3, shuffle=False, verbose=0)
    first, second, third = fitted.history["loss"]
    assert third < second < first
    assert epochs == [0, 1, 2]
    assert model.optimizer.iterations == 3 * corpus.num_batches


def test_static_shapes_give_each_bucket_one_shape(text, tokenizers, corpus):
    static = Corpus(text, tokenizers, corpus.config, seed=3, static_shapes=True)
    shapes, pairs = set(), 0
    for plain, padded in zip(corpus.epoch(0), static.epoch(0), strict=True):
        for array, wider in zip(flat([plain]), flat([padded]), strict=True):
            rows, columns = array.shape
            np.testing.assert_array_equal(wider[:rows, :columns], array)
            assert not wider[rows:].any() and not wider[:, columns:].any()
        (source, target_in), target_out = padded
        assert source.shape == target_in.shape == target_out.shape
        shapes.add(source.shape)
        pairs += len(plain[1])
    assert pairs == NUM_PAIRS
    assert len({columns for _, columns in shapes}) == len(shapes)


def test_few_shapes_serve_training_and_validation(text, tokenizers):
    config = DataConfig(batch_tokens=256, max_length=100, batch_shapes=3)
    training = Corpus(text, tokenizers, config)
    validation = Corpus(text, tokenizers, config, buckets=training.buckets)
    shapes, tokens, pairs = set(), 0, 0
    for corpus in (training, validation):
        for epoch in range(3):
            for (source, target_in), target_out in corpus.epoch(epoch):
                assert source.shape == target_in.shape == target_out.shape
                shapes.add(source.shape)
                tokens += source.size + target_out.size
                pairs += (target_out[:, 0] != 0).sum()
    assert 1 < len(shapes) <= 3
    assert pairs == 6 * NUM_PAIRS
    assert training.padding == pytest.approx(1 - 6 * training.num_tokens / tokens)
    assert Corpus(text, tokenizers, DataConfig()).padding is None


def test_a_validation_pair_longer_than_all_of_training_has_a_bucket(
    tokenizers, tmp_path
):
    short, long = tmp_path / "short.tsv", tmp_path / "long.tsv"
    short.write_text("a b\tc d\n" * 3, encoding="utf-8")
    long.write_text("one two " * 12 + "\tthree\n", encoding="utf-8")
    config = DataConfig(batch_tokens=256, max_length=100, batch_shapes=1)
    training = Corpus(open_pairs(short), tokenizers, config)
    validation = Corpus(open_pairs(long), tokenizers, config, buckets=training.buckets)
    assert [batch[1].shape[1] for batch in validation.epoch(0)] == [100]
    assert len(training.buckets.boundaries) == 2


@pytest.mark.parametrize("number", range(1, 8))
def test_few_boundaries_cost_no_more_than_any_others(number):
    lengths = np.random.default_rng(number).gamma(3.0, 6.0, 400).astype(int) + 1
    lengths = lengths[lengths <= 60]
    all_boundaries = bucket_boundaries(60)
    last = all_boundaries[np.searchsorted(all_boundaries, lengths.max())]

    def cost(boundaries):
        return np.array(boundaries)[np.searchsorted(boundaries, lengths)].sum()

    inner = [b for b in all_boundaries if b < last]
    least = min(
        cost([*chosen, last])
        for size in range(min(number, len(inner) + 1))
        for chosen in itertools.combinations(inner, size)
    )
    found = few_boundaries(lengths, 60, number)
    assert cost(found) == least
    assert found == sorted(found)
    assert found[-1] == 60
    assert len([b for b in found if b <= last]) <= number


def test_boundaries_rise_by_4_then_by_a_fifth_and_end_at_the_maximum():
    assert bucket_boundaries(100) == [
        4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 76, 88, 100,
    ]  # fmt: skip
    assert bucket_boundaries(2) == [2]
    assert bucket_boundaries(13) == [4, 8, 12, 13]


def test_separate_vocabularies_tokenise_each_side_with_its_own(text):
    config = TokenizerConfig(vocabulary_size=290, joint_vocabulary=False)
    pair = learn_tokenizers(text, config)
    assert isinstance(pair, TokenizerPair) and pair.source is not pair.target
    batches = list(Corpus(text, pair).epoch(0))
    assert sorted(numbers(batches, pair)) == list(range(NUM_PAIRS))


def test_an_epoch_can_be_gone_on_with_at_any_batch(corpus):
    whole = list(corpus.epoch(4))
    for batch in (0, 1, len(whole) // 2, len(whole) - 1):
        assert same(corpus.epoch(4, first_batch=batch), whole[batch:])
    rest = corpus.dataset(first_epoch=4, first_batch=3)
    assert rest.cardinality() == len(whole) - 3
    assert same(rest, whole[3:])


def test_passing_over_batches_needs_no_tokenising(text, tokenizers, monkeypatch):
    config = DataConfig(batch_tokens=200, shuffle_buffer=50)
    corpus = Corpus(text, tokenizers, config)
    expected = list(corpus.epoch(2))
    tokenized = []
    tokenize = Corpus._tokenized
    monkeypatch.setattr(
        Corpus, "_tokenized", lambda *a: tokenized.append(a) or tokenize(*a)
    )
    assert same(corpus.epoch(2, first_batch=len(expected) - 2), expected[-2:])
    assert len(tokenized) == 2


def test_ids_in_memory_are_those_of_the_text(text, tokenizers, corpus):
    config = corpus.config.replace(shuffle_buffer=NUM_PAIRS)
    cached = Corpus(text, tokenizers, config, seed=3)
    assert cached._cached is not None
    streamed = Corpus(text, tokenizers, config, seed=3)
    streamed._cached = None
    assert same(cached.epoch(1), streamed.epoch(1))
    beyond = Corpus(text, tokenizers, config.replace(shuffle_buffer=NUM_PAIRS - 1))
    assert beyond._cached is None


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_tokens_of_each_batch_are_counted(text, tokenizers, rate):
    config = DataConfig(batch_tokens=200, subword_sampling=rate)
    corpus = Corpus(text, tokenizers, config)
    expected = [
        int((source != 0).sum() + (target != 0).sum())
        for (source, _), target in corpus.epoch(3)
    ]
    assert corpus.batch_tokens == expected
    rest = list(corpus.epoch(3, first_batch=5))
    assert len(corpus.batch_tokens) == len(expected)
    assert corpus.batch_tokens[5:] == [
        int((source != 0).sum() + (target != 0).sum()) for (source, _), target in rest
    ]


def test_sampled_pieces_spell_the_same_pairs_anew_in_each_epoch(text, tokenizers):
    config = DataConfig(batch_tokens=200, subword_sampling=0.3)
    plain = Corpus(text, tokenizers, config.replace(subword_sampling=0.0))
    corpus = Corpus(text, tokenizers, config)
    whole = list(corpus.epoch(1))
    assert len(list(corpus.epoch(1, first_batch=4))) == len(whole) - 4
    assert sorted(numbers(whole, tokenizers)) == list(range(NUM_PAIRS))
    assert not same(whole, plain.epoch(1))
    assert len({str(row[row > 0]) for n in range(3) for (s, _), _ in corpus.epoch(n)
                for row in s}) > 2 * NUM_PAIRS  # fmt: skip
    assert same(corpus.epoch(0, shuffle=False), plain.epoch(0, shuffle=False))


def test_batches_of_sampled_pieces_are_as_many_and_well_filled(tmp_path, tokenizers):
    """Cut at random, pairs of one length before are of many lengths."""
    path, rng = tmp_path / "long.tsv", np.random.default_rng(5)
    rows = [" ".join(rng.choice(WORDS, rng.integers(1, 40))) for _ in range(3000)]
    path.write_text("".join(f"{row}\tone\n" for row in rows), encoding="utf-8")
    config = DataConfig(batch_tokens=800, subword_sampling=0.3)
    plain = Corpus(TsvFile(path), tokenizers, config.replace(subword_sampling=0.0))
    corpus = Corpus(TsvFile(path), tokenizers, config)
    assert corpus.num_batches == plain.num_batches == len(list(plain.epoch(2)))
    sources = [source for (source, _), _ in corpus.epoch(2)]
    assert len(sources) == corpus.num_batches
    assert sorted(map(len, sources)) == sorted(len(s) for (s, _), _ in plain.epoch(2))
    assert sum((s > 0).sum() for s in sources) > 0.86 * sum(s.size for s in sources)


def test_sampled_pairs_keep_within_the_longest(text, tokenizers):
    lengths = [
        len(ids)
        for pair in text.pairs()
        for ids in tokenizers.source.tokenize([pair.source, pair.target])
    ]
    most = max(lengths) + 1
    config = DataConfig(batch_tokens=200, subword_sampling=0.9, max_length=most)
    batches = list(Corpus(text, tokenizers, config).epoch(0))
    assert max((s != 0).sum(1).max() for (s, _), _ in batches) <= most
    assert sorted(numbers(batches, tokenizers)) == list(range(NUM_PAIRS))


def write_aligned(folder):
    """Returns two files of nine lines, and a corpus that streams them."""
    paths = [folder / "a.en", folder / "a.de"]
    for path in paths:
        path.write_text("one\n" * 9)
    return paths, open_pairs(*paths)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    "lines", ["one\n" * 8, "one\n" * 10, "one two three\n" * 9, "two\n" * 9]
)
def test_a_file_that_changes_while_it_is_streamed_is_noticed(
    tmp_path, tokenizers, lines, shuffle, rate
):
    (source, target), text = write_aligned(tmp_path)
    config = DataConfig(batch_tokens=4, shuffle_buffer=4, subword_sampling=rate)
    corpus = Corpus(text, tokenizers, config)
    assert len(list(corpus.epoch(0, shuffle=shuffle))) == corpus.num_batches == 9
    batches = corpus.epoch(1, shuffle=shuffle)
    next(batches)
    later = os.stat(target).st_mtime_ns + 1
    (tmp_path / "new").write_text(lines)
    os.replace(tmp_path / "new", target)
    # A clock that stands still would give both files one time.
    os.utime(target, ns=(later, later))
    with pytest.raises(ValueError, match=r"a\.de has changed since it was first read"):
        list(corpus.epoch(2, shuffle=shuffle))
    if shuffle and not rate:
        with pytest.raises(ValueError, match=r"a\.de has changed since"):
            list(batches)
    source.unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.en"):
        list(corpus.epoch(2, shuffle=shuffle))


def test_ids_in_memory_need_no_file(tmp_path, tokenizers):
    (source, target), text = write_aligned(tmp_path)
    corpus = Corpus(text, tokenizers)
    source.unlink()
    target.write_text("two two two\n" * 9)
    assert texts(tokenizers.target, next(corpus.epoch(0))[1]) == ["one"] * 9


def test_text_that_is_no_file_must_keep_its_number_of_pairs(tmp_path, tokenizers):
    class Elsewhere(TsvFile):
        def files(self):
            return []

    path = tmp_path / "a.tsv"
    path.write_text("one\ttwo\n" * 9)
    corpus = Corpus(Elsewhere(path), tokenizers, DataConfig(shuffle_buffer=4))
    for lines in (8, 10):
        path.write_text("one\ttwo\n" * lines)
        with pytest.raises(ValueError, match="training data has changed since"):
            list(corpus.epoch(0))


def test_the_error_behind_that_of_tensorflow_is_kept(tmp_path, tokenizers):
    (source, _), text = write_aligned(tmp_path)
    corpus = Corpus(text, tokenizers, DataConfig(shuffle_buffer=4))
    dataset = corpus.dataset()
    assert len(list(dataset)) == corpus.num_batches and corpus.failure is None
    source.rename(tmp_path / "gone")
    with pytest.raises(tf.errors.OpError):
        list(dataset)
    assert isinstance(corpus.failure, FileNotFoundError)
    assert corpus.failure.filename == str(source)
    (tmp_path / "gone").rename(source)
    assert len(list(dataset)) == corpus.num_batches and corpus.failure is None


def test_a_fingerprint_is_that_of_the_lines(tmp_path, text):
    copy = tmp_path / "copy.tsv.gz"
    copy.write_bytes(gzip.compress(text.path.read_bytes()))
    assert TsvFile(copy).fingerprint() == text.fingerprint()
    changed = tmp_path / "changed.tsv"
    changed.write_bytes(text.path.read_bytes().replace(b"one", b"eno", 1))
    assert TsvFile(changed).fingerprint() != text.fingerprint()
