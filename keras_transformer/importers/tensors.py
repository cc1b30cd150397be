"""The named arrays of a file: taken one by one, checked, none left over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np


class Tensors:
    """Arrays of a file by their names.

    Args:
        arrays: Arrays by name.
        origin: Name of the file, for errors.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], origin: str):
        self._arrays = dict(arrays)
        self._left = set(self._arrays)
        self.origin = origin

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def take(self, name: str, *shape: int | None) -> np.ndarray:
        """Returns an array as float32.

        Args:
            name: Its name.
            *shape: Its axes; `None` is any size.

        Raises:
            ValueError: If there is none, it has another shape, or a number in it is
                not finite.
        """
        if name not in self._arrays:
            raise ValueError(f"{self.origin}: the tensor {name} is missing")
        array = self._arrays[name]
        wanted = (
            tuple(array.shape[i] if n is None else n for i, n in enumerate(shape))
            if len(shape) == array.ndim
            else shape
        )
        if array.shape != wanted:
            expected = " x ".join("any" if n is None else str(n) for n in shape)
            raise ValueError(
                f"{self.origin}: {name} must have the shape {expected or 'of a number'}"
                f". Received: {' x '.join(map(str, array.shape)) or 'a number'}"
            )
        if array.dtype.kind != "f":
            raise ValueError(
                f"{self.origin}: {name} must be of a float type. Received: "
                f"{array.dtype}"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{self.origin}: {name} holds numbers that are not finite")
        self._left.discard(name)
        return np.ascontiguousarray(array, np.float32)

    def pass_over(self, names: Iterable[str]):
        """Marks arrays that are not needed, some of which may not be there."""
        self._left.difference_update(names)

    def left(self) -> list[str]:
        """Returns the names of the arrays that were not taken, in order."""
        return sorted(self._left)

    def check_none_left(self):
        """Raises `ValueError` if an array was not taken: it has a part in the model."""
        if left := self.left():
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise ValueError(
                f"{self.origin}: no part of a Transformer here is made of the tensor "
                f"{left[0]}{more}"
            )
