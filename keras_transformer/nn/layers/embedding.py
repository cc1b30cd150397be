"""Token embeddings with positions."""

from __future__ import annotations

import math
import typing
from typing import Any, Literal, TypeAlias, Unpack

import keras
from keras import ops

from keras_transformer.config.layer_config import Sinusoids, check_even
from keras_transformer.config.options import check_choice, check_number
from keras_transformer.nn.arguments import (
    check_ids,
    check_known_width,
    check_rate,
    check_size,
    integer_ids,
    refuse_integers,
)
from keras_transformer.nn.layers.adaptation import KeepsQuantisation
from keras_transformer.nn.layers.dropout import Dropout
from keras_transformer.types import (
    Constraint,
    Initializer,
    LayerOptions,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)

Positions: TypeAlias = Literal[Sinusoids, "learned", "none"]
SINUSOIDS = typing.get_args(Sinusoids)
POSITIONS = typing.get_args(Positions)


def sinusoidal_encoding(
    indices: TensorLike, d_model: int, positions: Sinusoids = "sinusoidal"
) -> Tensor:
    """Returns position vectors of sines and cosines.

    The angle of pair i of a sine and a cosine is the index times a frequency:

    | positions           | frequency                      | sines and cosines |
    |---------------------|--------------------------------|-------------------|
    | "sinusoidal"        | 10000^(-2i / d_model)          | interleaved       |
    | "sinusoidal-halves" | 10000^(-2i / d_model)          | in two halves     |
    | "sinusoidal-marian" | 10000^(-i / (d_model / 2 - 1)) | in two halves     |

    They are from section 3.5 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762
    (an odd `d_model` ends with a sine), Hugging Face's `MarianMTModel`, and Marian and
    Tensor2Tensor.

    Args:
        indices: Integer or float tensor (...), the places in a sequence, from 0.
        d_model: Width of the vectors; even for two halves.
        positions: A kind of the table.

    Returns:
        Float32 tensor (..., d_model).

    Raises:
        ValueError: If `positions` is unknown, or `d_model` is odd with two halves.

    Example:
        >>> ops.convert_to_numpy(sinusoidal_encoding(np.arange(3), 4))[0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    check_number("d_model", d_model, int, minimum=1)
    check_choice("positions", positions, SINUSOIDS)
    check_even("d_model", d_model, positions)
    return _sinusoids(indices, d_model, positions)


def _sinusoids(indices, d_model, positions):
    count = (d_model + 1) // 2
    # At a width of 2 Marian's single pair has the frequency 1, not 0 / 0.
    turns = max(count - 1, 1) if positions == "sinusoidal-marian" else d_model / 2
    pairs = ops.arange(count, dtype="float32")
    frequencies = ops.exp(pairs * (-math.log(10000.0) / turns))
    angles = ops.cast(indices, "float32")[..., None] * frequencies
    sines = ops.sin(angles)
    cosines = ops.cos(angles)
    if positions != "sinusoidal":
        return ops.concatenate([sines, cosines], axis=-1)
    interleaved = ops.stack([sines, cosines], axis=-1)  # (..., count, 2)
    shape = (*ops.shape(angles)[:-1], 2 * count)
    return ops.reshape(interleaved, shape)[..., :d_model]


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEncoding(KeepsQuantisation, keras.layers.Layer):
    """Adds position vectors to vectors, then applies dropout.

    Section 3.5 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762. Sinusoids
    work at any length; learned vectors (Gehring et al., 2017,
    https://arxiv.org/abs/1705.03122) are the table `position_embeddings`. For token ids
    use `PositionalEmbedding`.

    Args:
        positions: "learned", a kind of `sinusoidal_encoding` ("sinusoidal",
            "sinusoidal-halves" or "sinusoidal-marian"), or "none".
        max_length: Rows of the learned table (positions).
        dropout_rate: Share of the units dropped in training, in [0, 1).
    Call arguments:
        inputs: Float tensor (B, T, D).
        start: Position of the first vector, an integer or integer scalar tensor.
    Returns:
        Float tensor (B, T, D).
    Raises:
        ValueError: If an argument is out of range or the learned table is too short.

    Example:
        >>> layer = PositionalEncoding()
        >>> layer(np.zeros((1, 3, 4), "float32"))[0, 0]  # [0., 1., 0., 1.]
    """

    def __init__(
        self,
        positions: Positions = "sinusoidal",
        max_length: int | None = None,
        dropout_rate: float = 0.0,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        check_choice("positions", positions, POSITIONS)
        check_rate("dropout_rate", dropout_rate)
        check_size("max_length", max_length, optional=positions != "learned")
        self.positions = positions
        self.max_length = max_length
        self.dropout_rate = dropout_rate
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.supports_masking = True
        self.input_spec = keras.InputSpec(ndim=3)

    def build(self, input_shape: Shape) -> None:
        if self.positions != "none":
            check_known_width(self, inputs=input_shape)
            check_even("d_model", input_shape[-1], self.positions)
        if self.positions == "learned":
            self.position_embeddings = self.add_weight(
                (self.max_length, input_shape[-1]),
                name="position_embeddings",
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
        self.built = True

    def call(
        self,
        inputs: TensorLike,
        start: int | TensorLike = 0,
        training: bool | None = None,
    ) -> Tensor:
        if self.positions == "none":
            return self.dropout(inputs, training=training)
        if "int" in keras.backend.standardize_dtype(inputs.dtype):
            refuse_integers(inputs)
        check_number("start", start, int, or_tensor=True, minimum=0)
        length, width = inputs.shape[1:]
        places = start + ops.arange(ops.shape(inputs)[1], dtype="int32")  # (T,)
        if self.positions == "learned":
            # `start` is a tensor in decoding, where the longest output is checked.
            first = start if isinstance(start, int) else 0
            if isinstance(length, int) and first + length > self.max_length:
                raise ValueError(
                    "The input is longer than the learned positions: raise "
                    f"`max_length` or use sinusoidal ones. Received: {length} "
                    f"positions, start={first}, max_length={self.max_length}"
                )
            vectors = ops.take(self.position_embeddings, places, axis=0)
        else:
            vectors = _sinusoids(places, width, self.positions)
        vectors = ops.cast(vectors, self.compute_dtype)  # (T, D)
        return self.dropout(inputs + vectors, training=training)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        names = "positions", "max_length", "dropout_rate"
        return super().get_config() | {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEmbedding(PositionalEncoding):
    """Token embedding times sqrt(d_model), plus position vectors, then dropout.

    Sections 3.4, 3.5 and 5.4 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762.
    `embedding(states, reverse=True)` returns the logits of a tied output. The table is
    that of `token_embedding`, a `keras.layers.ReversibleEmbedding`.

    Args:
        vocabulary_size: Number of tokens, V.
        d_model: Width of the vectors, D.
        positions: See `PositionalEncoding`, as for `max_length` and `dropout_rate`.
        max_length: Rows of the table of learned positions.
        dropout_rate: Share of the units dropped in training, in [0, 1).
        pad_id: Id that the Keras mask of the output excludes; `None` for no mask.
        embeddings_initializer: Initializer of the token table; default normal with
            standard deviation d_model^-0.5.
        embeddings_regularizer: Regularizer of the token table.
        embeddings_constraint: Constraint on the token table.
    Call arguments:
        ids: Integer tensor (B, T); float32 is cast. With `reverse`, states (B, T, D).
        start: Position of the first id, an integer or integer scalar tensor.
        reverse: Whether to return the product of states and the transposed table.
    Returns:
        Float tensor (B, T, D), or with `reverse` logits (B, T, V).
    Raises:
        TypeError: If `ids` are not integers.
        ValueError: If an argument is out of range, `ids` has other axes, an id is not
            of the vocabulary (seen outside compiled steps only) or the learned table is
            too short.

    Example:
        >>> PositionalEmbedding(11, 6)(np.array([[3, 4, 5]])).shape  # (1, 3, 6)
    """

    def __init__(
        self,
        vocabulary_size: int,
        d_model: int,
        positions: Positions = "sinusoidal",
        max_length: int | None = None,
        dropout_rate: float = 0.0,
        pad_id: int | None = None,
        *,
        embeddings_initializer: Initializer | None = None,
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(positions, max_length, dropout_rate, **kwargs)
        check_size("vocabulary_size", vocabulary_size)
        check_size("d_model", d_model)
        check_number("pad_id", pad_id, int, optional=True)
        check_even("d_model", d_model, positions)
        self.input_spec = None  # `integer_ids` checks the ids.
        self.vocabulary_size = vocabulary_size
        self.d_model = d_model
        self.pad_id = pad_id
        initializer = embeddings_initializer
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=d_model**-0.5)
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            d_model,
            name="token_embedding",
            dtype=self.dtype_policy,
            embeddings_initializer=initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            # In mixed precision Keras would compute the logits in float32.
            reverse_dtype=self.compute_dtype,
        )
        self.token_embedding.supports_masking = True  # Else Keras warns.

    @property
    def embeddings(self) -> TensorLike:
        """The table of tokens (V, D), before the product with sqrt(d_model)."""
        return self.token_embedding.embeddings

    def build(self, input_shape: Shape) -> None:
        self.token_embedding.build(input_shape)
        super().build((None, None, self.d_model))  # (B, T, D)

    def call(
        self,
        ids: TensorLike,
        start: int | TensorLike = 0,
        training: bool | None = None,
        reverse: bool = False,
    ) -> Tensor:
        if reverse:
            self._check_states(ids)
            return self.token_embedding(ids, reverse=True)
        return super().call(self.token_vectors(ids), start, training)

    def _check_states(self, states):
        shape = tuple(states.shape)
        if len(shape) != 3 or shape[-1] not in (None, self.d_model):
            raise ValueError(
                f"`ids` must be states (B, T, {self.d_model}) with `reverse`. "
                f"Received: shape {shape}"
            )

    def token_vectors(self, ids: TensorLike) -> Tensor:
        """Returns the scaled vectors of ids (B, T); override to embed otherwise."""
        ids = integer_ids("ids", ids, "B", "T")
        check_ids("ids", ids, self.vocabulary_size, self.pad_id)
        return self.token_embedding(ids) * math.sqrt(self.d_model)

    def compute_mask(self, inputs: TensorLike, previous_mask: Any) -> Tensor | None:
        """Returns True where ids are not `pad_id`.

        Without a `pad_id`, and of states, returns the previous mask.
        """
        is_ids = len(inputs.shape) == 2
        if self.pad_id is None or not is_ids:
            return previous_mask
        return ops.not_equal(inputs, self.pad_id)

    def compute_output_shape(self, input_shape: Shape, reverse: bool = False) -> Shape:
        return (*input_shape[:2], self.vocabulary_size if reverse else self.d_model)

    def compute_output_spec(
        self,
        ids: TensorLike,
        start: int | TensorLike = 0,
        training: bool | None = None,
        reverse: bool = False,
    ) -> keras.KerasTensor:
        # Keras' own would not pass `reverse` on.
        if reverse:
            self._check_states(ids)
        shape = self.compute_output_shape(ids.shape, reverse)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        names = "vocabulary_size", "d_model", "pad_id"
        own = {name: getattr(self, name) for name in names}
        table = self.token_embedding
        for kind in ("initializer", "regularizer", "constraint"):
            option = getattr(table, f"embeddings_{kind}")
            serialize = getattr(keras, f"{kind}s").serialize
            own[f"embeddings_{kind}"] = serialize(option)
        return super().get_config() | own
