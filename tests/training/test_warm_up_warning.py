"""A warm-up longer than the training is noticed before it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from keras_transformer import TrainingConfig
from keras_transformer.training import dry_run
from keras_transformer.training.report import report_warm_up
from tests import tiny_run


def said(num_batches=14, **options):
    stream = io.StringIO()
    config = TrainingConfig(**options)
    report_warm_up(Console(file=stream, width=200), config, num_batches)
    return stream.getvalue()


def test_the_warning_says_how_long_it_should_be():
    assert said() == (
        "warning: the learning rate rises for 4,000 updates, and 280 are planned: "
        "give `warmup_steps` about a tenth of them, --warmup-steps 28\n"
    )


@pytest.mark.parametrize(
    "options, planned",
    [
        ({"warmup_steps": 280}, "280"),
        ({"warmup_steps": 100, "max_updates": 50}, "50"),
        ({"warmup_steps": 100, "gradient_accumulation_steps": 4}, "70"),
        ({"warmup_steps": 7, "epochs": 1, "max_updates": 5}, "5"),
    ],
)
def test_every_limit_counts(options, planned):
    assert f"and {planned} are planned" in said(**options)


@pytest.mark.parametrize(
    "options", [{"warmup_steps": 279}, {"warmup_steps": 100, "max_updates": 101}]
)
def test_a_shorter_warm_up_is_none_of_our_business(options):
    assert said(**options) == ""


def test_a_dry_run_warns(tmp_path):
    stream = io.StringIO()
    config = tiny_run.CONFIG.replace(
        training=tiny_run.CONFIG.training.replace(warmup_steps=4000)
    )
    dry_run(
        tiny_run.write_pairs(tmp_path / "pairs.tsv"), tmp_path / "run", config,
        console=Console(file=stream, width=200),
    )  # fmt: skip
    assert "warning: the learning rate rises for 4,000 updates" in stream.getvalue()
