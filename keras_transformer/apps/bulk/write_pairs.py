"""Pairs as a file, without those that a trained model finds least likely."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from keras_transformer.apps.bulk.translate_texts import translate_lines
from keras_transformer.config.options import check_number
from keras_transformer.files import check_another_file
from keras_transformer.text.lines import pair_line, write_lines
from keras_transformer.text.pairs import open_pairs
from keras_transformer.text.parallel_text import BadLines


def write_pairs(
    text: Any,
    output: str | Path,
    *,
    by: Any = None,
    by_share: float = 0.05,
    bad_line_share: float = 0.01,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Writes pairs as lines of source, tab, target, such as those of `clean_pairs`.

    With a model it leaves out those whose target is least likely per token: what is
    misaligned or hardly a translation (Junczys-Dowmunt, 2018, section 2,
    https://arxiv.org/abs/1809.00197).

    Args:
        text: Pairs, as `open_pairs` returns or takes them.
        output: File to write or replace, whole or not at all; gzip if it ends in ".gz".
        by: A `Translator` or an export with `score`; default none.
        by_share: Share of the pairs that it leaves out.
        bad_line_share: Largest share of bad lines to skip, as in `DataConfig`.
        show_progress: Show a progress bar, if standard error is a terminal.

    Returns:
        The numbers of "pairs" written, "unlikely" ones and "bad_lines", and the
        "first_bad_lines": the places of five at most, with what is wrong there.

    Raises:
        OSError: If a file cannot be read or written.
        ValueError: If an argument is out of range, there are too many bad lines or no
            good one, or `output` is one of the files of the pairs.

    Example:
        >>> pairs = clean_pairs(open_pairs("train.tsv"))
        >>> write_pairs(pairs, "clean.tsv.gz", by=load("runs/a"))
    """
    check_number("by_share", by_share, minimum=0.0, below=1.0)
    text = open_pairs(text)
    check_another_file(output, text.files)
    bad_lines = BadLines(bad_line_share)
    unlikely = set()
    if by is not None:
        pairs = text.pairs(BadLines(bad_line_share))
        console = Console(stderr=True)
        if show_progress and console.is_terminal:
            total = text.count()
            pairs = track(pairs, "scoring", total, console=console, transient=True)
        found = translate_lines(
            lambda some: by.score(*zip(*(pair[1:] for pair in some), strict=True)),
            pairs,
        )
        scores = [score.log_probability / len(score.tokens) for score in found]
        order = np.argsort(scores, kind="stable")
        unlikely.update(order[: int(by_share * len(order))].tolist())
    lines = (
        pair_line(*pair[1:])
        for place, pair in enumerate(text.pairs(bad_lines))
        if place not in unlikely
    )
    first = next(lines, None)
    if first is None:
        raise ValueError(f"There are no good pairs: left out {bad_lines}")
    return {
        "pairs": write_lines(output, itertools.chain([first], lines)),
        "unlikely": len(unlikely),
        "bad_lines": bad_lines.count,
        "first_bad_lines": bad_lines.examples,
    }
