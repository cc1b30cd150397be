"""Strings to strings: what a `Translator` runs and an export writes. Needs TensorFlow.

Each function of a `Pipeline` takes tensors whose first axis is the batch and returns a
dictionary of such tensors; it is one signature of an export. On the TensorFlow backend
it can be traced into one graph; on JAX and PyTorch the model runs eagerly, and the
text is still handled by TensorFlow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.config import DecodingConfig
from keras_transformer.generation.generator import Generator
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.text.tokenizer_pair import TokenizerPair

# With XLA, source lengths are rounded up to a multiple of this (tokens), and batches
# to a power of two: every new shape is compiled, which takes many seconds.
_XLA_LENGTH = 32

TEXT = tf.TensorSpec([None], tf.string)
INPUTS = {
    "serving_default": {"text": TEXT},
    "nbest": {"text": TEXT},
    "score": {"source": TEXT, "target": TEXT},
    "align": {"text": TEXT},
    "sample": {
        "text": TEXT,
        "temperature": tf.TensorSpec([None], tf.float32),
        "seed": tf.TensorSpec([None], tf.int64),
    },
    "complete": {"text": TEXT, "prefix": TEXT},
}


class Source(NamedTuple):
    """Source sentences as ids; B sentences, S tokens of the longest."""

    ids: Any  # (B, S) int32, the end token, then padding
    lengths: Any  # (B,) int32, tokens, the end token counted
    truncated: Any  # (B,) bool, whether a sentence was cut at the longest source


def check_fit(
    model: Seq2Seq | Ensemble, tokenizers: TokenizerPair, config: DecodingConfig
):
    """Checks that a model, its tokenizers and a search go together.

    Args:
        model: A `Transformer`, another `Seq2Seq`, or an `Ensemble`.
        tokenizers: A `TokenizerPair`.
        config: How to search.

    Raises:
        ValueError: If the vocabularies do not fit the model, or the model has fewer
            layers or learned positions than the search needs.
    """
    sizes = model.config
    for side in ("source", "target"):
        pieces = getattr(tokenizers, side).vocabulary_size
        expected = getattr(sizes, f"{side}_vocabulary_size")
        if pieces != expected:
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
    layer, layers = config.alignment_layer, sizes.num_decoder_layers
    if not -layers <= layer < layers:
        raise ValueError(
            f"`alignment_layer` must be from {-layers} to {layers - 1}. "
            f"Received: alignment_layer={layer}"
        )
    longest = max(config.max_source_length, config.longest_output)
    sizes.check_positions(longest, "`max_source_length` + `max_extra_length`")


class Pipeline:
    """The functions from strings to strings of a model, its tokenizers and a search.

    A source text longer than `config.max_source_length` is cut there and flagged in
    `truncated`. A text with nothing but spaces gives an empty translation with score 0.

    Args:
        model: A `Transformer`, another `Seq2Seq`, or an `Ensemble`.
        tokenizers: A `TokenizerPair` with the model's vocabulary sizes.
        config: How to search.
        weights: `model.decoding_weights()` to keep, or `None` to make them from the
            model's present weights each time.
        jit_compile: Whether XLA compiles the search.
    """

    def __init__(
        self,
        model: Seq2Seq | Ensemble,
        tokenizers: TokenizerPair,
        config: DecodingConfig,
        weights=None,
        jit_compile: bool = False,
    ):
        self.tokenizers = tokenizers
        self.config = config
        self.jit_compile = jit_compile
        self.generator = Generator(model, config, weights, fixed_shapes=jit_compile)
        self._in_graph = keras.backend.backend() == "tensorflow"

    def run(self, name, *inputs, **options):
        """Calls the function `name`; an empty batch is no error.

        Args:
            name: A key of `INPUTS`.
            *inputs: Tensors of one batch size, in the order of `INPUTS`.
            **options: Further arguments of the function.

        Returns:
            Its dictionary of tensors.
        """
        batch = tf.shape(inputs[0])[0]
        for given in inputs[1:]:
            tf.debugging.assert_equal(
                tf.shape(given)[0], batch, "All inputs must have one number of rows."
            )
        # An empty text in place of none: it costs little, and no batch has no row.
        some = [
            tf.concat([x, tf.zeros([tf.cast(batch < 1, tf.int32)], x.dtype)], axis=0)
            for x in inputs
        ]
        outputs = getattr(self, name)(*some, **options)
        return {key: value[:batch] for key, value in outputs.items()}

    def serving_default(self, text):
        """Translates strings [B]: `translation` [B], `score` [B], `truncated` [B]."""
        outputs = self.nbest(text, n_best=1)
        return {
            "translation": outputs["translations"][:, 0],
            "score": outputs["scores"][:, 0],
            "truncated": outputs["truncated"],
        }

    def nbest(self, text, n_best=None, with_ids=False):
        """Translates strings [B], several translations each.

        Returns `translations` and `scores` [B, n_best], and `truncated` [B]; with
        `with_ids` also `ids` [B, n_best, T], the end token, then padding.
        """
        n_best = n_best or self.config.n_best or self.config.beam_size
        source = self._tokenize(text)
        ids, scores = self._search(source, n_best=n_best)
        # An empty text has an empty translation.
        empty = (source.lengths <= 1)[:, None]
        outputs = {
            "translations": tf.where(empty, "", self._detokenize(ids)),
            "scores": tf.where(empty, 0.0, scores),
            "truncated": source.truncated,
        }
        return outputs | ({"ids": ids} if with_ids else {})

    def complete(self, text, prefix, with_ids=False):
        """Translates strings [B] to ones that begin with `prefix` [B].

        Returns `translation` [B], `score` [B] and `truncated` [B], whether one of the
        two texts was cut; with `with_ids` also `ids` [B, T].
        """
        source = self._tokenize(text)
        prefixes = self.tokenizers.target.tokenize(prefix)
        longest = self.config.longest_output - 1
        truncated = prefixes.row_lengths() > longest
        prefixes = prefixes[:, :longest]
        prefix_lengths = tf.cast(prefixes.row_lengths(), tf.int32)
        prefix_ids = prefixes.to_tensor(self.tokenizers.target.pad_id)
        ids, scores = self._search(source, prefix=(prefix_ids, prefix_lengths))
        empty = (source.lengths <= 1) & (prefix_lengths < 1)
        outputs = {
            "translation": tf.where(empty, "", self._detokenize(ids)[:, 0]),
            "score": tf.where(empty, 0.0, scores[:, 0]),
            "truncated": source.truncated | truncated,
        }
        return outputs | ({"ids": ids[:, 0]} if with_ids else {})

    def sample(self, text, temperature, seed, with_ids=False):
        """Draws a translation of each of the strings [B].

        `temperature` [B] 0 is greedy. So are one below 0 and NaN, and an infinite one
        draws all tokens alike: an error would be the whole batch's, in which a server
        may have joined several clients' requests. `seed` [B] int64 is each text's own,
        so that an output depends on its own inputs alone. Returns `translation` [B],
        `score` [B] and `truncated` [B]; with `with_ids` also `ids` [B, T].
        """
        source = self._tokenize(text)
        longest = self.config.longest_output

        def draw(one):
            return tf.random.stateless_uniform(
                [longest], tf.stack([one, 0]), alg="philox"
            )

        def sample(*inputs):
            result = self.generator.sample(*inputs)
            return result.ids, result.scores

        uniforms = tf.map_fn(draw, seed, fn_output_signature=tf.float32)
        uniforms = tf.reshape(uniforms, (-1, longest))
        ids, scores = self._compiled(
            sample, source.ids, source.lengths, uniforms, temperature
        )
        empty = source.lengths <= 1
        outputs = {
            "translation": tf.where(empty, "", self._detokenize(ids)[:, 0]),
            "score": tf.where(empty, 0.0, scores[:, 0]),
            "truncated": source.truncated,
        }
        return outputs | ({"ids": ids[:, 0]} if with_ids else {})

    def score(self, source, target):
        """Scores given translations of the strings [B].

        Returns `log_probability` [B] in nats, the end token included; `tokens` [B, T],
        "" where padded; `token_log_probabilities` [B, T]; and `truncated` [B], whether
        one of the two texts was cut.
        """
        source = self._tokenize(source)
        tokenizer = self.tokenizers.target
        target_out, _, truncated = _with_ends(
            tokenizer, target, self.config.longest_output
        )
        scores = self._called(self.generator.score, source.ids, target_out)
        return {
            "log_probability": tf.reduce_sum(scores, axis=1),
            "tokens": tokenizer.piece_strings(target_out),
            "token_log_probabilities": scores,
            "truncated": source.truncated | truncated,
        }

    def align(self, text, per_head=False):
        """Translates strings [B] and says what each token of the output looked at.

        Returns `translation` [B]; `source_tokens` [B, S] and `target_tokens` [B, T], ""
        where padded; `attention` [B, T, S] of `config.alignment_layer`, the mean of its
        heads, or with `per_head` [B, H, T, S], 0 where padded; and `truncated` [B].
        """
        source = self._tokenize(text)
        ids, _ = self._search(source)
        ids = tf.where((source.lengths <= 1)[:, None], 0, ids[:, 0])  # (B, L)
        lengths = tf.math.count_nonzero(ids, axis=1)  # Padding is 0 in every run.
        ids = ids[:, : tf.maximum(tf.reduce_max(lengths), 1)]  # (B, T)
        looked = self._looked_at(source, ids)
        if not per_head:
            looked["attention"] = tf.reduce_mean(looked["attention"], axis=1)
        return {"translation": self.tokenizers.target.detokenize(ids), **looked}

    def attend(self, text, target_ids):
        """Says what each token of given targets of the strings [B] looks at.

        `target_ids` [B, T] int32 are those of a search, padded with 0. Returns what
        `align` does with `per_head`, without `translation`.
        """
        return self._looked_at(self._tokenize(text), target_ids)

    def _looked_at(self, source, ids):
        """The tokens of sources and of targets (B, T), and their attention."""
        return {
            "source_tokens": self.tokenizers.source.piece_strings(source.ids),
            "target_tokens": self.tokenizers.target.piece_strings(ids),
            "attention": self._called(self.generator.attention, source.ids, ids),
            "truncated": source.truncated,
        }

    def _tokenize(self, text):
        ids, lengths, truncated = _with_ends(
            self.tokenizers.source, text, self.config.max_source_length
        )
        return Source(ids, lengths, truncated)

    def _detokenize(self, ids):
        """Ids [B, n_best, T] to strings [B, n_best]."""
        count, length = ids.shape[1], tf.shape(ids)[2]
        texts = self.tokenizers.target.detokenize(tf.reshape(ids, (-1, length)))
        return tf.reshape(texts, (-1, count))

    def _search(self, source, n_best=1, prefix=None):
        """Returns ids (B, n_best, T) and scores (B, n_best)."""

        def search(*inputs):
            result = self.generator.search(*inputs, n_best=n_best)
            return result.ids, result.scores

        return self._compiled(search, source.ids, source.lengths, *(prefix or ()))

    def _compiled(self, function, *inputs):
        """Calls a search, compiled with XLA if asked to."""
        if not self.jit_compile:
            return self._called(function, *inputs)
        batch = tf.shape(inputs[0])[0]

        @tf.function(jit_compile=True, autograph=False)
        def compiled(*inputs):
            return function(*inputs)

        outputs = compiled(*(_padded_for_xla(x, batch) for x in inputs))
        return tuple(x[:batch] for x in outputs)

    def _called(self, function, *inputs):
        """Calls a function of the model's backend with TensorFlow's tensors."""
        if self._in_graph:
            return function(*inputs)
        outputs = function(*(ops.convert_to_tensor(x.numpy()) for x in inputs))
        return keras.tree.map_structure(
            lambda x: tf.constant(ops.convert_to_numpy(x)), outputs
        )


def _with_ends(tokenizer, texts, longest):
    """Strings [B] to padded ids with the end token, lengths, and whether cut."""
    pieces = tokenizer.tokenize(texts)
    truncated = pieces.row_lengths() > longest - 1
    ends = tf.fill([tf.shape(texts)[0], 1], tokenizer.end_id)
    ids = tf.concat([pieces[:, : longest - 1], ends], axis=1)
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    return ids.to_tensor(tokenizer.pad_id), lengths, truncated


def _padded_for_xla(x, batch):
    """Pads the batch to a power of two, and S of ids (B, S) to steps of 32."""
    powers = 2 ** tf.range(30)
    larger = tf.reduce_min(tf.boolean_mask(powers, powers >= batch))
    paddings = [[0, larger - batch]]
    if x.shape.rank == 2:
        more = -tf.shape(x)[1] % _XLA_LENGTH if x.dtype == tf.int32 else 0
        paddings.append([0, more])
    return tf.pad(x, paddings)
