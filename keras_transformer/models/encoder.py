"""Stacks of encoder layers, without and with an embedding."""

from __future__ import annotations

from typing import Any, Self, Unpack

import keras

from keras_transformer.config import EncoderConfig
from keras_transformer.models.token_model import Configured
from keras_transformer.nn.kernels.keras_private import carried_mask
from keras_transformer.nn.layers.embedding import PositionalEmbedding
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


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Configured, keras.layers.Layer):
    """An embedding with positions, then an `EncoderStack`.

    `Tagger`, `TextClassifier` and `MaskedLanguageModel` take an encoder. Models that
    take the same one share its weights: pass on a pre-trained encoder to use it.

    Args:
        config: An `EncoderConfig`.
        embedding: Number of tokens, V, for a `PositionalEmbedding` with 0 for padding;
            or any layer that returns states (B, S, D).
    Call arguments:
        inputs: Integer tensor (B, S), or the inputs of `embedding`.
        mask: Boolean tensor (B, S), True where a position may be attended to; default
            the Keras mask of the embedding's output.
    Returns:
        Float tensor (B, S, D).

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> encoder = Encoder(config, 11)
        >>> encoder(np.array([[3, 4, 5, 0]])).shape  # (1, 4, 6)
    """

    config_class = EncoderConfig
    config: EncoderConfig
    whole_parts = ("embedding",)

    def __init__(
        self,
        config: EncoderConfig,
        embedding: int | keras.layers.Layer,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(config, **kwargs)
        if not isinstance(embedding, keras.layers.Layer):
            embedding = PositionalEmbedding(
                embedding,
                config.d_model,
                config.dropout_rate,
                positions="none" if config.positions else "sinusoidal",
                pad_id=0,
                dtype=self.dtype_policy,
                name="embedding",
            )
        self.embedding = embedding
        self.stack = EncoderStack(config, dtype=self.dtype_policy, name="stack")
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        if not self.embedding.built:
            self.embedding.build(input_shape)
        if not self.stack.built:
            self.stack.build((None, None, self.config.d_model))
        self.built = True

    def call(
        self,
        inputs: TensorLike,
        training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:
        states = self.embedding(inputs, training=training)
        return self.stack(states, mask=mask, training=training)

    def compute_mask(self, inputs: TensorLike, previous_mask: Any) -> Tensor | None:
        """Returns the embedding's Keras mask."""
        return self.embedding.compute_mask(inputs, carried_mask(inputs))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:2], self.config.d_model)

    def get_config(self) -> dict[str, Any]:
        embedding = keras.saving.serialize_keras_object(self.embedding)
        return super().get_config() | {"embedding": embedding}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        embedding = keras.saving.deserialize_keras_object(config["embedding"])
        return super().from_config(config | {"embedding": embedding})
