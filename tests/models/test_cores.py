"""A batch in parts, side by side: the same update, logs and errors as in one."""

import io

import keras
import numpy as np
import pytest
from rich.console import Console

import keras_transformer as kt
from keras_transformer.models import batch_step as step
from tests import tiny_run
from tests.models.backends import run_python
from tests.models.test_exact_training import (
    CONFIG,
    Small,
    assert_same,
    change_of,
    fit,
    make_batch,
    make_batches,
    make_model,
    poisoned,
    state_of,
)
from tests.tiny_run import assert_equal

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow alone has the parts"
)


@pytest.fixture
def parts(monkeypatch):
    """Sets their number; threads are set once a process, before all else."""
    return lambda number: monkeypatch.setattr(step, "_num_parts", number)


@pytest.mark.parametrize(
    "options, weighted",
    (
        ({"gradient_accumulation_steps": 3}, True),
        ({"clipnorm": 0.05}, True),
        pytest.param({"kind": kt.Transformer}, False, marks=pytest.mark.slow),
    ),
)
def test_parts_give_the_update_and_the_logs_of_the_whole(parts, options, weighted):
    # One update: of several, each makes the rounding of the one before larger.
    batches = make_batches()[: options.get("gradient_accumulation_steps", 1)]
    whole = make_model(**options)
    expected = change_of(whole, batches, weighted)
    expected_logs = whole.evaluate(*batches[0][:2], verbose=0, return_dict=True)
    parts(2)
    split = make_model(**options)
    assert_same(change_of(split, batches, weighted), expected)
    logs = split.evaluate(*batches[0][:2], verbose=0, return_dict=True)
    assert logs == pytest.approx(expected_logs, rel=1e-4)


def test_parts_without_rows_and_without_targets(parts):
    rng = np.random.default_rng(5)
    batches = [make_batch(rng, 2, 4, 7, [7, 0])]
    expected = change_of(make_model(), batches)
    parts(3)
    assert_same(change_of(make_model(), batches), expected)


def test_a_loss_that_is_not_finite_in_one_part_changes_nothing(parts):
    parts(2)
    model = make_model(nonfinite="skip")
    (inputs, targets, weights), *_ = make_batches()
    weights = weights.copy()
    weights[-1] = np.inf
    fit(model, [make_batches()[0]], weighted=True)
    before = state_of(model)
    fit(model, [(inputs, targets, weights)], weighted=True)
    fit(model, [poisoned(make_batches()[0])], weighted=True)
    assert model.nonfinite_batches == 2
    assert_equal(state_of(model), before)


def test_parts_draw_dropout_of_their_own(parts):
    import tensorflow as tf

    from keras_transformer.models.batch_step import loss_and_scores

    parts(2)
    model = Small(CONFIG.replace(dropout_rate=0.5))
    model.compile("sgd", kt.MaskedCrossentropy())
    (source, target_in), target, _ = make_batches()[0]
    source, target_in, target = (
        np.repeat(a[:1], 2, axis=0) for a in (source, target_in, target)
    )

    @tf.function
    def crossentropies():
        inputs = tf.constant(source), tf.constant(target_in)
        data = inputs, tf.constant(target), None
        return loss_and_scores(model, *data, training=True)[1].crossentropy

    first, second = crossentropies().numpy()
    assert not np.allclose(first, second)


THREADS = """
import tensorflow as tf
from keras_transformer import split_batches_over_cores
from keras_transformer.models import batch_step as step
threads = tf.config.threading
assert split_batches_over_cores(1) == 1 == step.num_parts()
assert threads.get_intra_op_parallelism_threads() == 0
assert split_batches_over_cores(3) == 3 == step.num_parts()
assert threads.get_intra_op_parallelism_threads() == 1
assert threads.get_inter_op_parallelism_threads() == 3
assert split_batches_over_cores(1) == 1 == step.num_parts()
tf.constant(1.0) + 1.0
try:
    split_batches_over_cores(2)
except RuntimeError as error:
    assert "before anything is computed" in str(error)
else:
    raise AssertionError("it came too late")
"""


@pytest.mark.slow
def test_it_sets_the_threads_and_must_come_first():
    run_python("tensorflow", "-c", THREADS)


@pytest.mark.parametrize(
    ("available", "options", "splits"),
    (
        (2, {}, True),
        (4, {"jit_compile": False}, True),
        (1, {}, False),
        (8, {}, False),
        (2, {"jit_compile": True}, False),
        (2, {"distribute": "mirrored"}, False),
    ),
)
def test_a_run_splits_where_it_is_faster(monkeypatch, available, options, splits):
    from keras_transformer.training import run_model as model

    calls = []
    for variable in model._THREADS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(model, "available_cores", lambda: available)
    monkeypatch.setattr(model, "split_batches_over_cores", lambda: calls.append(1))
    console = Console(file=io.StringIO())
    model.split_by_default(kt.TrainingConfig(**options), console)
    assert bool(calls) == splits
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "2")
    model.split_by_default(kt.TrainingConfig(**options), console)
    assert bool(calls) == splits == len(calls)


def test_a_run_that_comes_too_late_to_split_says_so(monkeypatch):
    from keras_transformer.training import run_model as model

    def late():
        raise RuntimeError("call it before anything is computed")

    for variable in model._THREADS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(model, "available_cores", lambda: 2)
    monkeypatch.setattr(model, "split_batches_over_cores", late)
    screen = io.StringIO()
    model.split_by_default(kt.TrainingConfig(), Console(file=screen, width=200))
    assert "are not split over the cores" in screen.getvalue()
    assert "call `split_batches_over_cores` first" in screen.getvalue()


# A run that Python begins and the command ends, or the other way, on two cores.
RUN = """
import os, sys
from rich.console import Console
import keras_transformer as kt
from keras_transformer.models import batch_step
from keras_transformer.training import run_model
run_model.available_cores = batch_step.available_cores = lambda: 2
folder, is_command, epochs = sys.argv[1], sys.argv[2] == "command", sys.argv[3]
if is_command:
    from keras_transformer.apps.cli import main
    flags = "--config {0}/config.json --train {0}/train.tsv --run {0}/run --epochs {1}"
    assert main(["train", *flags.format(folder, epochs).split()]) == 0
else:
    config = kt.RunConfig.load(f"{folder}/config.json")
    config = config.with_options(epochs=int(epochs))
    kt.train(f"{folder}/train.tsv", f"{folder}/run", config, console=Console())
assert batch_step.num_parts() == 2
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", [("command", "program"), ("program", "command")])
def test_the_command_and_a_program_go_on_with_each_others_run(
    order, tmp_path, monkeypatch
):
    for variable in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    tiny_run.write_pairs(tmp_path / "train.tsv")
    (tmp_path / "config.json").write_text(tiny_run.CONFIG.to_json(), "utf-8")
    for epochs, kind in enumerate(order, start=1):
        words = ("-c", RUN, tmp_path, kind, epochs)
        said = tiny_run.in_a_process(*words, check=True)
    assert "resuming after 4 updates, at batch 1 of epoch 2" in said.stdout
    assert "warning" not in said.stdout + said.stderr
    assert "not split over the cores" not in said.stdout
