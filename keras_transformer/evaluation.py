"""Translating a test set and scoring it with sacreBLEU."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sacrebleu
from rich import get_console
from rich.progress import track

from keras_transformer.files import check_not_directory, replacing
from keras_transformer.text.lines import one_line

_EXAMPLES = 3
_CHUNK = 256  # Sentences given to `translate` at a time.


@dataclass(frozen=True)
class Scores:
    """Scores of a test set.

    Attributes:
        bleu: Detokenised, cased BLEU, 0 to 100.
        bleu_signature: How sacreBLEU computed it.
        chrf: chrF2, 0 to 100.
        chrf_signature: How sacreBLEU computed it.
        sentences: Sentences scored.
        seconds: Time taken to translate them.
        lowercase_bleu: BLEU of the same tokens in lower case, as some papers report it.
        lowercase_bleu_signature: How sacreBLEU computed it.
        examples: The first sources, their translations and their references.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    sentences: int
    seconds: float
    lowercase_bleu: float
    lowercase_bleu_signature: str
    examples: tuple[tuple[str, str, str], ...] = ()

    def __str__(self):
        return (
            f"BLEU {self.bleu:.2f}  {self.bleu_signature}\n"
            f"chrF {self.chrf:.2f}  {self.chrf_signature}\n"
            f"{self.sentences} sentences in {self.seconds:.1f} s "
            f"({self.sentences / max(self.seconds, 1e-9):.1f} sentences/s)"
        )


def evaluate(
    translate: Callable[[list[str]], list[str]],
    pairs: Iterable[tuple[str, str]],
    output: str | Path | None = None,
    show_progress: bool = False,
) -> Scores:
    """Translates the sources and scores the translations against the targets.

    BLEU is Papineni et al., 2002, chrF is Popović, 2015, both as sacreBLEU (Post, 2018,
    https://aclanthology.org/W18-6319) defines them, on plain, cased text.

    Args:
        translate: Translates a list of texts, such as a `Translator`.
        pairs: Pairs of source and reference text.
        output: File for the translations, one per line, or `None`.
        show_progress: Whether to show a progress bar, at a terminal.

    Returns:
        The `Scores`.

    Raises:
        IsADirectoryError: If `output` is a directory.
        ValueError: If there is no pair.

    Example:
        >>> evaluate(lambda texts: texts, [("a b c d", "a b c d")]).bleu  # 100.0
    """
    rows = [(source, reference) for source, reference, *_ in pairs]
    if not rows:
        raise ValueError("There is nothing to evaluate. Received: no pairs")
    if output is not None:
        check_not_directory(output)
    sources, references = map(list, zip(*rows, strict=True))
    starts = range(0, len(sources), _CHUNK)
    if show_progress and get_console().is_terminal:  # Elsewhere: an empty line.
        starts = track(starts, description="translating", transient=True)
    begin, translations = time.monotonic(), []
    for start in starts:
        translations += translate(sources[start : start + _CHUNK])
    seconds = time.monotonic() - begin
    if output is not None:
        write_lines(output, translations)
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    lowercase = sacrebleu.BLEU(lowercase=True)
    return Scores(
        bleu=bleu.corpus_score(translations, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(translations, [references]).score,
        chrf_signature=str(chrf.get_signature()),
        sentences=len(rows),
        seconds=seconds,
        lowercase_bleu=lowercase.corpus_score(translations, [references]).score,
        lowercase_bleu_signature=str(lowercase.get_signature()),
        examples=tuple(zip(sources, translations, references, strict=True))[:_EXAMPLES],
    )


def ngram_bleu(
    prediction: Sequence[str], label: Sequence[str], max_order: int = 2
) -> float:
    """BLEU of one short sentence, as the book Dive into Deep Learning defines it.

        exp(min(0, 1 - |label| / |prediction|)) * prod_n p_n ** (1 / 2 ** n),

    n from 1 to `max_order`, where p_n is the share of the prediction's n-grams that the
    label has too, each as often as there (https://d2l.ai/chapter_recurrent-modern,
    section "Sequence-to-Sequence Learning", there with k = 2). Long n-grams weigh more
    than there are words to miss. It is no score to compare with a paper's: that is
    `evaluate`'s, with four orders, over a whole test set.

    Args:
        prediction: Words of the translation.
        label: Words of the reference.
        max_order: Longest n-grams that count, k; at most as long as the prediction.

    Returns:
        The score, 0 to 1; 0 for an empty prediction.

    Raises:
        TypeError: If a sentence is a string: its letters would be its words.
        ValueError: If `max_order` is below 1.

    Example:
        >>> ngram_bleu("il est calme .".split(), "il est riche .".split())
        0.658...
    """
    for name, words in (("prediction", prediction), ("label", label)):
        if isinstance(words, str):
            raise TypeError(
                f"`{name}` must be a list of words, such as `text.split()`. Received: "
                f"{words!r}"
            )
    if max_order < 1:
        raise ValueError(
            f"`max_order` must be at least 1. Received: max_order={max_order}"
        )
    if not prediction:
        return 0.0
    score = math.exp(min(0, 1 - len(label) / len(prediction)))
    for n in range(1, min(max_order, len(prediction)) + 1):
        found, wanted = _ngrams(prediction, n), _ngrams(label, n)
        score *= ((found & wanted).total() / found.total()) ** (0.5**n)
    return score


def _ngrams(words, n):
    """How often each run of n words occurs."""
    starts = range(len(words) - n + 1)
    return collections.Counter(tuple(words[i : i + n]) for i in starts)


def write_lines(path: str | Path, texts: Iterable[str]):
    """Writes texts to a file, one per line; whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        content = "".join(one_line(text) + "\n" for text in texts)
        temporary.write_text(content, encoding="utf-8", newline="\n")
