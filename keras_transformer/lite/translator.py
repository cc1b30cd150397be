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
FORMAT = "keras_transformer.litert"
FORMAT_VERSION = 1


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
    gives an empty translation with score 0. Every method raises `TypeError` if it is
    given something other than sequences of strings, and `ValueError` if they differ in
    length or a number is out of range.

    Args:
        directory: Directory that `Translator.export_litert` wrote.
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
        self.path = Path(directory)
        self.description = _read_description(self.path)
        self.threads = threads or os.cpu_count() or 1
        self._ids = self.description["special_ids"]
        self._source, self._target = _load_tokenizers(self.path, self.description)
        self._signatures = _load_signatures(self.path, self.threads)

    def __call__(self, texts: Sequence[str], batch_size: int = 32) -> list[str]:
        """Translates texts.

        Args:
            texts: Sentences; longer and shorter ones may be mixed.
            batch_size: Sentences translated at a time.

        Returns:
            The best translation of each text, in order.
        """
        return [best[0].text for best in self.translate(texts, 1, batch_size)]

    def translate(
        self, texts: Sequence[str], n_best: int = 1, batch_size: int = 32
    ) -> list[list[Translation]]:
        """Translates texts, with scores and alternatives.

        Args:
            texts: Sentences; longer and shorter ones may be mixed.
            n_best: Translations of each text, at most the export's `n_best`.
            batch_size: Sentences translated at a time.

        Returns:
            For each text, in order, its `n_best` translations, best first. A search
            that finds fewer leaves out the rest; one that finds none gives an empty
            translation with score -inf. A text with nothing but spaces gives empty
            ones with score 0.
        """
        most = self.description["n_best"]
        if not 1 <= n_best <= most:
            raise ValueError(
                f"`n_best` must be from 1 to {most}, the number that was exported. "
                f"Received: n_best={n_best}"
            )
        _check_texts(texts, batch_size)
        sources = [self._source_ids(text) for text in texts]

        def run(batch):
            name = "translate" if n_best == 1 else "nbest"
            return self._search(name, [sources[i] for i in batch])

        rows = _in_batches(run, map(len, sources), batch_size)
        return [self._translations(*row, n_best) for row in rows]

    def truncated(self, texts: Sequence[str]) -> list[bool]:
        """Says which texts are longer than the longest source, and so are cut.

        Args:
            texts: Sentences.
        """
        _check_texts(texts, batch_size=1)
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
        _check_texts(texts, batch_size)
        _check_texts(prefixes, batch_size, len(texts))
        sources = [self._source_ids(text) for text in texts]
        longest = self.description["longest_output"] - 1
        begun = [_ids_of(self._target, text)[:longest] for text in prefixes]

        def run(batch):
            prefix, lengths = self._padded([begun[i] for i in batch])
            return self._search(
                "complete", [sources[i] for i in batch],
                prefix=prefix, prefix_lengths=lengths,
            )  # fmt: skip

        rows = _in_batches(run, map(len, sources), batch_size)
        # Without source and prefix there is nothing to say.
        return [
            Translation("", 0.0)
            if len(source) <= 1 and not prefix
            else Translation(self._text(ids[0]), float(scores[0]))
            for source, prefix, (_, ids, scores) in zip(
                sources, begun, rows, strict=True
            )
        ]

    def sample(
        self,
        texts: Sequence[str],
        temperature: float = 1.0,
        seed: int = 0,
        batch_size: int = 32,
    ) -> list[Translation]:
        """Draws a translation of each text, with the export's `top_k` and `top_p`.

        Args:
            texts: Sentences.
            temperature: Divides the logits: 0 is greedy, higher is more diverse.
            seed: Text i is drawn with the seed `seed` + i, whatever its batch.
            batch_size: Sentences translated at a time.

        Returns:
            A translation of each text; its score is the model's, without temperature.
        """
        if not 0 <= temperature < math.inf:
            raise ValueError(
                "`temperature` must be finite and at least 0. Received: "
                f"temperature={temperature}"
            )
        _check_texts(texts, batch_size)
        sources = [self._source_ids(text) for text in texts]
        longest = self.description["longest_output"]

        def run(batch):
            uniforms = np.stack([uniform_numbers(seed + i, longest) for i in batch])
            return self._search(
                "sample", [sources[i] for i in batch], uniforms=uniforms,
                temperature=np.full(len(batch), temperature, np.float32),
            )  # fmt: skip

        rows = _in_batches(run, map(len, sources), batch_size)
        return [self._translations(*row, 1)[0] for row in rows]

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
        _check_texts(sources, batch_size)
        _check_texts(targets, batch_size, len(sources))
        source_ids = [self._source_ids(text) for text in sources]
        longest = self.description["longest_output"]
        target_ids = [
            self._with_end(_ids_of(self._target, text), longest) for text in targets
        ]

        def run(batch):
            source, _ = self._padded([source_ids[i] for i in batch])
            target, _ = self._padded([target_ids[i] for i in batch])
            outputs = self._signatures["score"](source=source, target=target)
            return list(outputs["token_log_probabilities"])

        rows = _in_batches(run, map(len, source_ids), batch_size)
        scores = []
        for ids, row in zip(target_ids, rows, strict=True):
            row = row[: len(ids)]
            scores.append(Score(float(row.sum()), self._target.id_to_piece(ids), row))
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
        _check_texts(texts, batch_size)
        sources = [self._source_ids(text) for text in texts]

        def run(batch):
            some = [sources[i] for i in batch]
            targets = [
                [] if len(source) <= 1 else self._without_padding(ids[0])
                for source, ids, _ in self._search("translate", some)
            ]
            source, _ = self._padded(some)
            target, _ = self._padded(targets)
            attention = self._signatures["attention"](source=source, target=target)
            return list(zip(targets, attention["attention"], strict=True))

        rows = _in_batches(run, map(len, sources), batch_size)
        return [
            self._alignment(source, target, attention, per_head)
            for source, (target, attention) in zip(sources, rows, strict=True)
        ]

    def _alignment(self, source, target, attention, per_head):
        attention = attention[:, : len(target), : len(source)]
        return Alignment(
            self._text(target),
            self._source.id_to_piece(source),
            self._target.id_to_piece(target),
            attention if per_head else attention.mean(axis=0),
        )

    def _source_ids(self, text):
        ids = _ids_of(self._source, text)
        return self._with_end(ids, self.description["max_source_length"])

    def _with_end(self, ids, longest):
        return [*ids[: longest - 1], self._ids["end_id"]]

    def _padded(self, rows):
        """Returns rows of ids as a matrix of a column or more, and their lengths."""
        lengths = np.array([len(row) for row in rows], np.int32)
        padded = np.full((len(rows), max(1, *lengths)), self._ids["pad_id"], np.int32)
        for row, ids in zip(padded, rows, strict=True):
            row[: len(ids)] = ids
        return padded, lengths

    def _search(self, signature, sources, **inputs):
        """Returns the source, ids (N, L) and scores (N,) of each of the sources."""
        source, lengths = self._padded(sources)
        run = self._signatures[signature]
        outputs = run(source=source, lengths=lengths, **inputs)
        return list(zip(sources, outputs["ids"], outputs["scores"], strict=True))

    def _translations(self, source, ids, scores, n_best):
        if len(source) <= 1:
            return [Translation("", 0.0)] * n_best
        found = [
            Translation(self._text(row), float(score))
            for row, score in zip(ids[:n_best], scores[:n_best], strict=True)
            if np.isfinite(score)
        ]
        return found or [Translation("", -math.inf)]

    def _without_padding(self, ids):
        return [int(i) for i in ids if i != self._ids["pad_id"]]

    def _text(self, ids):
        """Joins pieces; padding and start vanish, and all from the first end on."""
        kept = []
        for i in map(int, ids):
            if i == self._ids["end_id"]:
                break
            if i not in (self._ids["pad_id"], self._ids["start_id"]):
                kept.append(i)
        return self._target.decode(kept)


def uniform_numbers(seed: int, count: int) -> np.ndarray:
    """Returns random numbers in [0, 1), those of TensorFlow for the same seed.

    Philox with ten rounds (Salmon et al., 2011, https://doi.org/10.1145/2063384.2063405)
    as `tf.random.stateless_uniform([count], [seed, 0], alg="philox")` uses it.

    Args:
        seed: Any integer of 64 bits.
        count: Numbers to draw.

    Returns:
        Float32 array (count,).
    """
    low, high = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    # TensorFlow draws key and counter with a key of its own from the seed.
    first = np.array([[low], [high], [0], [0]], np.uint64)
    mixed = _philox(first, (0x3EC8F720, 0x02461E29))[:, 0]
    blocks = -(-count // 4)
    counter = np.zeros((4, blocks), np.uint64)
    counter[0] = np.arange(blocks)
    counter[2:] = mixed[2:, None]
    drawn = _philox(counter, (int(mixed[0]), int(mixed[1]))).T.reshape(-1)[:count]
    # 23 random bits behind the exponent of 1.
    bits = (drawn & 0x7FFFFF | 0x3F800000).astype(np.uint32)
    return bits.view(np.float32) - np.float32(1)


def _philox(counter, key):
    """Mixes counters (4, X) of 32 bits, held in 64, with a key of two such numbers."""
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = np.stack(
            [
                second >> 32 ^ counter[1] ^ key[0],
                second & low,
                first >> 32 ^ counter[3] ^ key[1],
                first & low,
            ]
        )
        key = (key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF
    return counter


def _in_batches(run, lengths, batch_size) -> list[Any]:
    """Runs places of similar length together; returns the results in their order."""
    lengths = list(lengths)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    rows: list[Any] = [None] * len(order)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        for place, row in zip(batch, run(batch), strict=True):
            rows[place] = row
    return rows


def _check_texts(texts, batch_size, expected=None):
    if isinstance(texts, str | bytes) or not all(isinstance(t, str) for t in texts):
        raise TypeError(
            "`texts` must be a sequence of strings, such as ['A sentence.']. "
            f"Received: {texts!r:.100}"
        )
    if batch_size < 1:
        raise ValueError(
            f"`batch_size` must be at least 1. Received: batch_size={batch_size}"
        )
    if expected is not None and len(texts) != expected:
        raise ValueError(
            f"There must be as many of each input. Received: {expected}, {len(texts)}"
        )


def _read_description(directory):
    """Reads translator.json and checks the files that it names against it."""
    path = directory / DESCRIPTION
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no LiteRT export: no {DESCRIPTION}")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        found = description["format"], description["format_version"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged. Export it again.") from error
    if found != (FORMAT, FORMAT_VERSION):
        raise ValueError(
            f"{path} must have the format {FORMAT}, version {FORMAT_VERSION}. Export "
            f"it again with this version. Received: {found[0]}, version {found[1]}"
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


def _ids_of(processor, text):
    """Ids of a text; unknown characters may spell a piece that cuts no text itself."""
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


def _load_tokenizers(directory, description):
    sentencepiece = _import("sentencepiece", "sentencepiece")
    names = description["tokenizers"]
    loaded = {
        name: sentencepiece.SentencePieceProcessor(model_file=str(directory / name))
        for name in sorted(set(names.values()))
    }
    return loaded[names["source"]], loaded[names["target"]]


def _load_signatures(directory, threads):
    interpreter = _import("ai_edge_litert.interpreter", "ai-edge-litert")
    loaded = interpreter.Interpreter(
        str(directory / "model.tflite"), num_threads=threads
    )
    return {
        name: loaded.get_signature_runner(name) for name in loaded.get_signature_list()
    }


def _import(module, package):
    try:
        return __import__(module, fromlist=["*"])
    except ImportError as error:
        raise ImportError(
            f"{package} is not installed: pip install ai-edge-litert sentencepiece"
        ) from error


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
