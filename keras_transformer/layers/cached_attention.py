"""Attention of one new position at a time, over a cache of those before it."""

from __future__ import annotations

from keras import ops

from keras_transformer.layers.decoding_ops import (
    affine,
    attend,
    merge_heads,
    new_cache,
    prepared,
    split_heads,
    write_position,
)


class CachedAttention:
    """What `MultiHeadAttention` does when a sequence is decoded step by step.

    A mixin: it uses the layer's sizes and weights. `initial_cache` and `step` do
    self-attention one position at a time; `step_across` attends to the keys and values
    of a source, which `MultiHeadAttention.project_key_value` computes once;
    `decoding_weights` prepares what both multiply by.
    """

    def decoding_weights(self, *names):
        """Returns what `step` or `step_across` multiplies by, in and out.

        Args:
            *names: "query", "key", "value" for `step` and
                "query" for `step_across`.
        """
        return self._joined_projection(*names), self._joined_projection("output")

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
        widths = [self.key_dim, self.key_dim, self._head_value_dim]
        queries, *new = self._project_step(inputs, weights[0], widths)
        keys, values = (
            write_position(one, many, index)
            for one, many in zip(cache, new, strict=True)
        )
        output, _ = self._attend_step(queries, keys, values, bias, weights[1])
        return output, (keys, values)

    def step_across(self, inputs, keys, values, bias, weights):
        """Attention of one new position to the keys and values of a source.

        Args:
            inputs: Float tensor (B, k, D).
            keys: Float tensor (B, H, S, K), from `project_key_value`.
            values: Float tensor (B, H, S, Kv).
            bias: Float tensor that broadcasts to (B, H, k, S), added to the scores.
            weights: `decoding_weights("query")`.

        Returns:
            The output (B, k, output_dim) and the attention weights (B, H, k, S).
        """
        (queries,) = self._project_step(inputs, weights[0], [self.key_dim])
        return self._attend_step(queries, keys, values, bias, weights[1], by_row=True)

    def _joined_projection(self, *names):
        """Prepares the projections of one step of decoding.

        Args:
            *names: Of "query", "key", "value" and "output", those that are computed
                together.

        Returns:
            A tuple, as `decoding_ops.affine` takes it: their kernels side by side and,
            with `use_bias`, their biases. The queries' part is divided by
            sqrt(key_dim), which saves a step from doing so.
        """

        def joined(kind):
            parts = [
                ops.cast(getattr(self, f"{name}_{kind}"), self.compute_dtype)
                * (self.key_dim**-0.5 if name == "query" else 1.0)
                for name in names
            ]
            return ops.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]

        bias = joined("bias") if self.use_bias else None
        return prepared(joined("kernel"), bias)

    def initial_cache(self, sentences, hypotheses, length):
        """Returns an empty cache for `step`.

        Args:
            sentences: Number of sentences, B.
            hypotheses: Hypotheses of each that are decoded side by side, k.
            length: Most positions that one can have, L.

        Returns:
            Keys (B, H, L * k, K) and values (B, H, L * k, Kv), all zero; entry
            l * k + j belongs to position l of hypothesis j.
        """
        return tuple(
            new_cache(
                sentences,
                self.num_heads,
                length * hypotheses,
                width,
                self.compute_dtype,
            )
            for width in (self.key_dim, self._head_value_dim)
        )

    def _project_step(self, inputs, projection, widths):
        """Projects (B, k, D) to tensors (B, H, k, width)."""
        _, hypotheses, width = inputs.shape
        flat = ops.reshape(ops.cast(inputs, self.compute_dtype), (-1, width))
        projected = affine(flat, *projection)
        return split_heads(projected, hypotheses, self.num_heads, widths)

    def _attend_step(self, queries, keys, values, bias, projection, by_row=False):
        outputs, attention_weights = attend(queries, keys, values, bias, by_row)
        outputs = affine(merge_heads(outputs), *projection)
        shape = (-1, queries.shape[2], outputs.shape[-1])
        return ops.reshape(outputs, shape), attention_weights
