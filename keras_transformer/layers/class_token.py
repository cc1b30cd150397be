"""A learned vector before the first position."""

from __future__ import annotations

from typing import Unpack

import keras
from keras import ops

from keras_transformer.layers.arguments import check_axes
from keras_transformer.types import LayerOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class ClassToken(keras.layers.Layer):
    """Puts a learned vector before the first position, to stand for the whole row.

    The [CLS] token of Devlin et al., 2019, https://arxiv.org/abs/1810.04805, and
    x_class of Dosovitskiy et al., 2021, https://arxiv.org/abs/2010.11929.

    Call arguments:
        states: Float tensor (B, S, D).
    Returns:
        Float tensor (B, S + 1, D).

    Example:
        >>> ClassToken()(np.ones((1, 5, 6), "float32")).shape  # (1, 6, 6)
    """

    def __init__(self, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, states_shape: Shape) -> None:
        check_axes("states", states_shape, "B", "S", "D")
        self.token = self.add_weight(
            shape=(states_shape[-1],),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="token",
        )
        self.built = True

    def call(self, states: TensorLike) -> Tensor:
        check_axes("states", states, "B", "S", "D")
        shape = (ops.shape(states)[0], 1, states.shape[-1])
        token = ops.cast(ops.convert_to_tensor(self.token), states.dtype)
        return ops.concatenate([ops.broadcast_to(token, shape), states], axis=1)

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The class token may be attended to, and the others as before."""
        if previous_mask is None:
            return None
        first = ops.ones_like(previous_mask[:, :1])
        return ops.concatenate([first, previous_mask], axis=1)

    def compute_output_shape(self, states_shape: Shape) -> Shape:
        batch, length, width = states_shape
        return batch, None if length is None else length + 1, width
