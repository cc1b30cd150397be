"""A stack of encoder layers."""

from __future__ import annotations

from typing import Any, Unpack

import keras

from keras_transformer.config import EncoderConfig
from keras_transformer.models.token_model import Configured
from keras_transformer.nn.kernels.keras_private import carried_mask
from keras_transformer.nn.layers.transformer_layer import EncoderLayer
from keras_transformer.types import LayerOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderStack(Configured, keras.layers.Layer):
    """A stack of encoder layers, with a final norm if `norm_first`.

    The encoder in figure 1 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762,
    without the embedding. Override `make_encoder_layer` to use other layers.

    Args:
        config: An `EncoderConfig`.
    Call arguments:
        states: Float tensor (B, S, D).
        mask: Boolean tensor (B, S), (B, 1, S) or (B, S, S), True where a position may
            be attended to; default the Keras mask of `states`.
    Returns:
        Float tensor (B, S, D).

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> EncoderStack(config)(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    config_class = EncoderConfig
    config: EncoderConfig

    def __init__(self, config: EncoderConfig, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(config, **kwargs)
        self.encoder_layers = [
            self.make_encoder_layer(f"encoder_layer_{i}")
            for i in range(config.num_layers)
        ]
        # Pre-norm does not normalise the last layer's sum.
        self.norm = self._make_norm("norm") if config.norm_first else None
        self.supports_masking = True

    def make_encoder_layer(self, name: str) -> keras.layers.Layer:
        """Returns the encoder layer `name`; override to replace it."""
        return EncoderLayer(
            **self.config.layer_options(), dtype=self.dtype_policy, name=name
        )

    def build(self, input_shape: Shape) -> None:
        for layer in self.encoder_layers:
            layer.build(input_shape)
        if self.norm is not None:
            self.norm.build(input_shape)
        self.built = True

    def call(
        self,
        states: TensorLike,
        mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> Tensor:
        for layer in self.encoder_layers:
            states = layer(states, mask=mask, training=training)
        return states if self.norm is None else self.norm(states, training=training)

    def compute_mask(self, inputs: TensorLike, previous_mask: Any) -> Tensor | None:
        """Returns the Keras mask of the input."""
        return carried_mask(inputs)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)
