"""Weights that PyTorch has pickled, read without running what a pickle may run.

A pickle is a program, in which any function can be named and called. Here it may make
dictionaries and tensors of numbers; whatever else it names is refused.
"""

from __future__ import annotations

import collections
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from keras_transformer.formats.contents import described

# The types of `torch.save`'s storages that NumPy has.
_TYPES = {
    "torch.DoubleStorage": "<f8",
    "torch.FloatStorage": "<f4",
    "torch.HalfStorage": "<f2",
    "torch.LongStorage": "<i8",
    "torch.IntStorage": "<i4",
    "torch.BoolStorage": "?",
}
# What a file of PyTorch before 1.6 begins with.
_MAGIC = 0x1950A86A20F9469CFC6C
# What damaged or hostile content raises.
_FAILURES = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Tensor(NamedTuple):
    """A part of a storage: the name of that, and elements, not bytes."""

    storage: str
    dtype: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _Unpickler(pickle.Unpickler):
    """Makes dictionaries and `_Tensor`s, and refuses all else by name."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns what stands for a name in the pickle, always a harmless thing."""
        # Made anew each time: a pickle can set attributes of what it gets.
        known = _TYPES | {
            "collections.OrderedDict": collections.OrderedDict,
            "torch._utils._rebuild_tensor_v2": lambda storage, *place: _Tensor(
                *storage, *place[:3]
            ),
            "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
        }
        if f"{module}.{name}" not in known:
            raise pickle.UnpicklingError(
                f"it wants {module}.{name}, and only tensors of numbers are read"
            )
        return known[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        """Returns the name of a storage and the type of its elements."""
        _, dtype, name, *_ = pid
        return name, dtype


def read_pytorch_weights(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file that `torch.save` wrote of a `state_dict`.

    Args:
        path: A file such as pytorch_model.bin, of any version of PyTorch.

    Raises:
        ValueError: If the file is damaged, or names anything but tensors of numbers.
    """
    with described(f"{path} cannot be read", _FAILURES), path.open("rb") as file:
        read = _read_zip if zipfile.is_zipfile(file) else _read_sequence
        file.seek(0)
        state, storages = read(file)
        if not isinstance(state, Mapping):
            raise ValueError("it must hold tensors by name")
        return {name: _array(name, tensor, storages) for name, tensor in state.items()}


def _read_zip(file: BinaryIO):
    """Returns the pickled object and the bytes of each storage."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        (index,) = (name for name in names if name.endswith("/data.pkl"))
        folder = index.removesuffix("data.pkl")
        if f"{folder}byteorder" in names and archive.read(f"{folder}byteorder") != (
            b"little"
        ):
            raise ValueError("its numbers must be little-endian")
        with archive.open(index) as pickled:
            state = _Unpickler(pickled).load()
        start = f"{folder}data/"
        return state, {
            name.removeprefix(start): archive.read(name)
            for name in names
            if name.startswith(start)
        }


def _read_sequence(file: BinaryIO):
    """Does so with a file of before PyTorch 1.6: pickles, then the storages."""
    magic, _, _, state, keys = (_Unpickler(file).load() for _ in range(5))
    if magic != _MAGIC:
        raise ValueError("it must be a file of `torch.save`")
    types = {tensor.storage: tensor.dtype for tensor in state.values()}
    storages = {}
    for key in keys:
        (count,) = np.frombuffer(file.read(8), "<i8")
        storages[key] = file.read(int(count) * np.dtype(types[key]).itemsize)
    return state, storages


def _array(name, tensor, storages):
    """Returns the numbers of a tensor, all of which lie in its storage."""
    if not isinstance(name, str) or not isinstance(tensor, _Tensor):
        raise ValueError(f"{name!r} must be a tensor")
    numbers = np.frombuffer(storages[tensor.storage], tensor.dtype)
    steps = list(zip(tensor.size, tensor.stride, strict=True))
    last = tensor.offset + sum((count - 1) * stride for count, stride in steps)
    is_inside = 0 <= tensor.offset <= last < len(numbers)
    if not is_inside or any(count < 1 or stride < 0 for count, stride in steps):
        raise ValueError(f"{name} must lie within the numbers of the file")
    return np.lib.stride_tricks.as_strided(
        numbers[tensor.offset :],
        tensor.size,
        [stride * numbers.itemsize for stride in tensor.stride],
        writeable=False,
    )
