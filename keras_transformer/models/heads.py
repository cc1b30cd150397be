"""Encoders with a head: a tagger, a classifier, a masked language model."""

from __future__ import annotations

from typing import Any, Literal, Self, Unpack

import keras
from keras import ops

from keras_transformer.config.options import check_choice, check_number
from keras_transformer.models.encoder import Encoder
from keras_transformer.models.exact_training import ExactTraining
from keras_transformer.models.token_model import ExportableModel, rows_of
from keras_transformer.nn.kernels.keras_private import carried_mask
from keras_transformer.nn.layers.adaptation import KeepsQuantisation
from keras_transformer.nn.layers.arguments import check_size
from keras_transformer.nn.layers.attention import recorded_attention
from keras_transformer.nn.layers.basic import Dropout
from keras_transformer.nn.layers.embedding import PositionalEmbedding
from keras_transformer.nn.layers.other_embeddings import ClassToken, FeatureEmbedding
from keras_transformer.types import BasicOptions, Shape, Tensor, TensorLike


class EncoderHead(KeepsQuantisation, ExportableModel):
    """Base of models with an `Encoder` and a head."""

    whole_parts = ("encoder",)

    def __init__(self, encoder: Encoder, **kwargs: Unpack[BasicOptions]) -> None:
        super().__init__(**kwargs)
        if not isinstance(encoder, Encoder):
            raise TypeError(
                f"`encoder` must be an `Encoder`. Received: {type(encoder).__name__}"
            )
        self.encoder = encoder
        self.supports_masking = True
        # With ids every size is known, so the weights can exist from the start.
        if isinstance(encoder.embedding, PositionalEmbedding) and not encoder.built:
            encoder.build(self.input_signature()[0].shape)

    def attention(self, inputs: TensorLike, layer: int = -1) -> Tensor:
        """Returns the attention weights of an encoder layer, (B, H, S, S).

        `inputs` are those of a call; a class token is position 0. Raises `ValueError`
        if the attention has no weights, as `LinearAttention`.
        """
        layers = self.encoder.stack.encoder_layers
        most = len(layers) - 1
        check_number("layer", layer, int, minimum=-len(layers), maximum=most)
        attention = layers[layer].self_attention
        with recorded_attention() as record:
            self(inputs, training=False)
        if attention not in record:
            raise ValueError(
                f"The attention of layer {layer} has no weights to show: it is a "
                f"{type(attention).__name__}."
            )
        return record[attention][0]

    def _make_output_map(self, units, *axes):
        """Makes the linear map from states (*axes, D); called last."""
        options = {"dtype": self.dtype_policy, "name": "output_map"}
        self.output_map = keras.layers.Dense(units, **options)
        self.output_map.build((*axes, self.encoder.config.d_model))
        self.built = self.encoder.built

    def input_signature(self) -> list[keras.InputSpec]:
        """Returns the `InputSpec` of ids (B, S), or (B, S, F) of features."""
        embedding = self.encoder.embedding
        if not isinstance(embedding, PositionalEmbedding):
            raise ValueError(
                "`input_signature` must be given if the encoder does not embed ids. "
                f"Received: a {type(embedding).__name__}"
            )
        rank = 3 if isinstance(embedding, FeatureEmbedding) else 2
        return [keras.InputSpec(shape=(None,) * rank, dtype="int32")]

    def get_config(self) -> dict[str, Any]:
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return super().get_config() | {"encoder": encoder}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        encoder = keras.saving.deserialize_keras_object(config["encoder"])
        made = cls(**(config | {"encoder": encoder}))
        made.when_built()  # Its parts were built by the constructor.
        return made


@keras.saving.register_keras_serializable(package="keras_transformer")
class Tagger(ExactTraining, EncoderHead):
    """An encoder with a linear map from each state to scores of tags.

    Section 5.3 of Devlin et al., 2019, https://arxiv.org/abs/1810.04805. Train it with
    `MaskedCrossentropy` and `model.fit(ids, tags)`, where tag 0 marks padding and other
    tokens to ignore, such as all but a word's first piece.

    Args:
        encoder: An `Encoder`.
        num_tags: Number of tags, tag 0 counted.
    Call arguments:
        inputs: Inputs of the encoder, such as ids (B, S).
        mask: See `Encoder`.
    Returns:
        Logits, a float tensor (B, S, num_tags).
    Raises:
        TypeError: If `encoder` is not an `Encoder`.
        ValueError: If `num_tags` is not positive.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> tagger = Tagger(Encoder(config, 11), num_tags=5)
        >>> tagger(np.array([[3, 4, 9, 0]])).shape  # (1, 4, 5)
    """

    def __init__(
        self, encoder: Encoder, num_tags: int, **kwargs: Unpack[BasicOptions]
    ) -> None:
        super().__init__(encoder, **kwargs)
        check_size("num_tags", num_tags)
        self.num_tags = num_tags
        self._make_output_map(num_tags, None, None)

    def call(
        self,
        inputs: TensorLike,
        training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:
        return self.output_map(self.encoder(inputs, training=training, mask=mask))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:2], self.num_tags)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_tags": self.num_tags}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextClassifier(EncoderHead):
    """An encoder with a linear map from one state of the sequence to scores of classes.

    The state is the mean of the last states, padding excluded, or that of a class token
    (section 4.1 of Devlin et al., 2019, https://arxiv.org/abs/1810.04805).

    Args:
        encoder: An `Encoder`.
        num_classes: Number of classes.
        pooling: "mean" or "class_token".
    Call arguments:
        inputs: Inputs of the encoder, such as ids (B, S).
        training: Whether to apply dropout, also to the pooled state.
        mask: See `Encoder`.
    Returns:
        Logits, a float tensor (B, num_classes).
    Raises:
        TypeError: If `encoder` is not an `Encoder`.
        ValueError: If `num_classes` is not positive or `pooling` is unknown.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> model = TextClassifier(Encoder(config, 11), num_classes=2)
        >>> model(np.array([[3, 4, 9, 0]])).shape  # (1, 2)
    """

    def __init__(
        self,
        encoder: Encoder,
        num_classes: int,
        pooling: Literal["mean", "class_token"] = "mean",
        **kwargs: Unpack[BasicOptions],
    ) -> None:
        super().__init__(encoder, **kwargs)
        check_size("num_classes", num_classes)
        check_choice("pooling", pooling, ("mean", "class_token"))
        self.num_classes = num_classes
        self.pooling = pooling
        config = encoder.config
        self.class_token = None
        if pooling == "class_token":
            self.class_token = ClassToken(dtype=self.dtype_policy, name="class_token")
            self.class_token.build((None, None, config.d_model))
        options = {"dtype": self.dtype_policy, "name": "dropout"}
        self.dropout = Dropout(config.dropout_rate, **options)
        self._make_output_map(num_classes, None)

    def call(
        self,
        inputs: TensorLike,
        training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:
        state = self.sentence_state(inputs, training=training, mask=mask)
        return self.output_map(self.dropout(state, training=training))

    def sentence_state(
        self,
        inputs: TensorLike,
        training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:
        """Returns the pooled state (B, D), zeros for a row of padding only."""
        states = self.encoder.embedding(inputs, training=training)
        mask = carried_mask(states) if mask is None else mask
        if self.class_token is not None:
            mask = self.class_token.compute_mask(states, mask)
            states = self.class_token(states)
        states = self.encoder.stack(states, mask=mask, training=training)
        if self.class_token is not None:
            return states[:, 0]
        if mask is None:
            return ops.mean(states, axis=1)
        is_real = ops.expand_dims(ops.cast(mask, states.dtype), -1)  # (B, S, 1)
        number = ops.maximum(ops.sum(is_real, axis=1), 1)
        return ops.sum(states * is_real, axis=1) / number

    def compute_mask(self, inputs: TensorLike, previous_mask: Any) -> None:
        """Returns `None`: the logits have no positions."""

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], self.num_classes)

    def get_config(self) -> dict[str, Any]:
        options = {"num_classes": self.num_classes, "pooling": self.pooling}
        return super().get_config() | options


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedLanguageModel(ExactTraining, EncoderHead):
    """An encoder that predicts hidden tokens from the tokens on both sides.

    Task 1 of section 3.1 of Devlin et al., 2019, https://arxiv.org/abs/1810.04805. The
    output matrix is that of the embedding. Train it with `MaskedCrossentropy` and
    `model.fit(MaskedTokens(...))`, then pass the encoder to a `Tagger` or a
    `TextClassifier`.

    Args:
        encoder: An `Encoder` of ids.
    Call arguments:
        inputs: Integer tensor (B, S).
        return_states: Whether to return the last states instead of logits.
    Returns:
        Logits, a float tensor (B, S, V), or the last states (B, S, D).
    Raises:
        TypeError: If `encoder` is not an `Encoder`.
        ValueError: If it does not embed one id per token.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> model = MaskedLanguageModel(Encoder(config, 11))
        >>> model.compile("adam", MaskedCrossentropy())
        >>> ids = np.array([[5, 6, 7], [8, 9, 0]])
        >>> model.fit(MaskedTokens(ids, 2, mask_id=4, first_id=5, vocabulary_size=11))
    """

    trains_without_logits = True

    def __init__(self, encoder: Encoder, **kwargs: Unpack[BasicOptions]) -> None:
        super().__init__(encoder, **kwargs)
        if type(encoder.embedding) is not PositionalEmbedding:
            raise ValueError(
                "`encoder` must have a `PositionalEmbedding`, one id per token. "
                f"Received: a {type(encoder.embedding).__name__}"
            )
        self.built = True

    def call(
        self,
        inputs: TensorLike,
        training: bool | None = None,
        return_states: bool = False,
    ) -> Tensor:
        states = self.encoder(inputs, training=training)
        return states if return_states else self.logits(states)

    def logits(self, states: TensorLike) -> Tensor:
        """Returns the logits (B, S, V) of states (B, S, D)."""
        return self.encoder.embedding.token_embedding(states, reverse=True)

    def output_rows(self) -> Tensor | None:
        """Returns the output matrix (V, D), or `None` if it is quantised."""
        return rows_of(self.encoder.embedding)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.encoder.embedding.vocabulary_size)
