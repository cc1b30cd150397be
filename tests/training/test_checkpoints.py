"""Checkpoints and their mean."""

from __future__ import annotations

import json
import math

import keras
import numpy as np
import pytest

from keras_transformer.training import KeepCheckpoints, load_average
from keras_transformer.training.checkpoints import checkpoints_in
from keras_transformer.training.monitor import Monitor


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
    keep = KeepCheckpoints(tmp_path, 3)
    keep.set_model(small_model())
    for epoch in (9_997, 9_998, 9_999):
        keep.on_epoch_end(epoch)
    numbers = [path.name[6:11].strip(".") for path in keep.paths()]
    assert numbers == ["9998", "9999", "10000"]
    assert list(checkpoints_in(tmp_path)) == [9998, 9999, 10000]


# The best of the losses after each epoch, at most two, of equals the earlier.
LOSSES = [5.0, 4.0, 4.0, 6.0, 3.0, math.nan, 2.0]
BEST = [[1], [1, 2], [2, 3], [2, 3], [2, 5], [2, 5], [5, 7]]


def driven(keep, losses, first=0):
    """Runs the ends of epochs; returns the epochs kept after each."""
    keep.set_model(small_model())
    kept = []
    for epoch, loss in enumerate(losses, start=first):
        keep.model.set_weights([np.full((3, 2), epoch + 1.0), np.zeros(2)])
        keep.on_epoch_end(epoch, {"val_loss": loss, "val_bleu": -loss})
        kept.append([int(path.name[6:10]) for path in keep.paths()])
    return kept


@pytest.mark.parametrize("figure", ["loss", "bleu"])
def test_the_best_checkpoints_are_kept(tmp_path, figure):
    keep = KeepCheckpoints(tmp_path, 2, Monitor(figure))
    assert driven(keep, LOSSES) == BEST
    assert sorted(tmp_path.iterdir()) == keep.paths()
    load_average(keep.model, keep.paths())
    np.testing.assert_array_equal(keep.model.get_weights()[0], np.full((3, 2), 6.0))


def test_an_epoch_without_a_number_is_kept_until_there_are_better(tmp_path):
    keep = KeepCheckpoints(tmp_path, 2, Monitor("loss"))
    kept = driven(keep, [math.nan, 5.0, 4.0, math.nan])
    assert kept == [[1], [1, 2], [2, 3], [2, 3]]


@pytest.mark.parametrize("stopped", range(1, len(LOSSES)))
def test_the_best_list_survives_a_restart(tmp_path, stopped):
    first = KeepCheckpoints(tmp_path, 2, Monitor("loss"))
    driven(first, LOSSES[:stopped])
    state = json.loads(json.dumps(first.state()))
    second = KeepCheckpoints(tmp_path, 2, Monitor("loss"))
    second.restore(state)
    kept = driven(second, LOSSES[stopped:], first=stopped)
    assert kept == BEST[stopped:]
    assert all(path.is_file() for path in second.paths())


@pytest.mark.parametrize("monitor", [None, Monitor("loss")])
def test_a_run_that_goes_back_to_any_saved_state_finds_its_checkpoints(
    tmp_path, monitor
):
    """Whatever happened after the state was saved, and be it the oldest one kept."""
    keep = KeepCheckpoints(tmp_path, 2, monitor, keep_states=2)
    states, losses = [], [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]
    for epoch, loss in enumerate(losses):
        driven(keep, [loss], first=epoch)
        if epoch % 2:
            states.append(keep.state())
    for state in states[-2:]:
        back = KeepCheckpoints(tmp_path, 2, monitor, keep_states=2)
        back.restore(state)
        assert len(back.paths()) == 2
        assert all(path.is_file() for path in back.paths())
    assert len(list(tmp_path.iterdir())) == 5  # epochs 3 to 7
    keep.prune()
    assert sorted(tmp_path.iterdir()) == keep.paths()
    assert [path.name[9:10] for path in keep.paths()] == ["6", "7"]


def test_a_failing_save_leaves_the_earlier_checkpoints(tmp_path, monkeypatch):
    keep = KeepCheckpoints(tmp_path, 1)
    keep.set_model(small_model())
    keep.on_epoch_end(0)

    def half(stream):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keep.model, "save_weights", half)
    with pytest.raises(OSError, match="No space left"):
        keep.on_epoch_end(1)
    assert [path.name for path in keep.paths()] == ["epoch-0001.weights.h5"]


def test_keeping_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`count` must be at least 1"):
        KeepCheckpoints(tmp_path, 0)
