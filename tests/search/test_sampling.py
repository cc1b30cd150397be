"""Sampling against the distributions it is meant to draw from; scores of outputs."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.search import Constraints, sample_tokens
from keras_transformer.search.sampling import _draw
from keras_transformer.search.tokens import score_in_parts, token_log_probabilities
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

VOCABULARY = 11


def draw(table, sentences, seed=0, **options):
    """Samples with one row for each of `sentences`, rows of the table."""
    rows, limit = len(sentences), options.pop("limit", 7)
    options = (
        dict(
            uniforms=np.random.default_rng(seed).random((rows, limit)),
            temperature=np.ones(rows),
            max_lengths=np.full(rows, limit),
        )
        | options
    )
    result = sample_tokens(
        history_step(table),
        history_state(sentences),
        limit=limit,
        special_ids=IDS,
        **options,
    )
    return [numpy(x)[:, 0] for x in result]


def outputs_of(result):
    return [tuple(row[:length]) for row, length in zip(*result[:2], strict=True)]


def evenly(rows):
    """Numbers in the middle of as many equal parts of [0, 1), (rows, 1)."""
    return (np.arange(rows)[:, None] + 0.5) / rows


def filtered(logits, temperature=1.0, top_k=None, top_p=None, banned=(PAD, START)):
    """The distribution of one token, worked in float64 from the definitions."""
    weights = np.exp((logits - logits.max()) / temperature)
    weights[list(banned)] = 0.0
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    order = [i for i in order if i not in banned][:top_k]
    probabilities = np.zeros(len(weights))
    probabilities[order] = weights[order] / weights[order].sum()
    if top_p is not None:
        count = 1
        while count < len(order) and probabilities[order[:count]].sum() < top_p:
            count += 1
        probabilities[order[count:]] = 0.0
    return probabilities / probabilities.sum()


def greedy(table, max_length):
    output = []
    while len(output) < max_length and output[-1:] != [END]:
        output.append(END + int(np.argmax(next_logits(table, output)[END:])))
    return tuple(output)


CASES = {
    "temperature 1": {},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 3": {"temperature": 3.0},
    "top-k": {"top_k": 4},
    "top-k of more than there are": {"top_k": 50},
    "top-p": {"top_p": 0.8},
    "top-p of all": {"top_p": 1.0},
    "top-k, then top-p": {"top_k": 5, "top_p": 0.7, "temperature": 1.5},
}


@pytest.mark.parametrize("size", [4, 4099])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_number_inverts_the_distribution_function(size, options):
    rng, filters = np.random.default_rng(size), dict(options)
    temperature = filters.pop("temperature", 1.0)
    logits = rng.normal(0, 2, size).astype("float32")
    uniforms = rng.random((499, 1)).astype("float32")
    result = sample_tokens(
        lambda ids, parents, state: (ops.tile(logits[None], (499, 1)), state),
        (),
        uniforms=uniforms,
        temperature=np.full(499, temperature),
        limit=1,
        max_lengths=np.ones(499),
        special_ids=IDS,
        **filters,
    )
    probabilities = filtered(logits.astype("float64"), temperature, **filters)
    order = np.arange(size)
    if filters:
        order = np.argsort(-probabilities, kind="stable")
    ends = np.cumsum(probabilities[order])
    tokens = numpy(result.ids)[:, 0, 0]
    expected = order[np.searchsorted(ends, uniforms[:, 0], side="right")]
    # A number within rounding of a boundary may fall on either side of it.
    near = np.abs(uniforms - ends).min(axis=1) < 1e-5
    assert near.mean() < 0.1
    np.testing.assert_array_equal(tokens[~near], expected[~near])


FILTERS = pytest.mark.parametrize(
    "filters", ({}, {"top_k": 3}, {"top_p": 0.5}), ids=str
)


@FILTERS
def test_no_temperature_is_greedy(filters):
    table = random_logits(7, sentences=5, vocabulary=VOCABULARY)
    lengths = np.array([7, 3, 5, 7, 7])
    temperature = np.array([0.0, -1.0, np.nan, 1e-44, 1e-6])
    result = draw(
        table, range(5), temperature=temperature, max_lengths=lengths, **filters
    )
    expected = [greedy(*pair) for pair in zip(table, lengths, strict=True)]
    assert outputs_of(result) == expected
    totals = [log_probability(*pair) for pair in zip(table, expected, strict=True)]
    np.testing.assert_allclose(result[3], totals, rtol=1e-5)
    penalties = ((5 + np.array([*map(len, expected)])) / 6) ** 0.6
    np.testing.assert_allclose(result[2], totals / penalties, rtol=1e-5)


def test_no_temperature_takes_the_first_of_equal_tokens():
    table = np.zeros((1, 97, VOCABULARY), "float32")
    table[..., [5, 8]] = 3.0
    assert draw(table, [0], temperature=[0.0], limit=1)[0].tolist() == [[5]]


@pytest.mark.parametrize("temperature", [1e6, np.inf])
def test_a_large_temperature_is_uniform(temperature):
    rows = 40_000
    table = random_logits(9, sentences=1, vocabulary=VOCABULARY, scale=9.0)
    options = {"temperature": np.full(rows, temperature), "uniforms": evenly(rows)}
    result = draw(table, np.zeros(rows), limit=1, **options)
    counts = np.bincount(result[0][:, 0], minlength=VOCABULARY)
    assert counts[PAD] == counts[START] == 0
    np.testing.assert_allclose(counts[END:], rows / (VOCABULARY - 2), atol=2)


LAST = 1.0 - 2.0**-24  # the largest float32 below 1


@pytest.mark.parametrize("number", [-1.0, 0.0, LAST, 1.0, 9.0])
@FILTERS
def test_numbers_at_the_ends_and_beyond_draw_possible_tokens(filters, number):
    table = random_logits(11, sentences=31, vocabulary=VOCABULARY, scale=1.0)
    table[..., [3, VOCABULARY - 1]] = -np.inf
    table[..., [PAD, START]] = 9.0
    uniforms = np.full((31, 1), number, "float32")
    tokens = draw(table, range(31), uniforms=uniforms, limit=1, **filters)[0][:, 0]
    for row, token in enumerate(tokens):
        probabilities = filtered(next_logits(table[row], ()), **filters)
        order = np.argsort(-probabilities, kind="stable") if filters else range(11)
        possible = [i for i in order if probabilities[i] > 0]
        assert token == possible[0 if number <= 0 else -1]


def test_a_place_without_weight_is_not_drawn_for_a_rounding_error(monkeypatch):
    # Sums made in parallel may differ by a rounding error where nothing is added.
    summed = np.array([[0.0, 1.0, 1.0 + 2.0**-23, 2.0]], "float32")
    monkeypatch.setattr(ops, "cumsum", lambda *_, **__: ops.convert_to_tensor(summed))
    weights = ops.convert_to_tensor(np.array([[0.0, 1.0, 0.0, 1.0]], "float32"))
    place, rest = _draw(weights, ops.convert_to_tensor(np.array([0.5], "float32")))
    assert int(place[0]) == 3
    assert float(rest[0]) == 0.0


def test_log_probabilities_are_the_models_own():
    table = random_logits(13, sentences=5, vocabulary=VOCABULARY)
    temperature = np.array([0.2, 0.7, 1.0, 2.0, 9.0])
    result = draw(table, range(5), temperature=temperature, top_k=6, length_penalty=1.0)
    ids = outputs_of(result)
    expected = [log_probability(*pair) for pair in zip(table, ids, strict=True)]
    np.testing.assert_allclose(result[3], expected, rtol=1e-5)
    penalties = (5 + result[1]) / 6
    np.testing.assert_allclose(result[2], expected / penalties, rtol=1e-5)
    power = draw(
        table,
        range(5),
        temperature=temperature,
        top_k=6,
        length_penalty=0.7,
        length_penalty_form="power",
    )
    np.testing.assert_allclose(power[2], expected / result[1] ** 0.7, rtol=1e-5)


@pytest.mark.one_case("{'top_p': 0.5}")
@FILTERS
def test_a_row_alone_gets_what_it_gets_in_a_batch(filters):
    table = random_logits(15, sentences=7, vocabulary=VOCABULARY, scale=1.0)
    rng = np.random.default_rng(15)
    options = dict(
        uniforms=rng.random((7, 13)),
        temperature=rng.uniform(0, 3, 7),
        max_lengths=np.array([1, 3, 5, 7, 9, 11, 13]),
    )
    batch = draw(table, range(7), limit=13, **options, **filters)
    assert len(set(outputs_of(batch))) > 4
    for i in range(7):
        own = {name: value[i : i + 1] for name, value in options.items()}
        alone = draw(table, [i], limit=13, **own, **filters)
        assert outputs_of(alone) == outputs_of(batch)[i : i + 1]
        # A compiler may sum a row of a batch in another order than a row alone.
        for ours, theirs in zip(batch, alone, strict=True):
            np.testing.assert_allclose(ours[i], theirs[0], rtol=1e-6)


@pytest.mark.parametrize("options", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_exactly_the_outputs_that_obey_the_constraints_are_drawn(options):
    # Nearly uniform: each of at most 31 outputs comes up among thousands.
    rows, limit = 5000, 4
    table = random_logits(17, sentences=1, vocabulary=5)
    given = dict(options)
    if options.get("prefix"):
        # Columns of padding, and of no use, are free.
        row = [*options["prefix"], *[PAD] * 4]
        given["prefix"] = np.tile(row, (rows, 1))
    result = draw(
        table,
        np.zeros(rows),
        limit=limit,
        temperature=np.full(rows, 1e6),
        constraints=Constraints(**given),
    )
    outputs = {ids for ids in all_outputs(5, limit) if obeys(ids, limit, **options)}
    drawn = dict(zip(outputs_of(result), result[3], strict=True))
    assert drawn.keys() == outputs
    expected = [log_probability(table[0], ids) for ids in drawn]
    np.testing.assert_allclose([*drawn.values()], expected, rtol=1e-5)


def test_each_row_has_its_own_prefix_even_at_no_temperature():
    table = random_logits(19, sentences=3, vocabulary=VOCABULARY)
    prefix = np.array([[9, 10, 9], [8, PAD, PAD], [PAD, PAD, PAD]])
    result = draw(
        table, range(3), temperature=np.zeros(3), constraints=Constraints(prefix=prefix)
    )
    first, second, third = outputs_of(result)
    assert first[:3] == (9, 10, 9)
    assert second[0] == 8
    assert third == greedy(table[2], 7)
    total = log_probability(table[0], first)
    np.testing.assert_allclose(result[3][0], total, rtol=1e-5)


def test_nan_logits_or_none_possible_leave_an_empty_output_and_spare_other_rows():
    table = random_logits(21, sentences=3, vocabulary=VOCABULARY)
    expected = draw(table, range(3))
    table[0, :, 3] = np.nan
    table[1, :, END:] = -np.inf
    result = draw(table, range(3))
    for row in (0, 1):
        assert result[0][row].tolist() == [PAD] * 7
        assert result[1][row] == 0
        assert result[2][row] == result[3][row] == -np.inf
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_array_equal(ours[2], theirs[2])


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX traces the step")
def test_sampling_stops_when_every_row_has_ended():
    calls = []

    def step(ids, parents, state):
        calls.append(1)
        return ops.one_hot(ids + 1, VOCABULARY) * 99.0, state

    result = sample_tokens(
        step,
        (),
        uniforms=np.full((2, 99), 0.5),
        temperature=np.ones(2),
        limit=99,
        max_lengths=np.array([3, 99]),
        special_ids=IDS._replace(end_id=6),
    )
    assert numpy(result.ids)[:, 0, :5].tolist() == [[2, 3, 4, 0, 0], [2, 3, 4, 5, 6]]
    assert numpy(result.lengths).tolist() == [[3], [5]]
    assert len(calls) == 5


# Scores of given outputs: in closed form, and in parts.


@pytest.mark.parametrize("of_padding", [0.0, -np.inf, np.nan, np.inf])
@pytest.mark.parametrize("pad_id", [0, 4])
def test_equal_logits_cost_the_log_of_their_number_and_padding_nothing(
    pad_id, of_padding
):
    logits = np.zeros((1, 3, 5), "float32")
    logits[0, 2] = of_padding
    found = numpy(token_log_probabilities(logits, np.array([[3, 2, pad_id]]), pad_id))
    np.testing.assert_allclose(found, [[-np.log(5), -np.log(5), 0.0]], rtol=1e-6)
    logits[0, 0, 3] = -np.inf  # What cannot be.
    found = numpy(token_log_probabilities(logits, np.array([[3, 2, pad_id]]), pad_id))
    assert found[0, 0] == -np.inf


def test_large_and_bfloat16_logits_are_normalised_in_float32():
    large = np.full((1, 1, 1000), 3e4, "float32")
    for logits in (large, ops.cast(large, "bfloat16")):
        result = token_log_probabilities(logits, np.array([[7]]))
        np.testing.assert_allclose(numpy(result), [[-np.log(1000)]], rtol=1e-3)


@pytest.mark.parametrize("batch,length", [(3, 1), (3, 8), (2, 19), (2, 0), (0, 5)])
def test_scoring_in_parts_is_scoring_at_once(batch, length, rng):
    """In a graph of TensorFlow, too, which knows no shape before it runs."""
    states = rng.normal(size=(batch, length, 5)).astype("float32")
    kernel = rng.normal(size=(5, 11)).astype("float32")
    target_out = rng.integers(1, 11, (batch, length)).astype("int32")
    target_out[:, length // 2 + 1 :] = 0
    widest = []

    def project(states):
        widest.append(states.shape[1])
        return ops.matmul(states, kernel)

    def score(states, target_out):
        return score_in_parts(project, states, target_out)

    expected = numpy(token_log_probabilities(states @ kernel, target_out))
    if length:
        result = numpy(score(states, target_out))
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
        assert set(widest) == {8}
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        specs = tf.TensorSpec([None, None, 5]), tf.TensorSpec([None, None], "int32")
        result = tf.function(score, input_signature=specs)(states, target_out)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
