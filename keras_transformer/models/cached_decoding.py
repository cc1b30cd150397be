"""Decoding step by step, with the keys and values of the positions before in caches."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.layers.attention import attention_bias
from keras_transformer.layers.decoding_ops import (
    affine,
    cache_place,
    prepared,
)


class CachedSteps:
    """What the models that decode step by step over caches share.

    A mixin: it uses the model's `decoder_layers` and output matrix. The model's
    `start_decoding` makes a state, a dictionary; of it, "index" is the position (),
    "caches" are the keys and values of the positions before, a pair a layer, and
    "ancestors" (B, k, L) says whose they are. `decode_step` adds one position to it.
    """

    def decoding_weights(self):
        """Prepares the matrices of `decode_step`, some of which are joined for speed.

        An export keeps them, laid out for decoding; without them every decoding makes
        them anew.
        """
        return {
            "output": prepared(self._output_kernel()),
            "layers": tuple(layer.decoding_weights() for layer in self.decoder_layers),
        }

    def resize_decoding(self, state, sentences, length):
        """Returns the state of some sentences, with room for more positions.

        Args:
            state: As `start_decoding` or `decode_step` returned it.
            sentences: Integer tensor (B',), places of the sentences to keep.
            length: Positions, an integer or a scalar tensor, at least as many as now.

        Returns:
            The state of B' sentences.
        """
        kept = keras.tree.map_structure(
            lambda leaf: ops.take(leaf, sentences, axis=0),
            {name: state[name] for name in state if name not in ("index", "caches")},
        )
        _, beam_size, room = ops.shape(kept["ancestors"])
        more = length - room
        kept["ancestors"] = ops.pad(kept["ancestors"], ((0, 0), (0, 0), (0, more)))
        caches = tuple(
            layer.resize_cache(cache, sentences, more * beam_size)
            for layer, cache in zip(self.decoder_layers, state["caches"], strict=True)
        )
        return kept | {"index": state["index"], "caches": caches}

    def _places(self, state, hypotheses):
        """`cache_place` for each layer's caches, worked out once for those of a size.

        Layers may differ: in their heads, or in what they keep of the past.
        """
        of_size, places = {}, []
        for keys, *_ in state["caches"]:
            size = tuple(keys.shape[1:3])
            if size not in of_size:
                of_size[size] = cache_place(keys, hypotheses, state["index"])
            places.append(of_size[size])
        return places

    def _past(self, parents, state):
        """Follows the hypotheses to their past.

        Returns:
            The ancestors (B, k, L): in whose entries of the caches, of the k at each
            position, a hypothesis's own past lies; and a mask that broadcasts to
            (B, 1, k, L * k), True for a hypothesis's past and for itself.
        """
        index, beam_size = state["index"], parents.shape[1]
        batch, _, length = ops.shape(state["ancestors"])
        places = ops.arange(length, dtype="int32")
        if beam_size == 1:
            mask = ops.reshape(places <= index, (1, 1, 1, length))
            return state["ancestors"], mask
        slots = ops.arange(beam_size, dtype="int32")
        before = of_parents(state["ancestors"], parents)
        ancestors = ops.where(places == index, slots[:, None], before)
        is_own = ancestors[..., None] == slots  # (B, k, L, k)
        is_past = ops.logical_and(is_own, (places <= index)[:, None])
        shape = (batch, 1, beam_size, length * beam_size)
        return ancestors, ops.reshape(is_past, shape)


class CachedDecoding(CachedSteps):
    """What `Transformer` does when targets are decoded step by step.

    A mixin: it uses the model's config, layers and `encode`. `start_decoding` makes a
    state, `decode_step` adds one position to it, `resize_decoding` changes its size.
    """

    def start_decoding(self, source, length, beam_size=1, coverage=False):
        """Encodes the source and makes the state of `decode_step`.

        Args:
            source: Integer tensor (B, S).
            length: Most target positions that will be decoded, L (tokens).
            beam_size: Hypotheses of a sentence, k.
            coverage: Whether to sum up the attention to the source, for
                `coverage_penalty`.

        Returns:
            The state, a dictionary: "index", the position; "caches" and "ancestors",
            keys and values of the positions before, and whose they are; "sources" and
            "source_bias", keys, values and mask of the source; with `coverage`,
            "coverage" (B, k, S).

        Raises:
            ValueError: If learned positions are fewer than `length`.
        """
        config = self.config
        if (
            config.positions == "learned"
            and isinstance(length, int)
            and length > config.max_positions
        ):
            raise ValueError(
                "`length` must not exceed the learned positions. Received: "
                f"length={length}, max_positions={config.max_positions}"
            )
        encoder_output, source_mask = self.encode(source, training=False)
        is_token = ops.expand_dims(ops.swapaxes(source_mask, 1, 2), 1)  # (B, 1, S, 1)
        sources = []
        for layer in self.decoder_layers:
            keys, values = layer.project_encoder_output(encoder_output)
            # A source without any token then gives zeros, as the attention layer does.
            sources.append((keys, ops.where(is_token, values, 0.0)))
        batch, source_length = ops.shape(source)
        state = {
            "index": ops.zeros((), dtype="int32"),
            "ancestors": ops.zeros((batch, beam_size, length), dtype="int32"),
            "caches": tuple(
                layer.initial_cache(batch, beam_size, length)
                for layer in self.decoder_layers
            ),
            "sources": tuple(sources),
            "source_bias": attention_bias(
                ops.expand_dims(source_mask, 1), self.compute_dtype
            ),
        }
        if coverage:
            state["coverage"] = ops.zeros((batch, beam_size, source_length))
        return state

    def decode_step(self, ids, parents, state, weights=None):
        """Scores the next token of each hypothesis; equals `decode` at that position.

        Args:
            ids: Integer tensor (R,), the last token of each of the R = B * k rows.
            parents: Integer tensor (B, k), the hypothesis of the step before that each
                row continues.
            state: As `start_decoding` or the step before returned it; not to be used
                again.
            weights: `decoding_weights()`, computed here if not given.

        Returns:
            Logits (R, V) and the new state.
        """
        weights = self.decoding_weights() if weights is None else weights
        index, beam_size = state["index"], parents.shape[1]
        ancestors, past = self._past(parents, state)
        biases = attention_bias(past, self.compute_dtype), state["source_bias"]
        states = self.target_embedding(ids[:, None], start=index, training=False)
        states = ops.reshape(states, (-1, beam_size, self.config.d_model))
        caches = []
        for layer, cache, place, source, layer_weights in zip(
            self.decoder_layers,
            state["caches"],
            self._places(state, beam_size),
            state["sources"],
            weights["layers"],
            strict=True,
        ):
            states, cache, attention_weights = layer.step(
                states, cache, source, place, biases, layer_weights
            )
            caches.append(cache)
        if self.decoder_norm is not None:
            states = self.decoder_norm(states)
        flat = ops.reshape(states, (-1, self.config.d_model))
        state = dict(state, index=index + 1, ancestors=ancestors, caches=tuple(caches))
        if "coverage" in state:
            attention_weights = ops.cast(attention_weights, "float32")
            before = of_parents(state["coverage"], parents)
            state["coverage"] = before + ops.mean(attention_weights, axis=1)
        return affine(flat, *weights["output"]), state

    def coverage(self, state):
        """Returns a state's attention summed up (B, k, S) and its mask (B, 1, S)."""
        return state["coverage"], state["source_bias"][:, :, 0] == 0.0


def of_parents(x, parents):
    """Returns, of `x` (B, k, L), the rows of the hypotheses' parents (B, k)."""
    batch, beam_size, length = ops.shape(x)
    parents = ops.convert_to_tensor(parents, dtype="int32")
    rows = ops.arange(batch, dtype="int32")[:, None] * beam_size + parents
    taken = ops.take(ops.reshape(x, (-1, length)), ops.reshape(rows, (-1,)), axis=0)
    return ops.reshape(taken, (batch, beam_size, length))
