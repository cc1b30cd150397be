"""Pairs of sentences as ids, made once and kept in flat files, and batches of them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import DataConfig
from keras_transformer.files import digest, replacing
from keras_transformer.text.pairs import SIDES, BadLines, open_pairs
from keras_transformer.text.tokenizer import END_ID, PAD_ID, START_ID
from keras_transformer.text.tokenizer_pair import TokenizerPair

# Pairs that are tokenised at a time: enough to make the cost of a call negligible.
_CHUNK = 1024
# Batches whose pairs are cut into random pieces, and sorted by their length, together.
_SAMPLED = 16
# Where `batch_tokens` says nothing. It suits the caches of a processor.
BATCH_TOKENS = 4096


class Corpus:
    """A training corpus: tokenises pairs once and gives any batch of any epoch at once.

    Pairs of similar length share a batch of about `config.batch_tokens` tokens, as in
    section 5.1 of Vaswani et al. (2017). With the pieces x of the source and y of the
    target, a batch is `((x + end, start + y), y + end)`, int32 arrays of shapes [B, S],
    [B, T] and [B, T], padded with 0. Each side is padded to the upper end of a length
    bucket, not to its longest sentence: that gives few distinct shapes and costs next
    to nothing.

    The constructor reads all text, names the bad lines, including pairs longer than
    `config.max_length` tokens, and writes the ids of each side into a flat file that is
    mapped into memory, so that a corpus larger than memory trains. After that the text
    is not read again. An epoch is a permutation by `seed` and the epoch's number.

    With `config.subword_sampling` the pairs of some batches at a time are cut anew into
    random pieces, by `seed` and their number, so that every process has the same.

    Args:
        text: Pairs, as `open_pairs` returns or takes them: a list of (source, target),
            the name of a file, ...
        tokenizers: Tokenizers of the two sides.
        config: Size of the batches, longest pair, sampling, bad lines to skip.
        seed: Seed of the order and of sampled pieces.
        static_shapes: Give all batches of a length bucket one shape [B, S] = [B, T]:
            both sides as wide as the bucket, missing pairs replaced by rows of padding.
            For XLA, which compiles the training step anew for every shape. They are
            static, too, if `config.batch_shapes` says how many buckets there are.
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
        bad_lines: `BadLines`, the lines that are left out.
        num_pairs: Pairs of an epoch.
        num_batches: Batches of an epoch.
        num_tokens: Source and target tokens of an epoch, with the end tokens, without
            padding and sampling.
        shapes: An epoch's batches of each length bucket, by their rows and tokens
            (B, T): the most that a batch has, and if shapes are static exactly what it
            has. Sampled pieces may give a batch another width.
        padding: Share of padding in an epoch's batches if their shapes are static, else
            `None`.

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
        self.text = open_pairs(text)
        self.tokenizers = tokenizers
        self.config = config = DataConfig() if config is None else config
        self.seed = seed
        self.static_shapes = static_shapes or config.batch_shapes is not None
        self.directory = None if directory is None else Path(directory)
        self.bad_lines = BadLines(config.bad_line_budget)
        self._cutters = [tokenizers.source, tokenizers.target]
        # The files and the type of their numbers; the text only to be cut once more.
        self._kinds = {
            f"{side}.ids": np.min_scalar_type(cutter.vocabulary_size - 1)
            for side, cutter in zip(SIDES, self._cutters, strict=True)
        }
        if config.subword_sampling:
            tokenizers.check_sentencepiece("`subword_sampling`")
            self._kinds |= {f"{side}.text": np.dtype(np.uint8) for side in SIDES}
        self.fingerprint = self.text.fingerprint()
        contents = [cutter.content for cutter in self._cutters]
        made_of = {
            "text": [part.fingerprint() for part, _ in self.text.parts],
            "tokenizers": [hashlib.blake2b(c).hexdigest() for c in contents],
            "max_length": config.max_length,
            "files": list(self._kinds),
        }
        # Files that are mapped into memory outlive their names.
        files = contextlib.nullcontext(self.directory)
        with tempfile.TemporaryDirectory() if directory is None else files as folder:
            folder = Path(folder)
            if not self._are_kept(folder, made_of):
                self._make(folder, made_of, console)
            rows = [_Rows(folder / name, kind) for name, kind in self._kinds.items()]
        self._sides, self._texts = rows[:2], rows[2:]
        # A run asks for the batches of the epoch before, too, to count their tokens.
        self._epoch = functools.lru_cache(2)(self._new_epoch)
        # Batches are made ahead of the step that asks for the tokens of those before.
        self._sampled = functools.lru_cache(4)(self._newly_sampled)

        # The pairs of an epoch before shuffling: each corpus comes `weight` times.
        places, end = [], 0
        for number, (_, weight) in zip(self._num_pairs, self.text.parts, strict=True):
            places += [np.arange(end, end + number)] * weight
            end += number
        self._order = np.concatenate(places)
        lengths = [side.lengths + 1 for side in self._sides]
        longer = np.maximum(*lengths)
        if buckets is None:
            boundaries, most = None, config.max_length
            if config.batch_shapes is not None:
                shapes = config.batch_shapes
                boundaries = few_boundaries(longer[self._order], most, shapes)
            buckets = Buckets(most, config.batch_tokens or BATCH_TOKENS, boundaries)
        self.buckets = buckets
        self._bucket_of = buckets.of(longer)
        batches = buckets.cut(self._order, self._bucket_of)
        self.num_pairs = len(self._order)
        self.num_batches = len(batches)
        self.num_tokens = int(sum(lengths)[self._order].sum())
        counts = Counter(bucket for bucket, _ in batches)
        shapes = list(zip(buckets.sizes, buckets.boundaries, strict=True))
        self.shapes = {shapes[bucket]: n for bucket, n in counts.items()}
        area = sum(rows * width * n for (rows, width), n in self.shapes.items())
        self.padding = 1 - self.num_tokens / (2 * area) if self.static_shapes else None

    def dataset(
        self,
        first: int = 0,
        number: int | None = None,
        *,
        shuffle: bool = True,
    ) -> tf.data.Dataset:
        """Returns batches for `model.fit`.

        Args:
            first: Number of the first batch, counted from 0 through all epochs.
            number: How many there are, the same in each iteration of the dataset. By
                default there are as many as an epoch has, and each iteration goes on
                where the one before ended.
            shuffle: Give every epoch an order of its own. Otherwise all epochs are the
                same, as validation needs, and no pieces are sampled.

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
                yield self.batch(step, shuffle)

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

    def batch(self, step: int, shuffle: bool = True) -> tuple:
        """Returns one batch as NumPy arrays.

        Args:
            step: Number of the batch, counted from 0 through all epochs.
            shuffle: As for `dataset`.
        """
        bucket, sides = self._rows(step, shuffle)
        number = size = len(sides[0])
        widths = [self.buckets.width(max(map(len, side)) + 1) for side in sides]
        if self.static_shapes:
            size, widths = self.buckets.sizes[bucket], [max(widths)] * 2
        source, target = (np.full((size, width), PAD_ID, np.int32) for width in widths)
        for side, padded in zip(sides, (source, target), strict=True):
            for row, ids in zip(padded, side, strict=False):
                row[: len(ids)] = ids
                row[len(ids)] = END_ID
        target_in = np.roll(target, 1, axis=1)
        target_in[:number, 0] = START_ID
        target_in[target_in == END_ID] = PAD_ID
        return (source, target_in), target

    def tokens(self, first: int, number: int, shuffle: bool = True) -> int:
        """Returns how many source and target tokens `number` batches have.

        End tokens count, padding does not; `first` and `shuffle` are as for `dataset`.
        """
        batches = (self._rows(first + i, shuffle)[1] for i in range(number))
        return sum(len(ids) + 1 for sides in batches for ids in itertools.chain(*sides))

    def _rows(self, step, shuffle):
        """The bucket of a batch, and for each side the ids of its sentences."""
        epoch, place = divmod(step, self.num_batches)
        bucket, places = self._epoch(epoch if shuffle else None)[place]
        if self._texts and shuffle:
            return bucket, self._sampled(epoch, place // _SAMPLED)[place % _SAMPLED]
        return bucket, [side.take(places) for side in self._sides]

    def _new_epoch(self, number):
        """The bucket and the pairs of each batch of an epoch, or in their order."""
        if number is None:
            return self.buckets.cut(self._order, self._bucket_of)
        rng = np.random.default_rng((self.seed, number))
        batches = self.buckets.cut(rng.permutation(self._order), self._bucket_of)
        return [batches[place] for place in rng.permutation(len(batches))]

    def _newly_sampled(self, epoch, number):
        """Both sides of the batches of a group, cut into random pieces.

        The pairs go to the batches by the rank of their new length.
        """
        group = self._epoch(epoch)[number * _SAMPLED :][:_SAMPLED]
        places = np.concatenate([places for _, places in group])
        sides, rate = [], self.config.subword_sampling
        for side, cutter in enumerate(self._cutters):
            texts = [text.tobytes().decode() for text in self._texts[side].take(places)]
            seed = np.random.SeedSequence((self.seed, epoch, number, side))
            drawn = cutter.sample(texts, rate, int(seed.generate_state(1)[0]))
            usual, most = self._sides[side].take(places), self.config.max_length
            both = zip(drawn, usual, strict=True)
            sides.append([new if 0 < len(new) < most else old for new, old in both])
        longer = np.maximum(*([len(ids) for ids in side] for side in sides))
        order = iter(np.argsort(longer, kind="stable"))
        batches = [None] * len(group)
        for place in sorted(range(len(group)), key=lambda place: group[place][0]):
            rows = list(itertools.islice(order, len(group[place][1])))
            batches[place] = [[side[row] for row in rows] for side in sides]
        return batches

    def _are_kept(self, folder, made_of):
        """Whether a directory has this corpus' files; if so, reads what they hold."""
        try:
            facts = json.loads((folder / "corpus.json").read_bytes())
            digests, (count, examples) = facts["digests"], facts["bad_lines"]
            if (
                facts["made_of"] != made_of
                or digests != {name: digest(folder / name) for name in digests}
                # Read again, to say which line is one too many.
                or count > self.bad_lines.budget
            ):
                return False
        except (OSError, ValueError, KeyError, TypeError):
            return False
        self.bad_lines.count, self.bad_lines.examples = count, examples
        self._num_pairs = facts["num_pairs"]
        return True

    def _make(self, folder, made_of, console):
        """Tokenises the text into a directory's files, which appear all at the end."""
        import rich.progress

        folder.mkdir(parents=True, exist_ok=True)
        names = [name + end for name in self._kinds for end in ("", ".ends")]
        silent = console is None or not console.is_terminal
        bar = rich.progress.Progress(console=console, transient=True, disable=silent)
        num_lines = sum(part.count() for part, _ in self.text.parts)
        task = bar.add_task("tokenising", total=num_lines)
        self._num_pairs = [0] * len(self.text.parts)
        with bar, contextlib.ExitStack() as stack:
            paths = [stack.enter_context(replacing(folder / name)) for name in names]
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            kinds = self._kinds.values()
            written = list(map(_Writer, files[::2], files[1::2], kinds))
            for number, (part, _) in enumerate(self.text.parts):
                pairs = part.pairs(self.bad_lines)
                while chunk := list(itertools.islice(pairs, _CHUNK)):
                    texts = [[getattr(pair, side) for pair in chunk] for side in SIDES]
                    rows = list(map(_ids, self._cutters, texts))
                    good = self._good(part, chunk, [lengths for _, lengths in rows])
                    if self.config.subword_sampling:
                        rows += map(_characters, texts)
                    for file, (values, lengths) in zip(written, rows, strict=True):
                        file.write(values[np.repeat(good, lengths)], lengths[good])
                    self._num_pairs[number] += int(good.sum())
                    bar.advance(task, len(chunk))
            if not any(self._num_pairs):
                raise ValueError(f"The corpus has no good pair; {self.bad_lines}.")
        facts = {
            "made_of": made_of,
            "num_pairs": self._num_pairs,
            "bad_lines": [self.bad_lines.count, self.bad_lines.examples],
            "digests": {name: digest(folder / name) for name in names},
        }
        with replacing(folder / "corpus.json") as temporary:
            temporary.write_text(json.dumps(facts, indent=2), encoding="utf-8")

    def _good(self, part, pairs, lengths):
        """Whether both sides of each pair have a good length; others are bad lines."""
        most = self.config.max_length
        fits = [(0 < side) & (side < most) for side in lengths]
        good = np.logical_and(*fits)
        for place in np.flatnonzero(~good):
            side = int(fits[0][place])
            reason = f"{SIDES[side]} has no visible character"
            if length := lengths[side][place]:
                reason = (
                    f"{SIDES[side]} has {length + 1} tokens, including the end token: "
                    f"more than `max_length` {most}"
                )
            self.bad_lines.add(part.place(pairs[place].line, SIDES[side]), reason)
        return good


class _Rows:
    """Rows of numbers, one after the other in a file that is mapped into memory."""

    def __init__(self, path, kind):
        self._flat = np.asarray(np.memmap(path, kind, "r"))
        # The places at which rows end, after a 0.
        self._ends = np.asarray(np.memmap(f"{path}.ends", np.int64, "r"))

    @property
    def lengths(self):
        return np.diff(self._ends)

    def take(self, places):
        """The rows at some places, a list."""
        bounds = zip(self._ends[places], self._ends[places + 1], strict=True)
        return [self._flat[first:end] for first, end in bounds]


class _Writer:
    """Writes the two files of `_Rows`."""

    def __init__(self, flat, ends, kind):
        self._flat, self._ends, self._kind = flat, ends, kind
        self._end = 0
        ends.write(bytes(8))

    def write(self, values, lengths):
        """Adds rows of some lengths, whose numbers are one after the other."""
        self._flat.write(values.astype(self._kind).tobytes())
        self._ends.write((self._end + np.cumsum(lengths, dtype=np.int64)).tobytes())
        self._end += len(values)


class Buckets:
    """Length buckets: which pairs may share a batch, and how many.

    A pair belongs to the bucket of its longer side, and a batch of a bucket holds
    about `batch_tokens` tokens on that side, including padding.
    """

    def __init__(self, max_length, batch_tokens, boundaries=None):
        # Longest length of each bucket, up to `max_length`, and rows of its batches.
        self.boundaries = list(boundaries or bucket_boundaries(max_length))
        self.sizes = [max(1, batch_tokens // longest) for longest in self.boundaries]

    def of(self, lengths):
        """The numbers of the buckets of some lengths (tokens), an array."""
        return np.searchsorted(self.boundaries, lengths).astype(np.int16)

    def width(self, length):
        """The width of a padded side whose longest row has `length` tokens."""
        return self.boundaries[int(self.of(length))]

    def cut(self, order, bucket_of):
        """The bucket of the longest pair and the pairs of each batch, short ones first.

        Pairs that fill no batch join the next longer bucket, so one batch is not full.
        """
        order = order[np.argsort(bucket_of[order], kind="stable")]
        counts = np.bincount(bucket_of[order])
        batches, first = [], 0
        for bucket in np.flatnonzero(counts).tolist():
            size, end = self.sizes[bucket], counts[: bucket + 1].sum()
            while first + size <= end:
                batches.append(order[first : first + size])
                first += size
        if first < len(order):
            batches.append(order[first:])
        return [(int(bucket_of[places[-1]]), places) for places in batches]


def bucket_boundaries(max_length: int) -> list[int]:
    """The longest length of each bucket: steps of 4 tokens, then of 20 %.

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
    """The `number` of `bucket_boundaries` with the least padding, and `max_length`.

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


def _ids(tokenizer, texts):
    """The ids of some texts, one after the other, and how many each text has."""
    # Strings live on the CPU; so should the small tensors that go with them.
    with tf.device("CPU:0"):
        ids = tokenizer.tokenize(texts)
    return ids.values.numpy(), ids.row_lengths().numpy()


def _characters(texts):
    """The bytes of some texts, one after the other, and how many each text has."""
    rows = [text.encode() for text in texts]
    return np.frombuffer(b"".join(rows), np.uint8), np.array(list(map(len, rows)))
