"""Token ids to states: the part that text models share and that is pre-trained."""

from __future__ import annotations

from typing import Any, Self, Unpack

import keras
from keras import ops

from keras_transformer.config.layers import EncoderConfig
from keras_transformer.layers.adaptable_layer import HasAdaptableLayers
from keras_transformer.layers.arguments import check_axes, check_size, integer_ids
from keras_transformer.layers.embedding import (
    FeatureEmbedding,
    PositionalEmbedding,
    Positions,
)
from keras_transformer.models.encoder_stack import EncoderStack
from keras_transformer.models.model import Configured
from keras_transformer.types import (
    BasicOptions,
    LayerOptions,
    Shape,
    Tensor,
    TensorLike,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextEncoder(Configured, HasAdaptableLayers, keras.layers.Layer):
    """Embedding with positions, then a stack of encoder layers.

    The encoder of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, for `Tagger`,
    `TextClassifier` and `MaskedLanguageModel`. Give the encoder of one to another, and
    they share its weights: that is how a pre-trained one is used.

    Args:
        config: An `EncoderConfig`.
        vocabulary_size: Number of tokens, or of features, V.
        num_features: Ids that describe a token together, F, as `FeatureEmbedding` takes
            them; default one id a token.
        positions: As `PositionalEmbedding` has them; default "sinusoidal", or "none"
            where they enter the attention itself, by `config.positions`.
        max_length: Rows of the learned table (tokens); only for learned positions.
        pad_id: Id of padding, which may stand anywhere in a row and is not attended to.
    Call arguments:
        ids: Integer tensor (B, S), or (B, S, F) with `num_features`.
        training: Whether dropout is applied.
        mask: Boolean tensor (B, S), True where a position may be attended to; default
            where the ids are not padding.
    Returns:
        Float tensor (B, S, D).
    Raises:
        TypeError: If `config` is not an `EncoderConfig`.
        ValueError: If an argument is out of its range.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> encoder = TextEncoder(config, vocabulary_size=11)
        >>> encoder(np.array([[3, 4, 5, 0]])).shape  # (1, 4, 6)
    """

    config_class = EncoderConfig
    config: EncoderConfig

    def __init__(
        self, config: EncoderConfig, vocabulary_size: int,
        num_features: int | None = None,
        positions: Positions | None = None,
        max_length: int | None = None, pad_id: int = 0, **kwargs: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(config, **kwargs)
        check_size("num_features", num_features, optional=True)
        self.vocabulary_size = vocabulary_size
        self.num_features = num_features
        self.positions = positions
        self.max_length = max_length
        self.pad_id = pad_id
        self.embedding = self.make_embedding("embedding")
        self.stack = EncoderStack(config, dtype=self.dtype_policy, name="stack")
        self.supports_masking = True

    def make_embedding(self, name: str) -> keras.layers.Layer:
        """Returns the embedding called `name`; override to use another one."""
        default = "none" if self.config.positions else "sinusoidal"
        layer_class = FeatureEmbedding if self.num_features else PositionalEmbedding
        return layer_class(
            vocabulary_size=self.vocabulary_size,
            d_model=self.config.d_model,
            dropout_rate=self.config.dropout_rate,
            positions=self.positions or default,
            max_length=self.max_length,
            pad_id=self.pad_id,
            dtype=self.dtype_policy,
            name=name,
        )

    @property
    def ids_shape(self) -> Shape:
        """The shape of `ids`: (None, None), or (None, None, F)."""
        return (None, None, self.num_features)[: 3 if self.num_features else 2]

    def input_signature(self) -> list[keras.InputSpec]:
        """Any batch of ids, (B, S) or (B, S, F)."""
        return [keras.InputSpec(shape=self.ids_shape, dtype="int32")]

    def build(self, ids_shape: Shape | None = None) -> None:
        self.embedding.build(self.ids_shape)
        self.stack.build((None, None, self.config.d_model))
        self.built = True

    def call(
        self, ids: TensorLike, training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        ids = self.checked("ids", ids)
        states = self.embed(ids, training=training)
        mask = self.mask(ids) if mask is None else mask
        return self.stack(states, mask=mask, training=training)

    def embed(self, ids: TensorLike, training: bool | None = None) -> Tensor:
        """Returns what the stack takes, with positions.

        Args:
            ids: Integer tensor (B, S), or (B, S, F).
            training: Whether dropout is applied.

        Returns:
            Float tensor (B, S, D).
        """
        return self.embedding(ids, training=training)

    def checked(self, name: str, ids: TensorLike) -> Tensor:
        """Returns ids as integers; see `integer_ids`.

        Args:
            name: Name of the argument, for errors.
            ids: Tensor (B, S), or (B, S, F).

        Returns:
            Integer tensor.

        Raises:
            TypeError: If they are no integers, other than ids (B, S) that
                `integer_ids` casts.
            ValueError: If they have other axes.
        """
        axes = "BSF"[: len(self.ids_shape)]
        check_axes(name, ids, *axes)
        dtype = keras.backend.standardize_dtype(ids.dtype)
        if self.num_features and "float" in dtype:
            raise TypeError(
                f"`{name}` must be integers, {self.num_features} ids a token. "
                f"Received: dtype {dtype}"
            )
        return integer_ids(name, ids, *axes)

    def mask(self, ids: TensorLike) -> Tensor:
        """Returns a boolean tensor (B, S), True where a token is not padding."""
        is_real = ops.not_equal(ids, self.pad_id)
        return ops.any(is_real, axis=-1) if self.num_features else is_real

    def compute_output_shape(self, ids_shape: Shape) -> Shape:
        return (*ids_shape[:2], self.config.d_model)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "vocabulary_size": self.vocabulary_size,
            "num_features": self.num_features,
            "positions": self.positions,
            "max_length": self.max_length,
            "pad_id": self.pad_id,
        }


class HasTextEncoder:
    """Mixin before an `EncoderModel` with an argument `encoder`.

    Raises:
        TypeError: If `encoder` is not of a class in `encoder_classes`.
    """

    encoder_classes = (TextEncoder,)

    def __init__(self, encoder: TextEncoder, **kwargs: Unpack[BasicOptions]) -> None:
        super().__init__(**kwargs)
        if not isinstance(encoder, self.encoder_classes):
            names = " or a ".join(f"`{kind.__name__}`" for kind in self.encoder_classes)
            raise TypeError(
                f"`encoder` must be a {names}. Received: {type(encoder).__name__}"
            )
        self.encoder = encoder
        if not encoder.built:
            encoder.build()

    @property
    def stack(self) -> EncoderStack:
        """The `EncoderStack` of the encoder."""
        return self.encoder.stack

    def checked(
        self, inputs: TensorLike, mask: TensorLike | None
    ) -> tuple[TensorLike, TensorLike]:
        """Checks the arguments of a call.

        Args:
            inputs: What the encoder takes.
            mask: Boolean tensor (B, S), or `None` for the encoder's.

        Returns:
            The inputs, and a mask (B, S).
        """
        inputs = self.encoder.checked("inputs", inputs)
        if mask is None:
            return inputs, self.encoder.mask(inputs)
        check_axes("mask", mask, "B", "S")
        return inputs, mask

    def input_signature(self) -> list[keras.InputSpec]:
        """Any batch of what the encoder takes."""
        return self.encoder.input_signature()

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "encoder": keras.saving.serialize_keras_object(self.encoder)
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        encoder = keras.saving.deserialize_keras_object(config["encoder"])
        return cls(**(config | {"encoder": encoder}))
