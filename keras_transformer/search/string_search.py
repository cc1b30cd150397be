"""Strings to strings: a `Generator` between two tokenizers. Needs TensorFlow.

What the model sees of a text has pieces for its spans; sentences of all texts are
translated together.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.search.generator import Generator
from keras_transformer.text.doubts import DOUBTS
from keras_transformer.text.doubts_in_graph import doubts_of
from keras_transformer.text.sentences import GLUE, PLACE, sentence_rules
from keras_transformer.text.sentences_in_graph import sentences_of
from keras_transformer.text.spans import PIECES, span_rules
from keras_transformer.text.spans_in_graph import (
    hidden_spans,
    replaced,
    restored_texts,
    seen_targets,
    seen_texts,
    sources_of,
)
from keras_transformer.text.tokenizer_pair import TokenizerPair

# Sentences of texts that are translated together.
BATCH_SIZE = 32


class _Tokens(NamedTuple):
    """Texts as ids: B texts of at most S tokens."""

    ids: Any  # (B, S) int32, the end token, then padding
    lengths: Any  # (B,) int32, tokens, the end token counted
    truncated: Any  # (B,) bool, whether a text was cut
    spans: Any = None  # (B, None) strings, unless they are put back later


class _Sentences(NamedTuple):
    """Sentences of texts: N of B texts."""

    hidden: Any  # (B, None) strings, without their spans
    between: Any  # (N,) strings, what follows each
    spans: Any  # (N, None) strings
    seen: Any  # (N,) strings, what the model sees


class StringSearch:
    """A `Generator` between two tokenizers: what the signatures share."""

    def __init__(self, generator: Generator, tokenizers: TokenizerPair):
        self.generator = generator
        self.tokenizers = tokenizers
        self.rules = span_rules(tokenizers.carry_spans)
        self._is_graph = keras.backend.backend() == "tensorflow"
        if not self._is_graph:
            # What is done to text has graphs of its own, which are faster.
            graph = functools.partial(
                tf.function, autograph=False, reduce_retracing=True
            )
            self.source_ids = graph(self.source_ids)
            self.target_ids = graph(self.target_ids)
            self.outputs = graph(self.outputs)
            self.texts_of = graph(self.texts_of)
            self.sentences = graph(self.sentences)
            self.joined = graph(self.joined)

    def source_ids(self, texts):
        """Returns sources [B] as ids, cut to the longest, and their spans."""
        hidden, spans = hidden_spans(texts, self.rules)
        seen = seen_texts(hidden, spans, self.rules)
        return self.seen_ids(seen)._replace(spans=spans)

    def seen_ids(self, seen):
        """Returns sources [B], as the model sees them, as ids, cut to the longest."""
        longest = self.generator.config.max_source_length
        return _ids_of(self.tokenizers.source, seen, longest)

    def target_ids(self, texts, spans):
        """Returns targets [B] as ids, cut to the longest; `spans` are the sources'."""
        seen = self.seen_targets(texts, spans)
        return _ids_of(self.tokenizers.target, seen, self.generator.longest)

    def seen_targets(self, texts, spans):
        """Returns targets [B] as the model sees them beside sources with `spans`."""
        return seen_targets(*hidden_spans(texts, self.rules), spans, self.rules)

    def sentences(self, texts):
        """Returns the `_Sentences` of texts [B]."""
        texts, spans = hidden_spans(texts, self.rules)

        def is_too_long(hidden):
            seen = self.seen_ids(replaced(hidden, self.rules["see"]))
            return seen.truncated | (_count_places(hidden) > len(PIECES))

        rules = sentence_rules(self.tokenizers.abbreviations)
        parts = sentences_of(texts, rules, is_too_long)
        hidden = parts[:, ::2]
        between = tf.strings.regex_replace(parts[:, 1::2].flat_values, GLUE, "")
        spans = tf.RaggedTensor.from_row_lengths(
            spans.flat_values, _count_places(hidden.flat_values)
        )
        seen = seen_texts(hidden.flat_values, spans, self.rules)
        return _Sentences(hidden, between, spans, seen)

    def translations(self, sentences):
        """Returns of each sentence [N], as the model sees it, what `taken` does."""
        order = tf.argsort(tf.strings.length(sentences), stable=True)
        ordered = tf.gather(sentences, order)

        def add(start, known):
            batch = ordered[start : start + BATCH_SIZE]
            found = self.taken(batch)
            joined = {
                name: tf.concat([values, found[name]], axis=0)
                for name, values in known.items()
            }
            return start + BATCH_SIZE, joined

        nothing = {
            "translation": tf.constant([], tf.string),
            "score": tf.constant([], tf.float32),
            "truncated": tf.constant([], tf.bool),
            "doubts": tf.zeros([0, len(DOUBTS)], tf.bool),
        }
        any_size = {n: tf.TensorShape([None, *x.shape[1:]]) for n, x in nothing.items()}
        _, found = tf.while_loop(
            lambda start, _: start < tf.size(sentences),
            add,
            [0, nothing],
            shape_invariants=[tf.TensorShape([]), any_size],
        )
        places = tf.argsort(order)
        return {name: tf.gather(values, places) for name, values in found.items()}

    def found(self, source, n_best=None):
        """Returns the outputs of `nbest` for the ids of sources."""
        generator = self.generator
        result = self.called(
            generator.search,
            source.ids,
            source.lengths,
            n_best=n_best or generator.config.num_best,
        )
        outputs = self.outputs(source, result)
        texts = outputs["translations"]  # (B, N)
        count = tf.shape(texts)[1]
        place = tf.range(count)
        is_better = place < place[:, None]
        is_known = tf.reduce_any(
            (texts[:, :, None] == texts[:, None]) & is_better, axis=2
        )
        order = tf.argsort(tf.cast(is_known, tf.int32), axis=1, stable=True)
        once = {
            "translations": tf.where(is_known, "", texts),
            "scores": tf.where(is_known, -math.inf, outputs["scores"]),
        }
        return outputs | {
            name: tf.gather(values, order, batch_dims=1)
            for name, values in (outputs | once).items()
            if name != "truncated"
        }

    def taken(self, sentences):
        """Returns what is taken of the hypotheses for sentences [N], and its `doubts`.

        It is the best that is not empty, does not loop and has lost no span; if none is
        so, the best of those with the least faults.
        """
        found = self.found(self.seen_ids(sentences))
        texts = found["translations"]  # (N, n_best)
        count = tf.shape(texts)[1]
        doubts = doubts_of(
            tf.repeat(sentences, count),
            tf.reshape(texts, [-1]),
            tf.reshape(found["scores"], [-1]),
            self.generator.config.doubt_below,
        )
        doubts = tf.reshape(doubts, [-1, count, len(DOUBTS)])
        is_bad = doubts[..., DOUBTS.index("empty")] | doubts[..., DOUBTS.index("loop")]
        # The first with the least; a place without a hypothesis is empty.
        faults = 2 * tf.cast(is_bad, tf.int32) + tf.cast(found["is_lossy"], tf.int32)
        place = tf.argmin(faults, axis=1)
        return {
            "translation": tf.gather(texts, place, batch_dims=1),
            "score": tf.gather(found["scores"], place, batch_dims=1),
            "truncated": found["truncated"],
            "doubts": tf.gather(doubts, place, batch_dims=1),
        }

    def joined(self, sentences, found):
        """Returns the outputs of `translate` from those of `translations`."""
        hidden, between, spans, _ = sentences
        texts, lost = restored_texts(found["translation"], spans, self.rules)
        sources = sources_of(hidden.flat_values, spans, self.rules)
        scores = hidden.with_flat_values(found["score"])
        truncated = hidden.with_flat_values(found["truncated"])
        whole = hidden.with_flat_values(texts + between)
        lost = tf.RaggedTensor.from_row_splits(
            lost.flat_values, tf.gather(lost.row_splits, hidden.row_splits)
        )
        doubts = tf.reduce_any(
            hidden.with_flat_values(found["doubts"]), axis=1
        )  # (B, 4)
        named = tf.broadcast_to(tf.constant(DOUBTS), tf.shape(doubts))
        named = tf.ragged.boolean_mask(named, doubts)
        outputs = {
            "translation": tf.strings.reduce_join(whole, axis=1),
            "doubts": tf.strings.reduce_join(named, axis=1, separator=" "),
            "score": tf.reduce_min(scores, axis=1),
            "truncated": tf.reduce_any(truncated, axis=1),
            "sources": hidden.with_flat_values(sources).to_tensor(),
            "translations": hidden.with_flat_values(texts).to_tensor(),
            "scores": scores.to_tensor(),
        }
        return self.with_lost(outputs, lost.to_tensor())

    def outputs(self, source, result):
        """Returns the outputs of `nbest` from a `DecodingResult`."""
        ids = result.ids  # (B, n_best, T)
        batch, count, length = tf.unstack(tf.shape(ids))
        count = ids.shape[1] or count
        spans = source.spans
        if spans is not None:
            spans = tf.gather(spans, tf.repeat(tf.range(batch), count))
        texts, lost = self.texts_of(tf.reshape(ids, (-1, length)), spans)
        # An empty text, only an end token, has an empty translation.
        empty = (source.lengths <= 1)[:, None]
        outputs = {
            "translations": tf.where(empty, "", tf.reshape(texts, (-1, count))),
            "scores": tf.where(empty, 0.0, result.scores),
            "truncated": source.truncated,
        }
        if spans is None:
            given = tf.constant(self.tokenizers.source.spans, tf.int32)
            carried = tf.constant(self.tokenizers.target.spans, tf.int32)
            had = tf.reduce_any(source.ids[:, :, None] == given, axis=1)
            has = tf.reduce_any(ids[..., None] == carried, axis=2)
            is_lossy = tf.reduce_any(had[:, None] & ~has, axis=2)  # (B, n_best)
            return outputs | {"is_lossy": is_lossy}
        lost = lost.to_tensor()
        return self.with_lost(
            outputs, tf.reshape(lost, (batch, count, tf.shape(lost)[1]))
        )

    def texts_of(self, ids, spans):
        """Returns ids [B, T] as texts, with their spans, and those that are lost."""
        texts = self.tokenizers.target.detokenize(ids)
        return (
            (texts, None) if spans is None else restored_texts(texts, spans, self.rules)
        )

    def with_lost(self, outputs, lost):
        """Adds the lost spans, unless the vocabulary has no pieces for spans."""
        return outputs | {"lost": lost} if self.tokenizers.carry_spans else outputs

    def called(self, function, *inputs, **options):
        """Calls a method of the generator with TensorFlow's tensors."""
        if self._is_graph:
            return function(*inputs, **options)
        outputs = function(*[x.numpy() for x in inputs], **options)
        return keras.tree.map_structure(
            lambda x: tf.constant(ops.convert_to_numpy(x)), outputs
        )


def cut(tokenizer, texts, most):
    """Returns at most so many ids of strings [B], ragged, and which were cut [B]."""
    ids = tokenizer.tokenize(texts)
    return ids[:, :most], ids.row_lengths() > most


def _ids_of(tokenizer, texts, longest):
    """Returns strings [B] as ids of at most `longest` tokens."""
    pieces, truncated = cut(tokenizer, texts, longest - 1)
    ends = tf.fill([tf.shape(texts)[0], 1], tokenizer.end_id)
    ids = tf.concat([pieces, ends], axis=1)
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    return _Tokens(ids.to_tensor(tokenizer.pad_id), lengths, truncated)


def _count_places(hidden):
    """Returns the number of spans that were taken out of each text [B]."""
    return tf.strings.split(hidden, PLACE).row_lengths() - 1
