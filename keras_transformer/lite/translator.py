"""Translates with a LiteRT directory that `keras-transformer export` wrote.

This file needs NumPy, `ai-edge-litert` and `sentencepiece` alone, and nothing of
keras_transformer: an export holds a copy, to run where nothing else is installed.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DESCRIPTION = "translator.json"
FORMAT = "keras_transformer.litert.1"


class Translation(NamedTuple):
    """A translation and its score: log-probability over length penalty, nats."""

    text: str
    score: float


class Score(NamedTuple):
    """The log-probability of a given translation."""

    log_probability: float  # nats, of all tokens, the end token included
    tokens: list[str]  # T pieces
    token_log_probabilities: np.ndarray  # (T,) float32, nats


class Alignment(NamedTuple):
    """A translation, and what each of its tokens looked at."""

    translation: str
    source_tokens: list[str]  # S pieces
    target_tokens: list[str]  # T pieces
    attention: np.ndarray  # (T, S) float32, or (H, T, S) with all heads


class LiteTranslator:
    """Translates sentences with a LiteRT file, as `Translator` does with a Keras model.

    A text longer than the longest source is cut there; a text with nothing but spaces
    gives an empty translation with score 0.

    Its methods take any number of texts, longer and shorter ones mixed, translate
    `batch_size` of them at a time, and return results in the order of the texts. They
    raise `TypeError` if they are given something other than sequences of strings, and
    `ValueError` if these differ in length or a number is out of range.

    Args:
        directory: Directory that `Translator.export` wrote with the format "litert".
        threads: Threads that compute; default all cores.

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
        if threads is not None and threads < 1:
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
        self.threads = threads or os.cpu_count() or 1
        self._source, self._target = (
            SentencePieceProcessor(
                str(self.path / self.description["tokenizers"][side])
            )
            for side in ("source", "target")
        )
        self._ids = self.description["special_ids"]
        model = Interpreter(str(self.path / "model.tflite"), num_threads=self.threads)
        # The runtime tells of its delegate here, not in the midst of translations.
        model.allocate_tensors()
        self._signatures = {
            name: model.get_signature_runner(name)
            for name in model.get_signature_list()
        }

    def __call__(self, texts: Sequence[str], batch_size: int = 32) -> list[str]:
        """Returns the best translation of each text."""
        return [best[0].text for best in self.translate(texts, 1, batch_size)]

    def translate(
        self, texts: Sequence[str], n_best: int = 1, batch_size: int = 32
    ) -> list[list[Translation]]:
        """Translates texts, with scores and alternatives.

        Args:
            texts: Sentences.
            n_best: Translations of each text, at most the export's `n_best`.
            batch_size: Sentences translated at a time.

        Returns:
            For each text its `n_best` translations, best first. A search that finds
            fewer leaves out the rest; one that finds none gives an empty translation
            with score -inf. A text with nothing but spaces gives empty ones with
            score 0.
        """
        most = self.description["n_best"]
        if not 1 <= n_best <= most:
            raise ValueError(
                f"`n_best` must be from 1 to {most}, the number that was exported. "
                f"Received: n_best={n_best}"
            )
        name = "translate" if n_best == 1 else "nbest"
        rows = self._search(name, batch_size, texts)
        return [self._translations(row, is_empty)[:n_best] for is_empty, row in rows]

    def truncated(self, texts: Sequence[str]) -> list[bool]:
        """Says which texts are longer than the longest source, and so are cut."""
        _check_texts(texts)
        longest = self.description["max_source_length"] - 1
        return [len(_ids_of(self._source, text)) > longest for text in texts]

    def complete(
        self, texts: Sequence[str], prefixes: Sequence[str], batch_size: int = 32
    ) -> list[Translation]:
        """Translates texts, given how each translation begins.

        Args:
            texts: Sentences.
            prefixes: The beginning of the translation of each.
            batch_size: Sentences translated at a time.

        Returns:
            The best translation of each text that begins with the prefix's pieces.
        """
        _check_texts(prefixes, len(texts))
        longest = self.description["longest_output"] - 1
        begun = [_ids_of(self._target, text)[:longest] for text in prefixes]
        lengths = np.array([len(ids) for ids in begun], np.int32)
        rows = self._search(
            "complete", batch_size, texts, prefix=begun, prefix_lengths=lengths
        )
        # Without source and prefix there is nothing to say.
        return [
            self._translations(row, is_empty and not prefix)[0]
            for prefix, (is_empty, row) in zip(begun, rows, strict=True)
        ]

    def sample(
        self, texts: Sequence[str], temperature: float = 1.0, seed: int = 0,
        batch_size: int = 32,
    ) -> list[Translation]:  # fmt: skip
        """Draws a translation of each text, with the export's `top_k` and `top_p`.

        Args:
            texts: Sentences.
            temperature: Divides the logits: 0 is greedy, higher is more diverse.
            seed: Text i is drawn with the seed `seed` + i, at least 0, whatever its
                batch; TensorFlow draws others for it.
            batch_size: Sentences translated at a time.

        Returns:
            A translation of each text; its score is the model's, without temperature.
        """
        if not 0 <= temperature < math.inf:
            raise ValueError(
                "`temperature` must be finite and at least 0. Received: "
                f"temperature={temperature}"
            )
        _check_texts(texts)
        uniforms = np.empty((len(texts), self.description["longest_output"]), "float32")
        for i, row in enumerate(uniforms):
            row[:] = np.random.default_rng(seed + i).random(len(row), np.float32)
        temperatures = np.full(len(texts), temperature, np.float32)
        rows = self._search(
            "sample", batch_size, texts, uniforms=uniforms, temperature=temperatures
        )
        return [self._translations(row, is_empty)[0] for is_empty, row in rows]

    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 32
    ) -> list[Score]:
        """Scores given translations.

        Args:
            sources: Sentences.
            targets: A translation of each.
            batch_size: Sentences scored at a time.

        Returns:
            The `Score` of each pair.
        """
        given = self._sources(sources)
        _check_texts(targets, len(sources))
        longest = self.description["longest_output"]
        written = [self._ended(_ids_of(self._target, x), longest) for x in targets]
        rows = self._run("score", batch_size, source=given, target=written)
        scores = []
        for ids, row in zip(written, rows, strict=True):
            values = row["token_log_probabilities"][: len(ids)]
            pieces = self._target.id_to_piece(ids)
            scores.append(Score(float(values.sum()), pieces, values))
        return scores

    def align(
        self, texts: Sequence[str], per_head: bool = False, batch_size: int = 32
    ) -> list[Alignment]:
        """Translates texts and tells what each output token attended to.

        Args:
            texts: Sentences.
            per_head: Whether to give the attention of every head, not their mean.
            batch_size: Sentences translated at a time.

        Returns:
            The `Alignment` of each text.
        """
        sources, pad_id = self._sources(texts), self._ids["pad_id"]
        targets = [
            [] if is_empty else [int(i) for i in row["ids"][0] if i != pad_id]
            for is_empty, row in self._search("translate", batch_size, texts)
        ]
        rows = self._run("attention", batch_size, source=sources, target=targets)
        alignments = []
        for source, target, row in zip(sources, targets, rows, strict=True):
            attention = row["attention"][:, : len(target), : len(source)]
            alignments.append(
                Alignment(
                    self._text(target),
                    self._source.id_to_piece(source),
                    self._target.id_to_piece(target),
                    attention if per_head else attention.mean(axis=0),
                )
            )
        return alignments

    def _sources(self, texts):
        _check_texts(texts)
        longest = self.description["max_source_length"]
        return [self._ended(_ids_of(self._source, text), longest) for text in texts]

    def _ended(self, ids, longest):
        return [*ids[: longest - 1], self._ids["end_id"]]

    def _search(self, signature, batch_size, texts, **columns):
        """Returns, for each text, if it is empty, and ids (N, T) and scores (N,)."""
        sources = self._sources(texts)
        lengths = np.array([len(ids) for ids in sources], np.int32)
        columns = {"source": sources, "lengths": lengths, **columns}
        rows = self._run(signature, batch_size, **columns)
        # An empty text is the end token alone, and its outputs mean nothing.
        return [(len(ids) == 1, row) for ids, row in zip(sources, rows, strict=True)]

    def _run(self, signature, batch_size, **columns):
        """Runs rows of similar length together; returns their outputs in order."""
        if batch_size < 1:
            raise ValueError(
                f"`batch_size` must be at least 1. Received: batch_size={batch_size}"
            )
        rows: list[Any] = [None] * len(columns["source"])
        order = sorted(range(len(rows)), key=lambda i: len(columns["source"][i]))
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            # A column is an array with a value a row, or a list of rows of ids.
            inputs = {
                name: self._padded([column[i] for i in places])
                if isinstance(column, list)
                else column[places]
                for name, column in columns.items()
            }
            outputs = self._signatures[signature](**inputs)
            for i, place in enumerate(places):
                rows[place] = {name: value[i] for name, value in outputs.items()}
        return rows

    def _padded(self, rows):
        """Rows of ids as a matrix of a column or more."""
        longest = max(1, *map(len, rows))
        padded = np.full((len(rows), longest), self._ids["pad_id"], np.int32)
        for row, ids in zip(padded, rows, strict=True):
            row[: len(ids)] = ids
        return padded

    def _translations(self, row, is_empty):
        """What a search found, best first; a place that it did not fill is left out."""
        if is_empty:
            return [Translation("", 0.0)] * len(row["scores"])
        found = [
            Translation(self._text(ids), float(score))
            for ids, score in zip(row["ids"], row["scores"], strict=True)
            if np.isfinite(score)
        ]
        return found or [Translation("", -math.inf)]

    def _text(self, ids):
        """Joins pieces; the end and padding are control pieces, which have no text."""
        return self._target.decode([int(i) for i in ids])


def _check_texts(texts, expected=None):
    if isinstance(texts, str | bytes) or not all(isinstance(t, str) for t in texts):
        raise TypeError(
            "`texts` must be a sequence of strings, such as ['A sentence.']. "
            f"Received: {texts!r:.100}"
        )
    if expected is not None and len(texts) != expected:
        raise ValueError(
            f"There must be as many of each input. Received: {expected}, {len(texts)}"
        )


def _ids_of(processor, text):
    """Ids of a text; unknown characters that spell an unused piece are that piece."""
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
    """Reads translator.json and checks the files that it names against it."""
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
                    f"{file} is damaged: it is not the file that was exported. Copy "
                    "or export it again."
                )
    return description


def main(arguments: list[str] | None = None) -> int:
    """Translates the arguments, or standard input line by line.

    Args:
        arguments: Words after the program's name; default those of the process.

    Returns:
        The exit status: 0, or 1 after an error, which is one line on standard error.
    """
    parser = argparse.ArgumentParser(
        description="Translates sentences with LiteRT.", allow_abbrev=False
    )
    parser.add_argument("texts", nargs="*", help="sentences (default: standard input)")
    parser.add_argument("--threads", type=int, help="threads (default: all cores)")
    options = parser.parse_args(arguments)
    try:
        translator = LiteTranslator(Path(__file__).parent, options.threads)
        lines = options.texts or (line.rstrip("\r\n") for line in sys.stdin)
        for line in lines:
            text = " ".join(translator([line])[0].split("\n"))
            print(text, flush=True)  # noqa: T201
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return 130  # As a shell reports it.
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
