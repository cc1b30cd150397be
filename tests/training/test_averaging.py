"""Checkpoints and their mean."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_transformer.training import KeepCheckpoints, load_average


def small_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def saved(directory, count):
    """Saves `count` checkpoints of random weights; returns paths and weights."""
    model, rng = small_model(), np.random.default_rng(3)
    paths, weights = [], []
    for number in range(count):
        weights.append([rng.standard_normal(w.shape) for w in model.get_weights()])
        weights[-1] = [w.astype("float32") for w in weights[-1]]
        model.set_weights(weights[-1])
        paths.append(directory / f"{number}.weights.h5")
        model.save_weights(paths[-1])
    return paths, weights


def test_the_mean_is_that_of_float64(tmp_path):
    paths, weights = saved(tmp_path, 5)
    model = small_model()
    load_average(model, paths)
    for found, values in zip(model.get_weights(), zip(*weights, strict=True),
                             strict=True):  # fmt: skip
        expected = np.mean(np.stack(values).astype(np.float64), axis=0)
        np.testing.assert_array_equal(found, expected.astype(np.float32))


def test_the_mean_of_one_checkpoint_is_itself(tmp_path):
    paths, weights = saved(tmp_path, 1)
    model = small_model()
    load_average(model, paths)
    for found, expected in zip(model.get_weights(), weights[0], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_mean_needs_a_checkpoint():
    with pytest.raises(ValueError, match="no checkpoint to average"):
        load_average(small_model(), [])


def test_the_last_checkpoints_are_kept(tmp_path):
    keep = KeepCheckpoints(tmp_path / "checkpoints", 2)
    keep.set_model(small_model())
    kept = []
    for epoch in range(3):
        keep.model.set_weights([np.full((3, 2), epoch), np.zeros(2)])
        keep.on_epoch_end(epoch)
        kept.append([path.name for path in keep.paths()])
    names = [f"epoch-{number:04d}.weights.h5" for number in (1, 2, 3)]
    assert kept == [names[:1], names[:2], names[1:]]
    assert sorted((tmp_path / "checkpoints").iterdir()) == keep.paths()
    load_average(keep.model, keep.paths())
    np.testing.assert_array_equal(keep.model.get_weights()[0], np.full((3, 2), 1.5))


def test_ten_thousand_epochs_keep_their_order(tmp_path):
    for epoch in (9_998, 9_999, 10_000):
        (tmp_path / f"epoch-{epoch:04d}.weights.h5").touch()
    paths = KeepCheckpoints(tmp_path, 2).paths()
    assert [path.name[6:11].strip(".") for path in paths] == ["9998", "9999", "10000"]


def test_a_failing_save_leaves_the_earlier_checkpoints(tmp_path, monkeypatch):
    keep = KeepCheckpoints(tmp_path, 1)
    keep.set_model(small_model())
    keep.on_epoch_end(0)

    def half(path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keep.model, "save_weights", half)
    with pytest.raises(OSError, match="No space left"):
        keep.on_epoch_end(1)
    assert [path.name for path in keep.paths()] == ["epoch-0001.weights.h5"]


def test_keeping_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`count` must be at least 1"):
        KeepCheckpoints(tmp_path, 0)
