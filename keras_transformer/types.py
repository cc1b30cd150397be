"""Types for annotations.

Tensors of backends, Keras' variables, symbolic tensors and NumPy arrays have no common
class, so protocols describe them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

if TYPE_CHECKING:
    import keras


class TensorLike(Protocol):
    """An argument: a tensor, symbolic tensor, variable or array."""

    @property
    def shape(self) -> Any:
        """Sizes of the axes, in the class of its library."""

    @property
    def dtype(self) -> Any:
        """Type of the elements, in the class of its library."""


class Tensor(TensorLike, Protocol):
    """A result: a tensor of the backend, or a symbolic tensor.

    `typing.cast` makes it a `tf.Tensor`, `jax.Array` or `torch.Tensor`.
    """

    def __getitem__(self, key: Any, /) -> Tensor: ...
    def __neg__(self) -> Tensor: ...
    def __add__(self, other: Any, /) -> Tensor: ...
    def __radd__(self, other: Any, /) -> Tensor: ...
    def __sub__(self, other: Any, /) -> Tensor: ...
    def __rsub__(self, other: Any, /) -> Tensor: ...
    def __mul__(self, other: Any, /) -> Tensor: ...
    def __rmul__(self, other: Any, /) -> Tensor: ...
    def __truediv__(self, other: Any, /) -> Tensor: ...
    def __matmul__(self, other: Any, /) -> Tensor: ...


# Sizes of the axes, `None` where unknown.
Shape: TypeAlias = tuple[int | None, ...]

# A nested structure of tensors.
Nest: TypeAlias = Any

# Arguments that Keras converts to objects.
DType: TypeAlias = "str | keras.DTypePolicy"
Activation: TypeAlias = "str | dict[str, Any] | Callable[..., Any]"
Initializer: TypeAlias = "str | dict[str, Any] | Callable[..., Any]"
Regularizer: TypeAlias = "str | dict[str, Any] | Callable[..., Any]"
Constraint: TypeAlias = "str | dict[str, Any] | Callable[..., Any]"


class BasicOptions(TypedDict, total=False):
    """Options of every Keras layer and model, without `activity_regularizer`."""

    name: str | None
    trainable: bool
    dtype: DType | None
    autocast: bool


class LayerOptions(BasicOptions, total=False):
    """Options of every Keras layer."""

    activity_regularizer: Regularizer | None


class ProjectionOptions(BasicOptions, total=False):
    """Options of the weights of `MultiHeadAttention`."""

    kernel_initializer: Initializer
    bias_initializer: Initializer
    kernel_regularizer: Regularizer | None
    bias_regularizer: Regularizer | None
    kernel_constraint: Constraint | None
    bias_constraint: Constraint | None


class WeightOptions(ProjectionOptions, total=False):
    """Options of the weights of other layers made of `Dense` layers."""

    activity_regularizer: Regularizer | None
