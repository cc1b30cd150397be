"""Strings to strings: a `Generator` between two tokenizers. Needs TensorFlow.

What the model sees of a text has pieces for its spans; sentences of all texts are
translated together.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.search.generator import Generator
from keras_transformer.text.doubts import has_letters
from keras_transformer.text.in_graph import (
    are_foreign,
    count_places,
    cut_texts,
    doubt_at,
    doubts_of,
    hidden_spans,
    marked_texts,
    replaced,
    restored_texts,
    seen_texts,
    sources_of,
    united_doubts,
)
from keras_transformer.text.sentences import CUT, sentence_rules
from keras_transformer.text.spans import PIECES, span_rules
from keras_transformer.text.tokenizer_pair import TokenizerPair

# Sentences of texts that are translated together.
BATCH_SIZE = 32


class _Tokens(NamedTuple):
    """Texts as ids: B texts of at most S tokens."""

    seen: Any  # (B,) strings, what the model sees
    spans: Any  # (B, None) strings, those of the sources
    ids: Any  # (B, S) int32, the end token, then padding
    lengths: Any  # (B,) int32, tokens, the end token counted
    truncated: Any  # (B,) bool, whether a text was cut


class StringSearch:
    """A `Generator` between two tokenizers: what the signatures share."""

    def __init__(self, generator: Generator, tokenizers: TokenizerPair):
        self.generator = generator
        self.tokenizers = tokenizers
        self.carries_spans = tokenizers.carry_spans
        self.num_best = generator.config.num_best
        self.rules = span_rules(self.carries_spans)
        self.sentence_rules = sentence_rules(tokenizers.abbreviations)
        pieces = tokenizers.source.pieces(range(tokenizers.source.vocabulary_size))
        self._letters = np.array(list(map(has_letters, pieces)))
        self._is_graph = keras.backend.backend() == "tensorflow"
        if not self._is_graph:
            # What is done to text has graphs of its own, which are faster.
            graph = functools.partial(
                tf.function, autograph=False, reduce_retracing=True
            )
            self.source_ids = graph(self.source_ids)
            self.target_ids = graph(self.target_ids)
            self.outputs = graph(self.outputs)
            self.sentences = graph(self.sentences)
            self.joined = graph(self.joined)

    def source_ids(self, texts):
        """Returns sources [B] as ids, cut to the longest."""
        hidden, spans = hidden_spans(texts, self.rules)
        seen = seen_texts(hidden, spans, sources_of(spans, self.rules), self.rules)
        longest = self.generator.config.max_source_length
        return _ids_of(self.tokenizers.source, seen, spans, longest)

    def target_ids(self, texts, source):
        """Returns targets [B] of a source's `_Tokens` as ids, cut to the longest."""
        carried = sources_of(source.spans, self.rules)
        seen = seen_texts(*hidden_spans(texts, self.rules), carried, self.rules)
        longest = self.generator.longest
        return _ids_of(self.tokenizers.target, seen, source.spans, longest)

    def sentences(self, texts):
        """Returns of each text [B] a sentence, what follows it, the next, ragged."""
        hidden, spans = hidden_spans(texts, self.rules)
        most = self.generator.config.max_source_length - 1

        def is_too_long(hidden):
            seen = replaced(hidden, self.rules["see"])
            count = self.tokenizers.source.tokenize(seen).row_lengths()
            return (count > most) | (count_places(hidden) > len(PIECES))

        hidden = cut_texts(hidden, self.sentence_rules, is_too_long)
        return tf.strings.split(marked_texts(hidden, spans), CUT)

    def translations(self, sentences):
        """Returns what `taken` does for sentences [N], in batches of like lengths."""
        order = tf.argsort(tf.strings.length(sentences), stable=True)
        batches = tf.RaggedTensor.from_row_starts(
            tf.gather(sentences, order), tf.range(0, tf.size(sentences), BATCH_SIZE)
        )
        text, number, truth = (
            tf.RaggedTensorSpec([None], dtype, ragged_rank=0, row_splits_dtype=tf.int32)
            for dtype in (tf.string, tf.float32, tf.bool)
        )
        kinds = {"translation": text, "score": number, "truncated": truth}
        kinds |= {"doubt": number, "doubts": text, "lost": text}
        found = tf.map_fn(
            # AutoGraph would rewrite all that a search calls, also on JAX and PyTorch.
            tf.autograph.experimental.do_not_convert(self.taken),
            batches,
            fn_output_signature=kinds,
            parallel_iterations=1,
        )
        places = tf.argsort(order)
        return {
            name: tf.gather(batched.flat_values, places)
            for name, batched in found.items()
        }

    def taken(self, sentences):
        """Returns what is taken of the hypotheses for sentences [N].

        It is the best that is not empty, does not loop and has lost no span; if none is
        so, the best of those with the least faults.
        """
        source = self.source_ids(sentences)
        result = self.called(
            self.generator.search, source.ids, source.lengths, n_best=self.num_best
        )
        found = self.outputs(source, result)
        is_bad = tf.strings.regex_full_match(found["doubts"], ".*(empty|loop).*")
        is_lossy = tf.reduce_any(found["lost"] != "", axis=2)
        # The first with the least; a place without a hypothesis is empty.
        faults = 2 * tf.cast(is_bad, tf.int32) + tf.cast(is_lossy, tf.int32)
        taken = one_of(found, tf.argmin(faults, axis=1))
        # The spans of a sentence as one string.
        lost = tf.strings.reduce_join(taken["lost"] + CUT, axis=1)
        return taken | {"lost": lost}

    def joined(self, parts, found):
        """Returns the outputs of `translate` from `sentences` and `translations`."""
        sentences, between = parts[:, ::2], parts[:, 1::2]
        sources = replaced(sentences.flat_values, self.rules["source"])
        rows = {
            name: sentences.with_flat_values(values)
            for name, values in (found | {"source": sources}).items()
        }
        whole = sentences.with_flat_values(found["translation"] + between.flat_values)
        lost = tf.strings.reduce_join(rows["lost"], axis=1)
        doubts = rows["doubt"].to_tensor()
        return {
            "translation": tf.strings.reduce_join(whole, axis=1),
            "doubts": united_doubts(tf.strings.reduce_join(rows["doubts"], axis=1)),
            "score": tf.reduce_min(rows["score"], axis=1),
            "doubt": tf.reduce_max(doubts, axis=1),
            "truncated": tf.reduce_any(rows["truncated"], axis=1),
            "lost": tf.strings.split(lost, CUT).to_tensor(),
            "sources": rows["source"].to_tensor(),
            "translations": rows["translation"].to_tensor(),
            "scores": rows["score"].to_tensor(),
            "sentence_doubts": doubts,
        }

    def outputs(self, source, result):
        """Returns the outputs of `nbest` from a `DecodingResult`.

        There are empty strings between the spans that are `lost`.
        """
        ids = result.ids  # (B, n_best, T)
        batch, count, length = tf.unstack(tf.shape(ids))
        count = ids.shape[1] or count
        # An empty text, only an end token, has an empty translation.
        is_empty = (source.lengths <= 1)[:, None]
        said = self.tokenizers.target.detokenize(tf.reshape(ids, (-1, length)))
        said = tf.where(is_empty, "", tf.reshape(said, (-1, count)))
        scores = tf.where(is_empty, 0.0, result.scores)
        row = tf.repeat(tf.range(batch), count)
        flat = tf.reshape(said, [-1])
        config = self.generator.config
        doubt = doubt_at(tf.reshape(scores, [-1]), config.doubt_steps)
        is_foreign = are_foreign(source.seen, source.ids, self._letters)
        doubts = doubts_of(
            tf.gather(source.seen, row),
            flat,
            doubt > config.doubt_above,
            tf.gather(is_foreign, row),
        )
        texts, lost = restored_texts(flat, tf.gather(source.spans, row), self.rules)
        return {
            "translations": tf.reshape(texts, (-1, count)),
            "scores": scores,
            "truncated": source.truncated,
            "doubt": tf.where(is_empty, 0.0, tf.reshape(doubt, (-1, count))),
            "doubts": tf.where(is_empty, "", tf.reshape(doubts, (-1, count))),
            "lost": tf.reshape(lost, (batch, count, tf.shape(lost)[1])),
        }

    def called(self, function, *inputs, **options):
        """Calls a method of the generator with TensorFlow's tensors."""
        if self._is_graph:
            return function(*inputs, **options)
        outputs = function(*[x.numpy() for x in inputs], **options)
        return keras.tree.map_structure(
            lambda x: tf.constant(ops.convert_to_numpy(x)), outputs
        )


def one_of(outputs, place):
    """Returns the outputs of the translation at a place [B], from those of `nbest`."""
    names = {"translations": "translation", "scores": "score"}
    found = ordered(outputs, place)
    return {names.get(name, name): values for name, values in found.items()}


def ordered(outputs, places):
    """Returns the outputs of the translations at some places [B, ...]."""
    return {
        name: (
            values if name == "truncated" else tf.gather(values, places, batch_dims=1)
        )
        for name, values in outputs.items()
    }


def _ids_of(tokenizer, texts, spans, longest):
    """Returns strings [B] as ids of at most `longest` tokens."""
    pieces = tokenizer.tokenize(texts)
    ends = tf.fill([tf.shape(texts)[0], 1], tokenizer.end_id)
    ids = tf.concat([pieces[:, : longest - 1], ends], axis=1)
    return _Tokens(
        seen=texts,
        spans=spans,
        ids=ids.to_tensor(tokenizer.pad_id),
        lengths=tf.cast(ids.row_lengths(), tf.int32),
        truncated=pieces.row_lengths() >= longest,
    )
