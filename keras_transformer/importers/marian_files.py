"""Marian's files of weights: `.npz`, and the binary `.bin` of Bergamot and Firefox."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.importers.contents import Bytes, described, parse_yaml, size_of

# The item that holds the options of the model, as text.
_OPTIONS = "special:model.yml"
# Marian's numbers of types (src/common/types.h): plain ones, and matrices of whole
# numbers, each followed by what the numbers were multiplied by.
_PLAIN = {0x404: "<f4", 0x402: "<f2", 0x101: "<i1"}
_QUANTISED = {0x4101: "<i1", 0x4102: "<i2"}
# Of activations: a program that multiplies whole numbers needs them.
_OF_ACTIVATIONS = "_QuantMultA"
# cnpy, which Marian writes .npz with, does not compress; zeros of a bomb would shrink.
_CLOSEST_PACKING = 20


def read_weights(path: Path) -> tuple[dict[str, np.ndarray], Any]:
    """Reads a file of weights.

    Args:
        path: A `.npz` or a `.bin`.

    Returns:
        Arrays by Marian's names, and the options that the file holds.

    Raises:
        ValueError: If it is damaged, claims what it does not hold, or has a type of
            weights that depends on the processor.
    """
    arrays = _read_npz(path) if path.suffix == ".npz" else _read_bin(path)
    if _OPTIONS not in arrays:
        raise ValueError(f"{path} holds no {_OPTIONS}, the options of the model")
    text = arrays.pop(_OPTIONS).astype(np.int8).tobytes().rstrip(b"\0")
    options = parse_yaml(text, f"{path}: {_OPTIONS}")
    names = [name for name in arrays if not name.endswith(_OF_ACTIVATIONS)]
    return {name: arrays[name] for name in names}, options


def _read_npz(path):
    """Returns the arrays of a `.npz`; none is unpickled."""
    size = path.stat().st_size
    failures = (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError,
                RuntimeError, OSError, KeyError)  # fmt: skip
    arrays = {}
    with described(f"{path} is damaged, or no .npz", *failures):
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            claimed = sum(member.file_size for member in members)
            if claimed > _CLOSEST_PACKING * size:
                raise ValueError(
                    f"its members claim {claimed:,} bytes, packed in {size:,}"
                )
            for member in members:
                with archive.open(member) as stream:
                    name = member.filename.removesuffix(".npy")
                    arrays[name] = _read_npy(stream, member)
    return arrays


def _read_npy(stream, member):
    """Reads one array, whose header is compared with the member's size first."""
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"{member.filename} has the unknown version {version}")
    shape, is_fortran, dtype = read(stream)
    if dtype.kind not in "fiu":
        raise ValueError(f"{member.filename} holds {dtype}, not numbers")
    if min(shape, default=0) < 0:
        raise ValueError(f"{member.filename} has the shape {shape}")
    claimed, held = size_of(shape) * dtype.itemsize, member.file_size - stream.tell()
    if claimed != held:
        raise ValueError(
            f"{member.filename} claims {claimed:,} bytes of numbers and holds {held:,}"
        )
    content = stream.read(held)
    if len(content) != held:
        raise ValueError(f"{member.filename} ends early")
    array = np.frombuffer(content, dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")


def _read_bin(path):
    """Returns the arrays of a `.bin` of version 1 (Marian's src/common/binary.cpp)."""
    data = Bytes(path)
    version, count = data.numbers("Q", 2)
    if version != 1:
        raise ValueError(
            f"{path} is no binary file of Marian's version 1. Received: {version}"
        )
    # Name length, type, number of axes and bytes of each item.
    numbers = data.numbers("Q", 4 * count)
    headers = [numbers[i : i + 4] for i in range(0, len(numbers), 4)]
    names = [data.name(length) for length, _, _, _ in headers]
    shapes = [data.numbers("i", axes) for _, _, axes, _ in headers]
    (padding,) = data.numbers("Q")
    data.take(padding)
    arrays = {}
    for (_, kind, _, length), name, shape in zip(headers, names, shapes, strict=True):
        if name in arrays:
            raise ValueError(f"{path} holds {name} twice")
        arrays[name] = _item(path, name, kind, shape, data.take(length))
    return arrays


def _item(path, name, kind, shape, content):
    """Returns the array of an item's bytes."""
    dtype = _PLAIN.get(kind) or _QUANTISED.get(kind)
    if dtype is None:
        raise ValueError(
            f"{path}: {name} has the type {kind:#x}; only float32, float16, int8 and "
            "intgemm's matrices for any processor are read. Convert it with Marian's "
            "marian-conv to float32"
        )
    is_quantised = kind in _QUANTISED
    needed = size_of(shape) * np.dtype(dtype).itemsize + 4 * is_quantised
    is_matrix = len(shape) == 2 or not is_quantised
    if min(shape, default=0) < 0 or needed > len(content) or not is_matrix:
        raise ValueError(
            f"{path} is damaged: {name} has the shape {shape}, and only "
            f"{len(content):,} bytes"
        )
    array = np.frombuffer(content, dtype, size_of(shape))
    if not is_quantised:
        return array.reshape(shape)
    multiplier = np.frombuffer(content, "<f4", 1, array.nbytes)[0]
    if not 0 < multiplier < np.inf:
        raise ValueError(f"{path}: {name} was multiplied by {multiplier}")
    array = array.astype(np.float32) / multiplier
    if "Wemb" in name:
        return array.reshape(shape)
    # Transposed for the processor's product, without a change of the shape.
    return array.reshape(shape[::-1]).T
