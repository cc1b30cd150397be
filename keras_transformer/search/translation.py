"""What every translator does with texts, and what it returns.

This file only needs NumPy. A LiteRT export has a copy of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from numbers import Integral, Real
from typing import Any, NamedTuple, overload

import numpy as np

if __package__:
    from keras_transformer.text.spans import MARK, finder
else:  # Beside a copy of that file.
    from spans import MARK, finder


class Sentence(NamedTuple):
    """A sentence of a text, and its translation."""

    source: str
    translation: str
    score: float  #: log-probability (nats) over length penalty
    doubt: float | None = None  #: as that of a `Translation`


class Translation(NamedTuple):
    """A translation and its score: log-probability (nats) over length penalty.

    That of a text has its sentences, the lowest of their scores, and what is doubtful.
    Its `doubt` is the largest of its sentences.
    """

    text: str
    score: float
    truncated: bool  #: whether the source, or a prefix, was too long and was cut
    sentences: tuple[Sentence, ...] = ()
    #: "copy", "empty", "loop", "score", "script", "lost", if that is so of a sentence
    doubts: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()  #: spans of the source that it lacks, such as a URL
    #: Share of the validation's translations with such a score that were wrong, which
    #: is a chrF below 40; `None` if the run has learned none.
    doubt: float | None = None


class Score(NamedTuple):
    """The log-probability of a given translation."""

    log_probability: float  #: nats, of all tokens with the end token
    tokens: list[str]  #: T pieces
    token_log_probabilities: np.ndarray  #: (T,) float32, nats
    truncated: bool  #: whether either text was too long and was cut


class Alignment(NamedTuple):
    """A translation, and the attention of its tokens to those of the source."""

    translation: str
    source_tokens: list[str]  #: S pieces
    target_tokens: list[str]  #: T pieces
    attention: np.ndarray  #: (T, S) float32, or (H, T, S) per head
    truncated: bool  #: whether the source was too long and was cut


class TextTranslator:
    """Base class of the translators, and their methods.

    A method takes any number of texts, `batch_size` at a time, and returns results in
    the same order. It raises `TypeError` unless texts are sequences of strings, and
    `ValueError` if these differ in length or a number is out of range.

    `translate` takes texts of any length, and every other method sentences: one that
    is longer than the longest source is cut, and the result is `truncated`. A text of
    spaces only has score 0.

    A subclass has `path`, `most`, the largest `n_best`, `carries_spans`, whether its
    vocabulary has pieces for spans, and `run`.
    """

    most: int
    carries_spans = False
    batch_size = 32

    def run(self, name: str, *columns: Any, **options: Any) -> dict[str, Any]:
        """Returns the outputs of the signature `name`, strings as `str`."""
        raise NotImplementedError

    def __repr__(self):
        return f"<{type(self).__name__}: {self.path}>"

    @overload
    def __call__(self, texts: str) -> str: ...

    @overload
    def __call__(self, texts: Sequence[str]) -> list[str]: ...

    def __call__(self, texts: str | Sequence[str]) -> str | list[str]:
        """Returns the best translation of a text, or the list of those of texts."""
        if isinstance(texts, str):
            return self([texts])[0]
        return [best.text for best in self.translate(texts)]

    def translate(
        self,
        texts: Sequence[str],
        terms: Mapping[str, str] | None = None,
        dont_translate: Sequence[str] = (),
    ) -> list[Translation]:
        """Returns the best translation of each text, of any number of sentences.

        Each sentence is translated by itself. What stands between them, such as line
        breaks and the marks of a list, stays as it is. A sentence longer than the
        longest source is cut at a mark or a space, and its parts are translated.

        Addresses, placeholders, tags, numbers with a mark inside and the like come back
        as they were, and so do `terms`, as their values, and `dont_translate`: whole
        words, the longest first, in any case if theirs is small letters. What the
        translation lacks of all these is `lost`.

        Of the hypotheses the best is taken that is not empty, does not loop and has
        lost nothing. The `doubts` say what is likely wrong: a part is said again and
        again ("loop"), nothing is said ("empty"), the source is repeated ("copy"), more
        than half of the validation's translations with such a score were wrong
        ("score"), the model has seen none of the letters ("script"), or something is
        lost ("lost").
        """
        terms = _terms_of(terms, dont_translate)
        if terms and not self.carries_spans:
            raise ValueError(
                "`terms` and `dont_translate` need a vocabulary with pieces for spans, "
                f"as `learn_tokenizers` makes it. Received: {self!r}"
            )
        texts = _texts_of("texts", texts)
        if terms:
            texts = [finder().with_terms(text, terms) for text in texts]
        return self._of_texts(texts)

    def _of_texts(self, texts):
        """Returns the `Translation` of each text."""
        results = []
        for row in self._rows("serving_default", {"texts": texts}):
            columns = row["sources"], row["translations"], row["scores"]
            doubts = row.get("sentence_doubts", [None] * len(row["scores"]))
            sentences = (
                Sentence(source, translation, float(score), _share(doubt))
                for source, translation, score, doubt in zip(
                    *columns, doubts, strict=True
                )
                if source
            )
            results.append(_best_of(row)._replace(sentences=tuple(sentences)))
        return results

    def nbest(self, texts: Sequence[str], n_best: int = 1) -> list[list[Translation]]:
        """Returns up to `n_best` scored translations of each sentence, best first.

        `n_best` is at most the beam size, or the `n_best` of an export. If the search
        finds none, the only translation is empty with score -inf.
        """
        check_integer("n_best", n_best)
        if not 1 <= n_best <= self.most:
            raise ValueError(
                f"`n_best` must be from 1 to {self.most}, the beam size or the "
                f"`n_best` of the export. Received: n_best={n_best!r}"
            )
        results = []
        for row in self._rows("nbest", {"texts": texts}, n_best=n_best):
            is_cut = bool(row["truncated"])
            lost = row.get("lost", [()] * len(row["scores"]))
            figures = row.get("doubt", [None] * len(row["scores"]))
            columns = row["translations"], row["scores"], row["doubts"], lost, figures
            found = [
                _translation(text, score, is_cut, doubts, lost, doubt)
                for text, score, doubts, lost, doubt in zip(*columns, strict=True)
                if np.isfinite(score)
            ]
            nothing = Translation("", -math.inf, is_cut, doubts=("empty",))
            results.append(found[:n_best] or [nothing])
        return results

    def complete(
        self, texts: Sequence[str], prefixes: Sequence[str]
    ) -> list[Translation]:
        """Returns the best translation of each text that begins with its prefix."""
        columns = {"texts": texts, "prefixes": prefixes}
        return list(map(_best_of, self._rows("complete", columns)))

    def sample(
        self, texts: Sequence[str], temperature: float = 1.0, seed: int = 0
    ) -> list[Translation]:
        """Samples a translation of each text, with `top_k` and `top_p` of the search.

        The temperature divides the logits, from 0 (greedy) to infinity (uniform), but
        not the scores. Text i uses the seed `seed` + i in any batch. LiteRT and
        ONNX draw other translations than TensorFlow, and need a seed of at least 0.
        """
        is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
        if not is_number or not temperature >= 0:  # such as NaN
            raise ValueError(
                "`temperature` must be a number, at least 0. Received: "
                f"temperature={temperature!r}"
            )
        texts = _texts_of("texts", texts)
        check_integer("seed", seed)
        numbers = [temperature] * len(texts), range(seed, seed + len(texts))
        rows = self._rows("sample", {"texts": texts}, numbers=numbers)
        return list(map(_best_of, rows))

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
        """Returns the `Score` of each translation `targets[i]` of `sources[i]`."""
        scores = []
        columns = {"sources": sources, "targets": targets}
        for row in self._rows("score", columns):
            tokens = [token for token in row["tokens"] if token]
            scores.append(
                Score(
                    log_probability=float(row["log_probability"]),
                    tokens=tokens,
                    token_log_probabilities=row["token_log_probabilities"][
                        : len(tokens)
                    ],
                    truncated=bool(row["truncated"]),
                )
            )
        return scores

    def align(self, texts: Sequence[str], per_head: bool = False) -> list[Alignment]:
        """Translates texts; returns the `Alignment` of each.

        Its attention is the mean over heads, or with `per_head` that of each head,
        which a SavedModel does not have.
        """
        alignments = []
        for row in self._rows("align", {"texts": texts}, per_head=per_head):
            source = [token for token in row["source_tokens"] if token]
            target = [token for token in row["target_tokens"] if token]
            alignments.append(
                Alignment(
                    translation=row["translation"],
                    source_tokens=source,
                    target_tokens=target,
                    attention=row["attention"][..., : len(target), : len(source)],
                    truncated=bool(row["truncated"]),
                )
            )
        return alignments

    def _rows(self, name, columns, numbers=(), **options):
        """Runs a signature on columns of texts and numbers; returns a row a text."""
        texts = [_texts_of(key, column) for key, column in columns.items()]
        if len({len(column) for column in texts}) > 1:
            raise ValueError(
                "All inputs must have the same number of texts. Received: "
                f"{', '.join(str(len(column)) for column in texts)}"
            )
        batch_size = self.batch_size
        check_integer("batch_size", batch_size)
        if batch_size < 1:
            raise ValueError(
                f"`batch_size` must be at least 1. Received: batch_size={batch_size!r}"
            )
        rows: list[Any] = [None] * len(texts[0])
        # Sentences of similar length in a batch need little padding.
        order = sorted(range(len(rows)), key=lambda i: len(texts[0][i]))
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            batch = ([column[i] for i in places] for column in (*texts, *numbers))
            outputs = self.run(name, *batch, **options)
            results = zip(*outputs.values(), strict=True)
            for place, result in zip(places, results, strict=True):
                rows[place] = dict(zip(outputs, result, strict=True))
        return rows


def check_integer(name, value):
    """Raises `ValueError` unless a value is an integer, which True is not."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"`{name}` must be an integer. Received: {name}={value!r}")


def _terms_of(terms, dont_translate):
    """Returns the terms for `SpanFinder.with_terms`, or raises an error."""
    stay = dict.fromkeys(_texts_of("dont_translate", dont_translate))
    terms = dict(terms or {})
    words = _texts_of("terms", [*terms, *terms.values()])
    shown = [*stay, *terms]
    if not all(map(str.strip, shown)) or re.search(f"[{MARK}]", "".join(shown + words)):
        raise ValueError(
            "`terms` and `dont_translate` must be texts with a visible character. "
            f"Received: terms={terms!r}, dont_translate={list(stay)!r}"
        )
    return stay | terms


def _texts_of(name, column):
    """Returns a sequence of texts as a list, or raises an error."""
    is_sequence = (
        hasattr(column, "__len__")
        and not isinstance(column, str | bytes | Mapping | Set)
        and getattr(column, "ndim", 1) == 1
    )
    texts = list(column) if is_sequence else []
    if not is_sequence or not all(isinstance(text, str) for text in texts):
        raise TypeError(
            f"`{name}` must be a sequence of strings, such as ['A sentence.']. "
            f"Received: {column!r:.100}"
        )
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"`{name}` must be Unicode: a lone surrogate is half a character, or a "
                f"byte that is not UTF-8. Received: {text!r:.100}"
            ) from error
    return texts


def _best_of(row):
    """Returns the `Translation` in a row of outputs."""
    names = "translation", "score", "truncated", "doubts"
    told = [row[name] for name in names]
    return _translation(*told, row.get("lost", ()), row.get("doubt"))


def _translation(text, score, truncated, doubts, lost, doubt):
    """Returns the `Translation` that some outputs say."""
    lost = tuple(span for span in lost if span)
    doubts = (*doubts.split(), "lost") if lost else tuple(doubts.split())
    return Translation(
        text, float(score), bool(truncated), (), doubts, lost, _share(doubt)
    )


def _share(doubt):
    """Returns a doubt as a number, of as many digits as a float32 has."""
    return None if doubt is None else round(float(doubt), 6)
