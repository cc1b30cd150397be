"""`text.sentences` with TensorFlow's operations, for texts [B] at once."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_transformer.text.sentences import CUT, END, KEPT, MARKS


def sentences_of(
    texts: tf.Tensor,
    rules: dict[str, Any],
    is_too_long: Callable[[tf.Tensor], tf.Tensor],
) -> tf.RaggedTensor:
    """Returns of each text [B] a sentence, what follows it, the next sentence, ...

    What `is_too_long` says of sentences [N] is cut in halves until it no longer is, or
    is a single character.
    """
    marked = tf.strings.regex_replace(texts, MARKS, "") + END
    for rule in rules["sentences"]:
        marked = tf.strings.regex_replace(marked, *rule)

    def can_be_cut(marked):
        sentences = tf.strings.split(marked, CUT)[:, ::2].flat_values
        is_longer = tf.strings.length(sentences, "UTF8_CHAR") > 1
        return is_longer & is_too_long(sentences)

    def cut(marked):
        parts = tf.strings.split(marked, CUT)
        sentences = parts[:, ::2].flat_values
        sizes = tf.strings.length(sentences, "UTF8_CHAR")
        sizes = tf.where(can_be_cut(marked), sizes, 0)
        # Those of similar length need little padding; the others wait.
        places = tf.where(2 * sizes > tf.reduce_max(sizes))
        halves = marked_halves(tf.gather_nd(sentences, places), rules)
        sentences = tf.tensor_scatter_nd_update(sentences, places, halves)
        both = tf.stack([sentences, parts[:, 1::2].flat_values], axis=1) + CUT
        both = parts.with_flat_values(tf.reshape(both, [-1]))
        # No `separator`: TensorFlow has none after empty strings at the beginning.
        marked = tf.strings.reduce_join(both, axis=1)
        return (tf.strings.regex_replace(marked, f"{CUT}$", ""),)

    (marked,) = tf.while_loop(
        lambda marked: tf.reduce_any(can_be_cut(marked)),
        cut,
        [marked],
        shape_invariants=[tf.TensorShape([None])],
    )
    return tf.strings.split(marked, CUT)


def marked_halves(sentences: tf.Tensor, rules: dict[str, Any]) -> tf.Tensor:
    """Returns sentences [M] of two characters or more, with `CUT` at two places.

    The places are those of `SentenceSplitter.halves`.
    """
    characters = tf.strings.unicode_split(sentences, "UTF-8")
    sizes = tf.cast(characters.row_lengths(), tf.int32)[:, None]
    characters = characters.to_tensor("")  # (M, C)
    before, after = characters[:, :-1], characters[:, 1:]
    place = tf.range(1, tf.shape(characters)[1])  # (C - 1,)
    is_space = after == " "
    is_clause = _is_one_of(before, rules["clause_marks"]) & is_space
    is_wide = _is_one_of(before, rules["wide_clause_marks"])
    is_middle = (sizes <= 4 * place) & (4 * place <= 3 * sizes)
    rank = tf.cast(is_space, tf.int32)
    rank += tf.cast(is_middle & is_clause, tf.int32)
    rank += 2 * tf.cast(is_middle & is_wide, tf.int32)
    value = 2 * sizes * rank - tf.abs(2 * place - sizes)
    value = tf.where(place < sizes, value, value.dtype.min)
    best = tf.gather(place, tf.argmax(value, axis=1))
    first = tf.strings.substr(sentences, tf.zeros_like(best), best, "UTF8_CHAR")
    rest = tf.strings.substr(sentences, best, sizes[:, 0] - best, "UTF8_CHAR")
    return tf.strings.regex_replace(first + KEPT + rest, *rules["halves"])


def _is_one_of(characters, marks):
    return tf.reduce_any(characters[..., None] == tf.constant(list(marks)), axis=-1)
