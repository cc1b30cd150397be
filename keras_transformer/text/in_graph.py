"""`text.sentences`, `text.spans` and `text.doubts` with TensorFlow's operations.

They take texts [B] at once. The spans of a text are ragged strings [B, None], in the
order of their places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.text.doubts import DOUBTS, LONGEST_LOOP, NO_TEXT, WIDE
from keras_transformer.text.sentences import CUT, END, GLUE, KEPT, PLACE
from keras_transformer.text.spans import CLOSE, GONE, OPEN, PIECES

Rules = dict[str, Any]


def replaced(texts: tf.Tensor, steps: Any) -> tf.Tensor:
    """Returns texts after some steps of rules."""
    for pattern, replacement in steps:
        texts = tf.strings.regex_replace(texts, pattern, replacement)
    return texts


def hidden_spans(texts: tf.Tensor, rules: Rules) -> tuple[tf.Tensor, tf.RaggedTensor]:
    """Returns texts without their spans, and the spans."""
    # Patterns only match UTF-8, and spans and sentences are shown to people.
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    marked = replaced(texts, rules["mark"])
    spans = tf.strings.split(marked, OPEN)[:, 1:]
    inside = tf.strings.regex_replace(spans.flat_values, f"(?s){CLOSE}.*", "")
    return replaced(marked, rules["hide"]), spans.with_flat_values(inside)


def sources_of(spans: tf.RaggedTensor, rules: Rules) -> tf.Tensor:
    """Returns spans as they were written: [B, 8 or more], padded with ""."""
    return _padded(spans, [*rules["source"], (GLUE, "")], "")


def marked_texts(hidden: tf.Tensor, spans: tf.RaggedTensor) -> tf.Tensor:
    """Returns texts in which `hidden_spans` finds the same spans."""
    marked = spans.with_flat_values(OPEN + spans.flat_values + CLOSE)
    return tf.strings.regex_replace(_filled(hidden, marked), GLUE, "")


def seen_texts(
    hidden: tf.Tensor, spans: tf.RaggedTensor, carried: tf.Tensor, rules: Rules
) -> tf.Tensor:
    """Returns what the model sees.

    That is pieces for the spans that are among the first eight of `carried`, of
    `sources_of`, and what was written for the others.
    """
    left = sources_of(spans, rules)
    values = _padded(spans, rules["source"], "")
    for number, piece in enumerate(PIECES):
        is_equal = left == carried[:, number, None]
        is_first = is_equal & (tf.cumsum(tf.cast(is_equal, tf.int32), axis=1) == 1)
        left = tf.where(is_first, piece, left)
        values = tf.where(is_first, piece, values)
    values = tf.RaggedTensor.from_tensor(values, lengths=spans.row_lengths())
    return replaced(_filled(hidden, values), rules["see"])


def restored_texts(
    texts: tf.Tensor, spans: tf.RaggedTensor, rules: Rules
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns translations with their spans, and the sources [B, L] of those they lost.

    A piece that comes twice, or is none of the spans, vanishes. The sources have ""
    between them.
    """
    shown = _padded(spans, rules["shown"], GONE)
    sources = sources_of(spans, rules)
    lost = []
    for number, piece in enumerate(PIECES):
        parts = tf.strings.split(texts, piece, maxsplit=1)
        is_there = parts.row_lengths() > 1
        before, after = tf.unstack(parts.to_tensor(shape=[None, 2]), axis=1)
        texts = before + tf.where(is_there, shown[:, number], "") + after
        lost.append(tf.where(is_there, "", sources[:, number]))
    lost = tf.concat([tf.stack(lost, axis=1), sources[:, len(PIECES) :]], axis=1)
    texts = tf.strings.regex_replace(texts, f"[{''.join(PIECES)}]", GONE)
    return replaced(texts, rules["restore"]), lost


def shown_tokens(tokens: tf.Tensor, spans: tf.RaggedTensor, rules: Rules) -> tf.Tensor:
    """Returns tokens [B, T] with the sources of spans in place of their pieces."""
    sources = sources_of(spans, rules)
    for number, piece in enumerate(PIECES):
        tokens = tf.where(tokens == piece, sources[:, number, None], tokens)
    return tokens


def count_places(hidden: tf.Tensor) -> tf.Tensor:
    """Returns the number of spans that were taken out of each text [B]."""
    return tf.strings.split(hidden, PLACE).row_lengths() - 1


def _filled(hidden, values):
    """Returns hidden texts with a value in each place."""
    parts = tf.strings.split(hidden, PLACE)
    # What follows the last place of a text has nothing after it.
    after = tf.concat([values, tf.fill([values.nrows(), 1], "")], axis=1)
    whole = parts.with_flat_values(parts.flat_values + after.flat_values)
    return tf.strings.reduce_join(whole, axis=1)


def _padded(spans, steps, value):
    """Returns spans after some steps as a tensor, of a column a piece or more."""
    spans = spans.with_flat_values(replaced(spans.flat_values, steps))
    more = tf.fill([spans.nrows(), len(PIECES)], value)
    return tf.concat([spans.to_tensor(value), more], axis=1)


def cut_texts(
    texts: tf.Tensor, rules: Rules, is_too_long: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Returns texts with `CUT` before and after what follows each sentence but at ends.

    What `is_too_long` says of sentences [N] is cut in halves until it no longer is, or
    is a single character.
    """
    marked = replaced(texts + END, rules["sentences"])

    def can_be_cut(marked):
        sentences = tf.strings.split(marked, CUT).flat_values[::2]
        is_longer = tf.strings.length(sentences, "UTF8_CHAR") > 1
        return is_longer & is_too_long(sentences)

    def cut(marked):
        parts = tf.strings.split(marked, CUT)
        # Sentences and what follows them.
        pairs = tf.reshape(parts.flat_values, [-1, 2])
        sizes = tf.strings.length(pairs[:, 0], "UTF8_CHAR")
        sizes = tf.where(can_be_cut(marked), sizes, 0)
        # Those of similar length need little padding; the others wait.
        places = tf.where(2 * sizes > tf.reduce_max(sizes))
        halves = _halves(tf.gather_nd(pairs[:, 0], places), rules)
        sentences = tf.tensor_scatter_nd_update(pairs[:, 0], places, halves)
        pairs = CUT + tf.stack([sentences, pairs[:, 1]], axis=1)
        whole = parts.with_flat_values(tf.reshape(pairs, [-1]))
        # No `separator`: TensorFlow has none after empty strings at the beginning.
        marked = tf.strings.reduce_join(whole, axis=1)
        return (tf.strings.regex_replace(marked, f"^{CUT}", ""),)

    (marked,) = tf.while_loop(
        lambda marked: tf.reduce_any(can_be_cut(marked)),
        cut,
        [marked],
        shape_invariants=[tf.TensorShape([None])],
    )
    return marked


def _halves(sentences, rules):
    """Returns sentences [M] of two characters or more, with `CUT` at two places.

    The places are those of `SentenceSplitter.halves`.
    """
    characters = tf.strings.unicode_split(sentences, "UTF-8")
    sizes = tf.cast(characters.row_lengths(), tf.int32)[:, None]
    characters = characters.to_tensor("")  # (M, C)
    after = characters[:, 1:]
    is_clause = tf.strings.regex_full_match(characters[:, :-1] + after, rules["clause"])
    place = tf.range(1, tf.shape(characters)[1])  # (C - 1,)
    is_middle = (sizes <= 4 * place) & (4 * place <= 3 * sizes)
    rank = tf.where(is_middle & is_clause, 2, tf.cast(after == " ", tf.int32))
    value = 2 * sizes * rank - tf.abs(2 * place - sizes)
    value = tf.where(place < sizes, value, value.dtype.min)
    best = tf.gather(place, tf.argmax(value, axis=1))
    first = tf.strings.substr(sentences, tf.zeros_like(best), best, "UTF8_CHAR")
    rest = tf.strings.substr(sentences, best, sizes[:, 0] - best, "UTF8_CHAR")
    return tf.strings.regex_replace(first + KEPT + rest, *rules["halves"])


def doubt_at(scores: tf.Tensor, steps: list | None) -> tf.Tensor:
    """Returns the share of wrong translations at scores [N]; 0 where nobody knows."""
    if steps is None:
        return tf.zeros_like(scores)
    lowest, shares = tf.unstack(tf.constant(steps, tf.float32), axis=1)
    places = tf.reduce_sum(tf.cast(scores[:, None] >= lowest[1:], tf.int32), axis=1)
    return tf.gather(shares, places)


def are_foreign(texts: tf.Tensor, ids: tf.Tensor, letters: np.ndarray) -> tf.Tensor:
    """Returns which texts [B] have letters, but no piece [B, S] that has one.

    `letters` says of each piece of the vocabulary whether it does.
    """
    is_known = tf.reduce_any(tf.gather(letters, ids), axis=1)
    texts = tf.strings.regex_replace(texts, NO_TEXT, "")
    return tf.strings.regex_full_match(texts, r"(?s).*\pL.*") & ~is_known


def doubts_of(
    sources: tf.Tensor,
    translations: tf.Tensor,
    are_unlikely: tf.Tensor,
    are_unreadable: tf.Tensor,
) -> tf.Tensor:
    """Returns which of `DOUBTS` translations [N] deserve, with a space between."""
    of_sources, words = _words(sources), _words(translations)
    lower = [tf.strings.lower(x, encoding="utf-8") for x in (sources, translations)]
    found = (
        (of_sources.row_lengths() > 2) & tf.equal(*lower),
        (of_sources.row_lengths() > 0) & (words.row_lengths() == 0),
        _loop(words) & ~_loop(of_sources),
        are_unlikely,
        are_unreadable,
    )
    return _named(found)


def with_limit(
    outputs: dict[str, tf.Tensor], limit: float | None
) -> dict[str, tf.Tensor]:
    """Returns a signature's outputs with "score" where `doubt` is above a limit."""
    if limit is None or "doubt" not in outputs:
        return outputs
    others = tf.strings.regex_replace(outputs["doubts"], "score", "")
    doubts = tf.where(outputs["doubt"] > limit, others + " score", others)
    return outputs | {"doubts": united_doubts(doubts)}


def united_doubts(doubts: tf.Tensor) -> tf.Tensor:
    """Returns doubts that may stand several times, each of them once."""
    return _named(
        [tf.strings.regex_full_match(doubts, f".*{name}.*") for name in DOUBTS]
    )


def _named(found):
    """Returns the names of those of `DOUBTS` that were found."""
    words = [
        tf.where(is_found, f"{name} ", "")
        for name, is_found in zip(DOUBTS, found, strict=True)
    ]
    return tf.strings.strip(tf.strings.join(words))


def _words(texts):
    return tf.strings.split(tf.strings.regex_replace(texts, WIDE, r" \1 "))


def _loop(words):
    """Returns whether words (N, L), ragged, loop: (N,)."""
    ids = tf.strings.to_hash_bucket_fast(words.flat_values, 1 << 60)
    ids = tf.transpose(words.with_flat_values(ids).to_tensor(-1))
    # Before the first word stands one that equals none.
    ids = tf.pad(ids, [[1, 0], [0, 0]], constant_values=-1)  # (1 + L, N)
    place = tf.range(tf.shape(ids)[0])
    size = tf.range(1, LONGEST_LOOP + 1)[:, None]
    before = tf.gather(ids, tf.maximum(place - size, 0))  # (16, 1 + L, N)
    counts = tf.cumsum(tf.cast((ids == before) & (ids >= 0), tf.int32), axis=1)
    start = tf.maximum(place - 2 * size, 0)
    equal = counts - tf.gather(counts, start, axis=1, batch_dims=1)
    return tf.reduce_any(equal >= 2 * size[:, :, None], axis=[0, 1])
