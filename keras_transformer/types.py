"""Types for annotations: what editors and type checkers know of arguments and results.

Keras' tensors have no class in common: a backend's tensors, Keras' variables, symbolic
tensors and NumPy arrays are alike in their attributes, so they are described by these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

if TYPE_CHECKING:
    import keras


class TensorLike(Protocol):
    """An argument: a tensor of the backend or a symbolic one, a variable, an array."""

    @property
    def shape(self) -> Any:
        """Sizes of the axes, in the class of its library."""

    @property
    def dtype(self) -> Any:
        """Type of the elements, in the class of its library."""


class Tensor(TensorLike, Protocol):
    """A result: a tensor of the backend; a symbolic one if an argument is symbolic.

    `typing.cast` makes it a `tf.Tensor`, `jax.Array` or `torch.Tensor` where the
    functions of a backend ask for one.
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


# One size an axis, `None` for one that is not known.
Shape: TypeAlias = tuple[int | None, ...]

# Tensors in tuples, lists and dicts, made by one method to be given to another.
Nest: TypeAlias = Any

# What Keras makes an object of: a name, a configuration, a function, the object itself.
DType: TypeAlias = "str | keras.DTypePolicy"
Activation: TypeAlias = "str | dict[str, Any] | Callable[..., Any]"
Initializer: TypeAlias = "str | dict[str, Any] | Callable[..., Any]"
Regularizer: TypeAlias = "str | dict[str, Any] | Callable[..., Any]"
Constraint: TypeAlias = "str | dict[str, Any] | Callable[..., Any]"


class BasicOptions(TypedDict, total=False):
    """What every layer and model of Keras takes by name, `activity_regularizer` not."""

    name: str | None
    trainable: bool
    dtype: DType | None
    autocast: bool


class LayerOptions(BasicOptions, total=False):
    """What every layer of Keras takes by name."""

    activity_regularizer: Regularizer | None


class ProjectionOptions(BasicOptions, total=False):
    """What `MultiHeadAttention` takes of its weights, by name."""

    kernel_initializer: Initializer
    bias_initializer: Initializer
    kernel_regularizer: Regularizer | None
    bias_regularizer: Regularizer | None
    kernel_constraint: Constraint | None
    bias_constraint: Constraint | None


class WeightOptions(ProjectionOptions, total=False):
    """What other layers that are made of `Dense` layers take of their weights."""

    activity_regularizer: Regularizer | None
