"""Ids of classes: those that are none, in sight and out of it."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_transformer.nn.kernels.execution import known_values

_NARROW = ("int8", "uint8", "int16", "uint16")


def wide_ids(ids):
    """Returns ids as a tensor that can be compared with any number of classes."""
    ids = ops.convert_to_tensor(ids)
    is_narrow = keras.backend.standardize_dtype(ids.dtype) in _NARROW
    return ops.cast(ids, "int32") if is_narrow else ids


def are_classes(ids, classes):
    """Returns whether each of some `wide_ids` is from 0 to `classes` - 1."""
    return ops.logical_and(ops.greater_equal(ids, 0), ops.less(ids, classes))


def class_ids(ids, classes):
    """Returns int32 ids, 0 where one is no class, and whether each is one."""
    # A negative index counts from the end; others are cut, or give anything.
    ids = wide_ids(ids)
    is_class = are_classes(ids, classes)
    return ops.cast(ops.where(is_class, ids, 0), "int32"), is_class


def check_ids(name, ids, size, pad_id=None):
    """Raises `ValueError` for an id that is neither below `size` nor `pad_id`.

    It does nothing in a compiled step, where no value is known.
    """
    values = None if size is None else known_values(ids)
    if values is None or not values.size:
        return
    if values.min() >= 0 and values.max() < size:
        return
    is_good = (values >= 0) & (values < size)
    rule = f"`{name}` must be ids from 0 to {size - 1}"
    rest = ""
    if pad_id is not None:
        is_good |= values == pad_id
        rule += ", or `pad_id` at padding; convert ids such as -100 to it"
        rest = f", pad_id={pad_id}"
    if not is_good.all():
        raise ValueError(f"{rule}. Received: the id {values[~is_good][0]}{rest}")


def check_targets(ids, shape, pad_id):
    """Raises `ValueError` unless `y_true` fits logits of a shape; see `check_ids`."""
    given = ids.shape if hasattr(ids, "shape") else np.shape(ids)
    if not have_one_shape(given, shape[:-1]):
        raise ValueError(
            f"`y_true` must be ids of the shape {tuple(shape[:-1])}, for logits of the "
            f"shape {tuple(shape)}; take the `argmax` of one-hot labels. Received: "
            f"y_true of the shape {tuple(given)}"
        )
    check_ids("y_true", ids, shape[-1], pad_id)


def have_one_shape(one, other):
    """Whether two shapes may be the same; sizes that are not known are."""
    if None in (getattr(one, "rank", 0), getattr(other, "rank", 0)):
        return True  # of TensorFlow, without a known number of axes
    return len(one) == len(other) and all(
        None in sizes or sizes[0] == sizes[1] for sizes in zip(one, other, strict=True)
    )
