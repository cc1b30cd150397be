"""Parts, one per processor core, that a batch is split into."""

from __future__ import annotations

import os

import keras

from keras_transformer.layers.arguments import check_size

_num_parts = 1


def split_batches_over_cores(num_cores: int | None = None) -> int:
    """Splits each batch of `fit` and `evaluate` into parts, one per core.

    The parts run side by side, each operation on one core: faster than spreading the
    many small operations of a Transformer over all cores. The gradient is that of the
    whole batch up to rounding. Applies to models that train without logits, not to XLA
    and `tf.distribute`. Does nothing with a GPU.

    Args:
        num_cores: Parts of a batch; default the cores that the process may use.

    Returns:
        The number of parts.

    Raises:
        RuntimeError: If TensorFlow has already computed something.
        ValueError: If `num_cores` is not positive, or the backend is not TensorFlow.

    Example:
        >>> split_batches_over_cores()  # 2, on two cores
    """
    global _num_parts
    num_cores = available_cores() if num_cores is None else num_cores
    check_size("num_cores", num_cores)
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise ValueError(f"The backend must be TensorFlow. Received: {backend=}")
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return _num_parts
    try:
        if num_cores > 1:
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(num_cores)
    except RuntimeError as error:
        raise RuntimeError(
            "`split_batches_over_cores` sets the number of TensorFlow's threads: "
            "call it before anything is computed, models and data sets included."
        ) from error
    _num_parts = num_cores
    return _num_parts


def num_parts() -> int:
    """Returns the number of parts, 1 before `split_batches_over_cores`."""
    return _num_parts


def available_cores() -> int:
    """Returns the number of cores that the process may use."""
    can_ask = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if can_ask else os.cpu_count() or 1
