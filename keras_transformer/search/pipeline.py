"""Decoding of strings to strings. Needs TensorFlow.

Each function of a `Pipeline` is one signature of an export: it takes tensors whose
first axis is the batch and returns a dictionary of such tensors. On the TensorFlow
backend it can be one graph; on JAX and PyTorch only the text is handled by TensorFlow.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.search.compiled import as_graph, identity_of
from keras_transformer.search.generator import Generator

TEXT = tf.TensorSpec([None], tf.string)
INPUTS = {
    "serving_default": {"text": TEXT},
    "nbest": {"text": TEXT},
    "score": {"source": TEXT, "target": TEXT},
    "align": {"text": TEXT},
    "sample": {
        "text": TEXT,
        # One of each text: a server joins the rows of several requests.
        "temperature": tf.TensorSpec([None], tf.float32),
        "seed": tf.TensorSpec([None], tf.int64),
    },
    "complete": {"text": TEXT, "prefix": TEXT},
}
# The inputs of `attend`, which is not exported.
_ATTEND = {"text": TEXT, "target_ids": tf.TensorSpec([None, None], tf.int32)}


class _Tokens(NamedTuple):
    """Texts as ids: B texts of at most S tokens."""

    ids: Any  # (B, S) int32, the end token, then padding
    lengths: Any  # (B,) int32, tokens, the end token counted
    truncated: Any  # (B,) bool, whether a text was cut


def check_fit(model, tokenizers, config):
    """Raises `ValueError` unless model, tokenizers and options fit together."""
    sizes = model.config
    for side in ("source", "target"):
        pieces = getattr(tokenizers, side).vocabulary_size
        expected = getattr(sizes, f"{side}_vocabulary_size")
        if expected not in (None, pieces):
            raise ValueError(
                f"The {side} tokenizer and the model must have the same vocabulary "
                f"size. Received: {pieces} pieces, {side}_vocabulary_size={expected}"
            )
    ids = (sizes.pad_id, sizes.start_id, sizes.end_id)
    target = tokenizers.target
    expected = (target.pad_id, target.start_id, target.end_id)
    if ids != expected:
        raise ValueError(
            "The tokenizers and the model must have the same `pad_id`, `start_id` "
            f"and `end_id`. Received: {expected} and {ids}"
        )
    layer = config.alignment_layer
    layers = sizes.num_decoder_layers
    if layers and not -layers <= layer < layers:
        raise ValueError(
            f"`alignment_layer` must be from {-layers} to {layers - 1}. "
            f"Received: alignment_layer={layer}"
        )
    longest = max(config.max_source_length, config.longest_output)
    sizes.check_positions(longest, "`max_source_length` + `max_extra_length`")


class Pipeline:
    """The functions from strings to strings of a model.

    A text longer than `config.max_source_length` is cut, and `truncated` is True.
    """

    def __init__(self, model, tokenizers, config, weights=None, shortlist=None):
        self.tokenizers = tokenizers
        self.config = config
        # Most tokens of a text on each side, the end token counted.
        target = config.longest_output
        self.longest = {"source": config.max_source_length, "target": target}
        self.generator = Generator(model, config, weights, shortlist=shortlist)
        self.inputs = dict(INPUTS)  # Of each signature.
        if not self.generator.model.has_attention:
            del self.inputs["align"]
        self._in_graph = keras.backend.backend() == "tensorflow"
        self._detokenize = tokenizers.target.detokenize
        if not self._in_graph:
            # What is done to text has graphs of its own, which are faster.
            graph = functools.partial(
                tf.function, autograph=False, reduce_retracing=True
            )
            self._tokenize, self._outputs = graph(self._tokenize), graph(self._outputs)
            self._detokenize = graph(self._detokenize)
        self._functions = {}

    def answer(self, name, *columns, **options):
        """Calls a function with lists, as one graph on TensorFlow; returns arrays."""
        inputs = (INPUTS | {"attend": _ATTEND})[name].values()
        variant = name, *options.items()
        if self._in_graph:
            variant += (identity_of(self.generator.model.variables),)
        pairs = zip(columns, inputs, strict=True)
        if variant not in self._functions:
            function = functools.partial(self.run, name, **options)
            function = self.attend if name == "attend" else function
            self._functions[variant] = as_graph(function, inputs)
        tensors = [tf.constant(column, spec.dtype) for column, spec in pairs]
        return as_arrays(self._functions[variant](*tensors))

    def run(self, name, *inputs, **options):
        """Calls the function `name` with tensors, also of an empty batch."""
        batch = tf.shape(inputs[0])[0]
        for given in inputs[1:]:
            tf.debugging.assert_equal(
                tf.shape(given)[0], batch, "All inputs must have one number of rows."
            )
        if inputs[0].shape[0]:  # A graph knows it of no batch.
            return getattr(self, name)(*inputs, **options)
        # An empty batch gets an empty text.
        spare = tf.cast(batch < 1, tf.int32)
        some = [tf.concat([x, tf.zeros([spare], x.dtype)], axis=0) for x in inputs]
        outputs = getattr(self, name)(*some, **options)
        return {key: value[:batch] for key, value in outputs.items()}

    def serving_default(self, text):
        """Translates strings [B]: `translation` [B], `score` [B], `truncated` [B]."""
        return _first_of(self.nbest(text, n_best=1))

    def nbest(self, text, n_best=None, with_ids=False):
        """Translates strings [B]: `translations` and `scores` [B, n_best], `truncated`.

        `with_ids` adds `ids` [B, n_best, T], or [B, T] where there is one translation.
        """
        n_best = n_best or self.config.num_best
        source = self._tokenize(text)
        inputs = source.ids, source.lengths
        result = self._called(self.generator.search, *inputs, n_best=n_best)
        return self._outputs(source, result, with_ids)

    def complete(self, text, prefix, with_ids=False):
        """Translates strings [B] to translations that begin with `prefix` [B].

        Returns what `serving_default` does; `truncated` is True if either text was cut.
        """
        source = self._tokenize(text)
        prefixes = self.tokenizers.target.tokenize(prefix)
        longest = self.config.longest_output - 1
        truncated = source.truncated | (prefixes.row_lengths() > longest)
        prefixes = prefixes[:, :longest]
        prefix_lengths = tf.cast(prefixes.row_lengths(), tf.int32)
        prefix_ids = prefixes.to_tensor(self.tokenizers.target.pad_id)
        inputs = source.ids, source.lengths, prefix_ids, prefix_lengths
        result = self._called(self.generator.search, *inputs)
        lengths = source.lengths + prefix_lengths
        both = source._replace(lengths=lengths, truncated=truncated)
        return _first_of(self._outputs(both, result, with_ids))

    def sample(self, text, temperature, seed, with_ids=False):
        """Samples a translation of each of the strings [B]; see `serving_default`.

        A `temperature` [B] is from 0 (greedy) to infinity (uniform); each text has a
        `seed` [B].
        """
        # No error for another temperature: a server may batch several clients.
        source = self._tokenize(text)
        longest = self.config.longest_output
        uniforms = tf.map_fn(
            lambda one: tf.random.stateless_uniform([longest], [one, 0], alg="philox"),
            seed,
            fn_output_signature=tf.float32,
        )
        uniforms = tf.reshape(uniforms, (-1, longest))
        inputs = source.ids, source.lengths, uniforms, temperature
        result = self._called(self.generator.sample, *inputs)
        return _first_of(self._outputs(source, result, with_ids))

    def score(self, source, target):
        """Scores given translations of strings [B], end token included (nats)."""
        source = self._tokenize(source)
        target_out, _, truncated = self._tokenize(target, "target")
        scores = self._called(self.generator.score, source.ids, target_out)
        pieces = self.tokenizers.target.piece_strings(target_out)  # "" where padded
        return {
            "log_probability": tf.reduce_sum(scores, axis=1),
            "tokens": pieces,
            "token_log_probabilities": scores,
            "truncated": source.truncated | truncated,
        }

    def align(self, text, per_head=False):
        """Translates strings [B] and returns the attention of each output token.

        `attention` [B, T, S] is the mean over heads, or `per_head` [B, H, T, S].
        """
        source = self._tokenize(text)
        ids = self._called(self.generator.search, source.ids, source.lengths).ids
        ids = tf.where((source.lengths <= 1)[:, None], 0, ids[:, 0])  # (B, L)
        lengths = tf.math.count_nonzero(ids, axis=1)  # padding is 0
        ids = ids[:, : tf.maximum(tf.reduce_max(lengths), 1)]  # (B, T)
        looked = self.attend(text, ids, source)
        if not per_head:
            looked["attention"] = tf.reduce_mean(looked["attention"], axis=1)
        return {"translation": self._detokenize(ids), **looked}

    def attend(self, text, target_ids, source=None):
        """As `align` with `per_head`, for given `target_ids` [B, T].

        Padding has the token "" and attention 0.
        """
        source = self._tokenize(text) if source is None else source
        attention = self._called(self.generator.attention, source.ids, target_ids)
        return {
            "source_tokens": self.tokenizers.source.piece_strings(source.ids),
            "target_tokens": self.tokenizers.target.piece_strings(target_ids),
            "attention": attention,
            "truncated": source.truncated,
        }

    def _tokenize(self, texts, side="source"):
        """Returns strings [B] as ids, cut to the longest of the side."""
        tokenizer = getattr(self.tokenizers, side)
        longest = self.longest[side]
        pieces = tokenizer.tokenize(texts)
        truncated = pieces.row_lengths() > longest - 1
        ends = tf.fill([tf.shape(texts)[0], 1], tokenizer.end_id)
        ids = tf.concat([pieces[:, : longest - 1], ends], axis=1)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return _Tokens(ids.to_tensor(tokenizer.pad_id), lengths, truncated)

    def _outputs(self, source, result, with_ids):
        """Returns the outputs of `nbest` from a `DecodingResult`."""
        ids = result.ids  # (B, n_best, T)
        _, count, length = tf.unstack(tf.shape(ids))
        texts = self._detokenize(tf.reshape(ids, (-1, length)))
        texts = tf.reshape(texts, (-1, ids.shape[1] or count))
        # An empty text, only an end token, has an empty translation.
        empty = (source.lengths <= 1)[:, None]
        outputs = {
            "translations": tf.where(empty, "", texts),
            "scores": tf.where(empty, 0.0, result.scores),
            "truncated": source.truncated,
        }
        return outputs | ({"ids": ids} if with_ids else {})

    def _called(self, function, *inputs, **options):
        """Calls a function of the model's backend with TensorFlow's tensors."""
        if self._in_graph:
            return function(*inputs, **options)
        outputs = function(*[x.numpy() for x in inputs], **options)
        return keras.tree.map_structure(
            lambda x: tf.constant(ops.convert_to_numpy(x)), outputs
        )


def _first_of(outputs):
    """Returns the outputs of `serving_default` from those of `nbest`."""
    names = {"translations": "translation", "scores": "score", "ids": "ids"}
    best = {names[key]: x[:, 0] for key, x in outputs.items() if key in names}
    return best | {"truncated": outputs["truncated"]}


def as_arrays(outputs):
    """Returns outputs as NumPy arrays, strings as `str`."""
    arrays = {}
    decode = np.frompyfunc(bytes.decode, 1, 1)
    for name, tensor in outputs.items():
        array = tensor.numpy()
        arrays[name] = decode(array) if array.dtype == object else array
    return arrays
