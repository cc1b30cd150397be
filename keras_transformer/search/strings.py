"""The signatures of an export: functions from strings to strings. Needs TensorFlow.

A signature takes tensors whose first axis is the batch and returns a dictionary of such
tensors. On the TensorFlow backend it can be one graph; on JAX and PyTorch only the text
is handled by TensorFlow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.models.searchable import Searchable
from keras_transformer.search.generator import Generator
from keras_transformer.text.doubts import DOUBTS
from keras_transformer.text.doubts_in_graph import doubts_of
from keras_transformer.text.sentences import sentence_rules
from keras_transformer.text.sentences_in_graph import sentences_of
from keras_transformer.text.tokenizer_pair import TokenizerPair

# Sentences of texts that are translated together.
BATCH_SIZE = 32


class _Tokens(NamedTuple):
    """Texts as ids: B texts of at most S tokens."""

    ids: Any  # (B, S) int32, the end token, then padding
    lengths: Any  # (B,) int32, tokens, the end token counted
    truncated: Any  # (B,) bool, whether a text was cut


class StringSearch:
    """A `Generator` between two tokenizers: what the signatures share."""

    def __init__(self, generator: Generator, tokenizers: TokenizerPair):
        self.generator = generator
        self.tokenizers = tokenizers
        self.detokenize = tokenizers.target.detokenize
        self._is_graph = keras.backend.backend() == "tensorflow"
        if not self._is_graph:
            # What is done to text has graphs of its own, which are faster.
            graph = functools.partial(
                tf.function, autograph=False, reduce_retracing=True
            )
            self.source_ids = graph(self.source_ids)
            self.target_ids = graph(self.target_ids)
            self.outputs = graph(self.outputs)
            self.detokenize = graph(self.detokenize)

    def source_ids(self, texts):
        """Returns sources [B] as ids, cut to the longest."""
        longest = self.generator.config.max_source_length
        return _ids_of(self.tokenizers.source, texts, longest)

    def target_ids(self, texts):
        """Returns targets [B] as ids, cut to the longest."""
        return _ids_of(self.tokenizers.target, texts, self.generator.longest)

    def sentences(self, texts):
        """Returns sentences of texts [B], and what follows each: [B, None]."""
        longest = self.generator.config.max_source_length
        return sentences_of(
            texts,
            sentence_rules(self.tokenizers.abbreviations),
            lambda sentences: (
                _ids_of(self.tokenizers.source, sentences, longest).truncated
            ),
        )

    def translations(self, sentences):
        """Returns of each sentence [N] what `_taken` does."""
        order = tf.argsort(tf.strings.length(sentences), stable=True)
        ordered = tf.gather(sentences, order)

        def add(start, known):
            batch = ordered[start : start + BATCH_SIZE]
            found = _taken(self, batch)
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

    def outputs(self, source, result):
        """Returns the outputs of `nbest` from a `DecodingResult`."""
        ids = result.ids  # (B, n_best, T)
        _, count, length = tf.unstack(tf.shape(ids))
        texts = self.detokenize(tf.reshape(ids, (-1, length)))
        texts = tf.reshape(texts, (-1, ids.shape[1] or count))
        # An empty text, only an end token, has an empty translation.
        empty = (source.lengths <= 1)[:, None]
        return {
            "translations": tf.where(empty, "", texts),
            "scores": tf.where(empty, 0.0, result.scores),
            "truncated": source.truncated,
        }

    def called(self, function, *inputs, **options):
        """Calls a method of the generator with TensorFlow's tensors."""
        if self._is_graph:
            return function(*inputs, **options)
        outputs = function(*[x.numpy() for x in inputs], **options)
        return keras.tree.map_structure(
            lambda x: tf.constant(ops.convert_to_numpy(x)), outputs
        )


def translate(search, text):
    """Translates texts [B] of any length, sentence by sentence.

    Returns `translation` [B], `score` [B], the lowest of its sentences, `truncated`
    [B], `doubts` [B], words with a space between; and of the K sentences `sources`,
    `translations` and `scores` [B, K].
    """
    parts = search.sentences(text)
    sources = parts[:, ::2]
    found = {
        name: sources.with_flat_values(values)
        for name, values in search.translations(sources.flat_values).items()
    }
    doubts = tf.reduce_any(found["doubts"], axis=1)  # (B, 4)
    named = tf.broadcast_to(tf.constant(DOUBTS), tf.shape(doubts))
    named = tf.ragged.boolean_mask(named, doubts)
    both = found["translation"].flat_values + parts[:, 1::2].flat_values
    return {
        "translation": tf.strings.reduce_join(sources.with_flat_values(both), axis=1),
        "score": tf.reduce_min(found["score"], axis=1),
        "truncated": tf.reduce_any(found["truncated"], axis=1),
        "doubts": tf.strings.reduce_join(named, axis=1, separator=" "),
        "sources": sources.to_tensor(),
        "translations": found["translation"].to_tensor(),
        "scores": found["score"].to_tensor(),
    }


def nbest(search, text, n_best=None):
    """Translates strings [B]: `translations` and `scores` [B, n_best], `truncated`.

    A text that several outputs spell stands once: other places have score -inf.
    """
    generator = search.generator
    source = search.source_ids(text)
    result = search.called(
        generator.search,
        source.ids,
        source.lengths,
        n_best=n_best or generator.config.num_best,
    )
    outputs = search.outputs(source, result)
    texts = outputs["translations"]  # (B, N)
    count = tf.shape(texts)[1]
    place = tf.range(count)
    is_better = place < place[:, None]
    is_known = tf.reduce_any((texts[:, :, None] == texts[:, None]) & is_better, axis=2)
    order = tf.argsort(tf.cast(is_known, tf.int32), axis=1, stable=True)
    once = {
        "translations": tf.where(is_known, "", texts),
        "scores": tf.where(is_known, -math.inf, outputs["scores"]),
    }
    return outputs | {
        name: tf.gather(values, order, batch_dims=1) for name, values in once.items()
    }


def _taken(search, sentences):
    """Returns what is taken of the hypotheses for sentences [N], and its `doubts`.

    It is the best that is not empty and does not loop; without any, the best.
    """
    found = nbest(search, sentences)
    texts = found["translations"]  # (N, n_best)
    count = tf.shape(texts)[1]
    doubts = doubts_of(
        tf.repeat(sentences, count),
        tf.reshape(texts, [-1]),
        tf.reshape(found["scores"], [-1]),
        search.generator.config.doubt_below,
    )
    doubts = tf.reshape(doubts, [-1, count, len(DOUBTS)])
    is_bad = doubts[..., DOUBTS.index("empty")] | doubts[..., DOUBTS.index("loop")]
    # The first that is not; a place without a hypothesis is empty.
    place = tf.argmin(tf.cast(is_bad, tf.int32), axis=1)
    return {
        "translation": tf.gather(texts, place, batch_dims=1),
        "score": tf.gather(found["scores"], place, batch_dims=1),
        "truncated": found["truncated"],
        "doubts": tf.gather(doubts, place, batch_dims=1),
    }


def complete(search, text, prefix):
    """Translates strings [B] to translations that begin with `prefix` [B].

    Returns what `translate` does; `truncated` is True if either text was cut.
    """
    target = search.tokenizers.target
    source = search.source_ids(text)
    prefixes, is_cut = _cut(target, prefix, search.generator.longest - 1)
    prefix_lengths = tf.cast(prefixes.row_lengths(), tf.int32)
    result = search.called(
        search.generator.search,
        source.ids,
        source.lengths,
        prefixes.to_tensor(target.pad_id),
        prefix_lengths,
    )
    both = source._replace(
        lengths=source.lengths + prefix_lengths, truncated=source.truncated | is_cut
    )
    return _first_of(search.outputs(both, result))


def sample(search, text, temperature, seed):
    """Samples a translation of each of the strings [B]; returns what `translate` does.

    A `temperature` [B] is from 0 (greedy) to infinity (uniform); each text has a `seed`
    [B].
    """
    # No error for another temperature: a server may batch several clients.
    source = search.source_ids(text)
    longest = search.generator.longest
    uniforms = tf.map_fn(
        lambda one: tf.random.stateless_uniform([longest], [one, 0], alg="philox"),
        seed,
        fn_output_signature=tf.float32,
    )
    result = search.called(
        search.generator.sample,
        source.ids,
        source.lengths,
        tf.reshape(uniforms, (-1, longest)),
        temperature,
    )
    return _first_of(search.outputs(source, result))


def score(search, source, target):
    """Scores given translations of strings [B], end token included (nats)."""
    sources = search.source_ids(source)
    targets = search.target_ids(target)
    scores = search.called(search.generator.score, sources.ids, targets.ids)
    return {
        "log_probability": tf.reduce_sum(scores, axis=1),
        # "" where padded.
        "tokens": search.tokenizers.target.piece_strings(targets.ids),
        "token_log_probabilities": scores,
        "truncated": sources.truncated | targets.truncated,
    }


def align(search, text, per_head=False):
    """Translates strings [B] and returns the attention of each output token.

    `attention` [B, T, S] is the mean over heads, or `per_head` [B, H, T, S].
    """
    source = search.source_ids(text)
    ids = search.called(search.generator.search, source.ids, source.lengths).ids
    ids = tf.where((source.lengths <= 1)[:, None], 0, ids[:, 0])  # (B, L)
    lengths = tf.math.count_nonzero(ids, axis=1)  # padding is 0
    ids = ids[:, : tf.maximum(tf.reduce_max(lengths), 1)]  # (B, T)
    attention = search.called(search.generator.attention, source.ids, ids)
    return {
        "translation": search.detokenize(ids),
        # Padding has the token "" and attention 0.
        "source_tokens": search.tokenizers.source.piece_strings(source.ids),
        "target_tokens": search.tokenizers.target.piece_strings(ids),
        "attention": attention if per_head else tf.reduce_mean(attention, axis=1),
        "truncated": source.truncated,
    }


class Signature(NamedTuple):
    """A function of a `StringSearch` and tensors, and what the tensors are."""

    function: Callable[..., dict[str, Any]]
    inputs: dict[str, tf.TensorSpec]

    def call(self, search, *inputs, **options):
        """Calls the function, also with an empty batch."""
        batch = tf.shape(inputs[0])[0]
        for given in inputs[1:]:
            tf.debugging.assert_equal(
                tf.shape(given)[0], batch, "All inputs must have one number of rows."
            )
        if inputs[0].shape[0]:  # Unknown in a graph.
            return self.function(search, *inputs, **options)
        # An empty batch gets an empty text.
        spare = tf.cast(batch < 1, tf.int32)
        some = [tf.concat([x, tf.zeros([spare], x.dtype)], axis=0) for x in inputs]
        outputs = self.function(search, *some, **options)
        return {key: value[:batch] for key, value in outputs.items()}

    def tensors(self, columns):
        """Returns lists of inputs as tensors, by name."""
        named = zip(self.inputs.items(), columns, strict=True)
        return {name: tf.constant(column, spec.dtype) for (name, spec), column in named}


_TEXT = tf.TensorSpec([None], tf.string)
# One of each text: a server joins the rows of several requests.
_TEMPERATURE = tf.TensorSpec([None], tf.float32)
_SEED = tf.TensorSpec([None], tf.int64)
SIGNATURES = {
    "serving_default": Signature(translate, {"text": _TEXT}),
    "nbest": Signature(nbest, {"text": _TEXT}),
    "score": Signature(score, {"source": _TEXT, "target": _TEXT}),
    "align": Signature(align, {"text": _TEXT}),
    "sample": Signature(
        sample, {"text": _TEXT, "temperature": _TEMPERATURE, "seed": _SEED}
    ),
    "complete": Signature(complete, {"text": _TEXT, "prefix": _TEXT}),
}


def signatures_of(model: Searchable) -> dict[str, Signature]:
    """Returns the signatures that an export of a model has."""
    signatures = dict(SIGNATURES)
    if not model.has_attention:
        del signatures["align"]
    return signatures


def as_arrays(outputs):
    """Returns outputs as NumPy arrays, strings as `str`."""
    arrays = {}
    decode = np.frompyfunc(bytes.decode, 1, 1)
    for name, tensor in outputs.items():
        array = tensor.numpy()
        arrays[name] = decode(array) if array.dtype == object else array
    return arrays


def _cut(tokenizer, texts, most):
    """Returns at most so many ids of strings [B], ragged, and which were cut [B]."""
    ids = tokenizer.tokenize(texts)
    return ids[:, :most], ids.row_lengths() > most


def _ids_of(tokenizer, texts, longest):
    """Returns strings [B] as ids of at most `longest` tokens."""
    pieces, truncated = _cut(tokenizer, texts, longest - 1)
    ends = tf.fill([tf.shape(texts)[0], 1], tokenizer.end_id)
    ids = tf.concat([pieces, ends], axis=1)
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    return _Tokens(ids.to_tensor(tokenizer.pad_id), lengths, truncated)


def _first_of(outputs):
    """Returns the outputs of `translate` from those of `nbest`."""
    return {
        "translation": outputs["translations"][:, 0],
        "score": outputs["scores"][:, 0],
        "truncated": outputs["truncated"],
    }
