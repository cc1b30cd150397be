"""Figures of several rounds, and how tables show them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles; the extremes are the 0th and the 100th percentile.

    Args:
        values: At least one figure of any unit.

    Returns:
        The keys "median", "quartile_1" and "quartile_3".
    """
    if len(values) == 1:
        values = [*values, *values]
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "quartile_1": first, "quartile_3": third}


def paired_ratios(
    dividends: Sequence[float], divisors: Sequence[float]
) -> dict[str, float]:
    """Median and quartiles of the ratios of two contenders, round by round.

    Neighbours in time are compared, so that a machine that slows down between two
    rounds changes no ratio.

    Args:
        dividends: A figure of each round: speeds of one, or seconds of the other.
        divisors: Of the same rounds.

    Returns:
        `quartiles`.
    """
    return quartiles([a / b for a, b in zip(dividends, divisors, strict=True)])


def best_of_rounds(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The highest value of each key.

    Args:
        rounds: At least one mapping, all with the same keys.

    Returns:
        A mapping with those keys.
    """
    return {key: max(each[key] for each in rounds) for key in rounds[0]}


def spread(values: Mapping[str, float] | None, form: str = ".0f") -> str:
    """Median and quartiles as "3 (2 to 4)", or "-" for `None`.

    Args:
        values: From `quartiles`.
        form: Format of a number.
    """
    if values is None:
        return "-"
    keys = ("median", "quartile_1", "quartile_3")
    median, first, third = (format(values[key], form) for key in keys)
    return f"{median} ({first} to {third})"


def markdown(heading: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A table; `None` becomes "-".

    Args:
        heading: Names of the columns.
        rows: As many cells each as columns.
    """
    cells = [heading, ["---"] * len(heading), *rows]
    return "\n".join(
        "| " + " | ".join("-" if c is None else str(c) for c in row) + " |"
        for row in cells
    )
