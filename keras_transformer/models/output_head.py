"""The last product of a model: states to logits over a vocabulary."""

from __future__ import annotations

from keras import ops


class OutputHead:
    """Owns the output matrix, which may be an embedding's.

    Args:
        matrix: Variable (V, D), an embedding's, if `tied`; else (D, V).
        tied: Whether the matrix is an embedding's.
    """

    def __init__(self, matrix, tied):
        self.matrix = matrix
        self.tied = tied

    def kernel(self, dtype):
        """Returns the matrix (D, V) in a float type."""
        matrix = ops.transpose(self.matrix) if self.tied else self.matrix
        return ops.cast(matrix, dtype)

    def logits(self, states, dtype):
        """Multiplies states (B, T, D) by the matrix to logits (B, T, V)."""
        kernel = self.kernel(dtype)
        # One matrix product over all positions is faster than one a sentence.
        rows = ops.reshape(states, (-1, states.shape[-1]))
        shape = (*ops.shape(states)[:2], kernel.shape[-1])
        return ops.reshape(ops.matmul(rows, kernel), shape)

    def rows_for(self, model, base, *methods):
        """Returns the matrix as rows (V, D), if the model's logits are this product.

        Args:
            model: The model whose head this is.
            base: Its class, or the class that it inherits the methods from.
            *methods: Names of the methods from inputs to logits. A subclass that
                overrides one may compute any logits.

        Returns:
            Float tensor (V, D), or `None`.
        """
        if any(getattr(type(model), m) is not getattr(base, m) for m in methods):
            return None
        if self.tied:
            return ops.convert_to_tensor(self.matrix)
        return ops.transpose(self.matrix)
