"""Decoding step by step with a recurrent state."""

from __future__ import annotations

from keras import ops

from keras_transformer.layers.decoding_ops import affine, prepared
from keras_transformer.models.cached_decoding import of_parents


class RecurrentDecoding:
    """What `RecurrentSeq2Seq` does when targets are decoded step by step.

    A mixin with the methods of `CachedDecoding`; the state of a hypothesis is one
    vector, whatever its length.
    """

    def decoding_weights(self):
        """Prepares the output matrix for `decode_step`; an export keeps it."""
        return {"output": prepared(self._output_kernel())}

    def start_decoding(self, source, length, beam_size=1, coverage=False):
        """Encodes the source and makes the state of `decode_step`.

        Args:
            source: Integer tensor (B, S).
            length: Most target positions that will be decoded; a recurrent state has
                room for any number.
            beam_size: Hypotheses of a sentence, k.
            coverage: Whether to sum up the attention to the source, for
                `coverage_penalty`.

        Returns:
            The state, a dictionary: "hidden" (B, k, U), the decoder's states; "values",
            "keys" and "source_mask", the source's; with `coverage`, "coverage"
            (B, k, S).
        """
        encoder_output, source_mask = self.encode(source, training=False)
        state = {
            "hidden": ops.tile(self._start(encoder_output), (1, beam_size, 1)),
            "keys": self.cross_attention.project_key(encoder_output),
            "values": encoder_output,
            "source_mask": source_mask,
        }
        if coverage:
            batch, source_length = ops.shape(source)
            state["coverage"] = ops.zeros((batch, beam_size, source_length))
        return state

    def resize_decoding(self, state, sentences, length):
        """Returns the state of some sentences.

        Args:
            state: As `start_decoding` or `decode_step` returned it.
            sentences: Integer tensor (B',), places of the sentences to keep.
            length: As in `start_decoding`.

        Returns:
            The state of B' sentences.
        """
        return {name: ops.take(x, sentences, axis=0) for name, x in state.items()}

    def decode_step(self, ids, parents, state, weights=None):
        """Scores the next token of each hypothesis; equals `decode` at that position.

        Args:
            ids: Integer tensor (R,), the last token of each of the R = B * k rows.
            parents: Integer tensor (B, k), the hypothesis of the step before that each
                row continues.
            state: As `start_decoding` or the step before returned it.
            weights: `decoding_weights()`, computed here if not given.

        Returns:
            Logits (R, V) and the new state.
        """
        weights = self.decoding_weights() if weights is None else weights
        d_model = self.config.d_model
        tokens = self._embed(self.target_embedding, ids)
        tokens = ops.reshape(tokens, (-1, parents.shape[1], d_model))
        hidden, contexts, attention_weights = self._step(
            tokens,
            of_parents(state["hidden"], parents),
            (state["keys"], state["values"], state["source_mask"]),
        )
        readouts = self._read_out(hidden, tokens, contexts)
        state = dict(state, hidden=hidden)
        if "coverage" in state:
            before = of_parents(state["coverage"], parents)
            state["coverage"] = before + ops.cast(attention_weights, "float32")
        flat = ops.reshape(readouts, (-1, d_model))
        return affine(flat, *weights["output"]), state

    def coverage(self, state):
        """Returns a state's attention summed up (B, k, S) and its mask (B, 1, S)."""
        return state["coverage"], state["source_mask"]
