"""The last product of a model: states to logits over a vocabulary."""

from __future__ import annotations

from keras import ops

from keras_transformer.layers.weight_matrix import (
    WeightMatrix,
    multiply,
    prepared_weights,
    side_by_side,
)


def matrix_of(embedding):
    """Returns the matrix (V, D) of an embedding, for an output that shares it.

    Args:
        embedding: A `PositionalEmbedding`, or another layer of ids with `embeddings`.
    """
    table = getattr(embedding, "table", None)
    return table if isinstance(table, WeightMatrix) else _Table(embedding)


class _Table:
    """As a `WeightMatrix` (V, D), of a layer that is not this package's."""

    is_table, input_quantizer = True, None

    def __init__(self, embedding):
        self.embedding = embedding

    def value(self, dtype=None):
        if getattr(self.embedding, "quantization_mode", None) is None:
            # With an adapter it is another tensor each time.
            embeddings = ops.convert_to_tensor(self.embedding.embeddings)
        else:
            embeddings = self.embedding(ops.arange(self.embedding.input_dim))
        return embeddings if dtype is None else ops.cast(embeddings, dtype)

    def kernel(self, dtype):
        return ops.transpose(self.value(dtype))


class OutputHead:
    """Multiplies by the output matrix, which may be an embedding's, and adds a bias.

    Args:
        matrix: A `WeightMatrix`: a table (V, D), or else (D, V).
        bias: The model's variable (V,), or `None` to add nothing.
    """

    def __init__(self, matrix, bias=None):
        self.matrix = matrix
        self.bias = bias

    def logits(self, states, dtype):
        """Multiplies states (B, T, D) by the matrix to logits (B, T, V)."""
        # One matrix product over all positions is faster than one a sentence.
        rows = ops.reshape(states, (-1, states.shape[-1]))
        logits = self.multiply(rows, self._weights(dtype))
        return ops.reshape(logits, (*ops.shape(states)[:2], logits.shape[-1]))

    def multiply(self, rows, weights):
        """Multiplies rows (R, D) by `decoding_weights` to logits (R, V)."""
        return multiply(rows, weights, self.matrix.input_quantizer)

    def decoding_weights(self, dtype):
        """Returns what `multiply` multiplies by, in a float type."""
        return prepared_weights(self._weights(dtype))

    def _weights(self, dtype):
        return side_by_side([self.matrix], [self.bias], dtype)

    def rows(self):
        """Returns the matrix as rows (V, D)."""
        matrix = self.matrix.value()
        return matrix if self.matrix.is_table else ops.transpose(matrix)
