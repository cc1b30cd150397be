"""Attention of one new position at a time, to keys and values that are kept."""

from __future__ import annotations

from keras import ops

from keras_transformer.kernels.decoding import (
    attend,
    new_cache,
    resize_cache,
    write_position,
)
from keras_transformer.kernels.few_passes import masked_softmax
from keras_transformer.layers.argument_order import ValueBeforeKey
from keras_transformer.layers.attention import dot_product_attention
from keras_transformer.masks import within_window
from keras_transformer.types import Nest, Tensor, TensorLike


class CachedAttention(ValueBeforeKey):
    """The half of `MultiHeadAttention` that decodes step by step.

    The other half, which attends from whole sequences, sets the attributes that this
    one reads: the options, `projections`, `relative_positions` and `weigh`.
    """

    def _place(self, queries, keys, positions):
        """Puts positions into queries and keys of one sequence."""
        place = self.relative_positions.place
        return place(queries, positions), place(keys, positions)

    def _position_bias(self, query_positions, key_positions):
        bias = self.relative_positions.bias
        return bias(self.num_heads, query_positions, key_positions)

    def project_key_value(
        self, key: TensorLike, value: TensorLike | None = None
    ) -> Nest:
        """Projects keys and values once, for many calls of `step_across`.

        Args:
            key: Float tensor (B, S, D_key).
            value: Float tensor (B, S, D_value); default `key`.

        Returns:
            Keys (B, G, S, K) and values (B, G, S, Kv), of G = H heads unless
            `num_key_value_heads` is less.
        """
        project = self.projections.project_one
        if value is None:
            return project(key, "key", "value")
        return project(key, "key") + project(value, "value")

    def decoding_weights(self, *names: str) -> Nest:
        """Returns the matrices of `step` or `step_across`, prepared.

        Args:
            *names: "query", "key", "value" for `step` and "query" for `step_across`.

        Raises:
            ValueError: If the layer's options leave no order of positions to step in.
        """
        if self.attention_axes not in (None, (1,)):
            raise ValueError(
                "Decoding step by step needs attention over the positions alone; leave "
                "`attention_axes` out. Received: "
                f"attention_axes={self.attention_axes}"
            )
        if self.sliding_window is not None and "key" not in names:
            raise ValueError(
                "Decoding step by step knows no `sliding_window` over a source; leave "
                f"it out. Received: sliding_window={self.sliding_window}"
            )
        return self.projections.decoding_weights(*self._step_names(*names))

    def _step_names(self, *names):
        return (*names, "gate") if self.use_gate else names

    def initial_cache(self, sentences: int, hypotheses: int, length: int) -> Nest:
        """Returns an empty cache for `step`.

        Args:
            sentences: Number of sentences, B.
            hypotheses: Hypotheses of each that are decoded side by side, N.
            length: Most positions that one can have, L.

        Returns:
            Keys (B, G, L * N, K) and values (B, G, L * N, Kv), all zero, of G = H heads
            unless `num_key_value_heads` is less; entry l * N + n belongs to position l
            of hypothesis n.
        """
        entries = length * hypotheses
        return tuple(
            new_cache(sentences, number, entries, width, self.compute_dtype)
            for number, width in map(self.projections.heads.get, ("key", "value"))
        )

    def resize_cache(
        self, cache: Nest, sentences: TensorLike, more: int | TensorLike
    ) -> Nest:
        """Returns the cache of some sentences, with room for more entries.

        Args:
            cache: Keys and values, from `initial_cache` or `step`.
            sentences: Integer tensor (B',), places of the sentences to keep.
            more: Entries to add, N a position; an integer or a scalar tensor.

        Returns:
            Keys and values (B', G, L * N + more, ...).
        """
        return tuple(resize_cache(part, sentences, more) for part in cache)

    def step(
        self, inputs: TensorLike, cache: Nest, place: Nest, mask: TensorLike | None,
        weights: Nest,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
        """Self-attention of one new position to itself and those before it.

        Args:
            inputs: Float tensor (B, N, D), the position's input for each hypothesis.
            cache: Keys and values of the earlier positions, from `initial_cache` or the
                step before; it must not be used again.
            place: `cache_place` of the position.
            mask: `prepare_mask` of a mask that broadcasts to (B, H, N, L * N), True for
                the entries l * N + n (position l of hypothesis n) of a hypothesis's
                past and for the new one itself.
            weights: `decoding_weights("query", "key", "value")`.

        Returns:
            The output (B, N, output_dim) and the cache with the position written.
        """
        names = self._step_names("query", "key", "value")
        projected = self.projections.project_step(inputs, weights[0], *names)
        queries, new, gates = projected[0], [*projected[1:3]], projected[3:]
        if self.sliding_window is not None:
            window = self.sliding_window - 1
            mask = mask & near_entries(place, cache[0], inputs.shape[1], window)
        bias = None
        if self.positions is not None:
            position = ops.reshape(ops.cast(place.position, "int32"), (1,))
            queries, new[0] = self._place(queries, new[0], position)
            entries = ops.arange(ops.shape(cache[0])[2], dtype="int32")
            bias = self._position_bias(position, entries // inputs.shape[1])
        cache = tuple(
            write_position(one, many, place)
            for one, many in zip(cache, new, strict=True)
        )
        outputs, _ = self._attend_step(queries, *cache, mask, position_bias=bias)
        outputs = _gated(outputs, gates)
        return self.projections.merge_step(outputs, weights[1]), cache

    def step_across(
        self, inputs: TensorLike, keys: TensorLike, values: TensorLike,
        mask: TensorLike | None, weights: Nest,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Attention of one new position to the keys and values of a source.

        Args:
            inputs: Float tensor (B, N, D).
            keys: Float tensor (B, G, S, K), from `project_key_value`.
            values: Float tensor (B, G, S, Kv).
            mask: `prepare_mask` of a mask that broadcasts to (B, H, N, S).
            weights: `decoding_weights("query")`.

        Returns:
            The output (B, N, output_dim) and the attention weights (B, H, N, S).
        """
        names = self._step_names("query")
        queries, *gates = self.projections.project_step(inputs, weights[0], *names)
        outputs, attention_weights = self._attend_step(
            queries, keys, values, mask, by_row=True
        )
        outputs = _gated(outputs, gates)
        return self.projections.merge_step(outputs, weights[1]), attention_weights

    def _attend_step(
        self, queries, keys, values, mask, by_row=False, position_bias=None
    ):
        """As `_attend`, for one position, with a prepared mask."""
        if self.weigh is not masked_softmax:
            return dot_product_attention(
                queries, keys, values, mask.mask, position_bias, self.weigh
            )
        bias = mask.bias
        if position_bias is not None:
            bias = ops.add(bias, position_bias)
        if keys.shape[1] == self.num_heads:
            return attend(queries, keys, values, bias, by_row)
        return dot_product_attention(queries, keys, values, bias=bias)


def _gated(outputs, gates):
    """Multiplies the outputs (B, H, N, Kv) of a step by the gate, if there is one."""
    return outputs * ops.sigmoid(gates[0]) if gates else outputs


def near_entries(place, keys, hypotheses, window):
    """Tells which entries of a cache lie at most `window` positions from the new one.

    Args:
        place: `cache_place` of the new position.
        keys: The cache's keys, float tensor (B, G, L * N, K).
        hypotheses: N.
        window: Positions to each side.

    Returns:
        Boolean tensor (L * N,).
    """
    positions = ops.arange(ops.shape(keys)[2], dtype="int32") // hypotheses
    return within_window(place.position, positions, window)
