"""The experiments on why the parts are there run, and measure what they say."""

from __future__ import annotations

import importlib
import math
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import (
    MaskedCrossentropy,
    scaled_dot_product_attention,
    sinusoidal_encoding,
)
from tests.reference import numpy_transformer as reference

FOLDER = Path(__file__).parents[1] / "examples" / "why"
PAGES = ("baselines.md", "long_range.md", "why.md")
SHARED = {"corpora", "image_nets", "long_range_tasks", "neighbour_parts"}
SHARED |= {"position_kinds", "report", "tasks", "translation", "window_nets"}
SHARED |= {"window_sentences"}
SMALL = ["--pairs", "40", "--tests", "20", "--updates", "2"]


@pytest.fixture
def load(monkeypatch):
    """Imports a program of the folder, which is no package."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_program_is_short_and_stands_on_a_page():
    docs = FOLDER.parents[1] / "docs"
    page = "".join((docs / name).read_text("utf-8") for name in PAGES)
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) <= 100, path.name
        is_named = f"python examples/why/{path.name}" in page
        assert is_named != (path.stem in SHARED), path.name


def test_tables_show_mean_and_range(load, capsys):
    load("report").show(["a", "b"], [["x", [0.5, 1.0]]])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "| x | 0.75 (0.5 to 1) |"


def test_softmax_of_unscaled_scores_saturates_and_its_gradient_vanishes(load, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "scale.png"
    arguments = ["--widths", "4", "1024", "--plot", str(path)]
    found = load("scale").main(arguments)
    for is_scaled in (False, True):
        narrow, wide = found[4, is_scaled], found[1024, is_scaled]
        assert (wide[1] < narrow[1] / 4) != is_scaled  # Entropy.
        assert (wide[2] > 0.9) != is_scaled  # Largest weight.
        assert (wide[3] < narrow[3] / 2) != is_scaled  # Gradient.
    assert path.read_bytes().startswith(b"\x89PNG")


def test_norm_of_the_jacobian_of_the_softmax(load):
    """Against automatic differentiation, and 1/n - 1/n² of n equal weights."""
    scores = tf.constant([[1.0, 2.0, -1.0, 0.5], [3.0, 3.0, 3.0, 3.0]])
    with tf.GradientTape() as tape:
        tape.watch(scores)
        weights = tf.nn.softmax(scores)
    expected = np.linalg.norm(tape.batch_jacobian(weights, scores), axis=(1, 2))
    found = load("scale").jacobian_norm(weights.numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found[1] == pytest.approx(math.sqrt(1 / 4 - 1 / 16))


def test_feed_forward_network_is_two_convolutions_of_size_1(load):
    found = load("convolutions").main(["--widths", "7", "512"])
    assert set(found) == {7, 512} and max(found.values()) < 1e-6


def test_temperature_from_0_to_infinity(load, tmp_path):
    pytest.importorskip("matplotlib")
    example, path = load("temperature"), tmp_path / "temperature.png"
    found = example.main(["--draws", "2000", "--plot", str(path)])
    for temperature, shares in found.items():
        expected = example.probabilities(temperature)
        # Three standard deviations of a share of 2000 draws are at most 0.034.
        np.testing.assert_allclose(shares, expected, atol=0.034)
    assert found[0.0].tolist() == [1, 0, 0, 0, 0]
    np.testing.assert_allclose(example.probabilities(math.inf), 0.2)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_operations_and_path_length_of_table_1(load):
    found = load("table_1").main(["--lengths", "8", "16", "--width", "8"])
    n, d = 16, 8
    assert found["self-attention", n] == (4 * n * d**2 + 2 * n**2 * d, 4, 1)
    assert found["recurrence", n] == (6 * n * d**2, n, n)
    assert found["convolution", n] == (3 * n * d**2, 1, math.ceil((n - 1) / 2))
    assert found["dilated convolution", n] == (3 * n * d**2, 1, 3)
    assert found["dilated convolution", 8][2] == 2


@pytest.mark.slow
def test_positions_are_trained_short_and_tested_long(load, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "positions.png"
    sizes = ["--length", "8", "--updates", "2", "--seeds", "1", "--plot", str(path)]
    kinds = ["--kinds", "learned", "relative", "recurrent"]
    found = load("positions").main([*sizes, *kinds])
    assert [np.shape(curves) for curves in found.values()] == [(1, 32)] * 3
    assert path.read_bytes().startswith(b"\x89PNG")


def test_relative_bias_depends_on_the_distance_alone_and_is_learned(load):
    bias = load("position_kinds").DistanceBias(2, farthest=3)
    bias.biases.assign([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]])
    places = keras.ops.arange(6)
    found = keras.ops.convert_to_numpy(bias.bias(2, places, places))
    assert found[0, 5].tolist() == [3, 3, 3, 2, 1, 0]
    assert found[1, 2, :3].tolist() == [6, 5, 4]
    assert len(bias.trainable_weights) == 1


def test_answers_of_the_tasks_are_scored_alone(load):
    tasks = load("tasks")
    given = np.array([[9, 1, 8, 2, 3, 4]])
    # 9 and 8 ask for the symbol four places on, 1 and the others for that two on.
    assert tasks.choose(given).tolist() == [[3, 2, 9, 4, 9, 1]]
    assert tasks.TASKS["reverse"](given).tolist() == [[4, 3, 2, 8, 1, 9]]
    ids_in, ids_out = tasks.make_rows("sort", 3, 5, seed=1)
    assert not ids_out[:, :5].any()
    np.testing.assert_array_equal(ids_out[:, 5:], np.sort(ids_in[:, :5]))
    np.testing.assert_array_equal(ids_out[:, 5:-1], ids_in[:, 6:])


def test_heads_of_equal_width_are_trained(load):
    sizes = ["--length", "3", "--updates", "2", "--seeds", "1"]
    found = load("heads").main(["--heads", "16", *sizes])
    assert len(found[16]) == 1 and 0 <= found[16][0] <= 1


def test_unscaled_scores_are_the_scaled_ones_times_the_root_of_d_k(load, rng):
    scores = load("scores")
    models = [scores.make_model(kind, 9) for kind in ("not scaled", "scaled")]
    models[0].set_weights(models[1].get_weights())
    states = rng.normal(size=(2, 5, 64)).astype("float32")
    logs = []
    for model in models:
        attention = model.decoder_layers[0].self_attention
        _, weights = attention(states, return_attention_scores=True)
        weights = np.log(keras.ops.convert_to_numpy(weights))
        logs.append(weights - weights[..., :1])
    np.testing.assert_allclose(logs[0], 3 * logs[1], atol=1e-4)
    additive = scores.make_model("additive", 400).decoder_layers[0].self_attention
    # The components' squares sum up to 1, as those of a key divided by the root do.
    kernel = keras.ops.convert_to_numpy(additive.score_kernel)
    assert np.sum(kernel**2) == pytest.approx(1, abs=0.3)
    sizes = ["--length", "3", "--updates", "2", "--seeds", "1", "--widths", "9"]
    assert list(scores.main([*sizes, "--kinds", "additive"])) == [(9, "additive")]


@pytest.mark.slow
def test_optimizers_with_and_without_the_schedule(load):
    optimizers = load("optimizers")
    schedule = optimizers.paper_schedule(0.02, 64, 10)
    assert float(schedule(9)) == pytest.approx(0.02)
    assert float(schedule(39)) == pytest.approx(0.01)
    sizes = ["--length", "3", "--updates", "2", "--factors", "1.0"]
    found = optimizers.main(["--optimizers", "SGD with momentum", *sizes])
    assert all(np.shape(rows) == (1, 1) for rows in found.values())


def test_words_seen_twice_have_numbers(load, tmp_path):
    corpora = load("corpora")
    for name, text in {"train": "a b\tc.\na d\tc!\n", "test": "a e\tc.\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = {name: str(tmp_path / name) for name in ("train", "test")}
    corpus = corpora.load(types.SimpleNamespace(**files, pairs=9, tests=9))
    assert corpus.numbers == {"a": 4, "c": 5}
    assert corpus.test == [(["a", "e"], ["c", "."])]
    (source, target_in), target_out = corpora.arrays(corpus.test, corpus.numbers, 4)
    assert source.tolist() == [[4, 3, 2, 0]] and target_in.tolist() == [[1, 5, 3, 2]]
    assert target_out.tolist() == [[5, 3, 2, 0]]
    assert corpora.text_of(target_out[0], corpus.numbers) == "c ⁇"


@pytest.mark.slow
def test_without_a_causal_mask_the_loss_is_not_that_of_generation(load):
    example = load("causal")
    found = example.main(["--pairs", "60", "--tests", "60", "--updates", "60"])
    _, forced, alone, _ = found["with the mask"]
    assert alone == pytest.approx(forced, rel=1e-4)
    _, forced, alone, _ = found["without"]
    assert alone > 1.2 * forced
    seen = {(5, 6), (6, 2)}
    assert example.known_pairs(np.array([[5, 6, 2, 0], [5, 7, 2, 0]]), seen) == 0.5


@pytest.mark.slow
def test_each_regularisation_is_taken_away(load):
    example = load("regularisation")
    corpus = load("corpora").Corpus([], [], {"a": 4})
    rates = {"sub-layers": 0.2, "embeddings": 0.3}
    model = example.make_model(corpus, rates)
    assert model.target_embedding.dropout_rate == 0.3
    assert {layer.dropout_rate for layer in model.decoder_layers} == {0.2}
    settings = ["--settings", "none of them", "--seeds", "1"]
    found = example.main([*SMALL, *settings])
    assert [np.shape(rows) for rows in found.values()] == [(1, 4)]


@pytest.mark.slow
def test_translations_are_scored_by_length(load, tmp_path):
    pytest.importorskip("matplotlib")
    example, path = load("lengths"), tmp_path / "lengths.png"
    pairs = [("a b c", "d"), ("a", "b c d e"), ("a b", "c d e f g")]
    pairs = [tuple(map(str.split, pair)) for pair in pairs]
    assert example.groups_of(pairs) == {(3, 4): [0, 1], (5, 6): [2]}
    found = example.main([*SMALL, "--kinds", "learned", "--plot", str(path)])
    assert {len(scores) for run in found["learned"] for scores in run.values()} == {3}
    assert max(found["learned"][0])[0] > example.SHORT
    assert path.read_bytes().startswith(b"\x89PNG")


def test_label_smoothing_is_a_kl_divergence_up_to_a_constant(rng):
    """Section 5.4: the loss is KL(q' || p) plus the entropy of q', which is fixed."""
    classes, smoothing = 7, 0.1
    targets = np.array([[3, 6, 1, 2]])
    smoothed = reference.smoothed_targets(targets, classes, smoothing)
    differences, gradients = [], []
    for _ in range(3):
        logits = tf.constant(rng.normal(0.0, 2.0, (*targets.shape, classes)), "float32")
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(logits)
            loss = MaskedCrossentropy(smoothing)(targets, logits)
            divergence = keras.losses.KLDivergence()(smoothed, tf.nn.softmax(logits))
        differences.append(float(loss - divergence))
        gradients.append([tape.gradient(x, logits).numpy() for x in (loss, divergence)])
    true, other = 1 - smoothing + smoothing / classes, smoothing / classes
    entropy = -true * math.log(true) - (classes - 1) * other * math.log(other)
    np.testing.assert_allclose(differences, entropy, rtol=1e-5)
    for ours, theirs in gradients:
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_worked_weights_0_804_0_101_0_095():
    """Products 3.7, 0.1 and 0 at d_k 3: exp of 2.136, 0.058, 0 is 8.467, 1.059, 1.

    Only the weights are given in the notes; these vectors are chosen to have them.
    """
    query = np.array([[1.0, 2.0, -1.0]], "float32")
    key = np.array([[2.0, 1.0, 0.3], [0.5, -0.1, 0.2], [1.0, 0.5, 2.0]], "float32")
    value = np.eye(3, dtype="float32")
    np.testing.assert_allclose(query @ key.T, [[3.7, 0.1, 0.0]], atol=1e-6)
    output, weights = scaled_dot_product_attention(query, key, value)
    for found in (output, weights):
        found = keras.ops.convert_to_numpy(found)
        assert found.round(3).tolist() == [pytest.approx([0.804, 0.101, 0.095])]


def test_worked_encoding_of_position_4():
    """Angles 4 and 4 / 10000^(2/4) = 0.04: sin 4, cos 4, sin 0.04, cos 0.04."""
    (found,) = keras.ops.convert_to_numpy(sinusoidal_encoding(np.array([4]), 4))
    assert found.round(3).tolist() == pytest.approx([-0.757, -0.654, 0.04, 0.999])
