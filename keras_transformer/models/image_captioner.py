"""Images to text: the Vision Transformer's encoder with the Transformer's decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.patch_embedding import PatchEmbedding
from keras_transformer.models.encoder_model import check_no_order
from keras_transformer.models.transformer import Transformer
from keras_transformer.types import BasicOptions, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageCaptioner(Transformer):
    """A `Transformer` whose sources are images: their patches stand for the tokens.

    The encoder reads the patches as section 3.1 of Dosovitskiy et al., 2021,
    https://arxiv.org/abs/2010.11929, has them, one linear map and a learned position
    each; the decoder writes a text that attends to them, as that of Vaswani et al.,
    2017, attends to a sentence. It is trained, searched and saved as any `Transformer`:
    `model.fit((images, target_in), target_out)` and `Generator(model, ...).search(
    images)`.

    Args:
        config: A `TransformerConfig`. There are no source tokens, so its
            `tied_embeddings` are "two-way" or "none", its `source_end` stays, and
            `source_vocabulary_size` says nothing.
        image_shape: Height and width (pixels) and channels of an image.
        patch_size: Height and width of a patch (pixels), P; it must divide both of the
            image's.
    Call arguments:
        inputs: A pair of tensors: images, floats (B, height, width, channels) of order
            1; and target_in, integers (B, T).
        training: Whether dropout is applied.
        return_states: Whether to return the last states instead of the logits.
    Returns:
        Logits, a float tensor (B, T, V): row t scores the token after target_in[t]; or
        the decoder's last states, (B, T, D).
    Raises:
        TypeError: If `config` is not a `TransformerConfig`.
        ValueError: If a size is not positive, the patches do not tile the image, or
            `config` shares a matrix with a source vocabulary, or has rotary or alibi
            positions or a window of attention.

    Example:
        >>> config = TransformerConfig.preset(
        ...     "tiny", target_vocabulary_size=50, tied_embeddings="two-way"
        ... )
        >>> model = ImageCaptioner(config, image_shape=(8, 24, 1), patch_size=4)
        >>> model((np.zeros((1, 8, 24, 1)), np.array([[1, 7]]))).shape  # (1, 2, 50)
    """

    def __init__(
        self, config: TransformerConfig, image_shape: Sequence[int], patch_size: int,
        **kwargs: Unpack[BasicOptions],
    ) -> None:  # fmt: skip
        # The base makes the embeddings, and this one needs the sizes.
        self.image_shape = tuple(image_shape)
        self.patch_size = patch_size
        _check_config(config)
        super().__init__(config, **kwargs)

    def make_embedding(self, name: str, vocabulary_size: int) -> keras.layers.Layer:
        """Returns the embedding called `name`, that of the source a `PatchEmbedding`.

        With `config.normalize_embeddings` the norm and the dropout are not its own.
        """
        if name != "source_embedding":
            return super().make_embedding(name, vocabulary_size)
        config = self.config
        return PatchEmbedding(
            self.image_shape,
            self.patch_size,
            config.d_model,
            positions="learned",
            dropout_rate=0.0 if config.normalize_embeddings else config.dropout_rate,
            dtype=self.dtype_policy,
            name=name,
        )

    def checked_source(self, source: TensorLike) -> TensorLike:
        """Returns images as they are: the embedding checks their size."""
        return source

    def source_mask(self, source: TensorLike) -> Tensor:
        """Returns where the patches may be attended to: everywhere.

        Args:
            source: Float tensor (B, height, width, channels).

        Returns:
            Boolean tensor (B, 1, S), True.
        """
        shape = (ops.shape(source)[0], 1, self.source_embedding.num_patches)
        return ops.ones(shape, dtype="bool")

    def input_signature(self) -> list[Any]:
        """Any batch of images of the size, and of ids, target_in (B, T)."""
        images = keras.InputSpec(shape=(None, *self.image_shape), dtype="float32")
        return [(images, keras.InputSpec(shape=(None, None), dtype="int32"))]

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "image_shape": list(self.image_shape),
            "patch_size": self.patch_size,
        }


def _check_config(config):
    """Raises `ValueError` if the options are those of a model with source tokens."""
    if isinstance(config, TransformerConfig):
        check_no_order(config, "the patches of an image")
    if getattr(config, "tied_embeddings", None) == "three-way":
        raise ValueError(
            "`tied_embeddings` must be 'two-way' or 'none': an image has no tokens "
            "whose matrix could be shared. Received: tied_embeddings='three-way'"
        )
    if not getattr(config, "source_end", True):
        raise ValueError(
            "`source_end` must be True: an image has no end token. Received: "
            "source_end=False"
        )
