"""What attention is set against: convolutions."""

from __future__ import annotations

import numpy as np

from tests.test_why import load  # noqa: F401


def test_heads_of_one_neighbour_each_are_a_convolution(load):  # noqa: F811
    found = load("neighbour_heads").main(["--length", "12"])
    for taps in ((3,), (11,), (3, 3)):
        assert found[taps] < 1e-6
    # With a bias they become one as it grows: the next place gets exp(-strength).
    assert found[0.1] > 0.1
    assert found[3.0] < 0.2
    assert found[10.0] < 1e-3
    assert found[100.0] < 1e-6


def test_mask_of_neighbours(load):  # noqa: F811
    places = np.arange(3)[:, None]
    mask = load("neighbour_parts").neighbours(places, np.array([[-1], [0], [1]]))
    before = [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    expected = [[before, np.eye(3), np.transpose(before)]]
    np.testing.assert_array_equal(mask, expected)
