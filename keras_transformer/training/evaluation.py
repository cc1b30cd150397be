"""Scores of translations of a test set, by sacreBLEU."""

from __future__ import annotations

import importlib.util
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import sacrebleu
from rich import get_console
from rich.progress import track

from keras_transformer.files import check_file_to_write
from keras_transformer.terminal import in_doubt, in_time
from keras_transformer.text.lines import write_lines

_EXAMPLES = 3
_CHUNK = 256  # sentences per call of `translate`
# sacreBLEU's tokenizers for Japanese, Chinese, and Thai, Lao, Tibetan, Burmese and
# Khmer, which put no spaces between words; and the share of their characters in a text
# up to which they are foreign names and terms.
_UNSPACED = {
    "ja-mecab": "[\u3041-\u30ff]",
    "zh": "[\u3400-\u9fff]",
    "char": "[\u0e01-\u109f\u1780-\u17ff]",
}
_SHARE = 0.2
# Japanese has Chinese characters too, but Chinese has no kana.
_KANA_SHARE = 0.1


@dataclass(frozen=True)
class Scores:
    """Scores of a test set.

    Attributes:
        bleu: Detokenised, cased BLEU, 0 to 100, of tokens as `tokenizer_for` says.
        bleu_signature: sacreBLEU's signature of `bleu`.
        chrf: chrF2, 0 to 100.
        chrf_signature: sacreBLEU's signature of `chrf`.
        sentences: Number of sentences.
        seconds: Time to translate them, with what the first call loads and compiles.
        rate: Sentences a second after the first call; `None` if there was no other.
        lowercase_bleu: BLEU in lower case, as some papers report it.
        lowercase_bleu_signature: sacreBLEU's signature of `lowercase_bleu`.
        doubts: How often each of `Translation.doubts` was found.
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
    rate: float | None = None
    doubts: dict[str, int] = field(default_factory=dict)
    examples: tuple[tuple[str, str, str], ...] = ()

    def __str__(self):
        doubts = f"\n{in_doubt(self.doubts)}" if self.doubts else ""
        return (
            f"BLEU {self.bleu:.2f}  {self.bleu_signature}\n"
            f"chrF {self.chrf:.2f}  {self.chrf_signature}\n"
            f"{in_time(self.sentences, self.seconds, self.rate)}{doubts}"
        )


def evaluate_translator(
    translate: Callable[[list[str]], list[str]],
    pairs: Iterable[tuple[str, str]],
    output: str | Path | None = None,
    show_progress: bool = False,
    tokenizer: str | None = None,
) -> Scores:
    """Translates the sources and scores the translations against the references.

    BLEU (Papineni et al., 2002) and chrF (Popović, 2015) are those of sacreBLEU (Post,
    2018, https://aclanthology.org/W18-6319), on detokenised, cased text.

    Args:
        translate: Function from a list of texts to translations, such as a
            `Translator`.
        pairs: Pairs of source and reference text.
        output: File for the translations, one per line, or `None`.
        show_progress: Whether to show a progress bar at a terminal.
        tokenizer: sacreBLEU's tokenizer; default by the script of the references: "zh"
            for Chinese, "ja-mecab" for Japanese if sacreBLEU's extra `ja` is installed,
            "char" for other scripts without spaces, else "13a".

    Returns:
        The `Scores`.

    Raises:
        IsADirectoryError: If `output` is a directory.
        ValueError: If there is no pair.

    Example:
        >>> pairs = [("a b c d", "a b c d")]
        >>> evaluate_translator(lambda texts: texts, pairs).bleu  # 100.0
    """
    rows = [(source, reference) for source, reference, *_ in pairs]
    if not rows:
        raise ValueError("There is nothing to evaluate. Received: no pairs")
    if output is not None:
        check_file_to_write(output)
    sources, references = map(list, zip(*rows, strict=True))
    starts = range(0, len(sources), _CHUNK)
    if show_progress and get_console().is_terminal:
        starts = track(starts, description="translating", transient=True)
    times = [time.monotonic()]
    found = []
    translate = getattr(translate, "translate", translate)
    for start in starts:
        found += translate(sources[start : start + _CHUNK])
        times.append(time.monotonic())
    rate = None
    if len(sources) > _CHUNK:
        rate = (len(sources) - _CHUNK) / max(times[-1] - times[1], 1e-9)
    translations = [one if isinstance(one, str) else one.text for one in found]
    doubts = Counter(doubt for one in found for doubt in getattr(one, "doubts", ()))
    if output is not None:
        write_lines(output, translations)
    scores = {
        "sentences": len(rows),
        "seconds": times[-1] - times[0],
        "rate": rate,
        "doubts": dict(doubts),
    }
    tokenizer = tokenizer or tokenizer_for(references)
    for name, metric in (
        ("bleu", sacrebleu.BLEU(tokenize=tokenizer)),
        ("chrf", sacrebleu.CHRF()),
        ("lowercase_bleu", sacrebleu.BLEU(tokenize=tokenizer, lowercase=True)),
    ):
        scores[name] = metric.corpus_score(translations, [references]).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    examples = zip(sources, translations, references, strict=True)
    return Scores(**scores, examples=tuple(examples)[:_EXAMPLES])


def tokenizer_for(references: Iterable[str]) -> str:
    """Returns the name of sacreBLEU's tokenizer for the script of the references.

    "13a" would take a sentence without spaces for one word, whose BLEU is 0.
    """
    text = "".join(references)
    counts = {name: len(re.findall(x, text)) for name, x in _UNSPACED.items()}
    unspaced = sum(counts.values())
    if unspaced <= _SHARE * len(text):
        return "13a"
    if counts.pop("ja-mecab") > _KANA_SHARE * unspaced:
        needed = map(importlib.util.find_spec, ("MeCab", "ipadic"))
        return "ja-mecab" if all(needed) else "char"
    return max(counts, key=counts.get)
