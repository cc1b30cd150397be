"""The number of parts, one per processor core, that training cuts a batch into."""

from __future__ import annotations

import os

import keras

from keras_transformer.layers.arguments import check_size

_num_parts = 1


def split_batches_over_cores(num_cores: int | None = None) -> int:
    """Lets every core compute the loss and gradient of some rows of each batch.

    The many small operations of a Transformer, each spread over the cores, wait longer
    for each other than they compute. After this call `fit` and `evaluate` of models
    that train without logits cut a batch into parts that run side by side, each
    operation on one core. The gradient is that of the whole batch up to rounding;
    dropout drops other units. XLA and `tf.distribute` compute whole batches as before,
    on one core. With a GPU the call changes nothing.

    Args:
        num_cores: Parts of a batch; by default the cores that the process may use.

    Returns:
        The number of parts.

    Raises:
        RuntimeError: If TensorFlow has computed something already.
        ValueError: If `num_cores` is not positive, or the backend not TensorFlow.

    Example:
        >>> split_batches_over_cores()  # 2, on two cores
    """
    global _num_parts
    num_cores = available_cores() if num_cores is None else num_cores
    check_size("num_cores", num_cores)
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise ValueError(f"Parts need the backend TensorFlow. Received: {backend=}")
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
    """Parts into which a batch is cut: 1 before `split_batches_over_cores`."""
    return _num_parts


def available_cores() -> int:
    """Cores that this process may use."""
    can_ask = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if can_ask else os.cpu_count() or 1
