"""A class for every sentence."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import keras

from keras_transformer.layers.arguments import check_size
from keras_transformer.layers.basic import Dropout
from keras_transformer.layers.embedding import ClassToken
from keras_transformer.models.encoder_model import (
    EncoderModel,
    check_pooling,
    masked_mean,
)
from keras_transformer.models.text_encoder import HasTextEncoder, TextEncoder
from keras_transformer.types import BasicOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextClassifier(HasTextEncoder, EncoderModel):
    """An encoder, one state for the whole sequence, and a linear map to the classes.

    The state is the mean of the tokens' last states, padding left out, or the last
    state of a learned class token before the first one, which attends and is attended
    to like the others: section 4.1 of Devlin et al., 2019,
    https://arxiv.org/abs/1810.04805.

    Args:
        encoder: A `TextEncoder`.
        num_classes: Number of classes.
        pooling: "mean" or "class_token".
    Call arguments:
        inputs: Integer tensor (B, S), or (B, S, F) if the encoder has features.
        training: Whether dropout is applied, to the sentence's state too.
        mask: Boolean tensor (B, S), True where a position may be attended to; default
            the Keras mask of `inputs`, or else where they are not padding.
    Returns:
        Logits, a float tensor (B, num_classes).
    Raises:
        TypeError: If `encoder` is no `TextEncoder`, or `inputs` are not what it takes.
        ValueError: If `num_classes` is not positive or `pooling` is unknown.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> encoder = TextEncoder(config, vocabulary_size=11)
        >>> model = TextClassifier(encoder, num_classes=2)
        >>> model(np.array([[3, 4, 9, 0]])).shape  # (1, 2)
    """

    def __init__(
        self, encoder: TextEncoder, num_classes: int,
        pooling: Literal["mean", "class_token"] = "mean",
        **kwargs: Unpack[BasicOptions],
    ) -> None:  # fmt: skip
        super().__init__(encoder, **kwargs)
        check_size("num_classes", num_classes)
        check_pooling(pooling)
        self.num_classes = num_classes
        self.pooling = pooling
        self.class_token = None
        if pooling == "class_token":
            self.class_token = ClassToken(dtype=self.dtype_policy, name="class_token")
        self.dropout = Dropout(
            encoder.config.dropout_rate, dtype=self.dtype_policy, name="dropout"
        )
        self.output_map = keras.layers.Dense(
            num_classes, dtype=self.dtype_policy, name="output_map"
        )
        self.supports_masking = True
        # Every size is known, so the weights exist from the start.
        self.build()

    def build(self, input_shape: Shape | None = None) -> None:
        d_model = self.encoder.config.d_model
        if self.class_token is not None:
            self.class_token.build((None, None, d_model))
        self.output_map.build((None, d_model))
        self.built = True

    def call(
        self, inputs: TensorLike, training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        state = self.sentence_state(inputs, training=training, mask=mask)
        return self.output_map(self.dropout(state, training=training))

    def sentence_state(
        self, inputs: TensorLike, training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        """Returns one vector a sentence.

        Args:
            inputs: As for a call.
            training: Whether dropout is applied.
            mask: As for a call.

        Returns:
            Float tensor (B, D); a mean is zeros for a sentence of padding alone.
        """
        inputs, mask = self.checked(inputs, mask)
        if self.class_token is None:
            states = self.encoder(inputs, training=training, mask=mask)
            return masked_mean(states, mask)
        tokens = self.encoder.embed(inputs, training=training)
        states = self.class_token(tokens)
        mask = self.class_token.compute_mask(tokens, mask)
        return self.encoder.stack(states, mask=mask, training=training)[:, 0]

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> None:
        """The logits have no positions, and no mask."""

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], self.num_classes)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_classes": self.num_classes,
            "pooling": self.pooling,
        }
