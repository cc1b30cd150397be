"""Greedy and beam search against plain NumPy searches and worked cases."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.search import (
    FIRST_ROOM,
    Constraints,
    SpecialIds,
    beam_search,
    length_penalty,
    reordering,
)
from keras_transformer.search.tokens import allowed_tokens
from tests.reference.numpy_transformer import log_softmax
from tests.search.table_steps import (
    CONSTRAINTS,
    END,
    IDS,
    PAD,
    START,
    all_outputs,
    history_state,
    history_step,
    log_probability,
    next_logits,
    numpy,
    obeys,
    random_logits,
)

not_on_jax = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="the loops of JAX keep their shapes"
)


def score(log_probability, length, alpha, form="gnmt"):
    base = length if form == "power" else (5 + length) / 6
    return log_probability / base**alpha


def ranked(hypotheses, *penalty):
    """Sorts (ids, log-probability) pairs by score, best first."""
    key = lambda pair: -score(pair[1], len(pair[0]), *penalty)  # noqa: E731
    return sorted(hypotheses, key=key)


def every_output(table, max_length, **constraints):
    """Every output that obeys, and its log-probability."""
    return [
        (ids, log_probability(table, ids))
        for ids in all_outputs(table.shape[1], max_length)
        if obeys(ids, max_length, **constraints)
    ]


def reference_beam(
    table, max_length, beam_size, n_best, *penalty, within_beam=False, never=()
):
    """Beam search over lists, without early stop, written from the docstring."""
    alive, finished = [((), 0.0)], []
    for length in range(1, max_length + 1):
        candidates = []
        for ids, total in alive:
            added = log_softmax(next_logits(table, ids))
            for token in range(table.shape[1]):
                if token not in (PAD, START, *never):
                    candidates.append(((*ids, token), total + added[token]))
        candidates.sort(key=lambda pair: -pair[1])
        candidates = candidates[: 1 if beam_size == 1 else 2 * beam_size]
        ends = [c for c in candidates if c[0][-1] == END or length == max_length]
        best = candidates[:beam_size] if within_beam else candidates
        finished = ranked(finished + [c for c in ends if c in best], *penalty)[:n_best]
        alive = [c for c in candidates if c not in ends][:beam_size]
    return finished


def search(table, max_lengths, limit=None, beam_size=4, **options):
    """Runs `beam_search` on a table and returns the result as NumPy arrays."""
    result = beam_search(
        history_step(table),
        history_state(range(len(table)), beam_size),
        max_lengths=np.array(max_lengths, "int32"),
        limit=limit or max(max_lengths),
        special_ids=IDS,
        beam_size=beam_size,
        **options,
    )
    return [numpy(x) for x in result]


def assert_hypotheses(result, sentence, expected, *penalty):
    ids, lengths, scores, log_probabilities = (x[sentence] for x in result)
    for n, (tokens, total) in enumerate(expected):
        assert ids[n].tolist() == [*tokens] + [PAD] * (len(ids[n]) - len(tokens))
        assert lengths[n] == len(tokens)
        expected = score(total, len(tokens), *penalty)
        np.testing.assert_allclose(log_probabilities[n], total, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(scores[n], expected, rtol=1e-5, atol=1e-6)


def spelling_step(vocabulary=11, logit=9.0):
    """A step that counts upwards: token n is followed by n + 1."""

    def step(ids, parents, state):
        return ops.one_hot((ids + 1) % vocabulary, vocabulary) * logit, state

    return step


def test_special_ids_may_be_any_and_padding_may_start():
    ids = SpecialIds(pad_id=9, start_id=9, end_id=1)
    options = dict(max_lengths=np.array([6]), limit=6, special_ids=ids)
    result = beam_search(spelling_step(), (), beam_size=3, n_best=3, **options)
    assert numpy(result.ids)[0, 0].tolist() == [10, 0, 1, 9, 9, 9]
    for hypothesis, length in zip(result.ids[0], result.lengths[0], strict=True):
        assert np.all(numpy(hypothesis)[int(length) :] == 9)


# Beam size, n_best, length penalty and rules of the search, and of the reference.
WITHIN, NEVER = {"ends_within_beam": True}, {"constraints": Constraints(never=5)}
NARROW = (
    *((*sizes, (alpha,), {}, {}) for *sizes, alpha in
      ((1, 1, 0.6), (2, 1, 0.0), (2, 1, 1.5), (3, 2, 0.6), (4, 4, 1.5))),
    *((*sizes, (alpha, "power"), {}, {}) for *sizes, alpha in
      ((1, 1, 1.0), (2, 2, 0.0), (2, 2, 1.5))),
    # As Hugging Face's `generate`, CTranslate2 and fairseq search.
    *((n, 1, (0.9,), WITHIN, {"within_beam": True}) for n in (2, 3)),
    # What never comes keeps its probability.
    *((n, 1, (0.6,), NEVER, {"never": (5,)}) for n in (1, 3)),
)  # fmt: skip


@pytest.mark.parametrize("beam_size, n_best, penalty, rules, of_reference", NARROW)
def test_a_narrow_beam_keeps_what_the_reference_keeps(
    beam_size, n_best, penalty, rules, of_reference
):
    """No early stop loses an output that would win: the reference has none."""
    # Logits depend on the whole history: a state in the wrong order would show.
    table = random_logits(17, sentences=10, vocabulary=9, scale=1.0)
    lengths = [3, 5, 7, 11, 13] * 2
    given = dict(zip(("length_penalty", "length_penalty_form"), penalty, strict=False))
    result = search(
        table, lengths, beam_size=beam_size, n_best=n_best, **given, **rules
    )
    expected, plain = (
        [
            reference_beam(one, length, beam_size, n_best, *penalty, **more)
            for one, length in zip(table, lengths, strict=True)
        ]
        for more in (of_reference, {})
    )
    for sentence, hypotheses in enumerate(expected):
        assert_hypotheses(result, sentence, hypotheses, *penalty)
    assert (expected != plain) == bool(rules)


@pytest.mark.parametrize("options", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_a_wide_beam_finds_the_best_outputs_that_obey(options):
    table = random_logits(31, sentences=3, vocabulary=5)
    given = dict(options)
    if "prefix" in options:
        given["prefix"] = np.tile([*options["prefix"], PAD], (3, 1))
    lengths = [5, 3, 4]
    result = search(
        table,
        lengths,
        beam_size=40,
        n_best=7,
        length_penalty=1.0,
        constraints=Constraints(**given),
    )
    for sentence, length in enumerate(lengths):
        expected = every_output(table[sentence], length, **options)
        expected = ranked(expected, 1.0)[:7]
        assert_hypotheses(result, sentence, expected, 1.0)
        assert np.all(result[2][sentence, len(expected) :] == -np.inf)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_each_sentence_has_its_own_prefix(beam_size):
    table = random_logits(33, sentences=3, vocabulary=7)
    prefix = np.array([[6, 5, 6], [4, PAD, PAD], [PAD, PAD, PAD]])
    lengths = [7, 7, 7]
    result = search(
        table, lengths, beam_size=beam_size, constraints=Constraints(prefix=prefix)
    )
    free = search(table, lengths, beam_size=beam_size)
    assert result[0][0, 0, :3].tolist() == [6, 5, 6]
    assert result[0][1, 0, 0] == 4
    for ours, theirs in zip(result, free, strict=True):
        np.testing.assert_array_equal(ours[2], theirs[2])
    for sentence in range(3):
        ids = result[0][sentence, 0, : result[1][sentence, 0]]
        total = log_probability(table[sentence], ids)
        np.testing.assert_allclose(result[3][sentence, 0], total, rtol=1e-5)


@pytest.mark.parametrize(
    "special_ids,banned",
    [
        (SpecialIds(0, 1, 2), {0, 1}),
        (SpecialIds(4, 4, 2), {4}),
        (SpecialIds(0, 2, 2), {0}),
        (SpecialIds(2, 1, 2), {1}),
        (SpecialIds(2, 2, 2), set()),
    ],
)
def test_padding_and_start_are_banned_unless_they_end(special_ids, banned):
    tokens = np.array([[4, 1], [3, 2], [0, 0]])
    for constraints, never in (
        (Constraints(), banned),
        (Constraints(min_output_length=9), banned | {special_ids.end_id}),
        (Constraints(never=3), banned | {3}),
    ):
        allowed = numpy(allowed_tokens(tokens, 7, special_ids, constraints))
        np.testing.assert_array_equal(allowed, ~np.isin(tokens, [*never]))


def plain_step(table):
    """`history_step` as one who knows of no hypotheses would write it."""
    step = history_step(table)
    return lambda ids, state: step(ids, ops.zeros_like(ids)[:, None], state)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_reordering_moves_the_state_of_a_plain_step(beam_size):
    table = random_logits(17, sentences=5, vocabulary=7, scale=1.0)
    lengths = [3, 5, 7, 11, 13]
    step, state = reordering(plain_step(table), history_state(range(5)), beam_size)
    result = beam_search(
        step,
        state,
        max_lengths=lengths,
        limit=13,
        special_ids=IDS,
        beam_size=beam_size,
    )
    expected = search(table, lengths, beam_size=beam_size)
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_array_equal(numpy(ours), theirs)


@not_on_jax
@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_search_stops_when_nothing_better_can_come(beam_size):
    calls = []

    def step(ids, parents, state):
        calls.append(1)
        return spelling_step()(ids, parents, state)

    ids = SpecialIds(pad_id=0, start_id=1, end_id=4)
    options = dict(max_lengths=np.array([99, 50]), limit=99, special_ids=ids)
    beam_search(step, (), beam_size=beam_size, **options)
    assert len(calls) == 3


@pytest.mark.parametrize("bad", [-100, -1, 7, 107])
def test_a_prefix_that_is_no_token_leaves_an_empty_hypothesis(bad):
    table = random_logits(7, sentences=2, vocabulary=7)
    prefixes = np.array([[6, bad, 6], [4, 4, 4]]), np.array([[6, 5, 6], [4, 4, 4]])
    result, expected = (
        search(table, [5, 5], beam_size=3, constraints=Constraints(prefix=prefix))
        for prefix in prefixes
    )
    assert result[0][0].tolist() == [[PAD] * 5]
    assert result[2][0] == -np.inf
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_array_equal(ours[1], theirs[1])


@pytest.mark.parametrize("prefix", [None, [[6, 5, 6], [4, 4, 4]]], ids=str)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_nan_logits_leave_an_empty_hypothesis_and_spare_others(beam_size, prefix):
    table = random_logits(7, sentences=2, vocabulary=7)
    prefix = None if prefix is None else np.array(prefix)
    options = dict(beam_size=beam_size, constraints=Constraints(prefix=prefix))
    expected = search(table, [5, 5], **options)
    table[0, :, 3] = np.nan
    result = search(table, [5, 5], **options)
    assert result[0][0].tolist() == [[PAD] * 5]
    assert result[1][0] == 0
    assert result[2][0] == result[3][0] == -np.inf
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_array_equal(ours[1], theirs[1])


def test_a_vocabulary_smaller_than_the_beam_leaves_places_empty():
    table = random_logits(9, sentences=1, vocabulary=4)
    result = search(table, [2], beam_size=7, n_best=5)
    expected = ranked(every_output(table[0], 2), 0.6)
    assert len(expected) == 3
    assert_hypotheses(result, 0, expected, 0.6)
    assert np.all(result[0][0, 3:] == PAD)
    assert result[1][0, 3:].tolist() == [0, 0]
    assert result[2][0, 3:].tolist() == [-np.inf, -np.inf]


def test_the_length_penalty_has_its_closed_form():
    assert float(length_penalty(1, 0.6)) == 1.0
    assert float(length_penalty(7, 1.0)) == 2.0
    assert float(length_penalty(30, 0.0)) == 1.0
    lengths = np.array([[7, 19], [1, 49]])
    np.testing.assert_allclose(
        numpy(length_penalty(lengths, 2.0)), [[4, 16], [1, 81]], rtol=1e-6
    )
    np.testing.assert_allclose(
        numpy(length_penalty(lengths, 0.5, "power")), lengths**0.5, rtol=1e-6
    )


# A search that drops finished sentences and grows its room finds the same.

# The longest output of each sentence, and what its logits of the end token gain: some
# end at once, some never do before 16, 32 or 64 tokens.
MAX_LENGTHS = [70, 1, 70, 17, 33, 16, 32, 70, 64, 5, 40, 2, 15]
END_GAINS = [20, 0, -20, -20, -20, -20, -20, -2, -20, 0, -1, 20, 0]
PREFIX = np.zeros((len(MAX_LENGTHS), 3), "int32")
PREFIX[::2, 0], PREFIX[4, :] = 5, (3, 7, 3)


def table_of_lengths(seed=41):
    table = random_logits(seed, sentences=len(MAX_LENGTHS), vocabulary=11)
    table[:, :, END] += np.array(END_GAINS, "float32")[:, None]
    return table


class Steps:
    """The history step with room; keeps what shapes it saw."""

    def __init__(self, table, beam_size):
        self.plain = history_step(table)
        self.beam_size = beam_size
        self.rows, self.rooms = [], []

    def state(self, sentences, room):
        sentences = np.asarray(sentences)
        return {
            "inner": history_state(sentences, self.beam_size),
            "room": ops.zeros((len(sentences) * self.beam_size, room)),
        }

    def step(self, ids, parents, state):
        self.rows.append(ids.shape[0])
        self.rooms.append(state["room"].shape[1])
        logits, inner = self.plain(ids, parents, state["inner"])
        return logits, dict(state, inner=inner)

    def resize(self, state, sentences, length):
        rows = ops.expand_dims(sentences, 1) * self.beam_size
        rows = ops.reshape(rows + ops.arange(self.beam_size, dtype="int32"), (-1,))
        state = keras.tree.map_structure(
            lambda x: ops.take(x, rows, axis=0) if len(x.shape) else x, state
        )
        more = length - ops.shape(state["room"])[1]
        return dict(state, room=ops.pad(state["room"], ((0, 0), (0, more))))


def resizing_search(beam_size, resized, n_best=1, in_graph=False, **options):
    """Returns the result as arrays and the `Steps` that made it."""
    steps = Steps(table_of_lengths(), beam_size)
    room = FIRST_ROOM if resized else max(MAX_LENGTHS)

    def find():
        return beam_search(
            steps.step,
            steps.state(range(len(MAX_LENGTHS)), room),
            max_lengths=np.array(MAX_LENGTHS),
            limit=max(MAX_LENGTHS),
            special_ids=IDS,
            beam_size=beam_size,
            n_best=n_best,
            resize=steps.resize if resized else None,
            **options,
        )

    if in_graph:
        import tensorflow as tf

        find = tf.function(find)
    return [numpy(x) for x in find()], steps


def assert_same_results(ours, theirs):
    ids, lengths, *scores = zip(ours, theirs, strict=True)
    np.testing.assert_array_equal(*ids)
    np.testing.assert_array_equal(*lengths)
    for pair in scores:
        # A sum over a row of fewer rows may be made in another order.
        np.testing.assert_allclose(*pair, rtol=1e-6)


OPTIONS = {
    "plain": {},
    "all of the beam": {"n_best": 3},
    "no length penalty": {"length_penalty": 0.0},
    "a large length penalty": {"length_penalty": 2.0},
    "constraints": {"constraints": Constraints(4, 3, PREFIX), "n_best": 2},
}


@not_on_jax
@pytest.mark.one_case("all of the beam")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_result_is_that_of_a_search_of_one_size(options):
    expected, _ = resizing_search(3, resized=False, **options)
    result, _ = resizing_search(3, resized=True, **options)
    assert_same_results(result, expected)
    lengths = expected[1][:, 0]
    assert min(lengths) <= 2
    assert {1, 16, 17, 32, 33, 64, 70} <= {*lengths}


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a graph")
def test_a_graph_of_known_sizes_resizes_too():
    options = OPTIONS["constraints"]
    expected, _ = resizing_search(3, resized=False, **options)
    result, steps = resizing_search(3, resized=True, in_graph=True, **options)
    assert_same_results(result, expected)
    # The loop was traced once, for any number of rows and any room.
    assert (steps.rows, steps.rooms) == ([None], [None])


@not_on_jax
@pytest.mark.one_case("1")
@pytest.mark.parametrize("beam_size", [1, 4])
def test_finished_sentences_leave_and_the_room_doubles(beam_size):
    (_, lengths, *_), steps = resizing_search(beam_size, resized=True)
    assert steps.rows[0] == len(MAX_LENGTHS) * beam_size
    assert steps.rows == sorted(steps.rows, reverse=True)
    assert steps.rooms == sorted(steps.rooms)
    assert set(steps.rooms) == {16, 32, 64, 70}
    # As many steps as the longest output has tokens: none is taken twice.
    assert len(steps.rows) == lengths.max() == 70
    for position, (rows, room) in enumerate(zip(steps.rows, steps.rooms, strict=True)):
        assert position < room
        # Greedy sentences are done when they end; at most a quarter is carried along.
        if beam_size == 1:
            unfinished = np.count_nonzero(lengths[:, 0] > position)
            assert unfinished <= rows < unfinished / 0.75 + 1
    assert steps.rows[-1] < steps.rows[0] / 2
    _, plain = resizing_search(beam_size, resized=False)
    assert set(plain.rows) == {len(MAX_LENGTHS) * beam_size}


@not_on_jax
@pytest.mark.parametrize("end_gain,count", [(30.0, 1), (-30.0, 40)])
def test_all_may_end_at_once_or_at_the_longest_output(end_gain, count):
    table = random_logits(47, sentences=3, vocabulary=7)
    table[:, :, END] += end_gain
    steps = Steps(table, 2)
    result = beam_search(
        steps.step,
        steps.state(range(3), FIRST_ROOM),
        max_lengths=[40] * 3,
        limit=40,
        special_ids=IDS,
        beam_size=2,
        resize=steps.resize,
    )
    assert numpy(result.lengths).tolist() == [[count]] * 3
    assert set(steps.rows) == {6}
