"""A label for every token."""

from __future__ import annotations

from typing import Any, Unpack

import keras

from keras_transformer.exact_training import ExactTraining
from keras_transformer.layers.arguments import check_size
from keras_transformer.models.encoder_model import EncoderModel
from keras_transformer.models.text_encoder import HasTextEncoder, TextEncoder
from keras_transformer.models.vector_encoder import VectorEncoder
from keras_transformer.types import BasicOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class Tagger(HasTextEncoder, ExactTraining, EncoderModel):
    """An encoder with a linear map from each state to the scores of the tags.

    Sequence labelling such as part-of-speech tagging, as section 5.3 of Devlin et al.,
    2019, https://arxiv.org/abs/1810.04805. It trains with `model.fit(ids, tags)` and
    `MaskedCrossentropy`, for which tag 0 means no tag: padding, and tokens that are
    not to be learned from, such as all but a word's first piece.

    Args:
        encoder: A `TextEncoder` or a `VectorEncoder`.
        num_tags: Number of tags, tag 0 counted.
    Call arguments:
        inputs: Integer tensor (B, S), or (B, S, F) if the encoder has features; with a
            `VectorEncoder` a float tensor (B, S, F).
        training: Whether dropout is applied.
        mask: Boolean tensor (B, S), True where a position may be attended to; default
            the Keras mask of `inputs`, or else where they are not padding.
    Returns:
        Logits, a float tensor (B, S, num_tags).
    Raises:
        TypeError: If `encoder` is neither, or `inputs` are not what it takes.
        ValueError: If `num_tags` is not positive.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> tagger = Tagger(TextEncoder(config, vocabulary_size=11), num_tags=5)
        >>> tagger(np.array([[3, 4, 9, 0]])).shape  # (1, 4, 5)
    """

    def __init__(
        self, encoder: TextEncoder | VectorEncoder, num_tags: int,
        **kwargs: Unpack[BasicOptions],
    ) -> None:  # fmt: skip
        super().__init__(encoder, **kwargs)
        check_size("num_tags", num_tags)
        self.num_tags = num_tags
        self.output_map = keras.layers.Dense(
            num_tags, dtype=self.dtype_policy, name="output_map"
        )
        self.supports_masking = True
        # Every size is known, so the weights exist from the start.
        self.build()

    def build(self, input_shape: Shape | None = None) -> None:
        self.output_map.build((None, None, self.encoder.config.d_model))
        self.built = True

    def call(
        self, inputs: TensorLike, training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        inputs, mask = self.checked(inputs, mask)
        return self.output_map(self.encoder(inputs, training=training, mask=mask))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:2], self.num_tags)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_tags": self.num_tags}
