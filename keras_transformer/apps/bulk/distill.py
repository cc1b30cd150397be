"""Sequence-level distillation: a teacher's translations as pairs for a student."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.apps.bulk.translate_texts import (
    WINDOW,
    BulkSummary,
    translate_texts,
)
from keras_transformer.config.options import check_number
from keras_transformer.files import check_another_file, write_json
from keras_transformer.text.lines import one_line, read_lines
from keras_transformer.text.pairs import open_pairs
from keras_transformer.text.parallel_text import BadLines


def distill(
    teacher: Any,
    pairs: Any,
    output: str | Path,
    *,
    best_of: int = 1,
    bad_line_share: float = 0.01,
    window: int = WINDOW,
    fingerprint: str = "",
    facts: Mapping[str, Any] | None = None,
    show_progress: bool = False,
) -> BulkSummary:
    """Writes each source with the teacher's translation, for a student to learn from.

    A small student learns a teacher's translations better than references, which vary
    more: sequence-level distillation (Kim and Rush, 2016, section 3.2,
    https://arxiv.org/abs/1606.07947). With `best_of` it is their interpolation (section
    3.3): of the teacher's N best, the translation nearest to the reference.

    Empty translations are left out, and those that loop (Raunak et al., 2021,
    https://arxiv.org/abs/2104.06683), as `Translation.doubts` says it. Memory is
    constant, and an interrupted call resumes, as with `translate_file`.

    Args:
        teacher: A `Translator`, also of an ensemble, or one of an export.
        pairs: Sources and references, as `open_pairs` returns or takes them.
        output: File to write or replace, a line source, tab, translation; gzip if it
            ends in ".gz". OUTPUT.json says what it was made of.
        best_of: Number of the teacher's translations of which the nearest to the
            reference is taken, by chrF (Popović, 2015); 1 takes the best.
        bad_line_share: Largest share of bad lines to skip, as in `DataConfig`.
        window: Pairs that are translated together.
        fingerprint: Identity of the teacher, such as `model_fingerprint(...)`. An
            unfinished output of another one is not resumed.
        facts: More to say in OUTPUT.json, such as the teacher's directory.
        show_progress: Show a progress bar, if standard error is a terminal.

    Returns:
        A `BulkSummary`, in which `sentences` counts the good pairs.

    Raises:
        BlockingIOError: If another process is writing `output`.
        OSError: If a file cannot be read or written.
        ValueError: If `best_of` is out of range, there are too many bad lines, or an
            unfinished output is of other pairs or another `fingerprint`. If `output`
            is one of the files of `pairs`.

    Example:
        >>> teacher = Translator.ensemble(["runs/a", "runs/b"])
        >>> distill(teacher, open_pairs("train.tsv"), "distilled.tsv.gz")
        >>> train("distilled.tsv.gz", "runs/student", RunConfig.preset("student"))
    """
    # `most` is the beam size, or the `n_best` of an export.
    check_number("best_of", best_of, int, minimum=1, maximum=teacher.most)
    pairs = open_pairs(pairs)
    bad_lines = BadLines(bad_line_share)
    check_another_file(output, pairs.files)
    total = pairs.count()
    texts = ("\t".join(map(_cell, pair[1:])) for pair in pairs.pairs(bad_lines))

    def translations(lines):
        sides = [line.split("\t") for line in lines]
        found = teacher.nbest([source for source, _ in sides], best_of)
        rows = zip(sides, found, strict=True)
        return [_line(*both, several) for both, several in rows]

    summary = translate_texts(
        translations,
        texts,
        output,
        total,
        window=window,
        fingerprint=f"{fingerprint} best_of={best_of}",
        show_progress=show_progress,
    )
    written = sum(1 for _ in read_lines(Path(output)))
    summary = dataclasses.replace(summary, left_out=summary.sentences - written)
    made_of = {
        "teacher": repr(teacher),
        "fingerprint": fingerprint,
        "best_of": best_of,
        "pairs_of": pairs.origin,
        "pairs_digest": pairs.fingerprint(),
        "pairs": written,
        "left_out": summary.left_out,
        "truncated": summary.truncated,
        "bad_lines": bad_lines.count,
    }
    write_json(f"{output}.json", made_of | dict(facts or {}))
    return summary


def _cell(text):
    return one_line(" ".join(text.split("\t")))


def _line(source, reference, found):
    """Returns the line of a pair as a `Translation`, or `None` if it is of no use."""
    best = found[0]
    if len(found) > 1:
        import sacrebleu

        score = sacrebleu.CHRF().sentence_score
        best = max(found, key=lambda one: score(_cell(one.text), [reference]).score)
    if {"empty", "loop"} & {*best.doubts}:
        return None
    return best._replace(text=f"{source}\t{_cell(best.text)}")
