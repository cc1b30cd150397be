"""The model.bin of CTranslate2: named variables, and aliases of some."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from keras_transformer.importers.contents import Bytes, size_of

# Of ctranslate2/specs/model_spec.py, which writes version 6.
_NEWEST = 6
_TYPES = ("<f4", "<i1", "<i2", "<i4", "<f2", "bfloat16")
# Before version 4 the size of a number alone said its type.
_TYPES_BY_SIZE = {4: "<f4", 2: "<i2", 1: "<i1"}
# int16 weights without a scale of their own, of the first versions.
_GLOBAL_SCALE = 1000.0


@dataclasses.dataclass
class Variables:
    """What a model.bin holds.

    Args:
        spec: Name of the specification, such as "TransformerSpec".
        revision: The specification's revision.
        arrays: Variables by name; weights are floats, whatever the file has.
    """

    spec: str
    revision: int
    arrays: dict[str, np.ndarray]


def read_variables(path: Path) -> Variables:
    """Reads a model.bin of any version up to 6.

    Raises:
        ValueError: If it is damaged, newer, or claims what it does not hold.
    """
    data = Bytes(path)
    (version,) = data.numbers("I")
    if not 2 <= version <= _NEWEST:
        raise ValueError(
            f"{path} must be of CTranslate2's binary version 2 to {_NEWEST}. Received: "
            f"{version}"
        )
    spec, (revision,) = _string(data), data.numbers("I")
    arrays = {}
    for _ in range(data.numbers("I")[0]):
        name = _string(data)
        if name in arrays:
            raise ValueError(f"{path} is damaged: it holds {name} twice")
        arrays[name] = _array(data, name, version)
    aliases = data.numbers("I")[0] if version >= 3 else 0
    for _ in range(aliases):
        alias, name = _string(data), _string(data)
        if name not in arrays:
            raise ValueError(f"{path} is damaged: {alias} stands for {name}, not there")
        for end in ("", "_scale"):
            if name + end in arrays:
                arrays[alias + end] = arrays[name + end]
    return Variables(spec, revision, _as_floats(arrays, path))


def _string(data):
    return data.name(data.numbers("H")[0])


def _array(data, name, version):
    """Reads a variable's shape, type and numbers."""
    (axes,) = data.numbers("B")
    shape = data.numbers("I", axes)
    (kind,) = data.numbers("B")
    if version >= 4:
        dtype = _TYPES[kind] if kind < len(_TYPES) else None
        (count,) = data.numbers("I")
    else:
        dtype = _TYPES_BY_SIZE.get(kind)
        count = data.numbers("I")[0] * kind
    if dtype is None:
        raise ValueError(f"{data.path} is damaged: {name} has the unknown type {kind}")
    stored = "<u2" if dtype == "bfloat16" else dtype
    if size_of(shape) * np.dtype(stored).itemsize != count:
        raise ValueError(
            f"{data.path} is damaged: {name} has the shape {shape} and {count:,} bytes"
        )
    array = data.array(stored, shape)
    if dtype == "bfloat16":
        # The upper half of a float32.
        array = (array.astype("<u4") << 16).view("<f4")
    return array


def _as_floats(arrays, path):
    """Returns the variables with whole-number weights divided by their scales."""
    found = {}
    for name, array in arrays.items():
        if name.endswith("weight_scale") and name[: -len("_scale")] in arrays:
            continue
        if name.endswith("weight") and array.dtype.kind == "i":
            scale = arrays.get(f"{name}_scale")
            if scale is None and array.dtype.itemsize == 2:
                scale = np.float32(_GLOBAL_SCALE)
            array = _divided(array, scale, f"{path}: {name}")
        found[name] = array
    return found


def _divided(array, scale, origin):
    """Returns whole numbers over their scale, one for all or one a row."""
    if scale is None or scale.shape not in ((), (1,), array.shape[:1]):
        raise ValueError(f"{origin} needs a scale, one for all or one a row")
    if scale.dtype.kind != "f" or not (scale > 0).all():
        raise ValueError(f"{origin} must have scales above 0")
    if scale.shape == array.shape[:1]:
        scale = scale.reshape(-1, *[1] * (array.ndim - 1))
    return array.astype(np.float32) / np.asarray(scale, np.float32)
