"""The signatures of an export: functions from strings to strings. Needs TensorFlow.

A signature takes tensors whose first axis is the batch and returns a dictionary of such
tensors. On the TensorFlow backend it can be one graph; on JAX and PyTorch only the text
is handled by TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.models.searchable import Searchable
from keras_transformer.search.string_search import one_of, ordered
from keras_transformer.text.in_graph import shown_tokens

# What a signature returns for minus infinity, which JSON has no word for.
LOWEST = tf.float32.min


def translate(search, text):
    """Translates texts [B] of any length, sentence by sentence.

    Returns `translation` [B], `score` [B], the lowest of its sentences, `truncated`
    [B], `doubt` [B], the largest of its sentences, `doubts` [B], words with a space
    between; of the K sentences `sources`, `translations`, `scores` and
    `sentence_doubts` [B, K]; and the spans that the translation has not, `lost`
    [B, None].
    """
    parts = search.sentences(text)
    return search.joined(parts, search.translations(parts[:, ::2].flat_values))


def nbest(search, text, n_best=None):
    """Translates strings [B].

    Returns `translations`, `scores`, `doubt` and `doubts` [B, n_best], `lost`
    [B, n_best, None], the spans that each lacks, and `truncated` [B]. A text that
    several outputs spell stands once: the last places are "" with score `LOWEST`.
    """
    source = search.source_ids(text)
    result = search.called(
        search.generator.search,
        source.ids,
        source.lengths,
        n_best=n_best or search.num_best,
    )
    outputs = search.outputs(source, result)
    texts = outputs["translations"]  # (B, N)
    place = tf.range(tf.shape(texts)[1])
    is_same = (texts[:, :, None] == texts[:, None]) & (place < place[:, None])
    is_known = tf.reduce_any(is_same, axis=2)
    once = {
        "translations": tf.where(is_known, "", texts),
        "scores": tf.where(is_known, LOWEST, outputs["scores"]),
    }
    order = tf.argsort(tf.cast(is_known, tf.int32), axis=1, stable=True)
    return ordered(outputs | once, order)


def complete(search, text, prefix):
    """Translates strings [B] to translations that begin with `prefix` [B].

    Returns what `sample` does; `truncated` is True if either text was cut.
    """
    source = search.source_ids(text)
    target = search.target_ids(prefix, source)
    # A prefix has no end token.
    tokenizer = search.tokenizers.target
    prefixes = tf.where(target.ids == tokenizer.end_id, tokenizer.pad_id, target.ids)
    lengths = target.lengths - 1
    result = search.called(
        search.generator.search, source.ids, source.lengths, prefixes[:, :-1], lengths
    )
    both = source._replace(
        lengths=source.lengths + lengths, truncated=source.truncated | target.truncated
    )
    return _best_of(search.outputs(both, result))


def sample(search, text, temperature, seed):
    """Samples a translation of each of the strings [B].

    A `temperature` [B] is from 0 (greedy) to infinity (uniform); each text has a `seed`
    [B]. Returns `translation`, `score`, `doubt`, `doubts` and `truncated` [B] and
    `lost` [B, None], the spans that the translation lacks.
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
    return _best_of(search.outputs(source, result))


def score(search, source, target):
    """Scores given translations of strings [B], end token included (nats)."""
    sources = search.source_ids(source)
    targets = search.target_ids(target, sources)
    tokens = search.tokenizers.target.piece_strings(targets.ids)
    scores = search.called(search.generator.score, sources.ids, targets.ids)
    return {
        "log_probability": tf.reduce_sum(scores, axis=1),
        # "" where padded.
        "tokens": shown_tokens(tokens, sources.spans, search.rules),
        "token_log_probabilities": scores,
        "truncated": sources.truncated | targets.truncated,
    }


def align(search, text, per_head=False):
    """Translates strings [B] and returns the attention of each output token.

    That is what `sample` returns, and `attention` [B, T, S], the mean over heads, or
    `per_head` [B, H, T, S].
    """
    source = search.source_ids(text)
    result = search.called(search.generator.search, source.ids, source.lengths)
    ids = tf.where((source.lengths <= 1)[:, None], 0, result.ids[:, 0])  # (B, L)
    lengths = tf.math.count_nonzero(ids, axis=1)  # padding is 0
    ids = ids[:, : tf.maximum(tf.reduce_max(lengths), 1)]  # (B, T)
    attention = search.called(search.generator.attention, source.ids, ids)
    tokenizers = search.tokenizers
    source_tokens, target_tokens = (
        shown_tokens(tokens, source.spans, search.rules)
        for tokens in (
            tokenizers.source.piece_strings(source.ids),
            tokenizers.target.piece_strings(ids),
        )
    )
    return _best_of(search.outputs(source, result)) | {
        # Padding has the token "" and attention 0.
        "source_tokens": source_tokens,
        "target_tokens": target_tokens,
        "attention": attention if per_head else tf.reduce_mean(attention, axis=1),
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
        # An empty batch gets an empty text.
        spare = tf.cast(batch < 1, tf.int32)
        some = [tf.concat([x, tf.zeros([spare], x.dtype)], axis=0) for x in inputs]
        outputs = self.function(search, *some, **options)
        lost = outputs.pop("lost", None)
        if lost is not None and search.carries_spans:
            outputs["lost"] = tf.ragged.boolean_mask(lost, lost != "").to_tensor()
        if search.generator.config.doubt_steps is None:  # Nobody knows.
            outputs.pop("doubt", None)
            outputs.pop("sentence_doubts", None)
        for name, value in outputs.items():
            if value.dtype.is_floating:
                value = tf.maximum(value, LOWEST)
            outputs[name] = value[:batch]
        return outputs

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
    """Returns outputs as NumPy arrays: strings as `str`, `LOWEST` as minus infinity."""
    arrays = {}
    for name, tensor in outputs.items():
        array = tensor.numpy()
        if array.dtype == object:
            array = np.frompyfunc(bytes.decode, 1, 1)(array)
        elif tensor.dtype.is_floating:
            array = np.where(array == LOWEST, -np.inf, array)
        arrays[name] = array
    return arrays


def _best_of(outputs):
    """Returns the outputs of the best translations from those of `nbest`."""
    return one_of(outputs, tf.zeros_like(outputs["truncated"], tf.int32))
