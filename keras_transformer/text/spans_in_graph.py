"""`text.spans` with TensorFlow's operations, for texts [B] at once.

Spans are ragged strings [B, None], in the order of their places.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.text.spans import CLOSE, GLUE, GONE, OPEN, PIECES, PLACE

Rules = dict[str, Any]


def hidden_spans(texts: tf.Tensor, rules: Rules) -> tuple[tf.Tensor, tf.RaggedTensor]:
    """Returns texts without their spans, and the spans."""
    # Patterns only match UTF-8, and spans and sentences are shown to people.
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    marked = replaced(texts, rules["mark"])
    spans = tf.strings.split(marked, OPEN)[:, 1:]
    inside = tf.strings.regex_replace(spans.flat_values, f"(?s){CLOSE}.*", "")
    return replaced(marked, rules["hide"]), spans.with_flat_values(inside)


def sources_of(hidden: tf.Tensor, spans: tf.RaggedTensor, rules: Rules) -> tf.Tensor:
    """Returns hidden texts as they were written."""
    own = replaced(spans.flat_values, rules["source"])
    return tf.strings.regex_replace(_filled(hidden, own), GLUE, "")


def seen_texts(hidden: tf.Tensor, spans: tf.RaggedTensor, rules: Rules) -> tf.Tensor:
    """Returns what the model sees: pieces, and from the ninth span on its source."""
    numbers = _numbers(spans)
    return _seen(hidden, spans, numbers, numbers < len(PIECES), rules)


def seen_targets(
    hidden: tf.Tensor, spans: tf.RaggedTensor, sources: tf.RaggedTensor, rules: Rules
) -> tf.Tensor:
    """Returns what the model sees of targets, whose sources have the spans `sources`.

    A span has the piece of the equal one in the source, if there is one.
    """
    ours, theirs = (
        _without_glue(some, rules).to_tensor("") for some in (spans, sources)
    )
    is_equal = ours[:, :, None] == theirs[:, None, :]  # (B, T, S)
    is_same = _repeats(ours)[:, :, None] == _repeats(theirs)[:, None, :]
    # A last column, for the span that no source has.
    found = tf.pad(is_equal & is_same, [[0, 0], [0, 0], [0, 1]], constant_values=True)
    numbers = tf.argmax(tf.cast(found, tf.int8), axis=2)
    is_known = (numbers < len(PIECES)) & (numbers < tf.shape(theirs, tf.int64)[1])
    places = tf.stack([spans.value_rowids(), _numbers(spans)], axis=1)
    numbers, is_known = (tf.gather_nd(x, places) for x in (numbers, is_known))
    return _seen(hidden, spans, numbers, is_known, rules)


def restored_texts(
    texts: tf.Tensor, spans: tf.RaggedTensor, rules: Rules
) -> tuple[tf.Tensor, tf.RaggedTensor]:
    """Returns translations with their spans, and the sources of those they lost.

    A piece that comes twice, or is none of the spans, vanishes.
    """
    marked = tf.strings.regex_replace(texts, f"[{''.join(PIECES)}]", f"{OPEN}\\0{OPEN}")
    parts = tf.strings.split(marked, OPEN)
    flat, rows = parts.flat_values, parts.value_rowids()
    is_this = flat[:, None] == tf.constant(PIECES)  # (P, 8)
    is_piece = tf.reduce_any(is_this, axis=1)
    number = tf.argmax(tf.cast(is_this, tf.int8), axis=1)
    place = tf.range(tf.size(flat, tf.int64))
    count = len(PIECES)
    # The place of the first of each piece in each row.
    first = tf.math.unsorted_segment_min(
        tf.where(is_piece, place, place.dtype.max),
        rows * count + number,
        spans.nrows() * count,
    )
    is_first = tf.gather(first, rows * count + number) == place
    is_span = is_piece & is_first & (number < tf.gather(spans.row_lengths(), rows))
    shown = replaced(spans.flat_values, rules["shown"])
    index = tf.gather(spans.row_starts(), rows) + number
    index = tf.where(is_span, index, tf.size(shown, tf.int64))
    values = tf.gather(tf.concat([shown, [GONE]], axis=0), index)
    whole = parts.with_flat_values(tf.where(is_piece, values, flat))
    texts = replaced(tf.strings.reduce_join(whole, axis=1), rules["restore"])

    numbers = _numbers(spans)
    key = spans.value_rowids() * count + tf.minimum(numbers, count - 1)
    came = (numbers < count) & (tf.gather(first, key) < place.dtype.max)
    lost = tf.ragged.boolean_mask(
        _without_glue(spans, rules), spans.with_flat_values(~came)
    )
    return texts, lost


def shown_tokens(tokens: tf.Tensor, spans: tf.RaggedTensor, rules: Rules) -> tf.Tensor:
    """Returns tokens [B, T] with the sources of spans in place of their pieces."""
    count = len(PIECES)
    is_this = tokens[..., None] == tf.constant(PIECES)  # (B, T, 8)
    sources = _without_glue(spans, rules).to_tensor("", shape=[None, count])
    number = tf.argmax(tf.cast(is_this, tf.int8), axis=2)
    return tf.where(
        tf.reduce_any(is_this, axis=2), tf.gather(sources, number, batch_dims=1), tokens
    )


def replaced(texts: tf.Tensor, steps: Any) -> tf.Tensor:
    """Returns texts after some steps of rules."""
    for pattern, replacement in steps:
        texts = tf.strings.regex_replace(texts, pattern, replacement)
    return texts


def _seen(hidden, spans, numbers, is_piece, rules):
    """Returns hidden texts with the piece of a number, or the source, in each place."""
    pieces = tf.gather(PIECES, tf.minimum(numbers, len(PIECES) - 1))
    own = replaced(spans.flat_values, rules["source"])
    return replaced(_filled(hidden, tf.where(is_piece, pieces, own)), rules["see"])


def _filled(hidden, values):
    """Returns hidden texts with the next of the values [P] in each place."""
    parts = tf.strings.split(hidden, PLACE)
    rows = parts.value_rowids()
    place = tf.range(tf.size(rows, tf.int64))
    # What follows the last place of a text has nothing after it.
    is_last = tf.gather(parts.row_limits(), rows) == place + 1
    index = tf.where(is_last, tf.size(values, tf.int64), place - rows)
    after = tf.gather(tf.concat([values, [""]], axis=0), index)
    return tf.strings.reduce_join(
        parts.with_flat_values(parts.flat_values + after), axis=1
    )


def _numbers(spans):
    """Returns the number of each span in its row, flat."""
    rows = spans.value_rowids()
    return tf.range(tf.size(rows, tf.int64)) - tf.gather(spans.row_starts(), rows)


def _without_glue(spans, rules):
    own = replaced(spans.flat_values, rules["source"])
    return spans.with_flat_values(tf.strings.regex_replace(own, GLUE, ""))


def _repeats(texts):
    """Returns how many equal texts come before each in its row [B, T]."""
    place = tf.range(tf.shape(texts)[1])
    is_same = (texts[:, :, None] == texts[:, None]) & (place < place[:, None])
    return tf.math.count_nonzero(is_same, axis=2)
