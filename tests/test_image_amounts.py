"""Convolutions and the Vision Transformer are compared at growing amounts of data."""

from __future__ import annotations

import numpy as np
import pytest

from tests.test_why import load  # noqa: F401


@pytest.mark.slow
def test_images_at_growing_amounts(load, tmp_path):  # noqa: F811
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    path = tmp_path / "images.png"
    sizes = ["--updates", "3", "--seeds", "2", "--amounts", "20", "40"]
    found = load("images").main([*sizes, "--plot", str(path)])
    assert {amount for _, amount in found} == {20, 40}
    assert all(len(runs) == 2 for runs in found.values())
    assert path.read_bytes().startswith(b"\x89PNG")


def test_images_are_drawn_equally_often_from_as_many_as_asked(load):  # noqa: F811
    pytest.importorskip("sklearn")
    data = np.arange(50), np.arange(50) % 10
    rng = np.random.default_rng(1)
    images, classes = load("images").drawn(data, 7, 30, rng)
    _, counts = np.unique(images, return_counts=True)
    assert len(counts) == 7 and set(counts) == {4, 5}
    np.testing.assert_array_equal(classes, images % 10)
