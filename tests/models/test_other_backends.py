"""Tests of what has ways of its own on JAX and PyTorch: all in one process of each."""

import pytest

from tests.models.backends import run_tests

LOSSES = "tests/nn/test_losses.py"
SEARCH = "tests/search/test_search.py"
COMPILED = "tests/search/test_compiled.py"
NARROW = "test_a_narrow_beam_keeps_what_the_reference_keeps"
CORPUS = "tests/text/test_corpus.py::test_fit_reads_all_epochs_in_order"
QUICK = [
    f"{LOSSES}::test_every_mode_agrees_with_the_closed_form",
    f"{LOSSES}::test_a_target_that_is_no_class_is_never_taken_for_another",
    f"{SEARCH}::{NARROW}[3-2-penalty3-rules3-of_reference3]",
    f"{CORPUS}[False-Model]",
    f"{CORPUS}[False-ExactModel]",
]
WHOLE = [
    LOSSES,
    SEARCH,
    COMPILED,
    "tests/search/test_sampling.py",
    "tests/search/test_shortlist.py::test_the_other_pieces_have_no_share",
    CORPUS,
    "tests/test_testing.py::test_the_page_quotes_the_errors",
]


@pytest.mark.parametrize(
    "backend, files, which",
    [
        ("jax", [*QUICK, COMPILED], "not slow"),
        ("torch", QUICK, "not slow"),
        pytest.param("jax", WHOLE, "slow or not slow", marks=pytest.mark.slow),
        pytest.param("torch", WHOLE, "slow or not slow", marks=pytest.mark.slow),
    ],
)
def test_these_pass_on_another_backend(backend, files, which):
    run_tests(backend, "-m", which, *files)
