"""Attention of one new position at a time, over a cache of those before it."""

from __future__ import annotations

from keras import ops

from keras_transformer.layers.attention import dot_product_attention
from keras_transformer.layers.decoding_ops import (
    affine,
    attend,
    merge_heads,
    new_cache,
    position_of,
    resize_cache,
    write_position,
)


class CachedAttention:
    """What `MultiHeadAttention` does when a sequence is decoded step by step.

    A mixin: it uses the layer's sizes and projections. `initial_cache`, `step` and
    `resize_cache` do self-attention one position at a time; `step_across` attends to
    the keys and values of a source, which `project_key_value` computes once;
    `decoding_weights` prepares what both multiply by.
    """

    def initial_cache(self, sentences, hypotheses, length):
        """Returns an empty cache for `step`.

        Args:
            sentences: Number of sentences, B.
            hypotheses: Hypotheses of each that are decoded side by side, k.
            length: Most positions that one can have, L.

        Returns:
            Keys (B, G, L * k, K) and values (B, G, L * k, Kv), all zero, of G = H heads
            unless `num_key_value_heads` is less; entry l * k + j belongs to position l
            of hypothesis j.
        """
        entries = length * hypotheses
        return tuple(
            new_cache(sentences, number, entries, width, self.compute_dtype)
            for number, width in map(self._heads_of, ("key", "value"))
        )

    def resize_cache(self, cache, sentences, more):
        """Returns the cache of some sentences, with room for more entries.

        Args:
            cache: Keys and values, from `initial_cache` or `step`.
            sentences: Integer tensor (B',), places of the sentences to keep.
            more: Entries to add, k a position; an integer or a scalar tensor.

        Returns:
            Keys and values (B', G, L * k + more, ...).
        """
        return tuple(resize_cache(part, sentences, more) for part in cache)

    def step(self, inputs, cache, index, bias, weights):
        """Self-attention of one new position to itself and those before it.

        Args:
            inputs: Float tensor (B, k, D), the position's input for each hypothesis.
            cache: Keys and values of the earlier positions, from `initial_cache` or the
                step before; not to be used again.
            index: Integer scalar, the position, counted from 0, or `cache_place` of it.
            bias: Float tensor that broadcasts to (B, H, k, L * k), added to the scores
                of the entries l * k + j, position l of hypothesis j: 0 for the past of
                a hypothesis and for itself, very low for all others.
            weights: `decoding_weights("query", "key", "value")`.

        Returns:
            The output (B, k, output_dim) and the cache with the position written.
        """
        queries, *new = self._project_step(inputs, weights[0], "query", "key", "value")
        position_bias = None
        if self.positions is not None:
            position = ops.reshape(ops.cast(position_of(index), "int32"), (1,))
            queries, new[0] = (
                self.relative_positions.place(x, position) for x in (queries, new[0])
            )
            hypotheses, entries = new[0].shape[2], ops.shape(cache[0])[2]
            entries = ops.arange(entries, dtype="int32") // hypotheses
            position_bias = self._position_bias(position, entries)
        keys, values = (
            write_position(one, many, index)
            for one, many in zip(cache, new, strict=True)
        )
        output, _ = self._attend_step(
            queries, keys, values, bias, weights[1], position_bias=position_bias
        )
        return output, (keys, values)

    def step_across(self, inputs, keys, values, bias, weights):
        """Attention of one new position to the keys and values of a source.

        Args:
            inputs: Float tensor (B, k, D).
            keys: Float tensor (B, G, S, K), from `project_key_value`.
            values: Float tensor (B, G, S, Kv).
            bias: Float tensor that broadcasts to (B, H, k, S), added to the scores.
            weights: `decoding_weights("query")`.

        Returns:
            The output (B, k, output_dim) and the attention weights (B, H, k, S).
        """
        (queries,) = self._project_step(inputs, weights[0], "query")
        return self._attend_step(queries, keys, values, bias, weights[1], by_row=True)

    def _attend_step(
        self, queries, keys, values, bias, projection, by_row=False, position_bias=None
    ):
        mask = None
        if not self._has_softmax:
            # What a softmax takes for 0 is not 0 to every function.
            mask, bias = ops.equal(bias, 0.0), 0.0
        if position_bias is not None:
            bias = ops.add(bias, position_bias)
        if self._has_softmax and keys.shape[1] == self.num_heads:
            outputs, attention_weights = attend(queries, keys, values, bias, by_row)
        else:
            outputs, attention_weights = dot_product_attention(
                queries, keys, values, mask=mask, bias=bias, weigh=self.weigh
            )
        outputs = affine(merge_heads(outputs), *projection)
        shape = (-1, queries.shape[2], outputs.shape[-1])
        return ops.reshape(outputs, shape), attention_weights
