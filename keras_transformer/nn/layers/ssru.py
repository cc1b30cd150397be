"""The simpler simple recurrent unit (SSRU)."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.nn.arguments import check_known_width
from keras_transformer.nn.kernels.caches import Place, of_parents
from keras_transformer.nn.kernels.recurrence import linear_recurrence
from keras_transformer.nn.layers.attention import PreparedMask, wide_dtype
from keras_transformer.nn.layers.basic import ComposedLayer, Joined, joined, project
from keras_transformer.nn.masks import attention_mask, mask_of_keys
from keras_transformer.types import Nest, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRU(ComposedLayer):
    """The simpler simple recurrent unit, in place of a decoder's self-attention.

    Section 2.2 of Kim et al., 2019,
    https://aclanthology.org/D19-5632:

        f_t = sigmoid(x_t W_f + b_f)
        c_t = f_t c_(t-1) + (1 - f_t) (x_t W), from c_0 = 0
        output_t = relu(c_t)

    `input_dense` holds W, `forget_dense` W_f and b_f. Only c_t, at least float32, is
    computed position by position. `step` decodes one position, as `MultiHeadAttention`
    does; its state does not grow with the length.

    Args:
        **options: See `FeedForward`.
    Call arguments:
        inputs: Float tensor (B, T, D).
        mask: Boolean tensor (B, T) or (B, 1, T), False where the state does not change;
            default the Keras mask of `inputs`.
        use_causal_mask: Must be True.
        training: Whether a gradient will be computed.
    Returns:
        Float tensor (B, T, D).
    Raises:
        ValueError: If the mask differs between queries, or `use_causal_mask` is False.

    Example:
        >>> SSRU()(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    def build(self, input_shape: Shape) -> None:
        check_known_width(self, inputs=input_shape)
        width = input_shape[-1]
        self.input_dense = self.dense("input_dense", width, use_bias=False)
        self.forget_dense = self.dense("forget_dense", width)
        self.input_dense.build(input_shape)
        self.forget_dense.build(input_shape)
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})
        self.built = True

    def call(
        self,
        inputs: TensorLike,
        mask: TensorLike | None = None,
        use_causal_mask: bool = True,
        training: bool | None = None,
    ) -> Tensor:
        if not use_causal_mask:
            raise ValueError(
                "`use_causal_mask` must be True: an SSRU sees only the past. Received: "
                f"use_causal_mask={use_causal_mask}"
            )
        by_time = ops.transpose(inputs, (1, 0, 2))  # (T, B, D)
        kept, new = self._gates(by_time)
        if mask is not None:
            is_read = ops.transpose(mask_of_keys(attention_mask(mask)))
            is_read = ops.expand_dims(is_read, -1)  # (T, B, 1)
            kept = ops.where(is_read, kept, 1.0)
            new = ops.where(is_read, new, 0.0)
        states = ops.transpose(linear_recurrence(kept, new), (1, 0, 2))
        return ops.cast(ops.relu(states), self.compute_dtype)

    def _gates(self, inputs, weights=None):
        """Returns the kept share of the state and the addition to it, both (..., D)."""
        denses = self.input_dense, self.forget_dense
        projected = project(denses, inputs, weights=weights)
        new, kept = (ops.cast(x, wide_dtype(self.compute_dtype)) for x in projected)
        kept = ops.sigmoid(kept)
        return kept, (1.0 - kept) * new

    def step_weights(self, across: bool = False) -> Joined | tuple:
        """Returns the prepared matrices of `step`."""
        return joined([self.input_dense, self.forget_dense])

    def initial_cache(self, sentences: int, hypotheses: int, length: int) -> Nest:
        """Returns c_0, zeros (B, N, D); `length` is ignored."""
        shape = (sentences, hypotheses, self.forget_dense.units)
        return (ops.zeros(shape, wide_dtype(self.compute_dtype)),)

    def step(
        self,
        inputs: TensorLike,
        cache: Nest,
        place: Place,
        mask: PreparedMask,
        weights: Joined | tuple,
    ) -> tuple[Tensor, Nest]:
        """As `MultiHeadAttention.step`, without a mask."""
        kept, new = self._gates(inputs, weights)
        states = kept * of_parents(cache[0], place.parents) + new
        return ops.cast(ops.relu(states), self.compute_dtype), (states,)
