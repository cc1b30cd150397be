"""Embeddings of features, of patches of images, and a class token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.nn.kernels.ids import check_ids
from keras_transformer.nn.layers.arguments import (
    check_known_width,
    check_size,
    integer_ids,
)
from keras_transformer.nn.layers.embedding import PositionalEmbedding
from keras_transformer.types import LayerOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeatureEmbedding(PositionalEmbedding):
    """Embeds tokens of several ids each: the sum of the embeddings of their features.

    As `PositionalEmbedding`, for features such as a word and its character n-grams
    (equation 3 of Bojanowski et al., 2017, https://arxiv.org/abs/1607.04606). The sum
    is divided by the square root of the number of features. `pad_id` adds nothing; a
    token without another id is padding.

    Args:
        vocabulary_size: Number of features, V.
        d_model: Width of the vectors, D.
        dropout_rate: Share of the units dropped in training, in [0, 1).
        pad_id: Id of padding.
        **options: Other options of `PositionalEmbedding`.
    Call arguments:
        ids: Integer tensor (B, T, F), F features per token; float32 is cast.
        start: Position of the first token.
    Returns:
        Float tensor (B, T, d_model).
    Raises:
        TypeError, ValueError: See `PositionalEmbedding`.

    Example:
        >>> FeatureEmbedding(11, 6)(np.array([[[3, 7], [4, 0]]])).shape  # (1, 2, 6)
    """

    def __init__(
        self,
        vocabulary_size: int,
        d_model: int,
        dropout_rate: float = 0.0,
        *,
        pad_id: int = 0,
        **options: Any,
    ) -> None:
        check_number("pad_id", pad_id, int)
        first = vocabulary_size, d_model, dropout_rate
        super().__init__(*first, pad_id=pad_id, **options)

    def call(
        self, ids: TensorLike, start: int | TensorLike = 0, training: bool | None = None
    ) -> Tensor:
        return super().call(ids, start, training)

    def token_vectors(self, ids: TensorLike) -> Tensor:
        """Returns scaled sums of the vectors of ids (B, T, F)."""
        ids = integer_ids("ids", ids, "B", "T", "F")
        check_ids("ids", ids, self.vocabulary_size, self.pad_id)
        is_feature = ops.cast(ops.not_equal(ids, self.pad_id), self.compute_dtype)
        is_feature = ops.expand_dims(is_feature, -1)  # LiteRT lacks [..., None] here.
        total = ops.sum(self.token_embedding(ids) * is_feature, axis=2)  # (B, T, D)
        number = ops.maximum(ops.sum(is_feature, axis=2), 1.0)
        return total * math.sqrt(self.d_model) * ops.rsqrt(number)

    def compute_mask(self, inputs: TensorLike, previous_mask: Any) -> Tensor | None:
        """Returns True where a token has a feature that is not padding."""
        return ops.any(ops.not_equal(inputs, self.pad_id), axis=-1)


@keras.saving.register_keras_serializable(package="keras_transformer")
class PatchEmbedding(keras.layers.Layer):
    """Cuts images into square patches and projects each to a vector.

    Section 3.1 of Dosovitskiy et al., 2021, https://arxiv.org/abs/2010.11929, followed
    there by a `PositionalEncoding("learned", patches.num_patches)`.

    Args:
        image_shape: Height (pixels), width (pixels) and channels of an image.
        patch_size: Side of a patch (pixels), P, a divisor of height and width.
        d_model: Width of the vectors, D.
    Call arguments:
        images: Float tensor (B, height, width, channels).
    Returns:
        Float tensor (B, S, D), the S patches row by row.
    Raises:
        ValueError: If an argument is out of range, or images do not have `image_shape`.

    Example:
        >>> layer = PatchEmbedding((8, 8, 1), patch_size=4, d_model=6)
        >>> layer(np.zeros((3, 8, 8, 1))).shape  # (3, 4, 6)
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        patch_size: int,
        d_model: int,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        check_size("patch_size", patch_size)
        check_size("d_model", d_model)
        if not isinstance(image_shape, (tuple, list)) or len(image_shape) != 3:
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
        self.patch_size = patch_size
        self.d_model = d_model
        self.num_patches = height // patch_size * (width // patch_size)  # S
        # A convolution whose stride is its size projects each patch.
        self.patch_map = keras.layers.Conv2D(
            d_model,
            patch_size,
            strides=patch_size,
            data_format="channels_last",
            dtype=self.dtype_policy,
            name="patch_map",
        )
        self.input_spec = keras.InputSpec(shape=(None, *self.image_shape))

    def build(self, input_shape: Shape | None = None) -> None:
        self.patch_map.build((None, *self.image_shape))
        self.built = True

    def call(self, images: TensorLike) -> Tensor:
        patches = self.patch_map(images)  # (B, height / P, width / P, D)
        return ops.reshape(patches, (-1, self.num_patches, self.d_model))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], self.num_patches, self.d_model)

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("patch_size", "d_model")}
        return super().get_config() | own | {"image_shape": list(self.image_shape)}


@keras.saving.register_keras_serializable(package="keras_transformer")
class ClassToken(keras.layers.Layer):
    """Prepends a learned vector, whose state represents the whole sequence.

    The [CLS] token of Devlin et al., 2019, https://arxiv.org/abs/1810.04805.

    Call arguments:
        states: Float tensor (B, S, D).
    Returns:
        Float tensor (B, S + 1, D).

    Example:
        >>> ClassToken()(np.ones((1, 5, 6), "float32")).shape  # (1, 6, 6)
    """

    def build(self, input_shape: Shape) -> None:
        check_known_width(self, states=input_shape)
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.token = self.add_weight(input_shape[-1:], normal, name="token")
        self.input_spec = keras.InputSpec(ndim=3)
        self.built = True

    def call(self, states: TensorLike) -> Tensor:
        shape = (ops.shape(states)[0], 1, states.shape[-1])
        token = ops.cast(ops.convert_to_tensor(self.token), states.dtype)
        return ops.concatenate([ops.broadcast_to(token, shape), states], axis=1)

    def compute_mask(self, inputs: TensorLike, previous_mask: Any) -> Tensor | None:
        """Returns the mask with True for the class token."""
        if previous_mask is None:
            return None
        first = ops.ones_like(previous_mask[:, :1])
        return ops.concatenate([first, previous_mask], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, length, width = input_shape
        return batch, None if length is None else length + 1, width
