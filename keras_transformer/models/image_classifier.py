"""A class for every image: the Vision Transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import keras
from keras import ops

from keras_transformer.config.layers import EncoderConfig
from keras_transformer.layers.arguments import check_size
from keras_transformer.layers.basic import Dropout
from keras_transformer.layers.embedding import (
    ClassToken,
    LearnedPositionalEmbedding,
)
from keras_transformer.layers.patch_embedding import PatchEmbedding
from keras_transformer.models.encoder_model import (
    EncoderModel,
    check_no_order,
    check_pooling,
)
from keras_transformer.models.encoder_stack import EncoderStack
from keras_transformer.models.has_config import HasConfig
from keras_transformer.types import BasicOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageClassifier(HasConfig, EncoderModel):
    """Patches of an image as tokens, an encoder, and a linear map to the classes.

    The Vision Transformer, section 3.1 of Dosovitskiy et al., 2021,
    https://arxiv.org/abs/2010.11929: the image is cut into square patches, row by row;
    one linear map makes a token of each; a learned class token goes before them and a
    learned vector is added at each position; the class token's last state is mapped to
    the classes. With "mean" pooling there is no class token, and the mean of the last
    states is mapped (their appendix D.3). Their encoder normalises first, with "gelu":
    see `EncoderConfig`.

    Args:
        config: An `EncoderConfig`.
        image_shape: Height and width (pixels) and channels of an image.
        patch_size: Height and width of a patch (pixels), P; it must divide both of the
            image's.
        num_classes: Number of classes.
        pooling: "class_token" or "mean".
    Call arguments:
        inputs: Float tensor (B, height, width, channels), values of order 1.
        training: Whether dropout is applied, to the image's state too.
    Returns:
        Logits, a float tensor (B, num_classes).
    Raises:
        TypeError: If `config` is not an `EncoderConfig`.
        ValueError: If a size is not positive, the patches do not tile the image,
            `pooling` is unknown, or `config` has positions or a window of attention.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> model = ImageClassifier(config, (8, 8, 1), patch_size=4, num_classes=10)
        >>> model(np.zeros((3, 8, 8, 1))).shape  # (3, 10)
    """

    config_class = EncoderConfig
    config: EncoderConfig

    def __init__(
        self, config: EncoderConfig, image_shape: Sequence[int],
        patch_size: int, num_classes: int,
        pooling: Literal["class_token", "mean"] = "class_token",
        **kwargs: Unpack[BasicOptions],
    ) -> None:  # fmt: skip
        super().__init__(config, **kwargs)
        check_no_order(config, "the patches of an image")
        check_size("num_classes", num_classes)
        check_pooling(pooling)
        self.image_shape = tuple(image_shape)
        self.patch_size = patch_size
        self.num_classes = num_classes
        self.pooling = pooling
        dtype = self.dtype_policy
        self.patch_embedding = PatchEmbedding(
            image_shape, patch_size, config.d_model, dtype=dtype, name="patch_embedding"
        )
        self.class_token = None
        if pooling == "class_token":
            self.class_token = ClassToken(dtype=dtype, name="class_token")
        self.positions = LearnedPositionalEmbedding(
            self.num_positions, config.dropout_rate, dtype=dtype, name="positions"
        )
        self.stack = EncoderStack(config, dtype=dtype, name="stack")
        self.dropout = Dropout(config.dropout_rate, dtype=dtype, name="dropout")
        self.output_map = keras.layers.Dense(
            num_classes, dtype=dtype, name="output_map"
        )
        # Every size is known, so the weights exist from the start.
        self.build()

    @property
    def num_positions(self) -> int:
        """Number of patches, and 1 for a class token."""
        return self.patch_embedding.num_patches + (self.class_token is not None)

    def build(self, input_shape: Shape | None = None) -> None:
        d_model = self.config.d_model
        self.patch_embedding.build((None, *self.image_shape))
        if self.class_token is not None:
            self.class_token.build((None, None, d_model))
        self.positions.build((None, None, d_model))
        self.stack.build((None, None, d_model))
        self.output_map.build((None, d_model))
        self.built = True

    def call(self, inputs: TensorLike, training: bool | None = None) -> Tensor:
        states = self.stack(self.tokens(inputs, training=training), training=training)
        state = ops.mean(states, axis=1) if self.class_token is None else states[:, 0]
        return self.output_map(self.dropout(state, training=training))

    def tokens(self, inputs: TensorLike, training: bool | None = None) -> Tensor:
        """Makes tokens of images.

        Args:
            inputs: Float tensor (B, height, width, channels).
            training: Whether dropout is applied.

        Returns:
            Float tensor (B, S, D): the class token, if there is one, and the patches
            row by row.

        Raises:
            ValueError: If the images have another size than `image_shape`.
        """
        states = self.patch_embedding(inputs)
        if self.class_token is not None:
            states = self.class_token(states)
        return self.positions(states, training=training)

    def input_signature(self) -> list[Any]:
        """Any batch of images of the size."""
        return [keras.InputSpec(shape=(None, *self.image_shape), dtype="float32")]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], self.num_classes)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "image_shape": list(self.image_shape),
            "patch_size": self.patch_size,
            "num_classes": self.num_classes,
            "pooling": self.pooling,
        }
