"""Pairs of sentences as ids, made once and kept in flat files, and batches of them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import DataConfig, TokenizerConfig
from keras_transformer.files import replacing
from keras_transformer.text.parallel_text import BadLines
from keras_transformer.text.sources import open_pairs
from keras_transformer.text.subwords import END_ID, PAD_ID, START_ID
from keras_transformer.text.tokenizer_pair import TokenizerPair

# Pairs that are tokenised at a time: enough to make the cost of a call negligible.
_CHUNK = 1024
# Where `batch_tokens` says nothing. It suits the caches of a processor.
BATCH_TOKENS = 4096
_SIDES = ("source", "target")


class Corpus:
    """A training corpus: tokenises pairs once and gives any batch of any epoch at once.

    Pairs of similar length share a batch, and a batch holds about
    `config.batch_tokens` tokens, as in section 5.1 of Vaswani et al. (2017). With the
    pieces x of the source and y of the target, a batch is
    `((x + end, start + y), y + end)`, int32 arrays of shapes [B, S], [B, T] and [B, T],
    padded with 0. Each side is padded to the upper end of a length bucket, not to its
    longest sentence: that gives few distinct shapes and costs next to nothing.

    The constructor reads all text, names the bad lines, including pairs longer than
    `config.max_length` tokens, and writes the ids of each side into a flat file that is
    mapped into memory, so that a corpus larger than memory trains. After that the text
    is not read again. An epoch is a permutation by `seed` and the epoch's number.

    With `config.subword_sampling` all pairs are cut anew into random pieces at the
    beginning of each epoch, again by `seed` and the epoch's number, so that every
    process has the same. Pairs then go to the length buckets by the rank of their new
    length: every epoch has as many batches.

    Args:
        text: Pairs, as `open_pairs` returns or takes them: a list of (source, target),
            the name of a file, ...
        tokenizers: Tokenizers of the two sides.
        config: Size of the batches, longest pair, sampling, bad lines to skip.
        seed: Seed of the order and of sampled pieces.
        static_shapes: Give all batches of a length bucket one shape [B, S] = [B, T]:
            both sides as wide as the bucket, missing pairs replaced by rows of padding.
            For XLA, which compiles the training step anew for every shape. So it is
            with `config.batch_shapes`, which says how many buckets there are.
        buckets: Length buckets of another corpus, so that the batches have the same
            shapes; default those of `config`.
        directory: Where the files are kept. If it holds those of the same text,
            tokenizers and `max_length`, undamaged, nothing is tokenised. By default the
            files are temporary.
        console: Rich console for a progress bar while tokenising, or `None`.

    Attributes:
        text: The pairs, a `ParallelText`.
        fingerprint: Digest of its lines.
        buckets: The length buckets.
        num_lines: Lines of the corpus, good and bad.
        num_pairs: Pairs of an epoch.
        pairs_of_part: Pairs of an epoch from each part of `text`, which is a mix or a
            single part.
        num_batches: Batches of an epoch.
        num_tokens: Source and target tokens of an epoch, with the end tokens, without
            padding and sampling.
        padding: Share of padding in an epoch's batches if their shapes are static, else
            `None`.
        shapes: An epoch's batches of each length bucket, by their rows and tokens
            (B, T): if shapes are static exactly those of each batch, else the most.
        bad_lines: `BadLines`, the lines that are left out.

    Raises:
        ValueError: If the two sides differ in number of lines, there are too many bad
            lines or no good one, a file is damaged or changes while it is read, or
            pieces are to be sampled by a tokenizer that cannot.

    Example:
        >>> pairs = open_pairs("train.en", "train.de")
        >>> tokenizers = learn_tokenizers(pairs, TokenizerConfig())
        >>> corpus = Corpus(pairs, tokenizers)
        >>> print(corpus.num_batches, "batches;", corpus.bad_lines)
        127 batches; no bad lines
        >>> model.fit(corpus.dataset(), epochs=20, shuffle=False)
    """

    def __init__(
        self,
        text: Any,
        tokenizers: TokenizerPair,
        config: DataConfig | None = None,
        *,
        seed: int = 1,
        static_shapes: bool = False,
        buckets: Buckets | None = None,
        directory: str | Path | None = None,
        console: Any = None,
    ):
        self.text = text = open_pairs(text)
        self.tokenizers = tokenizers
        self.config = config = DataConfig() if config is None else config
        self.seed = seed
        self.static_shapes = static_shapes or config.batch_shapes is not None
        self.directory = None if directory is None else Path(directory)
        self._cutters = [tokenizers.source, tokenizers.target]
        self._types = {
            f"{side}.ids": np.min_scalar_type(cutter.vocabulary_size - 1)
            for side, cutter in zip(_SIDES, self._cutters, strict=True)
        }
        if config.subword_sampling:
            self._types |= {f"{side}.text": np.dtype(np.uint8) for side in _SIDES}
            tokenizers.check_sentencepiece("`subword_sampling`")
        # Cheap, and first: misaligned files would otherwise look like bad lines.
        self.num_lines = text.count()
        self.fingerprint = text.fingerprint()
        self.bad_lines = BadLines(config.bad_line_budget)
        rows = self._kept() or self._made(console)
        self._sides, self._texts = rows[:2], rows[2:]
        # The pair of each entry of an epoch: one of the weight 4 has 4 entries.
        ends = itertools.pairwise(np.cumsum([0, *self.pairs_of_part]))
        self._pair_of = np.concatenate(
            [
                np.tile(np.arange(first, end), weight)
                for (first, end), weight in zip(ends, text.weights, strict=True)
            ]
        )
        self.pairs_of_part = np.multiply(self.pairs_of_part, text.weights).tolist()
        self.num_pairs = len(self._pair_of)
        lengths = [side.lengths(self._pair_of) + 1 for side in self._sides]
        self.num_tokens = int(np.sum(lengths))
        longer = np.maximum(*lengths)
        if buckets is None:
            boundaries, most = None, config.max_length
            if config.batch_shapes is not None:
                boundaries = few_boundaries(longer, most, config.batch_shapes)
            buckets = Buckets(most, config.batch_tokens or BATCH_TOKENS, boundaries)
        self.buckets = buckets
        self._bucket_of = buckets.of(longer)
        batches = buckets.cut(np.arange(self.num_pairs), self._bucket_of)
        self.num_batches = len(batches)
        self.shapes = dict(
            Counter((buckets.sizes[b], buckets.boundaries[b]) for b, _ in batches)
        )
        self.padding = None
        if self.static_shapes:
            area = sum(rows * width * n for (rows, width), n in self.shapes.items())
            self.padding = 1 - self.num_tokens / (2 * area)
        self._epochs, self._lock = {}, threading.Lock()

    def dataset(
        self,
        first: int = 0,
        number: int | None = None,
        *,
        shuffle: bool = True,
        replicas: int = 1,
        host: int = 0,
        hosts: int = 1,
    ) -> tf.data.Dataset:
        """Returns some batches for `model.fit`.

        Args:
            first: Number of the first batch, counted from 0 through all epochs.
            number: How many there are, the same in each iteration of the dataset. By
                default there are as many as an epoch has, and each iteration goes on
                where the one before ended.
            shuffle: Give every epoch an order of its own. Otherwise all epochs are the
                same, as validation needs, and no pieces are sampled.
            replicas: Rows of padding make the rows of each batch a multiple of it.
            host: Number of the share of each batch's rows that the dataset has.
            hosts: Shares that the rows are split into, a divisor of `replicas`.

        Returns:
            A `tf.data.Dataset` of `((source, target_in), target_out)`, int32, shapes
            [B, S], [B, T] and [B, T]; its cardinality is that of one iteration.

        Example:
            >>> model.fit(corpus.dataset(step, 1000), shuffle=False)
        """
        firsts = itertools.repeat(first)
        if number is None:
            number = self.num_batches
            firsts = itertools.count(first, number)

        def batches():
            begin = next(firsts)
            for step in range(begin, begin + number):
                yield self.batch(step, shuffle, replicas, host, hosts)

        ids = tf.TensorSpec([None, None], tf.int32)
        data = tf.data.Dataset.from_generator(
            batches, output_signature=((ids, ids), ids)
        )
        # Without a known cardinality Keras warns at the end of every epoch.
        data = data.apply(tf.data.experimental.assert_cardinality(number))
        # Autotuning sleeps for up to a second, and the end of an epoch waits for it.
        options = tf.data.Options()
        options.autotune.enabled = False
        return data.prefetch(2).with_options(options)

    def epoch(self, number: int, shuffle: bool = True) -> Iterator[tuple]:
        """Yields the batches of an epoch as NumPy arrays.

        Args:
            number: Number of the epoch, which with `seed` determines the order.
            shuffle: Whether to shuffle.

        Yields:
            `((source, target_in), target_out)`, int32 arrays.
        """
        first = number * self.num_batches
        for step in range(first, first + self.num_batches):
            yield self.batch(step, shuffle)

    def batch(
        self,
        step: int,
        shuffle: bool = True,
        replicas: int = 1,
        host: int = 0,
        hosts: int = 1,
    ) -> tuple:
        """Returns one batch as NumPy arrays; the arguments are those of `dataset`.

        Args:
            step: Number of the batch, counted from 0 through all epochs.
        """
        number, place = divmod(step, self.num_batches)
        sides, batches = self._epoch(number, shuffle)
        bucket, rows = batches[place]
        longest = [side.lengths(rows).max() + 1 for side in sides]
        widths, size = [self.buckets.width(length) for length in longest], len(rows)
        if self.static_shapes:
            size, widths = self.buckets.sizes[bucket], [max(widths)] * 2
        size = -(-size // replicas) * replicas // hosts
        share = rows[host * size : (host + 1) * size]
        source, target = (
            _padded(side.take(share), (size, width))
            for side, width in zip(sides, widths, strict=True)
        )
        target_in = np.full_like(target, PAD_ID)
        target_in[: len(share), 0] = START_ID
        target_in[:, 1:] = target[:, :-1]
        target_in[target_in == END_ID] = PAD_ID
        return (source, target_in), target

    def tokens(self, first: int, number: int, shuffle: bool = True) -> int:
        """Returns how many source and target tokens `number` batches have.

        End tokens count, padding does not; `first` and `shuffle` are as in `dataset`.
        """
        total = 0
        for step in range(first, first + number):
            epoch, place = divmod(step, self.num_batches)
            sides, batches = self._epoch(epoch, shuffle)
            rows = batches[place][1]
            total += sum((side.lengths(rows) + 1).sum() for side in sides)
        return int(total)

    def _epoch(self, number, shuffle):
        """An epoch's ids of both sides, and the bucket and rows of each batch."""
        key = number if shuffle else None
        # SentencePiece has one seed for the whole process.
        with self._lock:
            if key not in self._epochs:
                while len(self._epochs) > 1:
                    self._epochs.pop(next(iter(self._epochs)))
                self._epochs[key] = self._new_epoch(number, shuffle)
            return self._epochs[key]

    def _new_epoch(self, number, shuffle):
        sides, row_of, bucket_of = self._sides, self._pair_of, self._bucket_of
        order = np.arange(self.num_pairs)
        if not shuffle:
            batches = self.buckets.cut(order, bucket_of)
            return sides, [(bucket, row_of[entries]) for bucket, entries in batches]
        if self._texts:
            sides, row_of = self._sampled(number), order
            longer = np.maximum(*(side.lengths(order) for side in sides))
            bucket_of = np.empty_like(bucket_of)
            bucket_of[np.argsort(longer, kind="stable")] = np.sort(self._bucket_of)
        rng = np.random.default_rng((self.seed, number))
        batches = self.buckets.cut(rng.permutation(order), bucket_of)
        shuffled = (batches[place] for place in rng.permutation(len(batches)))
        return sides, [(bucket, row_of[entries]) for bucket, entries in shuffled]

    def _sampled(self, number):
        """The ids of an epoch's entries, cut into random pieces."""
        sides, rate = [], self.config.subword_sampling
        for side, (usual, texts) in enumerate(
            zip(self._sides, self._texts, strict=True)
        ):
            with contextlib.ExitStack() as stack:
                writer = _Writer(stack, usual.kind, folder=self.directory)
                for first in range(0, self.num_pairs, _CHUNK):
                    pairs = self._pair_of[first : first + _CHUNK]
                    seed = np.random.SeedSequence((self.seed, number, side, first))
                    drawn = self._cutters[side].sample(
                        [text.tobytes().decode() for text in texts.take(pairs)],
                        rate, int(seed.generate_state(1)[0]) >> 1,
                    )  # fmt: skip
                    rows = [
                        new if 0 < len(new) < self.config.max_length else old
                        for new, old in zip(drawn, usual.take(pairs), strict=True)
                    ]
                    writer.write(np.concatenate(rows), list(map(len, rows)))
                sides.append(writer.rows())
        return sides

    def _made_of(self):
        """What tells the files of this corpus from those of another."""
        return {
            "text": self.fingerprint,
            "tokenizers": [
                hashlib.blake2b(cutter.content, digest_size=16).hexdigest()
                for cutter in self._cutters
            ],
            "max_length": self.config.max_length,
            "files": list(self._types),
        }

    def _kept(self):
        """The rows in the directory's files; `None` if those are not this corpus'."""
        if self.directory is None:
            return None
        try:
            facts = json.loads((self.directory / "corpus.json").read_bytes())
            paths = [self.directory / name for name in facts["digests"]]
            if facts["made_of"] != self._made_of() or (
                [_digest(path) for path in paths] != list(facts["digests"].values())
            ):
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        count, examples = facts["bad_lines"]
        if count > self.bad_lines.budget:
            return None  # Read again, to say which line is one too many.
        self.bad_lines.count, self.bad_lines.examples = count, examples
        self.pairs_of_part = facts["pairs_of_part"]
        kinds = self._types.values()
        return [
            _Rows(*files, kind)
            for *files, kind in zip(paths[::2], paths[1::2], kinds, strict=True)
        ]

    def _made(self, console):
        """Tokenises the text into the directory's files, and returns their rows."""
        folder, parts = self.directory, self.text.parts
        paths = [None] * len(self._types)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            paths = [folder / name for name in self._types]
        self.pairs_of_part = [0] * len(parts)
        with contextlib.ExitStack() as stack:
            writers = [
                _Writer(stack, kind, path)
                for kind, path in zip(self._types.values(), paths, strict=True)
            ]
            for number, pairs in self._chunks(console):
                texts = [[getattr(pair, side) for pair in pairs] for side in _SIDES]
                ids = list(map(_ids, self._cutters, texts))
                good = self._good(parts[number], pairs, [lengths for _, lengths in ids])
                self.pairs_of_part[number] += int(good.sum())
                for writer, (values, lengths) in zip(writers, ids, strict=False):
                    writer.write(values[np.repeat(good, lengths)], lengths[good])
                for writer, side in zip(writers[2:], texts, strict=False):
                    rows = [side[place].encode() for place in np.flatnonzero(good)]
                    values = np.frombuffer(b"".join(rows), np.uint8)
                    writer.write(values, list(map(len, rows)))
            if not any(self.pairs_of_part):
                raise ValueError(f"The corpus has no good pair; {self.bad_lines}.")
            if self.text.files() and self.text.fingerprint() != self.fingerprint:
                raise ValueError(f"{self.text.origin} changed while it was read.")
            made = [writer.rows() for writer in writers]
        if folder is not None:
            names = [name + end for name in self._types for end in ("", ".ends")]
            facts = {
                "made_of": self._made_of(),
                "pairs_of_part": self.pairs_of_part,
                "bad_lines": [self.bad_lines.count, self.bad_lines.examples],
                "digests": {name: _digest(folder / name) for name in names},
            }
            with replacing(folder / "corpus.json") as temporary:
                temporary.write_text(json.dumps(facts, indent=2), encoding="utf-8")
        return made

    def _chunks(self, console):
        """Yields the number of a part and some of its pairs; moves a progress bar."""
        bar = contextlib.nullcontext()
        if console is not None:
            import rich.progress

            bar = rich.progress.Progress(console=console, transient=True)
        with bar as progress:
            if progress:
                task = progress.add_task("tokenising", total=self.num_lines)
            for number, part in enumerate(self.text.parts):
                pairs = part.pairs(self.bad_lines)
                while chunk := list(itertools.islice(pairs, _CHUNK)):
                    yield number, chunk
                    if progress:
                        progress.advance(task, len(chunk))

    def _good(self, part, pairs, lengths):
        """Whether both sides of each pair have a good length; others are bad lines."""
        most = self.config.max_length
        fits = [(0 < side) & (side < most) for side in lengths]
        good = np.logical_and(*fits)
        for place in np.flatnonzero(~good):
            side = int(fits[0][place])
            reason = f"{_SIDES[side]} has no visible character"
            if length := lengths[side][place]:
                reason = (
                    f"{_SIDES[side]} has {length + 1} tokens, including the end token: "
                    f"more than `max_length` {most}"
                )
            self.bad_lines.add(part.place(pairs[place].line, _SIDES[side]), reason)
        return good


class _Rows:
    """Rows of numbers, one after the other in a file that is mapped into memory.

    Args:
        flat: The file, open or its path.
        ends: That of the places at which rows end, after a 0.
        kind: Type of the numbers.
    """

    def __init__(self, flat, ends, kind):
        self.kind = kind
        self._flat = np.asarray(np.memmap(flat, kind, "r"))
        self._ends = np.asarray(np.memmap(ends, np.int64, "r"))

    def lengths(self, places):
        """The lengths of the rows at some places, an array."""
        return self._ends[places + 1] - self._ends[places]

    def take(self, places):
        """The rows at some places, a list."""
        bounds = zip(self._ends[places], self._ends[places + 1], strict=True)
        return [self._flat[first:end] for first, end in bounds]


class _Writer:
    """Writes rows into two files as `_Rows` reads them: temporary ones without a path.

    The files take their names at the end of the stack.
    """

    def __init__(self, stack, kind, path=None, folder=None):
        self.kind, self._end = kind, np.int64(0)
        if path is None:
            opened = (tempfile.TemporaryFile(dir=folder) for _ in range(2))
        else:
            paths = (path, path.with_name(f"{path.name}.ends"))
            opened = (open(stack.enter_context(replacing(p)), "w+b") for p in paths)
        self._files = [stack.enter_context(file) for file in opened]
        self._files[1].write(self._end.tobytes())

    def write(self, values, lengths):
        """Writes rows of some lengths, whose numbers are all in one array."""
        ends = self._end + np.cumsum(lengths, dtype=np.int64)
        self._files[0].write(values.astype(self.kind).tobytes())
        self._files[1].write(ends.tobytes())
        self._end += len(values)

    def rows(self):
        """Returns all that was written."""
        for file in self._files:
            file.flush()
        return _Rows(*self._files, self.kind)


class Buckets:
    """Length buckets: which pairs may share a batch, and how many.

    A pair belongs to the bucket of its longer side, and a batch of a bucket holds
    about `batch_tokens` tokens, including padding.

    Args:
        max_length: Longest side of a pair (tokens, including the end token).
        batch_tokens: Tokens of a batch on its longer side.
        boundaries: Longest length of each bucket, rising to `max_length`; default
            `bucket_boundaries`.
    """

    def __init__(
        self,
        max_length: int,
        batch_tokens: int,
        boundaries: Sequence[int] | None = None,
    ):
        self.boundaries = list(boundaries or bucket_boundaries(max_length))
        self.sizes = [max(1, batch_tokens // longest) for longest in self.boundaries]

    def of(self, lengths: np.ndarray) -> np.ndarray:
        """Returns the numbers of the buckets of sides of some lengths (tokens)."""
        return np.searchsorted(self.boundaries, lengths).astype(np.int16)

    def width(self, length: int) -> int:
        """Returns the width of a padded side whose longest row has `length` tokens."""
        return self.boundaries[int(self.of(length))]

    def cut(self, order: np.ndarray, bucket_of: np.ndarray) -> list[tuple]:
        """Cuts an epoch into batches, those of the shortest pairs first.

        What does not fill a batch goes to the next longer bucket, so that an epoch has
        one batch that is not full, and not one for each bucket.

        Args:
            order: The entries, in the order in which they come.
            bucket_of: Number of the bucket of each entry.

        Returns:
            For each batch its bucket, that of its longest pair, and its entries.
        """
        order = order[np.argsort(bucket_of[order], kind="stable")]
        ends = np.cumsum(np.bincount(bucket_of, minlength=len(self.sizes)))
        batches, first = [], 0
        for bucket in np.unique(bucket_of).tolist():
            size, end = self.sizes[bucket], ends[bucket]
            while first + size <= end:
                batches.append((bucket, order[first : first + size]))
                first += size
        if first < len(order):
            batches.append((bucket, order[first:]))
        return batches


def bucket_boundaries(max_length: int) -> list[int]:
    """Returns the longest length of each bucket: steps of 4 tokens, then of 20 %.

    Example:
        >>> bucket_boundaries(100)
        [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 76, 88, 100]
    """
    boundaries = [min(4, max_length)]
    while (last := boundaries[-1]) < max_length:
        step = max(4, last // 5 // 4 * 4)
        boundaries.append(min(max_length, last + step))
    return boundaries


def few_boundaries(lengths: np.ndarray, max_length: int, number: int) -> list[int]:
    """Chooses those of `bucket_boundaries` with which the least is padding.

    Args:
        lengths: Length of the longer side of each pair (tokens).
        max_length: As for `bucket_boundaries`.
        number: Buckets that may hold pairs.

    Returns:
        At most `number` boundaries, of which the last is no shorter than any length,
        and `max_length`.

    Example:
        >>> few_boundaries(np.array([3, 3, 3, 9, 30]), max_length=100, number=2)
        [12, 32, 100]
    """
    all_boundaries = bucket_boundaries(max_length)
    used = all_boundaries[: np.searchsorted(all_boundaries, lengths.max()) + 1]
    # Pairs that are no longer than each boundary, and than nothing.
    counts = [0, *np.searchsorted(np.sort(lengths), used, side="right").tolist()]
    # For each number of buckets, the least cost of the pairs up to each boundary, in
    # tokens with padding, and the boundaries that have it.
    best = {0: (0, [])}
    for _ in range(min(number, len(used))):
        best = {0: (0, [])} | {
            end: min(
                (cost + (counts[end] - counts[start]) * longest, [*chosen, longest])
                for start, (cost, chosen) in best.items()
                if start < end
            )
            for end, longest in enumerate(used, 1)
        }
    chosen = best[len(used)][1]
    return chosen if chosen[-1] == max_length else [*chosen, max_length]


def learn_tokenizers(
    text: Any, config: TokenizerConfig | None = None, bad_line_budget: int = 100
) -> TokenizerPair:
    """Learns the vocabularies of a corpus.

    Args:
        text: Pairs, as `open_pairs` returns or takes them; read twice.
        config: Size and kind of the vocabularies.
        bad_line_budget: Bad lines that are skipped.

    Returns:
        A `TokenizerPair`.

    Raises:
        ValueError: If there are too many bad lines, a file is damaged, the two sides
            differ in number of lines, or the text does not suit the vocabulary's size.

    Example:
        >>> pairs = [("Two men are talking.", "Zwei Männer unterhalten sich."), ...]
        >>> tokenizers = learn_tokenizers(pairs, TokenizerConfig(vocabulary_size=4000))
    """
    text = open_pairs(text)
    text.count()
    sources = (pair.source for pair in text.pairs(BadLines(bad_line_budget)))
    targets = (pair.target for pair in text.pairs(BadLines(bad_line_budget)))
    return TokenizerPair.learn(sources, targets, config or TokenizerConfig())


def _ids(tokenizer, texts):
    """The ids of some texts, one after the other in an array, and their numbers."""
    # Strings live on the CPU; so should the small tensors that go with them.
    with tf.device("CPU:0"):
        ids = tokenizer.tokenize(texts)
    return ids.values.numpy(), ids.row_lengths().numpy()


def _padded(rows, shape):
    """Returns ids of `shape`: each row, the end id, padding; then rows of padding."""
    padded = np.full(shape, PAD_ID, np.int32)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
        padded[number, len(row)] = END_ID
    return padded


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
