"""Weights that are drawn at random and not trained."""

from __future__ import annotations

import random

import numpy as np
from keras import ops


def random_generator(seed):
    """Returns NumPy's generator of random numbers for a seed.

    Args:
        seed: Integer, or `None` for one drawn from Python's generator, which
            `keras.utils.set_random_seed` sets.
    """
    return np.random.default_rng(random.randrange(2**31) if seed is None else seed)


def add_drawn_weight(layer, name, draw):
    """Adds a weight to a layer that keeps the numbers it begins with.

    It is saved and loaded like any other, and stays float32 in mixed precision.

    Args:
        layer: The layer.
        name: Name of the weight.
        draw: Function without arguments that returns an array.

    Returns:
        The variable.
    """
    numbers = draw().astype("float32")
    return layer.add_weight(
        numbers.shape, name=name, trainable=False, dtype="float32", autocast=False,
        initializer=lambda shape, dtype=None: ops.convert_to_tensor(numbers),
    )  # fmt: skip


def orthogonal_gaussians(number, width, generator):
    """Draws vectors of which each is Gaussian, orthogonal in blocks.

    The directions of a block are the rows of a random orthogonal matrix and the lengths
    are those of independent Gaussian vectors: section 2.4 of Choromanski et al., 2021,
    https://arxiv.org/abs/2009.14794.

    Args:
        number: Vectors, F.
        width: Their width, K.
        generator: A `numpy.random.Generator`.

    Returns:
        Array (F, K).

    Example:
        >>> vectors = orthogonal_gaussians(2, 2, np.random.default_rng(1))
        >>> bool(abs(vectors[0] @ vectors[1]) < 1e-9)
        True
    """
    blocks = []
    for _ in range(-(-number // width)):
        matrix, upper = np.linalg.qr(generator.standard_normal((width, width)))
        # Without the signs the matrices would not be uniform.
        blocks.append((matrix * np.sign(np.diag(upper))).T)
    lengths = np.linalg.norm(generator.standard_normal((number, width)), axis=1)
    return np.concatenate(blocks)[:number] * lengths[:, None]
