"""Patches of an image as vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import keras
from keras import ops

from keras_transformer.layers.arguments import check_rate, check_size
from keras_transformer.layers.embedding import PositionalEncoding
from keras_transformer.types import LayerOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class PatchEmbedding(keras.layers.Layer):
    """Cuts images into square patches and makes a vector of each, by one linear map.

    Section 3.1 of Dosovitskiy et al., 2021, https://arxiv.org/abs/2010.11929.

    Args:
        image_shape: Height and width (pixels) and channels of an image.
        patch_size: Height and width of a patch (pixels), P, a divisor of the image's.
        d_model: Width of the vectors, D.
        positions: "learned" adds a learned vector to each patch, then drops out.
        dropout_rate: Share of that sum's units dropped in training, in [0, 1).
    Call arguments:
        images: Float tensor (B, height, width, channels), values of order 1.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, S, D), the S patches row by row.
    Raises:
        ValueError: If an argument is out of its range, a rate is given without
            positions, or images have another shape than `image_shape`.

    Example:
        >>> layer = PatchEmbedding((8, 8, 1), patch_size=4, d_model=6)
        >>> layer(np.zeros((3, 8, 8, 1))).shape  # (3, 4, 6)
    """

    def __init__(
        self, image_shape: Sequence[int], patch_size: int, d_model: int,
        positions: Literal["learned"] | None = None, dropout_rate: float = 0.0,
        **kwargs: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        check_size("patch_size", patch_size)
        check_size("d_model", d_model)
        check_rate("dropout_rate", dropout_rate)
        if len(image_shape) != 3:
            expected = "`image_shape` must be (height, width, channels)"
            raise ValueError(f"{expected}. Received: image_shape={image_shape!r}")
        for size in image_shape:
            check_size("image_shape", size)
        height, width, _ = self.image_shape = tuple(image_shape)
        if height % patch_size or width % patch_size:
            raise ValueError(
                "`patch_size` must divide the height and the width of `image_shape`. "
                f"Received: patch_size={patch_size}, image_shape={self.image_shape}"
            )
        if positions not in ("learned", None) or (dropout_rate and not positions):
            expected = "'learned' or None, and 'learned' with a `dropout_rate`"
            received = f"positions={positions!r}, dropout_rate={dropout_rate}"
            raise ValueError(f"`positions` must be {expected}. Received: {received}")
        self.patch_size = patch_size
        self.d_model = d_model
        self.positions = positions
        self.dropout_rate = dropout_rate
        self.num_patches = height // patch_size * (width // patch_size)  # S
        # One linear map of each patch: a convolution whose stride is its size.
        self.patch_map = keras.layers.Conv2D(
            d_model, patch_size, strides=patch_size, data_format="channels_last",
            dtype=self.dtype_policy, name="patch_map",
        )  # fmt: skip
        options = {"dtype": self.dtype_policy, "name": "position_layer"}
        kind = positions or "none", self.num_patches, dropout_rate
        self.position_layer = PositionalEncoding(*kind, **options)
        self.input_spec = keras.InputSpec(shape=(None, *self.image_shape))

    def build(self, images_shape: Shape | None = None) -> None:
        self.patch_map.build((None, *self.image_shape))
        self.position_layer.build((None, None, self.d_model))
        self.built = True

    def call(self, images: TensorLike, training: bool | None = None) -> Tensor:
        patches = self.patch_map(images)  # (B, height / P, width / P, D)
        vectors = ops.reshape(patches, (-1, self.num_patches, self.d_model))
        return self.position_layer(vectors, training=training)

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        return (images_shape[0], self.num_patches, self.d_model)

    def get_config(self) -> dict[str, Any]:
        names = "patch_size", "d_model", "positions", "dropout_rate"
        own = {name: getattr(self, name) for name in names}
        return super().get_config() | own | {"image_shape": list(self.image_shape)}
