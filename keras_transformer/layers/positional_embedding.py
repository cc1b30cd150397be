"""Token embeddings with positions."""

from __future__ import annotations

import math
import typing
from typing import Any, Literal, TypeAlias, Unpack

import keras
from keras import ops

from keras_transformer.layers.adaptable_layer import AdaptableLayer
from keras_transformer.layers.arguments import (
    check_axes,
    check_positions,
    check_rate,
    check_size,
    integer_ids,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.quantization import float_policy
from keras_transformer.layers.weight_options import (
    keep_options,
    kept_config,
    options_for,
)
from keras_transformer.masks import carried_mask
from keras_transformer.types import (
    Constraint,
    Initializer,
    LayerOptions,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)

Sinusoids: TypeAlias = Literal["sinusoidal", "sinusoidal-halves", "sinusoidal-marian"]
Positions: TypeAlias = Literal[Sinusoids, "learned", "none"]
SINUSOIDS, POSITIONS = typing.get_args(Sinusoids), typing.get_args(Positions)


def sinusoidal_encoding(
    positions: TensorLike, d_model: int, kind: Sinusoids = "sinusoidal"
) -> Tensor:
    """Computes position vectors of sines and cosines.

    Number i of the d_model / 2 pairs of a sine and a cosine turns by an angle that is
    the position times a frequency:

    | kind                | frequency                      | sines and cosines |
    |---------------------|--------------------------------|-------------------|
    | "sinusoidal"        | 10000^(-2i / d_model)          | interleaved       |
    | "sinusoidal-halves" | 10000^(-2i / d_model)          | in two halves     |
    | "sinusoidal-marian" | 10000^(-i / (d_model / 2 - 1)) | in two halves     |

    The first is the paper's: section 3.5 of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762; an odd `d_model` ends with a sine. The second is
    that of Hugging Face's `MarianMTModel`, the third that of Marian and Tensor2Tensor.

    Args:
        positions: Integer or float tensor (...), counted from 0.
        d_model: Width of the vectors; even where there are two halves.
        kind: As the table says.

    Returns:
        Float32 tensor (..., d_model).

    Raises:
        ValueError: If there is no such kind, or `d_model` is odd where there are two
            halves.

    Example:
        >>> ops.convert_to_numpy(sinusoidal_encoding(np.arange(3), 4))[0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    if kind not in SINUSOIDS:
        raise ValueError(
            f"`kind` must be one of {', '.join(map(repr, SINUSOIDS))}. Received: "
            f"kind={kind!r}"
        )
    _check_halves(kind, d_model)
    count = (d_model + 1) // 2
    # At a width of 2 the only frequency is 1.
    turns = max(count - 1, 1) if kind == "sinusoidal-marian" else d_model / 2
    pairs = ops.arange(count, dtype="float32")
    frequencies = ops.exp(pairs * (-math.log(10000.0) / turns))
    angles = ops.cast(positions, "float32")[..., None] * frequencies
    sines, cosines = ops.sin(angles), ops.cos(angles)
    if kind != "sinusoidal":
        return ops.concatenate([sines, cosines], axis=-1)
    interleaved = ops.stack([sines, cosines], axis=-1)
    shape = (*ops.shape(angles)[:-1], 2 * count)
    return ops.reshape(interleaved, shape)[..., :d_model]


def _check_halves(kind, d_model):
    if kind in SINUSOIDS[1:] and d_model % 2:
        raise ValueError(
            "`d_model` must be even for position vectors of two halves. Received: "
            f"d_model={d_model} for {kind!r} ones"
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEmbedding(AdaptableLayer):
    """Token embedding times sqrt(d_model), plus position vectors, then dropout.

    Sections 3.4, 3.5 and 5.4 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762.
    Sinusoidal positions are computed, so they work at any length; learned ones are a
    table of `max_length` rows.

    Args:
        vocabulary_size: Number of tokens, V.
        d_model: Width of the vectors, D.
        dropout_rate: Share of the sum's units dropped in training, in [0, 1).
        positions: "learned", or a kind of `sinusoidal_encoding`: "sinusoidal",
            "sinusoidal-halves" or "sinusoidal-marian"; "none" adds no vectors, where
            positions enter the attention itself.
        max_length: Rows of the learned table (tokens); only for learned positions.
        pad_id: Id whose positions the output's Keras mask excludes; `None` for no mask.
        embeddings_initializer: Initializer of the table of tokens; default normal, of a
            standard deviation of 1 after the product with sqrt(d_model).
        embeddings_regularizer: Regularizer of that table, or `None`.
        embeddings_constraint: Constraint on that table, or `None`.
    Call arguments:
        ids: Integer tensor (B, T); float32 is cast.
        start: Position of the first token, an integer or integer scalar tensor.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, T, d_model).
    Raises:
        TypeError: If `ids` are no integers.
        ValueError: If an argument is out of its range, `ids` have other axes, or
            learned positions are too few for them.

    Example:
        >>> PositionalEmbedding(11, 6)(np.array([[3, 4, 5]])).shape  # (1, 3, 6)
    """

    _axes = ("B", "T")

    def __init__(
        self, vocabulary_size: int, d_model: int, dropout_rate: float = 0.0,
        positions: Positions = "sinusoidal",
        max_length: int | None = None, pad_id: int | None = None, *,
        embeddings_initializer: Initializer | None = None,
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None, **kwargs: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        if positions not in POSITIONS:
            raise ValueError(
                f"`positions` must be one of {', '.join(map(repr, POSITIONS))}. "
                f"Received: positions={positions!r}"
            )
        check_size("vocabulary_size", vocabulary_size)
        check_size("d_model", d_model)
        _check_halves(positions, d_model)
        check_size("max_length", max_length, optional=positions != "learned")
        check_rate("dropout_rate", dropout_rate)
        self.vocabulary_size = vocabulary_size
        self.d_model = d_model
        self.dropout_rate = dropout_rate
        self.positions = positions
        self.max_length = max_length
        self.pad_id = pad_id
        keep_options(
            self,
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
        )
        self.dropout = Dropout(
            dropout_rate, dtype=float_policy(self.dtype_policy), name="dropout"
        )
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        check_axes("ids", input_shape, *self._axes)
        options = options_for(self, "embeddings")
        if options["initializer"] is None:
            # Standard deviation 1 after the product with sqrt(d_model).
            normal = keras.initializers.RandomNormal(stddev=self.d_model**-0.5)
            options["initializer"] = normal
        self.table = self.add_matrix(
            "embeddings",
            (self.vocabulary_size, self.d_model),
            is_table=True,
            **options,
        )
        if self.positions == "learned":
            self.position_embeddings = self.add_weight(
                shape=(self.max_length, self.d_model),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
                name="position_embeddings",
            )
        self.built = True

    def call(
        self, ids: TensorLike, start: int | TensorLike = 0, training: bool | None = None
    ) -> Tensor:
        ids = integer_ids("ids", ids, *self._axes)
        tokens = self.table.rows(ids, self.compute_dtype) * math.sqrt(self.d_model)
        return self.dropout(self._placed(tokens, start), training=training)

    def _placed(self, tokens, start):
        """Adds position vectors (T, D), if there are any, to vectors (B, T, D)."""
        if self.positions == "none":
            return tokens
        places = start + ops.arange(ops.shape(tokens)[1], dtype="int32")
        if self.positions == "learned":
            check_positions(start, tokens.shape[1], self.max_length)
            vectors = ops.take(self.position_embeddings, places, axis=0)
        else:
            vectors = sinusoidal_encoding(places, self.d_model, self.positions)
        return tokens + ops.cast(vectors, self.compute_dtype)

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The ids' own mask, or True where they are not padding."""
        if self.pad_id is None:
            return carried_mask(inputs)
        return ops.not_equal(inputs, self.pad_id)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.d_model)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "vocabulary_size": self.vocabulary_size,
            "d_model": self.d_model,
            "dropout_rate": self.dropout_rate,
            "positions": self.positions,
            "max_length": self.max_length,
            "pad_id": self.pad_id,
            **kept_config(self),
        }
