"""What the programs of this folder share: flags and a table."""

import argparse

import numpy as np


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
