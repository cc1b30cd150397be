"""What the experiments of this folder share: tasks, a small model, a table.

A task is learned by a language model, from rows of ids: a sequence, a separator, and
the answer, which alone is scored.
"""

import argparse

import numpy as np

import keras_transformer as kt

SEPARATOR, FIRST = 3, 4
TASKS = {
    "copy": lambda given: given,
    "reverse": lambda given: given[:, ::-1],
    "sort": lambda given: np.sort(given, axis=1),
    # Each symbol and the one half a sequence away, added: two places to look at.
    "add": lambda given: (given + np.roll(given, given.shape[1] // 2, 1)) % SYMBOLS,
}
SYMBOLS = 20


def make_rows(task, count, length, seed):
    """Returns random rows of a task, in which no symbol is padding or special.

    Args:
        task: A key of `TASKS`.
        count: Rows, B.
        length: Symbols of a sequence, L; its answer has as many.
        seed: Seed of the sequences.

    Returns:
        What goes in and what comes next, int32 (B, 2 * L); where the sequence itself
        would come next there is padding, which no loss and no metric counts.
    """
    given = np.random.default_rng(seed).integers(0, SYMBOLS, (count, length))
    answer = TASKS[task](given) + FIRST
    separator = np.full((count, 1), SEPARATOR)
    ids_in = np.concatenate([given + FIRST, separator, answer[:, :-1]], axis=1)
    ids_out = np.concatenate([np.zeros_like(given), answer], axis=1)
    return ids_in.astype("int32"), ids_out.astype("int32")


def make_model(**options):
    """Returns a language model of two layers of width 64, without dropout.

    Args:
        **options: Options of `LanguageModelConfig` that replace these.
    """
    sizes = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4}
    kinds = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
    options = sizes | dict.fromkeys(kinds, 0.0) | options
    size = FIRST + SYMBOLS
    return kt.LanguageModel(kt.LanguageModelConfig(vocabulary_size=size, **options))


def parser(description, **defaults):
    """Returns a parser with a flag for each default, of its type.

    Args:
        description: The program's docstring; its first line is shown.
        **defaults: Default of each flag; of a tuple the flag takes several values.
    """
    result = argparse.ArgumentParser(description=description.splitlines()[0])
    for name, value in defaults.items():
        several = {"nargs": "+"} if isinstance(value, tuple) else {}
        kind = type(value[0] if several else value)
        result.add_argument(f"--{name}", type=kind, default=value, **several)
    return result


def show(heading, rows):
    """Prints a Markdown table; numbers have three digits, lists mean and range."""
    show_rows([heading, ["---"] * len(heading), *rows])


def show_rows(rows):
    """Prints more rows of a table."""
    for cells in rows:
        print("|", " | ".join(map(text_of, cells)), "|", flush=True)


def text_of(cell):
    """Returns a table's cell as text: of a list of numbers "mean (least to most)"."""
    if isinstance(cell, list | np.ndarray):
        mean, least, most = (f(cell) for f in (np.mean, np.min, np.max))
        return f"{text_of(mean)} ({text_of(least)} to {text_of(most)})"
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)
