"""Encoder layers one after the other."""

from __future__ import annotations

from typing import Unpack

import keras

from keras_transformer.config.layers import EncoderConfig
from keras_transformer.layers.adaptable_layer import HasAdaptableLayers
from keras_transformer.layers.arguments import check_axes
from keras_transformer.layers.basic import LayerNormalization
from keras_transformer.layers.transformer_layer import EncoderLayer
from keras_transformer.models.model import Configured
from keras_transformer.types import LayerOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderStack(Configured, HasAdaptableLayers, keras.layers.Layer):
    """Encoder layers one after the other, with a final norm if they normalise first.

    The left side of figure 1 of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762, without the embedding. To use other layers,
    override `make_encoder_layer`.

    Args:
        config: An `EncoderConfig`.
    Call arguments:
        states: Float tensor (B, S, D).
        mask: Boolean tensor (B, S), (B, 1, S) or (B, S, S), True where a position may
            be attended to, in every layer; default the Keras mask of `states`.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, S, D).
    Raises:
        TypeError: If `config` is not an `EncoderConfig`.

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
        # Pre-norm leaves the last layer's sum without a norm; post-norm does not.
        self.norm = None
        if config.norm_first:
            self.norm = LayerNormalization(
                epsilon=config.layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
            )
        self.supports_masking = True

    def make_encoder_layer(self, name: str) -> keras.layers.Layer:
        """Returns an encoder layer called `name`; override to use another one."""
        return EncoderLayer(
            **self.config.layer_options(), dtype=self.dtype_policy, name=name
        )

    def build(self, states_shape: Shape) -> None:
        check_axes("states", states_shape, "B", "S", "D")
        for layer in self.encoder_layers:
            layer.build(states_shape)
        if self.norm is not None:
            self.norm.build(states_shape)
        self.built = True

    def call(
        self, states: TensorLike, mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        check_axes("states", states, "B", "S", "D")
        for layer in self.encoder_layers:
            states = layer(states, mask=mask, training=training)
        return states if self.norm is None else self.norm(states, training=training)

    def compute_output_shape(self, states_shape: Shape) -> Shape:
        return tuple(states_shape)
