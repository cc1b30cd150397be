"""One projection of an attention layer, for code that was written for Keras' own."""

from __future__ import annotations


class Projection:
    """The matrix and the bias of one projection of an attention layer.

    `keras.layers.MultiHeadAttention` holds a dense layer for each projection, ours
    their weights, because it multiplies by several of them at once. This stands in the
    dense layer's place for what is done to one projection: adapters, or freezing.

    Args:
        layer: The attention layer.
        name: "query", "key", "value" or "output".
    """

    def __init__(self, layer, name):
        self._layer = layer
        self._name = name

    def _matrices(self):
        weights = self._layer.projections.weights
        return weights[self._name][:1] if self._name in weights else ()

    def _variables(self):
        names = f"{self._name}_kernel", f"{self._name}_bias"
        parts = (getattr(self._layer, name, None) for name in names)
        return [part for part in parts if part is not None]

    @property
    def lora_rank(self):
        """Rank of the projection's adapter; `None` before `enable_lora`."""
        for matrix in self._matrices():
            return matrix.lora_rank
        return None

    @property
    def lora_enabled(self):
        """Whether the projection has an adapter."""
        return self.lora_rank is not None

    @property
    def trainable(self):
        """Whether training changes the projection's own weights; it can be set."""
        return any(variable.trainable for variable in self._variables())

    @trainable.setter
    def trainable(self, value):
        for variable in self._variables():
            variable.trainable = bool(value)

    def enable_lora(
        self, rank, lora_alpha=None, a_initializer="he_uniform", b_initializer="zeros"
    ):
        """Trains two small matrices in place of this projection's alone.

        As `enable_lora` of the attention layer, which does so to every projection. The
        heads share A (D, rank); each has columns of its own in B (rank, H * K).

        Args:
            rank: Width of the adapter.
            lora_alpha: Its strength; default `rank`.
            a_initializer: Initializer of A.
            b_initializer: Initializer of B.

        Raises:
            ValueError: As the layer's `enable_lora`, of this projection's matrix.
        """
        self._layer.adapt_matrices(
            self._matrices(), rank, lora_alpha, a_initializer, b_initializer
        )

    def quantize(self, *args, **kwargs):
        """Raises an error that names what to call.

        Raises:
            NotImplementedError: Always: projections that are multiplied by at once are
                rounded alike.
        """
        raise NotImplementedError(
            "One projection cannot be quantised alone, because it is multiplied by "
            "together with others: call `quantize` of the attention layer. Received: "
            f"`{self._name}_dense` of the layer {self._layer.name!r}"
        )
