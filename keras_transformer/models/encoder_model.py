"""What the models without a decoder share: their attention, their export, pooling."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.adaptable_layer import HasAdaptableLayers
from keras_transformer.layers.attention import recorded_attention
from keras_transformer.types import Tensor, TensorLike


class EncoderModel(HasAdaptableLayers, keras.Model):
    """Base of the models without a decoder: they show their attention and export.

    A subclass has an `EncoderStack` as its attribute `stack`.
    """

    def export(
        self, filepath: str, *args: Any, input_signature: Any = None, **kwargs: Any
    ) -> None:
        """As `keras.Model.export`; by default the signature takes any batch.

        Args:
            filepath: Directory of the SavedModel, NAME/VERSION.
            *args: As `keras.Model.export` takes after the path.
            input_signature: Shapes and types of the inputs; default
                `self.input_signature()`.
            **kwargs: As `keras.Model.export`.
        """
        signature = input_signature or self.input_signature()
        super().export(filepath, *args, input_signature=signature, **kwargs)

    def attention(
        self, inputs: TensorLike | tuple[TensorLike, TensorLike], layer: int = -1
    ) -> Tensor:
        """Returns how the positions attend to each other in one layer.

        Args:
            inputs: As for a call.
            layer: Encoder layer, counted from 0, or from -1 backwards.

        Returns:
            Attention weights (B, H, S, S): row t is the attention of position t. A
            class token is position 0.

        Raises:
            ValueError: If there is no such layer, or its attention has no weights, as
                `LinearAttention` has none.
        """
        layers = self.stack.encoder_layers
        if not -len(layers) <= layer < len(layers):
            raise ValueError(
                f"`layer` must be from {-len(layers)} to {len(layers) - 1}. Received: "
                f"layer={layer}"
            )
        chosen = layers[layer].self_attention
        with recorded_attention() as record:
            self(inputs, training=False)
        if chosen not in record:
            raise ValueError(
                f"The attention of layer {layer} has no weights to show: it is "
                f"{type(chosen).__name__}."
            )
        return record[chosen][0]


def check_pooling(pooling):
    """Raises `ValueError` unless `pooling` is "mean" or "class_token"."""
    if pooling not in ("mean", "class_token"):
        raise ValueError(
            f"`pooling` must be 'mean' or 'class_token'. Received: pooling={pooling!r}"
        )


def masked_mean(states, mask):
    """Averages over the positions that the mask allows.

    Args:
        states: Float tensor (B, S, D).
        mask: Boolean tensor (B, S).

    Returns:
        Float tensor (B, D), zeros where the mask allows none.
    """
    factors = ops.expand_dims(ops.cast(mask, states.dtype), -1)
    return ops.sum(states * factors, axis=1) / ops.maximum(ops.sum(factors, axis=1), 1)
