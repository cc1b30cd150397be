"""Pairs as people write them, and epochs of a corpus that show a share of them so."""

import collections

import numpy as np
import pytest

from keras_transformer.config import DataConfig, TokenizerConfig
from keras_transformer.text import Corpus, learn_tokenizers
from keras_transformer.text.corpus import read_ids
from keras_transformer.text.spans import PIECES
from keras_transformer.text.views import FORMS, SCHEDULE, views_of
from tests.tiny_run import assert_equal

GERMAN = ("Two men's dogs don't run.", "Zwei Straßen am Fluß sind groß.")
SPANISH = ("¿Hola? Tom, ¿qué tal?", "Hi? Tom, how are you?")
FRENCH = ("L’été est-il là ?", "Is it summer?")
CHINESE = ("他们在公园里。", "They are in the park.")
TO_CHINESE = ("They live here.", "他们住在这里。")
TURKISH = ("İstanbul ılık iyi.", "Istanbul is warm.")
EMOJI = ("I love 🎉 parties!", "Ich liebe 🎉 Partys!")
CAPITALS = ("NATO MEETS", "DIE NATO TAGT")
CARRIED = {ord(shown): piece for shown, piece in zip("①②③④⑤⑥", PIECES, strict=False)}
LETTERS, NUMBER, EMPTY = ("a b c d", "d c b a"), ("12 3456", "twelve"), ("", "")
# A view, a pair and what it becomes; without that, the pair itself.
VIEWS = [
    (
        "in capitals",
        (GERMAN, "TWO MEN'S DOGS DON'T RUN.", "ZWEI STRASSEN AM FLUSS SIND GROSS."),
        (SPANISH, "¿HOLA? TOM, ¿QUÉ TAL?", "HI? TOM, HOW ARE YOU?"),
        (FRENCH, "L’ÉTÉ EST-IL LÀ ?", "IS IT SUMMER?"),
        (TO_CHINESE, "THEY LIVE HERE.", "他们住在这里。"),
        (TURKISH, "İSTANBUL ILIK IYI.", "ISTANBUL IS WARM."),
        (EMOJI, "I LOVE 🎉 PARTIES!", "ICH LIEBE 🎉 PARTYS!"),
        *((pair,) for pair in (CHINESE, CAPITALS, LETTERS, NUMBER, EMPTY)),
    ),
    (
        "in title case",
        (GERMAN, "Two Men's Dogs Don't Run.", "Zwei Straßen Am Fluß Sind Groß."),
        (SPANISH, "¿Hola? Tom, ¿Qué Tal?", "Hi? Tom, How Are You?"),
        (FRENCH, "L’été Est-Il Là ?", "Is It Summer?"),
        (TO_CHINESE, "They Live Here.", "他们住在这里。"),
        *((pair,) for pair in (CHINESE, CAPITALS, LETTERS, NUMBER, EMPTY)),
    ),
    (
        "without final mark",
        (GERMAN, "Two men's dogs don't run", "Zwei Straßen am Fluß sind groß"),
        (SPANISH, "¿Hola? Tom, qué tal", "Hi? Tom, how are you"),
        (FRENCH, "L’été est-il là", "Is it summer"),
        (CHINESE, "他们在公园里", "They are in the park"),
        (("Wait ...", "Warte…"), "wait", "Warte"),
        (("They go.", "Sie gehen"), "they go", "Sie gehen"),
        (("USA wins", "Die USA!"),),
        *((pair,) for pair in (CAPITALS, ("...", "..."), EMPTY)),
    ),
    (
        "with a typo",
        (GERMAN, "Two men's dgos don't run.", GERMAN[1]),
        (TO_CHINESE, "They live hree.", TO_CHINESE[1]),
        (TURKISH, "İstanbul ıllık iyi.", TURKISH[1]),
        *((pair,) for pair in (CHINESE, LETTERS, NUMBER, EMPTY, ("aaaa bb", "x"))),
    ),
]


VIEWS.append(
    (
        "carrying",
        (
            ("Tom met Tom and Ann on 4 May.", "Tom traf Ann am 4. Mai."),
            "① Tom met Tom and ② Ann ③ on ④ 4 ⑤ May ⑥.",
            "① Tom traf ② Ann ③ am ④ 4 ⑤. Mai ⑥.",
        ),
        (("Bob saw Ann.", "Bob sah Ann."), "① Bob saw ②.", "① Bob sah ②."),
        (("Two men run", "Zwei rennen."), "① Two men run", "① Zwei rennen."),
        (("Two men ran!", "Zwei rannten."), "Two men ran ①!", "Zwei rannten ①."),
        (("They go.", "Sie gehen"), "① They go ②.", "① Sie gehen ②"),
        (("See a.org/x, Tom!", "Hin: a.org/x, Tom!"), "See ①, Tom!", "Hin: ①, Tom!"),
        # Beside Chinese there is no space, as in translation.
        (CHINESE, "他们在公园里①。", "They are in the park ①."),
        (("你好吗？", "How are you?"), "①你好吗②？", "① How are you ②?"),
        (("Tom is.", "Tom 在 这里。"), "① ② is ③.", "① ② 在 这里③。"),
    )
)


@pytest.mark.parametrize("view", VIEWS, ids=lambda rows: rows[0])
def test_a_view_of_a_pair(view):
    name, *table = view
    number = [*FORMS, "carrying"].index(name) + 1
    for pair, *expected in table:
        sides = [text.translate(CARRIED) for text in expected]
        assert [*views_of(*pair, carries=True)][number] == (tuple(sides) or pair)
    assert [*views_of(*TO_CHINESE, carries=False)][5] == TO_CHINESE


WORDS = ["".join("abcdefghij"[int(x)] for x in f"{n:04}") for n in range(2000)]
PAIRS = [
    (f"The{' old' * (n % 7)} man {word} sleeps.", f"Der {word}n schläft.")
    for n, word in enumerate(WORDS)
]
CONFIG = DataConfig(batch_tokens=2000)


@pytest.fixture(scope="module")
def tokenizers():
    return learn_tokenizers(PAIRS, TokenizerConfig(vocabulary_size=400), robust=True)


@pytest.fixture(scope="module")
def corpus(tokenizers):
    return Corpus(PAIRS, tokenizers, CONFIG, seed=3, robust=True)


def shown(corpus, epoch, shuffle=True):
    """The number and the view of each pair of an epoch, from its ids."""
    tokenizers = corpus.tokenizers
    names, found = {}, {}
    for number, pair in enumerate(PAIRS):
        for view, sides in enumerate(views_of(*pair, carries=True)):
            names.setdefault(sides, (number, view))
    for step in range(epoch * corpus.num_batches, (epoch + 1) * corpus.num_batches):
        (source, _), target = corpus.batch(step, shuffle)
        sides = (
            tokenizers.source.detokenize(source),
            tokenizers.target.detokenize(target),
        )
        for texts in zip(*(side.numpy() for side in sides), strict=True):
            number, view = names[tuple(text.decode() for text in texts)]
            found[number] = view
    assert len(found) == len(PAIRS)  # Each pair comes, and in one view.
    return np.array([found[number] for number in range(len(PAIRS))])


def test_an_epoch_shows_each_pair_once_and_a_share_in_each_view(corpus, tokenizers):
    first, next_one = (shown(corpus, epoch) for epoch in (0, 1))
    counts = collections.Counter(first.tolist())
    assert [counts[view] for view in (1, 2, 3, 5)] == [60, 40, 100, 80]
    assert 30 < counts[4] <= 40  # A letter may be replaced by itself.
    # A pair is seen in another view in another epoch, and with another seed.
    both = np.mean((first > 0) & (next_one > 0))
    assert 0.015 < both < 0.04  # 0.16 of 0.16, as if drawn
    other = Corpus(PAIRS, tokenizers, CONFIG, seed=4, robust=True)
    assert np.mean(shown(other, 0) == first) < 0.8  # 0.71, as if drawn
    assert np.bincount(SCHEDULE).tolist() == [84, 3, 2, 5, 2, 4]
    # Validation shows what it is given, and a corpus does so by default.
    assert not shown(corpus, 0, shuffle=False).any()
    plain = Corpus(PAIRS, tokenizers, CONFIG, seed=3)
    assert not shown(plain, 0).any()
    assert plain.num_batches < corpus.num_batches


def test_any_step_is_read_alone(corpus, tokenizers):
    again = Corpus(PAIRS, tokenizers, CONFIG, seed=3, robust=True)
    size = corpus.num_batches
    for step in (7 * size + 1, 107 * size + 2, 3, 1000 * size):
        assert_equal(again.batch(step)[0], corpus.batch(step)[0])
    epochs = [len(corpus._epoch(epoch)) for epoch in range(0, 200, 9)]
    assert {*epochs, len(corpus._epoch(None))} == {size}


def test_stored_ids_are_those_of_the_views(tmp_path, tokenizers):
    pairs = [*PAIRS[:3], ("Go.", "Geh!"), ("The old man sleeps " * 8, "five")]
    config = DataConfig(max_length=40)
    Corpus(pairs, tokenizers, config, directory=tmp_path, robust=True)
    ids, ends = read_ids(tmp_path / "pairs.ids")
    found = [ids[a:b].tolist() for a, b in zip(ends[:-1], ends[1:], strict=True)]
    expected = []
    own = None
    for pair in pairs:
        for text in views_of(*pair, carries=True):
            sides = [
                [*tokenizer.tokenize([side])[0].numpy().tolist(), 2]
                for tokenizer, side in zip(
                    (tokenizers.source, tokenizers.target), text, strict=True
                )
            ]
            own = sides if text == pair else own
            expected += sides if max(map(len, sides)) <= 40 else own
    assert found == expected


def test_batches_have_the_shapes_of_the_shown_views(tokenizers):
    config = CONFIG.replace(batch_shapes=3)
    corpus = Corpus(PAIRS, tokenizers, config, robust=True)
    steps = range(3 * corpus.num_batches)
    assert {corpus.batch(step)[1].shape for step in steps} == set(corpus.shapes)
    assert sum(corpus.shapes.values()) == corpus.num_batches
    batches = [corpus.batch(step) for step in range(corpus.num_batches)]
    real = sum((x != 0).sum() for (s, _), t in batches for x in (s, t))
    area = sum(s.size + t.size for (s, _), t in batches)
    assert corpus.num_tokens == real
    assert corpus.padding == pytest.approx(1 - real / area)


def test_a_view_with_unknown_pieces_is_not_shown():
    config = TokenizerConfig(vocabulary_size=60, byte_fallback=False)
    corpus = Corpus(PAIRS, learn_tokenizers(PAIRS, config), CONFIG, robust=True)
    counts = collections.Counter(shown(corpus, 0).tolist())
    assert [counts[view] for view in (1, 2, 5)] == [0, 0, 80]


def test_a_robust_vocabulary_has_pieces_in_capitals(tokenizers):
    plain = learn_tokenizers(PAIRS, TokenizerConfig(vocabulary_size=400))
    text, _ = FORMS["in capitals"](*PAIRS[5])
    sides = tokenizers.source, plain.source
    own, others = (len(side.tokenize([text])[0]) for side in sides)
    assert own < others / 2
