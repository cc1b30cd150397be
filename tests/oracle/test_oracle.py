"""The oracle itself: it tells equal from different, and records the same twice."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from tests.oracle.cases import all_cases, canonical
from tests.oracle.comparing import compare, table
from tests.oracle.record import MODES, main, record

ROOT = Path(__file__).resolve().parents[2]
CASE = "eager|float32|transformer/a"


def recording(**parts):
    arrays = {"outputs/loss": [1.0], "search/1/ids": [[5, 2]]} | parts
    return {f"{CASE}|{name}": np.array(array) for name, array in arrays.items()}


def words_about(a, b):
    return compare(a, b)[1]


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (
            "oracle/encoder_layer_0/self_attention/query_kernel",
            "oracle/encoder_layer_0/self_attention/query/kernel",
            "encoder_layer_0/self_attention/query/kernel",
        ),
        (
            "encoder/stack/encoder_layer_1/feed_forward/hidden_bias",
            "oracle/encoder/encoder_layer_1/feed_forward/hidden_dense/bias",
            "encoder_layer_1/feed_forward/hidden/bias",
        ),
        (
            "oracle/target_embedding/embeddings",
            "oracle/target_embedding/token_embedding/embeddings",
            "target_embedding/embeddings",
        ),
        ("oracle/output_kernel", "oracle/output/kernel", "output/kernel"),
        ("oracle/output_bias", "oracle/output/bias", "output/bias"),
        ("oracle/output_map/kernel", "oracle/output/kernel", "output/kernel"),
    ],
)
def test_old_and_new_names_are_one(old, new, name):
    assert canonical(old) == canonical(new) == name


def test_equal_recordings_have_no_difference():
    cells, failures, remarks = compare(recording(), recording())
    assert not failures and not remarks
    assert {str(cell) for cell in cells.values()} == {"="}
    assert "transformer/a" in "\n".join(table(cells))


def test_not_a_number_equals_only_itself():
    odd = recording(**{"outputs/loss": [np.nan]})
    assert not words_about(odd, odd)
    assert words_about(odd, recording())


def test_differences_are_relative_to_the_largest_number():
    a = recording(**{"outputs/logits": [1000.0, 1.0]})
    near = recording(**{"outputs/logits": [1000.0, 1.0005]})
    far = recording(**{"outputs/logits": [1000.0, 1.005]})
    assert not words_about(a, near)
    (words,) = words_about(a, far)
    assert "outputs/logits: 5e-03/5e-06" in words


def test_gradients_of_rounding_alone_are_equal():
    a = {"gradients/query/bias": [0.7], "gradients/key/bias": [3e-9]}
    b = a | {"gradients/key/bias": [-2e-9]}
    assert not words_about(recording(**a), recording(**b))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (recording(**{"search/1/ids": [[5, 7]]}), "search/1/ids: 5e+00"),
        (recording(**{"outputs/loss": [1.0, 1.0]}), "shapes (1,) and (2,)"),
        (recording(**{"gradients/query/kernel": [1.0]}), "only in the second"),
        ({f"{CASE}|error": np.array("no such option")}, "no such option"),
        ({}, "only in the first"),
    ],
)
def test_what_does_not_fit_fails(other, words):
    assert words in "\n".join(words_about(recording(), other))


def test_other_hypotheses_in_bfloat16_are_told_and_fail_nothing():
    a, b = (
        {key.replace("float32", "bfloat16"): value for key, value in x.items()}
        for x in (recording(), recording(**{"search/1/ids": [[5, 7]]}))
    )
    _, failures, remarks = compare(a, b)
    assert not failures
    assert "search/1/ids" in remarks[0]


def test_files_are_compared_and_the_status_says_how(tmp_path, capsys):
    files = [tmp_path / name for name in ("a.npz", "b.npz")]
    for file, loss in zip(files, (1.0, 1.1), strict=True):
        np.savez(file, **recording(**{"outputs/loss": [loss]}))
    paths = [str(file) for file in files]
    assert main(["--compare", paths[0], paths[0]]) == 0
    assert main(["--compare", *paths]) == 1
    assert main(["--compare", *paths, "--cases", "no such case"]) == 1
    assert "outputs/loss: 1e-01/1e-01" in capsys.readouterr().out


def test_names_of_cases_hold_no_separator():
    assert not any("|" in name for name in all_cases())


def test_two_recordings_of_one_case_are_equal():
    case = "^transformer/post_norm$|^layer/mha/key_masks$"
    mode = MODES[keras.backend.backend()][0]
    a, b = (record(ROOT, ["float32"], [mode], case) for _ in range(2))
    cells, failures, _ = compare(a, b)
    assert not failures
    assert {str(cell) for cell in cells.values()} == {"="}
    kinds = {kind for name, _, kind in cells if name == "transformer/post_norm"}
    assert kinds == {"outputs", "gradients", "updates", "search"}
