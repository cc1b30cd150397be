"""Vectors to states: what `TextEncoder` is, for sequences that are not of ids."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Unpack

import keras
from keras import ops

from keras_transformer.config.layers import EncoderConfig
from keras_transformer.layers.adaptable_layer import HasAdaptableLayers
from keras_transformer.layers.arguments import check_axes, check_size
from keras_transformer.layers.basic import Dropout
from keras_transformer.layers.embedding import (
    LearnedPositionalEmbedding,
    SinusoidalPositionalEncoding,
)
from keras_transformer.models.encoder_stack import EncoderStack
from keras_transformer.models.has_config import HasConfig
from keras_transformer.types import LayerOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class VectorEncoder(HasConfig, HasAdaptableLayers, keras.layers.Layer):
    """A linear map of each vector, with positions, then a stack of encoder layers.

    For sequences that come as vectors, such as the frames of speech, to a `Tagger` or a
    `TextClassifier`. The map stands where a `TextEncoder` has its embedding, as in
    section 3.1 of Dosovitskiy et al., 2021, https://arxiv.org/abs/2010.11929, for the
    patches of an image; the rest is that of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762. Vectors of order 1 are learned from best. To use
    other layers, override `make_stack`.

    Args:
        config: An `EncoderConfig`.
        num_features: Width of a vector, F.
        positions: "sinusoidal", "learned", or `None`: for sequences without an order,
            or where `config.positions`, which enter the attention itself, suffice.
        max_length: Rows of the learned table (positions); only for learned positions.
        mask_value: A vector all of whose numbers are this one is padding, as
            `keras.layers.Masking` has it; `None`: none is.
    Call arguments:
        vectors: Float tensor (B, S, F).
        training: Whether dropout is applied.
        mask: Boolean tensor (B, S), True where a position may be attended to; default
            the Keras mask of `vectors`, or else what `mask_value` says.
    Returns:
        Float tensor (B, S, D).
    Raises:
        TypeError: If `config` is not an `EncoderConfig`, or `vectors` are no floats.
        ValueError: If an argument is out of its range, or `vectors` have other axes.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> encoder = VectorEncoder(config, num_features=40)
        >>> encoder(np.ones((1, 300, 40), "float32")).shape  # (1, 300, 6)
    """

    config_class = EncoderConfig
    config: EncoderConfig
    input_name: ClassVar[str] = "vectors"

    def __init__(
        self, config: EncoderConfig, num_features: int,
        positions: Literal["sinusoidal", "learned"] | None = "sinusoidal",
        max_length: int | None = None, mask_value: float | None = 0.0,
        **kwargs: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(config, **kwargs)
        check_size("num_features", num_features)
        if positions not in ("sinusoidal", "learned", None):
            raise ValueError(
                "`positions` must be 'sinusoidal', 'learned' or None. Received: "
                f"positions={positions!r}"
            )
        check_size("max_length", max_length, optional=positions != "learned")
        self.num_features = num_features
        self.positions = positions
        self.max_length = max_length
        self.mask_value = mask_value
        self.feature_map = keras.layers.Dense(
            config.d_model, dtype=self.dtype_policy, name="feature_map"
        )
        self.position_layer = self._make_position_layer()
        self.stack = self.make_stack("stack")
        self.supports_masking = True

    def make_stack(self, name: str) -> EncoderStack:
        """Returns the layers called `name`; override to use another attention."""
        return EncoderStack(self.config, dtype=self.dtype_policy, name=name)

    def _make_position_layer(self):
        options = {"dtype": self.dtype_policy, "name": "position_layer"}
        rate = self.config.dropout_rate
        if self.positions is None:
            return Dropout(rate, **options)
        if self.positions == "sinusoidal":
            return SinusoidalPositionalEncoding(rate, **options)
        return LearnedPositionalEmbedding(self.max_length, rate, **options)

    def input_signature(self) -> list[keras.InputSpec]:
        """Any batch of vectors, (B, S, F)."""
        shape = (None, None, self.num_features)
        return [keras.InputSpec(shape=shape, dtype="float32")]

    def build(self, vectors_shape: Shape | None = None) -> None:
        states = (None, None, self.config.d_model)
        self.feature_map.build((None, None, self.num_features))
        self.position_layer.build(states)
        self.stack.build(states)
        self.built = True

    def call(
        self, vectors: TensorLike, training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        vectors = self.checked("vectors", vectors)
        states = self.embed(vectors, training=training)
        mask = self.mask(vectors) if mask is None else mask
        return self.stack(states, mask=mask, training=training)

    def embed(self, vectors: TensorLike, training: bool | None = None) -> Tensor:
        """Returns what the stack takes, with positions.

        Args:
            vectors: Float tensor (B, S, F).
            training: Whether dropout is applied.

        Returns:
            Float tensor (B, S, D).
        """
        return self.position_layer(self.feature_map(vectors), training=training)

    def checked(self, name: str, vectors: TensorLike) -> TensorLike:
        """Returns vectors as they are, if they are (B, S, F) and floats.

        Args:
            name: Name of the argument, for errors.
            vectors: What came.

        Raises:
            TypeError: If they are no floats.
            ValueError: If they have other axes, or another width than F.
        """
        check_axes(name, vectors, "B", "S", "F")
        dtype = keras.backend.standardize_dtype(vectors.dtype)
        if "float" not in dtype:
            raise TypeError(
                f"`{name}` must be floats, vectors of {self.num_features} numbers; a "
                f"`TextEncoder` takes ids. Received: dtype {dtype}"
            )
        if vectors.shape[-1] not in (None, self.num_features):
            raise ValueError(
                f"`{name}` must be vectors of `num_features` numbers. Received: shape "
                f"{tuple(vectors.shape)}, num_features={self.num_features}"
            )
        return vectors

    def mask(self, vectors: TensorLike) -> Tensor:
        """Returns a boolean tensor (B, S), True where a vector is not padding."""
        if self.mask_value is None:
            return ops.ones(ops.shape(vectors)[:2], dtype="bool")
        return ops.any(ops.not_equal(vectors, self.mask_value), axis=-1)

    def compute_output_shape(self, vectors_shape: Shape) -> Shape:
        return (*vectors_shape[:2], self.config.d_model)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_features": self.num_features,
            "positions": self.positions,
            "max_length": self.max_length,
            "mask_value": self.mask_value,
        }
