"""Positions inside attention: rotary embedding and linear biases."""

from __future__ import annotations

import math
from typing import Any, Self

import keras
from keras import ops

from keras_transformer.config.layer_config import check_even
from keras_transformer.config.options import check_number
from keras_transformer.types import Tensor, TensorLike


def rotate(inputs: TensorLike, indices: TensorLike, base: float = 10000.0) -> Tensor:
    """Rotates each pair of units by an angle proportional to the position.

    Units 2i and 2i + 1 at position p rotate by p / base^(2i / K) radians, so that the
    product of a query and a key depends only on their distance: section 3.2 of Su et
    al., 2021, https://arxiv.org/abs/2104.09864.

    Args:
        inputs: Float tensor (..., T, K), K even.
        indices: Integer or float tensor (T,) or (1,), the positions.
        base: Positions in which the slowest pair rotates by about one radian.

    Returns:
        Float tensor (..., T, K) of the type of `inputs`.

    Raises:
        ValueError: If `base` is not above 1.

    Example:
        >>> turned = rotate(np.array([[1.0, 0.0]]), np.array([1]))
        >>> np.round(ops.convert_to_numpy(turned), 3).tolist()  # cos(1), sin(1)
        [[0.54, 0.841]]
    """
    check_number("base", base, above=1)
    width = inputs.shape[-1]
    pairs = ops.arange(width // 2, dtype="float32")
    frequencies = ops.exp(pairs * (-2.0 * math.log(base) / width))
    angles = ops.cast(indices, "float32")[:, None] * frequencies  # (T, K / 2)
    cosines = ops.cos(angles)
    sines = ops.sin(angles)
    wide = ops.cast(inputs, "float32")
    even = wide[..., ::2]
    odd = wide[..., 1::2]
    turned = [even * cosines - odd * sines, even * sines + odd * cosines]
    turned = ops.stack(turned, axis=-1)  # (..., T, K / 2, 2)
    return ops.cast(ops.reshape(turned, ops.shape(inputs)), inputs.dtype)


def alibi_slopes(num_heads: int) -> list[float]:
    """Returns the slopes of the biases of H heads (score per position).

    For a power of two, the geometric sequence from 2^(-8 / H) to 2^-8; else that of the
    next lower power, then every other slope of twice that power: section 3 of Press et
    al., 2022, https://arxiv.org/abs/2108.12409, and the authors' code.

    Raises:
        ValueError: If `num_heads` is not positive.

    Example:
        >>> alibi_slopes(2)
        [0.0625, 0.00390625]
    """
    check_number("num_heads", num_heads, int, minimum=1)
    power = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
    return slopes + between[: num_heads - power]


class RelativePositions:
    """Base of the `positions` of `MultiHeadAttention`.

    Override `place` or `bias`, and register the class with
    `keras.saving.register_keras_serializable`.
    """

    def check_key_dim(self, key_dim: int) -> None:
        """Raises `ValueError` if heads of this width are not possible."""

    def place(self, inputs: TensorLike, indices: TensorLike) -> Tensor:
        """Returns queries or keys (B, H, T, K) changed by positions (T,) or (1,)."""
        return inputs

    def bias(
        self, num_heads: int, query_indices: TensorLike, key_indices: TensorLike
    ) -> Tensor | None:
        """Returns a bias of the scores (H, T, S), or `None`.

        The positions are integer tensors, (T,) of queries and (S,) of keys.
        """
        return None

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Returns an object made from `get_config`."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RotaryPositions(RelativePositions):
    """Rotates queries and keys by their positions; see `rotate`.

    Args:
        base: See `rotate`; long sequences often use more than the paper's 10000.
    Raises:
        ValueError: If `base` is not above 1.

    Example:
        >>> MultiHeadAttention(2, 8, positions=RotaryPositions(base=500000.0))
    """

    def __init__(self, base: float = 10000.0) -> None:
        check_number("base", base, above=1)
        self.base = base

    def check_key_dim(self, key_dim: int) -> None:
        check_even("key_dim", key_dim, "rotary")

    def place(self, inputs: TensorLike, indices: TensorLike) -> Tensor:
        return rotate(inputs, indices, self.base)

    def get_config(self) -> dict[str, Any]:
        return {"base": self.base}


@keras.saving.register_keras_serializable(package="keras_transformer")
class AlibiPositions(RelativePositions):
    """Lowers each score by a slope times the distance; see `alibi_slopes`.

    The paper's attention is causal. Without a causal mask, equal slopes on both sides
    do not distinguish a sequence from its reverse, so an `EncoderLayer` with
    positions="alibi" uses `after=2`, a choice of this package.

    Args:
        after: Factor on the slope for keys after the query.
    Raises:
        ValueError: If `after` is not positive.

    Example:
        >>> MultiHeadAttention(2, 8, positions=AlibiPositions())
    """

    def __init__(self, after: float = 1.0) -> None:
        check_number("after", after, above=0)
        self.after = after

    def bias(
        self, num_heads: int, query_indices: TensorLike, key_indices: TensorLike
    ) -> Tensor | None:
        slopes = ops.convert_to_tensor(alibi_slopes(num_heads), dtype="float32")
        back = query_indices[:, None] - key_indices[None, :]
        distances = ops.cast(ops.abs(back), "float32")
        if self.after != 1:
            distances = ops.where(back < 0, self.after * distances, distances)
        return -slopes[:, None, None] * distances

    def get_config(self) -> dict[str, Any]:
        return {"after": self.after}


def relative_positions(positions):
    """Returns the `RelativePositions` of a name, configuration or object, or `None`."""
    if isinstance(positions, dict):  # from a configuration
        positions = keras.saving.deserialize_keras_object(positions)
    if positions is None or isinstance(positions, RelativePositions):
        return positions
    named = {"rotary": RotaryPositions, "alibi": AlibiPositions}
    if positions in named:
        return named[positions]()
    expected = "`positions` must be 'rotary', 'alibi', an object of `RelativePositions`"
    raise ValueError(f"{expected} or None. Received: positions={positions!r}")
