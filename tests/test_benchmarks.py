"""Benchmarks: limits in closed form, and each kind of script at a tiny size."""

import json
import sys

import numpy as np
import pytest

from tests.tiny_run import ROOT, in_a_process, translator

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def module(scripts):
    """Imports a module of benchmarks/."""
    return scripts(FOLDER)


def test_weights_of_the_base_model_count_each_matrix_once(module):
    floor, workload = module("floor"), module("workload")
    base = workload.SIZES["base"]
    # Table 3 of the paper: 512 wide, 2048 within; by hand, one layer at a time.
    attention, feed_forward = 4 * 512 * 512, 2 * 512 * 2048
    encoder = 6 * (attention + feed_forward)
    decoder = 6 * (2 * attention + feed_forward) + 32000 * 512
    total = floor.encoder_weights(base) + floor.decoder_weights(base)
    assert total == encoder + decoder


def test_limit_of_a_batch_is_its_operations_over_the_peak(module):
    floor, workload = module("floor"), module("workload")
    size = workload.Size(
        num_layers=1, d_model=2, d_ff=3, num_heads=1, vocabulary_size=32000
    )
    setting = workload.Setting("toy", batch=5, beam=7)
    # Weights: 6 * 4 + 2 * 6 = 36, and 2 * 32000 of the output matrix at every step.
    encoder = 5 * (2 * 30 * 36 + 4 * 2 * 30 * 30)
    steps = 5 * 7 * (30 * 2 * (36 + 64000) + 4 * 2 * (465 + 900))
    seconds = (encoder + steps) / 1e9
    assert floor.limit(size, setting, 4, 1e9, 1e30) == pytest.approx(150 / seconds)


def test_limit_of_training_is_three_forward_passes_over_the_peak(module):
    floor, workload = module("training_floor"), module("training_workload")
    size = module("workload").Size(
        num_layers=1, d_model=2, d_ff=3, num_heads=1, vocabulary_size=11
    )
    setting = workload.Setting("toy", "toy", 3, 3, target_tokens=8, num_batches=1)
    # One pair of 3 and 3 tokens: 36 weights each way, and the 22 of the output matrix;
    # attention to 9 source, 6 target and 9 source tokens, 2 * 2 * 2 operations each.
    forward = 2 * 3 * 36 + 2 * 3 * (36 + 22) + 8 * (9 + 6 + 9)
    assert floor.flops(size, setting) == 3 * forward
    expected = 6 * 1e9 / (3 * forward)
    assert floor.limit(size, setting, 1e9) == pytest.approx(expected)


def test_losses_of_the_keras_peers_agree_with_ours(module):
    from keras_transformer import MaskedCrossentropy

    peers = module("peers.keras_training")
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 2, (3, 5, 11)).astype("float32")
    targets = np.array([[3, 6, 1, 2, 5], [4, 2, 0, 0, 0], [1, 1, 2, 0, 0]], "int32")
    expected = float(MaskedCrossentropy(label_smoothing=0.1)(targets, logits))
    for loss in (peers.graph_crossentropy, peers.compiled_crossentropy):
        assert float(loss(targets, logits)) == pytest.approx(expected, rel=1e-5)


def results_of(script, folder, *arguments):
    """Runs a script of the folder; returns its results, which its table shows too."""
    output = folder / "results.json"
    done = in_a_process(FOLDER / script, *arguments, "--output", output)
    assert done.returncode == 0, done.stderr
    assert output.with_suffix(".md").read_text("utf-8").strip() == done.stdout.strip()
    return json.loads(output.read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["training.py", "training_gpu.py"])
def test_training_benchmarks_run_every_contender(module, script, tmp_path):
    for name in ("jax", "keras_hub", "torch", "transformers"):
        pytest.importorskip(name)
    names = module(
        "training_gpu" if script == "training_gpu.py" else "training_contenders"
    ).CONTENDERS
    toy = ["--only", "toy", "--repeats", "1", "--contenders", *names]
    found = results_of(script, tmp_path, *toy)["settings"]["toy"]["contenders"]
    assert {*found, "machine"} == set(names)
    # A vocabulary of 50 whose ids are uniform: log 50 = 3.9 nats, and a bad start.
    assert all(3.5 < figures["loss"] < 6.0 for figures in found.values())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_cost_of_every_attention_is_measured(tmp_path):
    words = "--lengths 16 8 --repeats 2 --width 8 --heads 2 --window 2 --training"
    results = results_of("attention_cost.py", tmp_path, *words.split())
    assert results["lengths"] == [8, 16]
    for kind in results["kinds"].values():
        assert all(min(found["seconds"]) > 0 for found in kind.values())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_clients_of_the_server_wait_and_are_answered(tmp_path):
    translator().export(tmp_path / "tiny" / "1")
    words = "--clients 1 2 --requests 4"
    done = in_a_process(FOLDER / "latency.py", tmp_path / "tiny", *words.split())
    assert done.returncode == 0, done.stderr
    _, _, *rows = done.stdout.splitlines()
    cells = [[int(cell) for cell in row.strip("| ").split(" | ")[1:]] for row in rows]
    assert [clients for clients, *_ in cells] == [1, 2]
    assert all(0 < median <= late and peak > 100 for _, median, late, peak in cells)
