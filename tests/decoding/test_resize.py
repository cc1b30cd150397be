"""A search that drops finished sentences and grows its room finds the same."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import (
    FIRST_ROOM,
    Constraints,
    beam_search,
)
from tests.decoding.table_steps import (
    END,
    IDS,
    history_state,
    history_step,
    numpy,
    random_logits,
)

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="the loops of JAX keep their shapes"
)

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
        position = state["inner"].pop("position")
        state = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), state)
        state["inner"]["position"] = position
        more = length - ops.shape(state["room"])[1]
        return dict(state, room=ops.pad(state["room"], ((0, 0), (0, more))))


def search(beam_size, resized, n_best=1, **options):
    """Returns the result as arrays and the `Steps` that made it."""
    steps = Steps(table_of_lengths(), beam_size)
    room = FIRST_ROOM if resized else max(MAX_LENGTHS)
    result = beam_search(
        steps.step, steps.state(range(len(MAX_LENGTHS)), room),
        max_lengths=np.array(MAX_LENGTHS), limit=max(MAX_LENGTHS), special_ids=IDS,
        beam_size=beam_size, n_best=n_best,
        resize=steps.resize if resized else None, **options,
    )  # fmt: skip
    return [numpy(x) for x in result], steps


def assert_same(ours, theirs):
    ids, lengths, *scores = zip(ours, theirs, strict=True)
    np.testing.assert_array_equal(*ids)
    np.testing.assert_array_equal(*lengths)
    for pair in scores:
        # A sum over a row of fewer rows may be made in another order.
        np.testing.assert_allclose(*pair, rtol=1e-6)


OPTIONS = {
    "plain": {},
    "all of the beam": {"n_best": 3},
    "no length penalty": {"alpha": 0.0},
    "a large length penalty": {"alpha": 2.0},
    "constraints": {"constraints": Constraints(4, 3, PREFIX), "n_best": 2},
}


@pytest.mark.one_case
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_result_is_that_of_a_search_of_one_size(options):
    expected, _ = search(3, resized=False, **options)
    result, _ = search(3, resized=True, **options)
    assert_same(result, expected)
    lengths = expected[1][:, 0]
    assert min(lengths) <= 2
    assert {1, 16, 17, 32, 33, 64, 70} <= {*lengths}


@pytest.mark.one_case
@pytest.mark.parametrize("beam_size", [1, 4])
def test_finished_sentences_leave_and_the_room_doubles(beam_size):
    (_, lengths, *_), steps = search(beam_size, resized=True)
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
    _, plain = search(beam_size, resized=False)
    assert set(plain.rows) == {len(MAX_LENGTHS) * beam_size}


@pytest.mark.parametrize("end_gain,count", [(30.0, 1), (-30.0, 40)])
def test_all_may_end_at_once_or_at_the_longest_output(end_gain, count):
    table = random_logits(47, sentences=3, vocabulary=7)
    table[:, :, END] += end_gain
    steps = Steps(table, 2)
    result = beam_search(
        steps.step, steps.state(range(3), FIRST_ROOM), max_lengths=[40] * 3, limit=40,
        special_ids=IDS, beam_size=2, resize=steps.resize,
    )  # fmt: skip
    assert numpy(result.lengths).tolist() == [[count]] * 3
    assert set(steps.rows) == {6}
