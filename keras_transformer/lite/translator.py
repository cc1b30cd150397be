"""Translates with a LiteRT directory that `keras-transformer export` wrote.

This file only needs NumPy, `ai-edge-litert` and `sentencepiece`. An export has a copy
of it that runs without keras_transformer:

    pip install ai-edge-litert sentencepiece
    python translate.py "A sentence."
    python translate.py < sentences.txt
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DESCRIPTION = "translator.json"
FORMAT = "keras_transformer.litert.1"


class Translation(NamedTuple):
    """A translation and its score: log-probability (nats) over length penalty."""

    text: str
    score: float
    truncated: bool  #: whether the source, or a prefix, was too long and was cut


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

    A text longer than the longest source is cut, and the result is `truncated`. A text
    of spaces only has an empty translation with score 0.

    A subclass has `path`, `most`, the largest `n_best`, and `_run(name, *columns)` with
    the outputs of the signature `name` of a SavedModel, strings as `str`.
    """

    most: int
    batch_size = 32
    _run: Callable[..., dict[str, Any]]

    def __repr__(self):
        return f"<{type(self).__name__}: {self.path}>"

    def __call__(self, texts: str | Sequence[str]) -> str | list[str]:
        """Returns the best translation of a text, or the list of those of texts."""
        if isinstance(texts, str):
            return self([texts])[0]
        return [best[0].text for best in self.translate(texts)]

    def translate(
        self, texts: Sequence[str], n_best: int = 1
    ) -> list[list[Translation]]:
        """Returns up to `n_best` scored translations of each text, best first.

        `n_best` is at most the beam size, or the `n_best` of an export. If the search
        finds none, the only translation is empty with score -inf.
        """
        _check_integer("n_best", n_best)
        if not 1 <= n_best <= self.most:
            raise ValueError(
                f"`n_best` must be from 1 to {self.most}, the beam size or the "
                f"`n_best` of the export. Received: n_best={n_best!r}"
            )
        results = []
        for row in self._rows("nbest", {"texts": texts}, n_best=n_best):
            is_cut = bool(row["truncated"])
            found = [
                Translation(text, float(score), is_cut)
                for text, score in zip(row["translations"], row["scores"], strict=True)
                if np.isfinite(score)
            ]
            results.append(found[:n_best] or [Translation("", -math.inf, is_cut)])
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
        not the scores. Text i uses the seed `seed` + i in any batch. LiteRT draws
        other translations than TensorFlow, and needs a seed of at least 0.
        """
        is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
        if not is_number or not temperature >= 0:  # such as NaN
            raise ValueError(
                "`temperature` must be a number, at least 0. Received: "
                f"temperature={temperature!r}"
            )
        texts = _texts_of("texts", texts)
        _check_integer("seed", seed)
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
        _check_integer("batch_size", batch_size)
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
            outputs = self._run(name, *batch, **options)
            results = zip(*outputs.values(), strict=True)
            for place, result in zip(places, results, strict=True):
                rows[place] = dict(zip(outputs, result, strict=True))
        return rows


def _check_integer(name, value):
    """Raises `ValueError` unless a value is an integer, which True is not."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"`{name}` must be an integer. Received: {name}={value!r}")


class LiteTranslator(TextTranslator):
    """Translates sentences with a LiteRT file.

    Args:
        directory: Directory that `Translator.export` wrote with the format "litert".
        threads: Number of threads; default one for each core that the process may use.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If `ai-edge-litert` or `sentencepiece` is not installed.
        ValueError: If a file is damaged, of another version, or `threads` is below 1.

    Example:
        >>> translator = LiteTranslator("lite/en-de")
        >>> translator(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """

    def __init__(self, directory: str | Path, threads: int | None = None):
        threads = _available_cores() if threads is None else threads
        _check_integer("threads", threads)
        if threads < 1:
            raise ValueError(
                f"`threads` must be at least 1. Received: threads={threads}"
            )
        try:
            from ai_edge_litert.interpreter import Interpreter
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise ImportError(
                "ai-edge-litert or sentencepiece is not installed: pip install "
                "ai-edge-litert sentencepiece"
            ) from error
        self.path = Path(directory)
        self.description = _read_description(self.path)
        files = self.description["tokenizers"]
        self.most = self.description["n_best"]
        if self.description["quantize"] == "int8":  # Weights cost less than caches,
            self.batch_size = 8  # which the loop copies at every token.
        self._source, self._target = (
            SentencePieceProcessor(str(self.path / files[side]))
            for side in ("source", "target")
        )
        model = Interpreter(str(self.path / "model.tflite"), num_threads=threads)
        # The runtime prints the name of its delegate here, not between translations.
        model.allocate_tensors()
        self._signatures = {
            name: model.get_signature_runner(name)
            for name in model.get_signature_list()
        }

    def _run(self, name, texts, *more, n_best=1, per_head=False):
        longest = self.description["longest_output"]
        sources, truncated = self._encoded(self._source, texts, "max_source_length")
        source = _padded(sources)
        if name == "score":
            targets, is_cut = self._encoded(self._target, more[0], "longest_output")
            found = self._signatures[name](source=source, target=_padded(targets))
            scores = found["token_log_probabilities"]
            return {
                "log_probability": scores.sum(axis=1),
                "tokens": [self._target.id_to_piece(ids) for ids in targets],
                "token_log_probabilities": scores,
                "truncated": truncated | is_cut,
            }
        lengths = np.array([len(ids) for ids in sources], np.int32)
        inputs = {"source": source, "lengths": lengths}
        is_empty = lengths == 1
        if name == "complete":
            prefixes, is_cut = self._cut(self._target, more[0], longest - 1)
            truncated |= is_cut
            begun = np.array([len(ids) for ids in prefixes], np.int32)
            inputs |= {"prefix": _padded(prefixes), "prefix_lengths": begun}
            is_empty &= begun == 0
        elif name == "sample":
            random = [np.random.default_rng(seed).random for seed in more[1]]
            inputs["uniforms"] = np.array([draw(longest, "float32") for draw in random])
            inputs["temperature"] = np.array(more[0], np.float32)
        is_best = n_best == 1 and name in ("nbest", "align")
        found = self._signatures["translate" if is_best else name](**inputs)
        # The outputs of an empty source have no meaning.
        ids = np.where(is_empty[:, None, None], 0, found["ids"])  # (B, N, T)
        scores = np.where(is_empty[:, None], 0, found["scores"])  # (B, N)
        # The end and padding are control pieces, which have no text.
        texts = [self._target.decode(several.tolist()) for several in ids]
        if name == "nbest":
            return {"translations": texts, "scores": scores, "truncated": truncated}
        best = {
            "translation": [several[0] for several in texts],
            "score": scores[:, 0],
            "truncated": truncated,
        }
        if name != "align":
            return best
        targets = [row[row != 0].tolist() for row in ids[:, 0]]
        found = self._signatures["attention"](source=source, target=_padded(targets))
        attention = found["attention"]  # (B, H, T, S)
        return best | {
            "source_tokens": [self._source.id_to_piece(ids) for ids in sources],
            "target_tokens": [self._target.id_to_piece(ids) for ids in targets],
            "attention": attention if per_head else attention.mean(axis=1),
        }

    def _encoded(self, processor, texts, longest):
        """Returns the ids of texts with the end token, and which texts were cut."""
        rows, is_cut = self._cut(processor, texts, self.description[longest] - 1)
        return [[*ids, processor.eos_id()] for ids in rows], is_cut

    def _cut(self, processor, texts, most):
        """Returns at most `most` ids of each text, and which texts have more (B,)."""
        rows = [_ids_of(processor, text) for text in texts]
        is_cut = np.array([len(ids) > most for ids in rows])
        return [ids[:most] for ids in rows], is_cut


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
        except UnicodeEncodeError as error:  # Half a character, or bytes of a terminal.
            raise ValueError(
                f"`{name}` must be Unicode. Received: {text!r:.100}"
            ) from error
    return texts


def _best_of(row):
    """Returns the `Translation` in a row of outputs."""
    return Translation(
        row["translation"], float(row["score"]), truncated=bool(row["truncated"])
    )


def _available_cores():
    """Returns the number of cores that the process may use."""
    can_ask = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if can_ask else os.cpu_count() or 1


def _padded(rows):
    """Returns rows of ids as a matrix of at least one column, padded with 0."""
    padded = np.zeros((len(rows), max(1, *map(len, rows))), np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded


def _ids_of(processor, text):
    """Returns the ids of a text; unknown characters may spell an unused piece."""
    ids = processor.encode(text)
    unknown = processor.unk_id()
    if unknown not in ids:
        return ids
    pieces = processor.encode(text, out_type=str)
    spelled = [processor.piece_to_id(piece) for piece in pieces]
    return [
        other if id == unknown and processor.is_unused(other) else id
        for id, other in zip(ids, spelled, strict=True)
    ]


def _read_description(directory):
    """Reads translator.json and checks the digests of its files."""
    path = directory / DESCRIPTION
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no LiteRT export: no {DESCRIPTION}")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        found = description["format"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged. Export it again.") from error
    if found != FORMAT:
        raise ValueError(
            f"{path} must have the format {FORMAT}. Export it again with this version. "
            f"Received: {found}"
        )
    for name, digest in description["files"].items():
        file = directory / name
        if not file.is_file():
            raise FileNotFoundError(f"{directory} lacks {name}. Export it again.")
        with file.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                raise ValueError(
                    f"{file} is not the file that was exported. Copy or export it "
                    "again."
                )
    return description


def main(arguments: list[str] | None = None) -> int:
    """Translates the arguments, or standard input line by line.

    Returns the exit status: 0, or 1 after an error, which is one line.
    """
    parser = argparse.ArgumentParser(
        description="Translates sentences with LiteRT.", allow_abbrev=False
    )
    parser.add_argument("texts", nargs="*", help="sentences (default: standard input)")
    parser.add_argument("--threads", type=int, help="threads (default: one a core)")
    options = parser.parse_args(arguments)
    try:
        translator = LiteTranslator(Path(__file__).parent, options.threads)
        lines = options.texts or (line.rstrip("\r\n") for line in sys.stdin)
        for number, line in enumerate(lines, start=1):
            [[best]] = translator.translate([line])
            print(" ".join(best.text.split("\n")), flush=True)  # noqa: T201
            if best.truncated:
                what = "sentence" if options.texts else "line"
                message = f"warning: {what} {number} is too long and was cut"
                print(message, file=sys.stderr)  # noqa: T201
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return 130  # As a shell reports it.
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
