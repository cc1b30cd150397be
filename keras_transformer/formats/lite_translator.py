"""Translates with a LiteRT or ONNX directory that `keras-transformer export` wrote.

This file only needs NumPy, `sentencepiece`, and `ai-edge-litert` or `onnxruntime`. An
export has a copy of it that runs without keras_transformer:

    pip install sentencepiece ai-edge-litert  # of ONNX: onnxruntime
    python translate.py "A sentence."
    python translate.py < sentences.txt
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

if __package__:
    from keras_transformer.search.translation import (
        Sentence,
        TextTranslator,
        Translation,
        check_integer,
    )
    from keras_transformer.text.doubts import (
        DOUBTS,
        doubt_at,
        doubts_of,
        faults_of,
        is_foreign,
    )
    from keras_transformer.text.sentences import CUT, GLUE, PLACE, SentenceSplitter
    from keras_transformer.text.spans import PIECES, SpanFinder
else:  # Beside copies of these files.
    from doubts import DOUBTS, doubt_at, doubts_of, faults_of, is_foreign
    from sentences import CUT, GLUE, PLACE, SentenceSplitter
    from spans import PIECES, SpanFinder
    from translation import Sentence, TextTranslator, Translation, check_integer

DESCRIPTION = "translator.json"


class LiteTranslator(TextTranslator):
    """Translates without Keras and TensorFlow, with LiteRT or ONNX Runtime.

    Args:
        directory: Directory that `Translator.export` wrote with the format "litert" or
            "onnx".
        threads: Number of threads; default one for each core that the process may use.

    Attributes:
        doubt_above: `doubt` above which a translation has the doubt "score".

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If `ai-edge-litert`, `onnxruntime` or `sentencepiece` is needed and
            not installed.
        ValueError: If a file is damaged, of another version, or `threads` is below 1.

    Example:
        >>> translator = LiteTranslator("lite/en-de")
        >>> translator(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """

    def __init__(self, directory: str | Path, threads: int | None = None):
        threads = _available_cores() if threads is None else threads
        check_integer("threads", threads)
        if threads < 1:
            raise ValueError(
                f"`threads` must be at least 1. Received: threads={threads}"
            )
        self.path = Path(directory)
        self.description = _read_description(self.path)
        package, load = _RUNTIMES[self.description["format"]]
        try:
            from sentencepiece import SentencePieceProcessor

            self._signatures = load(self.path, threads)
        except ImportError as error:
            raise ImportError(
                f"{package} or sentencepiece is not installed: pip install {package} "
                "sentencepiece"
            ) from error
        files = self.description["tokenizers"]
        self.most = self.description["n_best"]
        self.doubt_above = self.description["search"]["doubt_above"]
        if fixed := self.description["lengths"]:
            self._signatures = _of_fixed_lengths(self._signatures, fixed)
            self.batch_size = 1
        elif self.description["quantize"] == "int8":
            # Weights cost less than caches, which the loop copies at every token.
            self.batch_size = 8
        self._splitter = SentenceSplitter(self.description["sentence_rules"])
        self._spans = SpanFinder(self.description["span_rules"])
        self.carries_spans = self.description["carries_spans"]
        self._source, self._target = (
            SentencePieceProcessor(str(self.path / files[side]))
            for side in ("source", "target")
        )

    def run(
        self, name: str, *columns: Any, n_best: int = 1, per_head: bool = False
    ) -> dict[str, Any]:
        """As `TextTranslator.run`."""
        if self.description["lengths"] and name not in ("nbest", "serving_default"):
            raise ValueError(
                "An export of fixed lengths only translates. Received: a call of "
                f"`{name}`"
            )
        texts, *more = columns
        hidden = list(map(self._spans.hidden, texts))
        spans = [self._spans.sources(one.spans) for one in hidden]
        seen = list(map(self._spans.seen, hidden, spans))
        sources, truncated = self._encoded(self._source, seen, "max_source_length")
        source = _padded(sources)
        lengths = np.array([len(ids) for ids in sources], np.int32)
        inputs = {"source": source, "lengths": lengths}
        is_empty = lengths == 1
        if name in ("score", "complete"):
            shown = map(self._spans.seen, map(self._spans.hidden, more[0]), spans)
            targets, is_cut = self._encoded(self._target, shown, "longest_output")
            truncated |= is_cut
        if name == "score":
            found = self._signatures[name](source=source, target=_padded(targets))
            scores = found["token_log_probabilities"]
            return {
                "log_probability": scores.sum(axis=1),
                "tokens": self._tokens(self._target, targets, spans),
                "token_log_probabilities": scores,
                "truncated": truncated,
            }
        if name == "complete":
            prefixes = [ids[:-1] for ids in targets]
            begun = np.array([len(ids) for ids in prefixes], np.int32)
            inputs |= {"prefix": _padded(prefixes), "prefix_lengths": begun}
            is_empty &= begun == 0
        elif name == "sample":
            longest = self.description["longest_output"]
            random = [np.random.default_rng(seed).random for seed in more[1]]
            inputs["uniforms"] = np.array([draw(longest, "float32") for draw in random])
            inputs["temperature"] = np.array(more[0], np.float32)
        is_best = n_best == 1 and name in ("nbest", "align")
        found = self._signatures["translate" if is_best else name](**inputs)
        # The outputs of an empty source have no meaning.
        ids = np.where(is_empty[:, None, None], 0, found["ids"])  # (B, N, T)
        scores = np.where(is_empty[:, None], 0, found["scores"])  # (B, N)
        seen = np.where(is_empty, "", seen)
        are_foreign = map(is_foreign, seen, map(self._source.id_to_piece, sources))
        several = self._found(hidden, seen, ids, scores, are_foreign)
        if name == "nbest":
            return several | {"truncated": truncated}
        names = {"translations": "translation", "scores": "score"}
        best = {
            names.get(name, name): [row[0] for row in rows]
            for name, rows in several.items()
        }
        best["truncated"] = truncated
        if name != "align":
            return best
        targets = [row[row != 0].tolist() for row in ids[:, 0]]
        found = self._signatures["attention"](source=source, target=_padded(targets))
        attention = found["attention"]  # (B, H, T, S)
        return best | {
            "source_tokens": self._tokens(self._source, sources, spans),
            "target_tokens": self._tokens(self._target, targets, spans),
            "attention": attention if per_head else attention.mean(axis=1),
        }

    def _found(self, hidden, seen, ids, scores, are_foreign):
        """Returns the outputs of `nbest` for what a search found."""
        steps, limit = self.description["search"]["doubt_steps"], self.doubt_above
        outputs = collections.defaultdict(list)
        for one, source, rows, row, is_unreadable in zip(
            hidden, seen, ids, scores, are_foreign, strict=True
        ):
            # The end and padding are control pieces, which have no text.
            said = self._target.decode(rows.tolist())
            figures = [doubt_at(score, steps) if source else 0.0 for score in row]
            doubts = [
                " ".join(doubts_of(source, text, doubt > limit, is_unreadable))
                for text, doubt in zip(said, figures, strict=True)
            ]
            restored = (self._spans.restored(text, one.spans) for text in said)
            texts, lost = zip(*restored, strict=True)
            once = [text not in texts[:i] for i, text in enumerate(texts)]
            outputs["translations"].append(texts)
            outputs["scores"].append(np.where(once, row, -np.inf))
            outputs["doubts"].append(doubts)
            if steps is not None:
                outputs["doubt"].append(figures)
            outputs["lost"].append(lost)
        return outputs

    def _of_texts(self, texts):
        rows = list(map(self._parts, texts))
        sentences = [sentence for row in rows for sentence in row[::2]]
        found = iter(self.nbest(sentences, self.most))
        return [self._joined(row, [next(found) for _ in row[::2]]) for row in rows]

    def _joined(self, parts, found):
        """Returns the translation of a text from those of its sentences."""
        # The first with the least faults.
        best = [min(several, key=lambda x: faults_of(x.doubts)) for several in found]
        whole = zip((one.text for one in best), parts[1::2], strict=True)
        sources = map(self._spans.source, parts[::2])
        sentences = (
            Sentence(source, one.text, one.score, one.doubt)
            for source, one in zip(sources, best, strict=True)
            if source
        )
        doubts = {doubt for one in best for doubt in one.doubts}
        figures = [one.doubt for one in best if one.doubt is not None]
        return Translation(
            text="".join(itertools.chain(*whole)),
            score=min(one.score for one in best),
            truncated=any(one.truncated for one in best),
            sentences=tuple(sentences),
            doubts=tuple(name for name in (*DOUBTS, "lost") if name in doubts),
            lost=tuple(span for one in best for span in one.lost),
            doubt=max(figures, default=None),
        )

    def _parts(self, text):
        """Returns a text's first marked sentence, what follows it, and so on."""
        longest = self.description["max_source_length"] - 1

        def is_too_long(sentence):
            ids = _ids_of(self._source, sentence.replace(GLUE, " "))
            return len(ids) > longest or sentence.count(PLACE) > len(PIECES)

        hidden = self._spans.hidden(text)
        parts = self._splitter.split(hidden.text, is_too_long)
        return self._spans.marked(hidden._replace(text=CUT.join(parts))).split(CUT)

    def _tokens(self, processor, rows, spans):
        """Returns the pieces of ids, but the sources of spans."""
        tokens = []
        for ids, sources in zip(rows, spans, strict=True):
            known = dict(zip(PIECES, sources, strict=False))
            tokens.append(
                [known.get(piece, piece) for piece in processor.id_to_piece(ids)]
            )
        return tokens

    def _encoded(self, processor, texts, longest):
        """Returns the ids of texts with the end token, and which were cut (B,)."""
        most = self.description[longest] - 1
        rows = [_ids_of(processor, text) for text in texts]
        is_cut = np.array([len(ids) > most for ids in rows])
        return [[*ids[:most], processor.eos_id()] for ids in rows], is_cut


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


def _litert(directory, threads):
    """Returns a function of each signature of model.tflite by its name."""
    from ai_edge_litert.interpreter import Interpreter

    model = Interpreter(str(directory / "model.tflite"), num_threads=threads)
    # The runtime prints the name of its delegate here, not between translations.
    model.allocate_tensors()
    names = model.get_signature_list()
    return {name: model.get_signature_runner(name) for name in names}


class _OnnxFiles(dict):
    """Functions of ONNX files by their names, each loaded when it is asked for."""

    def __init__(self, directory, threads):
        import onnxruntime

        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._load = onnxruntime.InferenceSession
        self._directory = directory

    def __missing__(self, name):
        path = self._directory / f"{name}.onnx"
        session = self._load(path, self._options, providers=["CPUExecutionProvider"])
        outputs = [output.name for output in session.get_outputs()]

        def run(**inputs):
            return dict(zip(outputs, session.run(outputs, inputs), strict=True))

        self[name] = run
        return run


# By the format of a description: the package that runs it, and what loads its files.
_RUNTIMES = {
    "keras_transformer.litert.1": ("ai-edge-litert", _litert),
    "keras_transformer.onnx.1": ("onnxruntime", _OnnxFiles),
}


def _of_fixed_lengths(runners, fixed):
    """Returns `translate` and `nbest` of one sentence, by signatures `translate_L`."""

    def nbest(source, lengths):
        width = source.shape[1]
        length = next(length for length in fixed if length >= width)
        source = np.pad(source, ((0, 0), (0, length - width)))
        return runners[f"translate_{length}"](source=source, lengths=lengths)

    def translate(source, lengths):
        found = nbest(source, lengths)
        return {name: several[:, :1] for name, several in found.items()}

    return {"translate": translate, "nbest": nbest}


# What the translator reads of a description.
_KEYS = set(
    """
    tokenizers n_best lengths quantize max_source_length longest_output search
    sentence_rules span_rules carries_spans files
    """.split()
)


def _read_description(directory):
    """Reads translator.json and checks the digests of its files."""
    path = directory / DESCRIPTION
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} holds no LiteRT or ONNX export: no {DESCRIPTION}"
        )
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        found = description["format"]
        lacks = sorted(_KEYS - description.keys())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged. Export it again.") from error
    if found not in _RUNTIMES:
        raise ValueError(
            f"{path} must have the format {' or '.join(_RUNTIMES)}. Export it again "
            f"with this version. Received: {found}"
        )
    if lacks:
        raise ValueError(f"{path} lacks {', '.join(lacks)}. Export it again.")
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
        description="Translates texts with LiteRT or ONNX Runtime.", allow_abbrev=False
    )
    parser.add_argument("texts", nargs="*", help="sentences (default: standard input)")
    parser.add_argument("--threads", type=int, help="threads (default: one a core)")
    options = parser.parse_args(arguments)
    try:
        translator = LiteTranslator(Path(__file__).parent, options.threads)
        lines = options.texts or (line.rstrip("\r\n") for line in sys.stdin)
        for number, line in enumerate(lines, start=1):
            [best] = translator.translate([line])
            text = best.text if "\n" in line else " ".join(best.text.split("\n"))
            print(text, flush=True)  # noqa: T201
            doubts = [*best.doubts, *best.lost]
            if best.truncated:
                doubts.append("its source was cut")
            if doubts:
                print(  # noqa: T201
                    f"warning: translation {number} is doubtful: {', '.join(doubts)}",
                    file=sys.stderr,
                )
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return 130  # As a shell reports it.
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
