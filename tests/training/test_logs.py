"""The log of a run, read back."""

import pytest

from keras_transformer.training.logs import last_scores


def test_the_last_row_without_what_a_run_does_not_have(tmp_path):
    assert last_scores(tmp_path) is None
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss,val_loss\n", encoding="utf-8")
    assert last_scores(tmp_path) is None
    log.write_text("epoch,loss,val_loss\n0,3.5,NA\n1,2.25,NA\n", encoding="utf-8")
    assert last_scores(tmp_path) == {"epoch": 1.0, "loss": 2.25}


def test_a_damaged_row_is_named(tmp_path):
    (tmp_path / "log.csv").write_text("epoch,loss\n0,2.x\n", encoding="utf-8")
    with pytest.raises(ValueError, match="log.csv: the last row is damaged"):
        last_scores(tmp_path)
