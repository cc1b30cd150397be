"""Two tasks over long sequences, generated: nested operations, and a key's value."""

import functools
import random
import statistics

import keras
import numpy as np

OPERATORS = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(statistics.median(values)),
    "SM": lambda values: sum(values) % 10,
}
# Id 0 is padding, 1 stands where the answer is asked for, then digits and brackets.
SYMBOLS = ["", "?", *map(str, range(10)), "]", *(f"[{name}" for name in OPERATORS)]
VALUES, KEYS = 8, 8  # That a key may have, and keys in a row.


class TooLong(Exception):
    """An expression has no room."""


def expression(rng, depth, args, room, nested=0.25):
    """Returns the symbols of a nested operation, and its value from 0 to 9.

    As ListOps of Long Range Arena (Tay et al., 2021, https://arxiv.org/abs/2011.04006):
    an argument is a digit, or with the probability `nested` an operation of 2 to `args`
    arguments, down to `depth` levels. Raises `TooLong` beyond `room` symbols.
    """
    name = rng.choice(list(OPERATORS))
    symbols, values = [f"[{name}"], []
    for _ in range(rng.randint(2, args)):
        if depth > 1 and rng.random() < nested:
            left = room - len(symbols) - 1
            inner, value = expression(rng, depth - 1, args, left, nested)
        else:
            value = rng.randrange(10)
            inner = [str(value)]
        symbols += inner
        values.append(value)
        if len(symbols) >= room:
            raise TooLong
    return [*symbols, "]"], OPERATORS[name](values)


def list_operations(rows, length, seed, depth=10, args=10):
    """Returns ids (N, S, 1) of expressions of length / 2 to length, and values (N,)."""
    rng, ids, answers = random.Random(seed), [], []
    id_of = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    while len(ids) < rows:
        try:
            symbols, value = expression(rng, depth, args, length - 1)
        except TooLong:
            continue
        if length // 2 <= 1 + len(symbols):
            ids.append([id_of[symbol] for symbol in ["?", *symbols]])
            answers.append(value)
    ids = keras.utils.pad_sequences(ids, length, padding="post")
    return ids[..., None], np.array(answers)


def retrieval(rows, length, seed):
    """Returns ids (N, S, 2) and values (N,): what value has the key that is asked for?

    Each row gives each key a value. The first token holds the key that is asked for
    and "?", the others a key and its value, in any order, the key that is asked for
    in the second half alone.
    """
    rng, index = np.random.default_rng(seed), np.arange(rows)[:, None]
    values = rng.integers(VALUES, size=(rows, KEYS))
    shown = rng.permuted(np.tile(np.arange(length - 1) % KEYS, (rows, 1)), axis=1)
    asked = rng.integers(KEYS, size=(rows, 1))
    near = shown[:, : length // 2]
    near[near == asked] += 1 + rng.integers(KEYS - 1, size=(near == asked).sum())
    shown %= KEYS
    pairs = np.stack([shown, KEYS + 1 + values[index, shown]], axis=-1)
    question = np.stack([asked, np.full_like(asked, KEYS)], axis=-1)
    ids = 1 + np.concatenate([question, pairs], axis=1)
    return ids.astype("int32"), values[index, asked][:, 0]


# Of each task its data, the ids and features that a token has, and the classes.
TASKS = {
    "operations": (list_operations, len(SYMBOLS), 1, 10),
    "retrieval": (retrieval, 1 + KEYS + 1 + VALUES, 2, VALUES),
}


@functools.cache
def rows_of(task, rows, length, seed):
    """Returns a task's ids and answers, the same to whoever asks again."""
    return TASKS[task][0](rows, length, seed)
