"""Sentence pairs as ids in one flat file, and batches of them."""

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
from keras_transformer.config.options import check_number
from keras_transformer.files import digest, read_json, replacing, write_json
from keras_transformer.text.buckets import (
    bucket_boundaries,
    check_boundaries,
    few_boundaries,
)
from keras_transformer.text.pairs import open_pairs
from keras_transformer.text.parallel_text import SIDES, BadLines
from keras_transformer.text.tokenizer import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from keras_transformer.text.tokenizer_pair import TokenizerPair
from keras_transformer.text.views import NUM_VIEWS, PERIOD, SCHEDULE, views_of

# Pairs that one call tokenises: enough to make its fixed cost negligible.
_CHUNK = 1024
# Tokens that are searched at once for the ends of sentences.
_BLOCK = 1 << 22
# Default of `batch_tokens`. It suits the caches of a processor.
BATCH_TOKENS = 4096


class Corpus:
    """A training corpus, tokenised once, whose batches can be read from any step.

    Pairs of similar length share a batch of about `config.batch_tokens` tokens, as in
    section 5.1 of Vaswani et al. (2017). With the pieces x of the source and y of the
    target, a batch is `((x + end, start + y), y + end)`: int32 arrays of shapes [B, S],
    [B, T] and [B, T], padded with 0. Each side is padded to the upper bound of a length
    bucket, so that batches have few distinct shapes.

    The constructor reads the whole text, skips bad lines and pairs longer than
    `config.max_length` tokens, and writes the ids to a memory-mapped file: only about
    50 bytes a pair must fit in memory, with `robust` 150. The text is not read again.
    `seed` and the number of an epoch determine its order.

    Args:
        text: Pairs, as `open_pairs` returns or takes them.
        tokenizers: Tokenizers of the two sides.
        config: Batch size, longest pair, bad lines to skip.
        seed: Seed of the order.
        static_shapes: Give all batches of a length bucket one shape, with [B, S] =
            [B, T] and rows of padding for missing pairs. It suits XLA, which compiles
            the training step for each shape. `config.batch_shapes` implies it.
        robust: Show 3 % of the pairs of a shuffled epoch in capitals, 2 % in title
            case, 5 % without the final mark, 2 % with a typo in the source, 4 % with
            words of both sides as pieces that are carried over. Each pair takes its
            turn. A view that is too long or has an unknown piece is not shown.
        boundaries: The `boundaries` of another corpus, for batches of the same shapes:
            ascending, and at least as long as the longest pair.
        directory: Where to keep the ids; default temporary. Existing ids are reused if
            text, tokenizers, `robust`, `replayed`, `max_length` and `bad_line_share`
            match.
        replayed: The pairs.ids of another corpus with the same tokenizers, and its
            digest as in the pairs.json beside it. It is copied. Each epoch also has
            `config.replay` of its pairs for each pair of `text`, all in turn.
        console: Rich console for a progress bar.

    Attributes:
        text: The pairs, a `ParallelText`.
        boundaries: Longest length of each bucket, ascending (tokens).
        bad_lines: The skipped lines, `BadLines`.
        num_pairs: Pairs of an epoch.
        num_replayed: Those of them that are of `replayed`.
        num_batches: Batches of an epoch.
        num_tokens: Source and target tokens of an epoch, with end tokens, without
            padding. With `robust` this and what follows are those of the first epoch.
        shapes: Number of batches of each bucket in an epoch, by their largest shape
            (B, T). Static batches have exactly this shape.
        padding: Share of padding in an epoch of static batches; otherwise `None`.

    Raises:
        ValueError: If the two sides differ in number of lines, there are too many bad
            lines or no good one, `boundaries` do not fit, or a file is damaged or
            changes while it is read.

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
        robust: bool = False,
        boundaries: list[int] | None = None,
        directory: str | Path | None = None,
        replayed: tuple[str | Path, str] | None = None,
        console: Any = None,
    ):
        check_number("seed", seed, int, minimum=0)
        for longest in boundaries or ():
            check_number("boundaries", longest, int, minimum=1)
        self.text = open_pairs(text)
        self.tokenizers = tokenizers
        self.config = config = DataConfig() if config is None else config
        self.seed = seed
        self.static_shapes = static_shapes or config.batch_shapes is not None
        self._num_views = NUM_VIEWS if robust else 1
        self.bad_lines = BadLines(config.bad_line_share)
        contents = tokenizers.source.content, tokenizers.target.content
        largest = max(tokenizers.vocabulary_sizes.values()) - 1
        made_of = {
            "dtype": np.min_scalar_type(largest).name,
            "text": [part.fingerprint() for part, _ in self.text.parts],
            "tokenizers": [hashlib.blake2b(c).hexdigest() for c in contents],
            "max_length": config.max_length,
            "bad_line_share": config.bad_line_share,
            "views": self._num_views,
            "replayed": replayed and replayed[1],
        }
        # A memory-mapped file outlives its name.
        given = contextlib.nullcontext(directory)
        with tempfile.TemporaryDirectory() if directory is None else given as folder:
            path = Path(folder, "pairs.ids")
            facts = self._kept(path, made_of)
            facts = facts or self._write(path, made_of, replayed, console)
            self._ids, self._ends = read_ids(path)
        bad = self.bad_lines
        bad.count, bad.too_long, bad.examples = facts["bad_lines"]
        self._epoch = functools.lru_cache(1)(self._new_epoch)

        # The pairs of an epoch before shuffling: each corpus occurs `weight` times.
        # Replayed pairs follow.
        weights = [weight for _, weight in self.text.parts]
        weights = np.repeat(weights, facts["num_pairs"])
        pairs = np.repeat(np.arange(len(weights), dtype=np.uint32), weights)
        del weights
        self._order = pairs * self._num_views  # Views follow their pair.
        stored = np.arange(len(self._ends) // 2, step=self._num_views, dtype=np.uint32)
        others = stored[sum(facts["num_pairs"]) :]
        self._others = np.random.default_rng(seed).permutation(others)
        self.num_replayed = min(round(config.replay * len(pairs)), len(others))
        self.num_pairs = len(pairs) + self.num_replayed
        lengths = np.diff(self._ends).astype(np.int32).reshape(-1, 2)
        longer = lengths.max(axis=1)
        first = self._shown(0)
        if boundaries is None:
            boundaries = bucket_boundaries(config.max_length)
            if config.batch_shapes is not None:
                used = longer[first]
                number = config.batch_shapes
                boundaries = few_boundaries(used, boundaries, number)
        check_boundaries(boundaries, int(longer.max()))
        self.boundaries = boundaries
        tokens = config.batch_tokens or BATCH_TOKENS
        self._sizes = [max(1, tokens // longest) for longest in boundaries]
        self._bucket_of = np.searchsorted(boundaries, longer).astype(np.int16)
        # Epochs differ in length, but all epochs have as many batches as the longest.
        self.num_batches = 0
        period = range(PERIOD if robust or self.num_replayed else 0)
        for epoch in (None, *period):
            self.num_batches = len(self._cut_batches(self._shown(epoch)))
        self.num_tokens = int(lengths[first].sum())
        shapes = list(zip(self._sizes, boundaries, strict=True))
        batches = self._cut_batches(first)
        self.shapes = dict(Counter([shapes[bucket] for bucket, _ in batches]))
        area = sum([rows * width * n for (rows, width), n in self.shapes.items()])
        self.padding = 1 - self.num_tokens / (2 * area) if self.static_shapes else None

    def __repr__(self):
        pairs = f"{self.num_pairs:,} pairs"
        batches = f"{self.num_batches:,} batches"
        return f"<Corpus: {pairs}, {batches} an epoch, {self.bad_lines}>"

    def dataset(self, first_epoch: int = 0, *, shuffle: bool = True) -> tf.data.Dataset:
        """Returns batches for `model.fit`: an iteration is an epoch.

        The epochs come in their order. One is over when its last batch has been read,
        so that looking at a few batches, as Keras does before it trains, skips none.

        Args:
            first_epoch: The epoch of the first iteration, counted from 0.
            shuffle: Shuffle each epoch anew. Otherwise all epochs are the same, as for
                validation.

        Returns:
            A `tf.data.Dataset` of `((source, target_in), target_out)`: int32, shapes
            [B, S], [B, T] and [B, T].

        Example:
            >>> model.fit(corpus.dataset(), epochs=20, shuffle=False)
            >>> rest = corpus.dataset(first_epoch=20)
            >>> model.fit(rest, initial_epoch=20, epochs=30, shuffle=False)
        """
        check_number("first_epoch", first_epoch, int, minimum=0)
        number = self.num_batches
        epoch = first_epoch

        def steps():
            return range(epoch * number, (epoch + 1) * number)

        def note(step):
            nonlocal epoch
            if (step + 1) % number == 0:
                epoch = (step + 1) // number

        return self._dataset(steps, number, shuffle, note if shuffle else None)

    def batches(self, first: int, number: int) -> tf.data.Dataset:
        """Returns some batches, the same in each iteration.

        Args:
            first: The first batch, counted from 0 through all epochs.
            number: Number of batches, which may be of several epochs.

        Returns:
            A `tf.data.Dataset`, as `dataset` returns.

        Example:
            >>> model.fit(corpus.batches(1000, 50), shuffle=False)
        """
        check_number("first", first, int, minimum=0)
        check_number("number", number, int, minimum=1)
        return self._dataset(lambda: range(first, first + number), number)

    def _dataset(self, steps, number, shuffle=True, note=None):
        """Returns the batches of the steps that a function lists.

        `note` is called with each step whose batch is read.
        """

        def rows():
            for step in steps():
                yield step, self.batch(step, shuffle)

        def noted(step, batch):
            if note is not None:
                tf.numpy_function(note, [step], [])
            return batch

        ids = tf.TensorSpec([None, None], tf.int32)
        signature = (tf.TensorSpec([], tf.int64), ((ids, ids), ids))
        data = tf.data.Dataset.from_generator(rows, output_signature=signature)
        # Without a cardinality Keras warns at the end of every epoch.
        data = data.apply(tf.data.experimental.assert_cardinality(number))
        # The end of an epoch would wait for autotuning, which sleeps up to a second.
        options = tf.data.Options()
        options.autotune.enabled = False
        # `note` comes after the prefetching: what that reads ahead does not count.
        return data.prefetch(2).with_options(options).map(noted)

    def bucket(self, step: int) -> int:
        """Returns the number of the length bucket of a step's batch."""
        epoch, place = divmod(step, self.num_batches)
        return self._epoch(epoch)[place][0]

    def batch(self, step: int, shuffle: bool = True) -> tuple:
        """Returns the batch of a step, counted from 0 through all epochs, as arrays."""
        check_number("step", step, int, minimum=0)
        epoch, place = divmod(step, self.num_batches)
        bucket, places = self._epoch(epoch if shuffle else None)[place]
        firsts = 2 * places.astype(np.int64)[:, None]
        ends = self._ends[firsts + np.arange(3)].tolist()
        pairs = [(self._ids[a:b], self._ids[b:c]) for a, b, c in ends]
        sides = list(zip(*pairs, strict=True))
        size = len(pairs)
        longest = [max(map(len, side)) for side in sides]
        buckets = np.searchsorted(self.boundaries, longest)
        widths = [self.boundaries[number] for number in buckets]
        if self.static_shapes:
            size = self._sizes[bucket]
            widths = [max(widths)] * 2
        source, target = (np.full((size, width), PAD_ID, np.int32) for width in widths)
        for side, padded in zip(sides, (source, target), strict=True):
            for row, ids in zip(padded, side, strict=False):
                row[: len(ids)] = ids
        target_in = np.roll(target, 1, axis=1)
        target_in[: len(pairs), 0] = START_ID
        target_in[target_in == END_ID] = PAD_ID
        return (source, target_in), target

    def _new_epoch(self, number):
        """Returns bucket and pairs of each batch of an epoch; `None` is unshuffled."""
        if number is None:
            return self._cut_batches(self._shown(None))
        rng = np.random.default_rng((self.seed, number))
        batches = self._cut_batches(rng.permutation(self._shown(number)))
        return [batches[place] for place in rng.permutation(len(batches))]

    def _shown(self, epoch):
        """Returns the stored pairs that an epoch shows, in the order of the text."""
        order = self._order
        if number := self.num_replayed:
            # As long as the views' period, in which the batches of epochs are counted.
            turns = np.arange(number) + number * ((epoch or 0) % PERIOD)
            others = self._others[turns % len(self._others)]
            order = np.concatenate([order, others])
        if epoch is None or self._num_views == 1:
            return order
        turns = np.arange(self.num_pairs) + self.seed + epoch
        return order + SCHEDULE[turns % PERIOD]

    def _cut_batches(self, order):
        """Returns the bucket of the longest pair and the pairs of each batch.

        Pairs that do not fill a batch join the next bucket, so only one is not full.
        Where there are fewer than `num_batches`, the first of the largest are halved.
        """
        buckets = self._bucket_of[order]
        order = order[np.argsort(buckets, kind="stable")]
        ends = np.cumsum(np.bincount(buckets))
        batches = []
        first = 0
        for size, end in zip(self._sizes, ends, strict=False):
            while first + size <= end:
                batches.append(order[first : first + size])
                first += size
        if first < len(order):
            batches.append(order[first:])
        while len(batches) < self.num_batches:
            largest = int(np.argmax([*map(len, batches)]))
            batches[largest : largest + 1] = np.array_split(batches[largest], 2)
        return [(int(self._bucket_of[places[-1]]), places) for places in batches]

    def _kept(self, path, made_of):
        """Returns the facts of a file of these ids, or `None` if there is none."""
        try:
            facts = json.loads(path.with_suffix(".json").read_bytes())
            is_kept = facts["made_of"] == made_of and facts["digest"] == digest(path)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return facts if is_kept else None

    def _write(self, path, made_of, replayed, console):
        """Tokenises pairs into a file: for each its source, end, target, end.

        With `robust` its views follow, or itself for one that is too long or has
        unknown pieces. Returns the facts that it writes beside it.
        """
        import rich.progress

        path.parent.mkdir(parents=True, exist_ok=True)
        silent = console is None or not console.is_terminal
        bar = rich.progress.Progress(console=console, transient=True, disable=silent)
        num_lines = sum(part.count() for part, _ in self.text.parts)
        task = bar.add_task("tokenising", total=num_lines)
        num_pairs = [0] * len(self.text.parts)
        carries = self.tokenizers.carry_spans
        views = self._num_views
        with bar, replacing(path) as temporary, open(temporary, "wb") as file:
            for number, (part, _) in enumerate(self.text.parts):
                pairs = part.pairs(self.bad_lines)
                while chunk := list(itertools.islice(pairs, _CHUNK)):
                    rows = [
                        row
                        for _, *pair in chunk
                        for row in itertools.islice(views_of(*pair, carries), views)
                    ]
                    sources, targets = zip(*rows, strict=True)
                    # Strings are on the CPU; the small tensors should be as well.
                    with tf.device("CPU:0"):
                        source = self.tokenizers.source.tokenize(sources)
                        target = self.tokenizers.target.tokenize(targets)
                        both = tf.stack([source, target], axis=1)
                        ends = tf.fill([len(sources), 2, 1], END_ID)
                        ids = tf.concat([both, ends], axis=2)
                        unknown = tf.reduce_any(ids == UNKNOWN_ID, axis=(1, 2))
                        lengths = ids.values.row_lengths().numpy()
                        lengths = lengths.reshape(len(chunk), views, 2)
                        fits = (1 < lengths) & (lengths <= self.config.max_length)
                        good = self._good(part, chunk, lengths[:, 0], fits[:, 0])
                        fits = fits.all(axis=2) & ~unknown.numpy().reshape(-1, views)
                        own = np.arange(fits.size).reshape(-1, views)
                        shown = np.where(fits, own, own[:, :1])[good].ravel()
                        kept = tf.gather(ids, shown).flat_values.numpy()
                    file.write(kept.astype(made_of["dtype"]).tobytes())
                    num_pairs[number] += int(good.sum())
                    bar.advance(task, len(chunk))
            if not any(num_pairs):
                raise ValueError(f"The corpus has no good pair; {self.bad_lines}.")
            if replayed is not None:
                file.writelines(self._pairs_of(*replayed, made_of["tokenizers"]))
        facts = {
            "made_of": made_of,
            "num_pairs": num_pairs,
            "bad_lines": [
                self.bad_lines.count,
                self.bad_lines.too_long,
                self.bad_lines.examples,
            ],
            "digest": digest(path),
        }
        write_json(path.with_suffix(".json"), facts)
        return facts

    def _pairs_of(self, path, expected, tokenizers):
        """Yields the ids of another corpus that are not too long, with as many views.

        A view that it lacks is the pair itself.
        """
        made_of = read_json(Path(path).with_suffix(".json"))["made_of"]
        if digest(path) != expected or made_of["tokenizers"] != tokenizers:
            raise ValueError(
                f"{path} is not what the training began with, or has another "
                "vocabulary. Choose another directory, or `replay` 0."
            )
        ids, ends = read_ids(path)
        lengths = np.diff(ends).reshape(-1, 2 * made_of["views"])
        fits = np.flatnonzero(lengths.max(axis=1) <= self.config.max_length)
        views = np.arange(self._num_views) % made_of["views"]
        rows = 2 * (fits[:, None] * made_of["views"] + views).ravel()
        for begin, end in zip(ends[rows], ends[rows + 2], strict=True):
            yield ids[begin:end]

    def _good(self, part, pairs, lengths, fits):
        """Returns whether both sides of each pair have a good length."""
        good = fits.all(axis=1)
        for place in np.flatnonzero(~good):
            side = int(fits[place, 0])
            length = lengths[place, side]
            reason = "no visible character"
            if length > 1:
                most = self.config.max_length
                reason = f"{length} tokens with the end token; `max_length` is {most}"
            self.bad_lines.add(
                part.place(pairs[place].line, SIDES[side]),
                f"{SIDES[side]} has {reason}",
                is_mistake=length == 1,
            )
        return good


def read_ids(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of a corpus in one array, and where its sentences end.

    The ends begin with a 0: pair p has the sentences between ends 2 p, 2 p + 1 and
    2 p + 2, each with its end token.
    """
    try:
        facts = json.loads(Path(path).with_suffix(".json").read_bytes())
        ids = np.asarray(np.memmap(path, facts["made_of"]["dtype"], "r"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is missing or damaged; `train` writes it.") from error
    ends = [np.zeros(1, np.int64)]
    for first in range(0, len(ids), _BLOCK):
        block = ids[first : first + _BLOCK]
        ends.append(first + np.flatnonzero(block == END_ID) + 1)
    return ids, np.concatenate(ends)
