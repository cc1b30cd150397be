"""The tasks of long sequences are what they say, and every attention takes them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.test_why import load  # noqa: F401


def value_of(symbols):
    """The value of an expression, worked out from its symbols alone."""
    stack = []
    for symbol in symbols:
        if symbol != "]":
            stack.append(symbol if symbol[0] == "[" else int(symbol))
            continue
        values = []
        while isinstance(stack[-1], int):
            values.append(stack.pop())
        name = stack.pop()[1:]
        middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
        stack.append(
            {"MIN": min(values), "MAX": max(values), "SM": sum(values) % 10,
             "MED": sum(middle) // len(middle)}[name]
        )  # fmt: skip
    (value,) = stack
    return value


def test_values_of_nested_operations(load):  # noqa: F811
    tasks = load("long_range_tasks")
    ids, answers = tasks.list_operations(40, 60, seed=1)
    assert ids.shape == (40, 60, 1)
    for row, answer in zip(ids[..., 0], answers, strict=True):
        symbols = [tasks.SYMBOLS[number] for number in row if number]
        assert symbols[0] == "?" and 30 <= len(symbols) <= 60
        assert value_of(symbols[1:]) == answer
    assert value_of("[SM 8 [MED 1 4 9 6 ] [MIN 7 3 ] ]".split()) == 6


def test_nested_operations_keep_to_their_depth_and_number(load):  # noqa: F811
    expression = load("long_range_tasks").expression
    for seed in range(50):
        symbols, _ = expression(random.Random(seed), 3, 4, 10**4, nested=0.7)
        depth, arguments = 0, [0]
        for symbol in symbols:
            if symbol == "]":
                depth -= 1
                assert 2 <= arguments.pop() <= 4
            else:
                arguments[-1] += 1
            if symbol[0] == "[":
                depth += 1
                arguments.append(0)
            assert depth <= 3


def test_retrieval_asks_for_a_key_of_the_second_half(load):  # noqa: F811
    tasks = load("long_range_tasks")
    ids, answers = tasks.retrieval(30, 41, seed=1)
    assert ids.min() == 1 and ids.max() < tasks.TASKS["retrieval"][1]
    for row, answer in zip(ids, answers, strict=True):
        asked = row[0, 0]
        assert row[0, 1] == tasks.KEYS + 1
        (places,) = np.nonzero(row[1:, 0] == asked)
        assert len(places) and places.min() >= 20
        assert set(row[1:][places, 1]) == {tasks.KEYS + 2 + answer}
        for key in range(1, 1 + tasks.KEYS):
            assert len(set(row[1:][row[1:, 0] == key, 1])) <= 1


@pytest.mark.slow
def test_long_sequences_are_learned_from(load):  # noqa: F811
    sizes = ["--length", "40", "--batch", "4", "--updates", "2"]
    kinds = ["--kinds", "mean of all", "linformer"]
    found = load("long_range").main([*sizes, "--tasks", "retrieval", *kinds])
    assert set(found) == {"mean of all", "linformer"}
    assert all(0 <= share <= 1 for (share,) in found.values())


def test_attention_of_the_kind_is_used(load):  # noqa: F811
    program = load("long_range")
    kinds = program.attentions(40)
    for kind, make in kinds.items():
        model = program.classifier("operations", kind, 40)
        (encoder,) = (x for x in model.layers if hasattr(x, "stack"))
        found = {type(layer.self_attention) for layer in encoder.stack.encoder_layers}
        assert found == {type(make())}
