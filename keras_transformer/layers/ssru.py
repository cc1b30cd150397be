"""The simpler simple recurrent unit."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.kernels.decoding import of_parents
from keras_transformer.kernels.execution import shape_of
from keras_transformer.kernels.few_passes import wide_dtype
from keras_transformer.kernels.recurrence import linear_recurrence
from keras_transformer.layers.adaptable_layer import AdaptableLayer
from keras_transformer.layers.arguments import check_axes, check_mask, mask_of_keys
from keras_transformer.layers.transformer_layer import DecoderLayer
from keras_transformer.layers.weight_matrix import (
    multiply,
    prepared_weights,
    side_by_side,
)
from keras_transformer.layers.weight_options import (
    keep_options,
    kept_config,
    kept_options,
    options_for,
)
from keras_transformer.masks import attention_mask, carried_mask
from keras_transformer.types import (
    Constraint,
    Initializer,
    LayerOptions,
    Nest,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRU(AdaptableLayer):
    """A recurrent unit that takes the place of a decoder's self-attention.

    The simpler simple recurrent unit of Kim et al., 2019, section 2.2,
    https://aclanthology.org/D19-5632:

        f_t = sigmoid(x_t W_f + b_f)
        c_t = f_t c_(t-1) + (1 - f_t) (x_t W), from c_0 = 0
        output_t = relu(c_t)

    The products of all positions are made at once; what is left to do one position
    after the other is c_t, of which each unit needs its own past alone. It is computed
    in at least float32. The weights are `kernel` W and `forget_kernel` W_f (D, D), and
    `forget_bias` b_f (D,).

    `initial_cache` and `step` compute one position at a time, with the interface that a
    `DecoderLayer` expects of its self-attention and a state whose size does not depend
    on the length. It follows the hypotheses of a beam.

    Args:
        kernel_initializer: Initializer of the matrices.
        bias_initializer: Initializer of the bias.
        kernel_regularizer: Regularizer of the matrices, or `None`.
        bias_regularizer: Regularizer of the bias, or `None`.
        kernel_constraint: Constraint on the matrices, or `None`.
        bias_constraint: Constraint on the bias, or `None`.
    Call arguments:
        inputs: Float tensor (B, T, D).
        mask: Boolean tensor (B, T) or (B, 1, T), False where a position leaves the
            state as it is; default the Keras mask that `inputs` carries.
        training: Whether a gradient will be asked for.
    Returns:
        Float tensor (B, T, D).
    Raises:
        ValueError: If the mask differs between positions that look back.

    Example:
        >>> SSRU()(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    # No position sees a later one.
    causal = True

    def __init__(
        self, *, kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None, **kwargs: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        keep_options(
            self,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
        )
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        check_axes("inputs", input_shape, "B", "T", "D")
        self.width = input_shape[-1]
        shape = (self.width, self.width)
        self.matrices = [
            self.add_matrix(name, shape, **options_for(self, "kernel"))
            for name in ("kernel", "forget_kernel")
        ]
        self.forget_bias = self.add_weight(
            shape=(self.width,), name="forget_bias", **options_for(self, "bias")
        )
        self.built = True

    def call(
        self, inputs: TensorLike, mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        check_axes("inputs", inputs, "B", "T", "D")
        mask = attention_mask(carried_mask(inputs) if mask is None else mask)
        check_mask("mask", mask, inputs, inputs)
        by_time = ops.transpose(inputs, (1, 0, 2))
        kept, new = self._gates(by_time, self._weights(), training)
        if mask is not None:
            is_read = ops.expand_dims(ops.transpose(mask_of_keys(mask)), -1)
            kept = ops.where(is_read, kept, 1.0)
            new = ops.where(is_read, new, 0.0)
        return ops.transpose(self._outputs(linear_recurrence(kept, new)), (1, 0, 2))

    def _gates(self, inputs, weights, training=False):
        """What share of the state is kept, and what is added, both (..., D)."""
        # One matrix product over all positions is faster than one a sentence.
        rows = ops.reshape(ops.cast(inputs, self.compute_dtype), (-1, self.width))
        quantizer = self.matrices[0].input_quantizer
        projected = multiply(rows, weights, quantizer, training)
        wide = ops.cast(projected, wide_dtype(projected.dtype))
        new, kept = ops.split(wide, 2, axis=-1)
        kept = ops.sigmoid(kept)
        shape = shape_of(inputs)
        return ops.reshape(kept, shape), ops.reshape((1.0 - kept) * new, shape)

    def _outputs(self, states):
        return ops.cast(ops.relu(states), self.compute_dtype)

    def _weights(self):
        biases = [ops.zeros((self.width,), self.compute_dtype), self.forget_bias]
        return side_by_side(self.matrices, biases, self.compute_dtype)

    def decoding_weights(self, *names: str) -> Nest:
        """Returns the matrices of `step`, prepared.

        Args:
            *names: Ignored; `MultiHeadAttention` needs them.
        """
        return prepared_weights(self._weights())

    def initial_cache(self, sentences: int, hypotheses: int, length: int) -> Nest:
        """Returns the state of `step` before the first position.

        Args:
            sentences: Number of sentences, B.
            hypotheses: Hypotheses of each that are decoded side by side, N.
            length: Ignored; `MultiHeadAttention` needs it.

        Returns:
            A tuple of one tensor of zeros (B, N, D).
        """
        shape = (sentences, hypotheses, self.width)
        return (ops.zeros(shape, wide_dtype(self.compute_dtype)),)

    def resize_cache(self, cache: Nest, sentences: int, more: int) -> Nest:
        """Returns the states of some sentences, which need no room for more positions.

        Args:
            cache: The states, from `initial_cache` or `step`.
            sentences: Integer tensor (B',), places of the sentences to keep.
            more: Ignored; `MultiHeadAttention` needs it.

        Returns:
            A tuple of one tensor (B', N, D).
        """
        return (ops.take(cache[0], sentences, axis=0),)

    def step(
        self, inputs: TensorLike, cache: Nest, place: Nest, mask: TensorLike | None,
        weights: Nest,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
        """Computes one new position of each hypothesis.

        Args:
            inputs: Float tensor (B, N, D), the position's input for each hypothesis.
            cache: The states, from `initial_cache` or the step before.
            place: `cache_place` of the position, with the hypotheses' parents.
            mask: Ignored; `MultiHeadAttention` needs it.
            weights: `decoding_weights()`.

        Returns:
            The output (B, N, D) and the new states.
        """
        kept, new = self._gates(inputs, weights)
        states = kept * of_parents(cache[0], place.parents) + new
        return self._outputs(states), (states,)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The output is as long as the input and carries its Keras mask."""
        return carried_mask(inputs)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | kept_config(self)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRUDecoderLayer(DecoderLayer):
    """A `DecoderLayer` whose `self_attention` is an `SSRU`.

    Kim et al., 2019, section 2.2, https://aclanthology.org/D19-5632: its steps of
    decoding read one state, not the keys and values of all positions before. The
    options of attention are for that to the source.

    Args:
        num_heads: Attention heads, h in the paper.
        d_ff: Width of the feed-forward network's hidden layer, d_ff in the paper.
        key_dim: Width of a head's queries and keys; default the input's width divided
            by `num_heads`, which must then divide it.
        value_dim: Width of a head's values; default `key_dim`.
        dropout_rate: Share of each sub-layer's output dropped in training, in [0, 1);
            P_drop in the paper.
        attention_dropout_rate: Share of the attention weights dropped in training.
        activation_dropout_rate: Share of the feed-forward network's hidden units
            dropped in training.
        activation: Activation of the feed-forward network.
        norm_first: Whether to normalise before each sub-layer instead of after it.
        use_bias: Whether the attention projections add a bias.
        layer_norm_epsilon: What the norms add to the variance.
        attention: "dot-product": no other kind takes the place of the SSRU.
        attention_window: `None`, as no attention has a window.
        num_key_value_heads: Heads of keys and values, a divisor of `num_heads`; default
            `num_heads`. See `MultiHeadAttention`.
        positions: `None`: the SSRU knows the order by itself.
        kernel_initializer: Initializer of the matrices.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the matrices, or `None`.
        bias_regularizer: Regularizer of the biases, or `None`.
        kernel_constraint: Constraint on the matrices, or `None`.
        bias_constraint: Constraint on the biases, or `None`.
    Call arguments:
        inputs: As `DecoderLayer` takes them, like the rest.
    Returns:
        Float tensor (B, T, D).

    Example:
        >>> layer = SSRUDecoderLayer(num_heads=2, d_ff=8)
        >>> target, source = np.ones((1, 4, 6)), np.ones((1, 5, 6))
        >>> layer(target, source).shape  # (1, 4, 6)
    """

    def make_attention(self, name: str, d_model: int) -> keras.layers.Layer:
        """Returns the `SSRU` or, of another name, the attention of `DecoderLayer`."""
        if name != "self_attention":
            return super().make_attention(name, d_model)
        if self.attention != "dot-product" or self.positions is not None:
            raise ValueError(
                "`attention` and `positions` must be left out: an SSRU takes the place "
                f"of the self-attention. Received: attention={self.attention!r}, "
                f"positions={self.positions!r}"
            )
        return SSRU(dtype=self.dtype_policy, name=name, **kept_options(self))
