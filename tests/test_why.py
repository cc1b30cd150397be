"""The experiments on why the parts are there run, and measure what they say."""

from __future__ import annotations

import importlib
import math
import sys
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
PAGES = ("experiments.md",)
# What several programs share.
SHARED = {"corpora", "long_range_tasks", "report", "tasks", "translation"}


@pytest.fixture
def load(monkeypatch):
    """Imports a program of the folder, which is no package."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def is_share(values):
    return bool(np.all((np.asarray(values) >= 0) & (np.asarray(values) <= 1)))


def mask_is_worth(found, _):
    """Told the right words so far or its own: alike with the mask, not without it."""
    _, forced, alone, _ = found["with the mask"]
    _, forced_without, alone_without, _ = found["without"]
    is_alike = alone == pytest.approx(forced, rel=1e-4)
    return is_alike and alone_without > 1.2 * forced_without


def scaling_saves_the_gradient(found, _):
    """Entropy, largest weight and gradient of wide unscaled scores, not of scaled."""
    return all(
        (found[1024, is_scaled][1] < found[4, is_scaled][1] / 4) != is_scaled
        and (found[1024, is_scaled][2] > 0.9) != is_scaled
        and (found[1024, is_scaled][3] < found[4, is_scaled][3] / 2) != is_scaled
        for is_scaled in (False, True)
    )


def has_the_counts_of_table_1(found, _):
    """Multiplications, sequential operations and the longest path, by hand."""
    n, d = 16, 8
    expected = {
        ("self-attention", n): (4 * n * d**2 + 2 * n**2 * d, 4, 1),
        ("recurrence", n): (6 * n * d**2, n, n),
        ("convolution", n): (3 * n * d**2, 1, math.ceil((n - 1) / 2)),
        ("dilated convolution", n): (3 * n * d**2, 1, 3),
        ("dilated convolution", 8): (3 * 8 * d**2, 1, 2),
    }
    return found | expected == found


def only_attention_sees_far(found, _):
    return found["window"][0][3][0] < 0.65 and found["attention"][0][3][0] > 0.9


PAIRS = "--pairs 40 --tests 20 --updates 2"
TASK = "--length 3 --updates 2 --seeds 1"
# Words of the command line, and whether what `main` returns is right. At a tiny size
# it only has to run; the others have learned, or measure what needs no learning.
RUNS = {
    "causal": ("--pairs 60 --tests 60 --updates 60", mask_is_worth),
    "convolutions": ("--widths 7 512", lambda x, _: max(x.values()) < 1e-6),
    "heads": (f"--heads 16 {TASK}", lambda x, _: is_share(x[16])),
    "images": (
        "--updates 3 --seeds 2 --amounts 20 40 --plot {plot}",
        lambda x, _: all(len(runs) == 2 and is_share(runs) for runs in x.values()),
    ),
    "lengths": (
        f"{PAIRS} --kinds learned --plot {{plot}}",
        lambda x, _: max(x["learned"][0])[0] > 9,
    ),
    "long_range": (
        "--length 40 --batch 4 --updates 2 --tasks retrieval --kinds linformer lsh",
        lambda x, _: is_share([*x.values()]),
    ),
    "long_range_cost": (
        "--lengths 32 --kinds full linear --rows 1 --turns 1",
        lambda x, _: x[32, "full"][0] == 1.0 and x[32, "linear"][0] > 0,
    ),
    # With a bias heads become a convolution as it grows.
    "neighbour_heads": (
        "--length 12",
        lambda x, _: max(x[(3,)], x[(11,)], x[(3, 3)], x[100.0]) < 1e-6 < 0.1 < x[0.1],
    ),
    "optimizers": (
        f"--optimizers SGD --factors 1.0 {TASK.replace(' --seeds 1', '')}",
        lambda x, _: all(np.shape(rows) == (1, 1) for rows in x.values()),
    ),
    "positions": (
        "--length 8 --updates 2 --seeds 1 --kinds learned relative recurrent "
        "--plot {plot}",
        lambda x, _: [np.shape(curves) for curves in x.values()] == [(1, 32)] * 3,
    ),
    "regularisation": (
        f"{PAIRS} --settings none --seeds 1",
        lambda x, _: [np.shape(rows) for rows in x.values()] == [(1, 4)],
    ),
    "scale": ("--widths 4 1024 --plot {plot}", scaling_saves_the_gradient),
    "scores": (f"{TASK} --widths 9 --kinds additive", lambda x, _: len(x) == 1),
    "table_1": ("--lengths 8 16 --width 8", has_the_counts_of_table_1),
    # Three standard deviations of a share of 2000 draws are at most 0.034.
    "temperature": (
        "--draws 2000 --plot {plot}",
        lambda x, program: all(
            np.abs(shares - program.probabilities(temperature)).max() < 0.034
            for temperature, shares in x.items()
        ),
    ),
    "windows": ("--seeds 1 --kinds window attention", only_attention_sees_far),
}  # fmt: skip
QUICK = {"convolutions", "heads", "neighbour_heads", "scale", "table_1", "temperature"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RUNS],
)
def test_a_program_runs_and_finds_what_it_says(load, name, tmp_path):
    words, is_right = RUNS[name]
    if name == "images":
        pytest.importorskip("sklearn")
    if "{plot}" in words:
        pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.png"
    arguments = [  # Names of several words.
        {"SGD": "SGD with momentum", "none": "none of them"}.get(word, word)
        for word in words.format(plot=plot).split()
    ]
    program = load(name)
    found = program.main(arguments)
    assert is_right(found, program), found
    if "{plot}" in words:
        assert plot.read_bytes().startswith(b"\x89PNG")


def test_every_program_has_a_test_and_stands_on_a_page():
    docs = FOLDER.parents[1] / "docs"
    page = "".join((docs / name).read_text("utf-8") for name in PAGES)
    programs = {path.stem for path in FOLDER.glob("*.py")}
    assert programs == {*RUNS} | SHARED
    for name in programs:
        is_named = f"python examples/why/{name}.py" in page
        assert is_named != (name in SHARED), name
        lines = (FOLDER / f"{name}.py").read_text("utf-8").splitlines()
        assert len(lines) <= 160, name


# What they measure, against closed forms and automatic differentiation.


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


def test_answers_of_the_tasks_are_scored_alone(load):
    tasks = load("tasks")
    given = np.array([[9, 1, 8, 2, 3, 4]])
    # 9 and 8 ask for the symbol four places on, 1 and the others for that two on.
    assert tasks.choose(given).tolist() == [[3, 2, 9, 4, 9, 1]]
    ids_in, ids_out = tasks.make_rows("sort", 3, 5, seed=1)
    assert not ids_out[:, :5].any()
    np.testing.assert_array_equal(ids_out[:, 5:], np.sort(ids_in[:, :5]))
    np.testing.assert_array_equal(ids_out[:, 5:-1], ids_in[:, 6:])


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


def test_net_of_a_window_sees_five_words_to_each_side(load):
    ids = np.full((1, 15), 3)
    for kind, reach in (("one word", 0), ("window", 5)):
        model = load("windows").make_model(kind, 9, 4)
        before = model.predict(ids, verbose=0)
        changed = ids.copy()
        changed[0, 7] = 4
        is_other = (np.abs(model.predict(changed, verbose=0) - before) > 1e-6).any(-1)
        assert np.flatnonzero(is_other).tolist() == [*range(7 - reach, 8 + reach)]


def value_of(symbols):
    """The value of an expression, worked out from its symbols alone."""
    stack = []
    for symbol in symbols:
        if symbol != "]":
            stack.append(symbol if symbol[0] == "[" else int(symbol))
            continue
        values = []
        while isinstance(stack[-1], int):
            values.append(stack.pop())
        name = stack.pop()[1:]
        middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
        stack.append(
            {"MIN": min(values), "MAX": max(values), "SM": sum(values) % 10,
             "MED": sum(middle) // len(middle)}[name]
        )  # fmt: skip
    (value,) = stack
    return value


def test_values_of_nested_operations(load):
    tasks = load("long_range_tasks")
    ids, answers = tasks.list_operations(40, 60, seed=1)
    for row, answer in zip(ids[..., 0], answers, strict=True):
        symbols = [tasks.SYMBOLS[number] for number in row if number]
        assert symbols[0] == "?" and 30 <= len(symbols) <= 60
        assert value_of(symbols[1:]) == answer
    assert value_of("[SM 8 [MED 1 4 9 6 ] [MIN 7 3 ] ]".split()) == 6


def test_retrieval_asks_for_a_key_of_the_second_half(load):
    tasks = load("long_range_tasks")
    ids, answers = tasks.retrieval(30, 41, seed=1)
    for row, answer in zip(ids, answers, strict=True):
        (places,) = np.nonzero(row[1:, 0] == row[0, 0])
        assert len(places) and places.min() >= 20
        assert set(row[1:][places, 1]) == {tasks.KEYS + 2 + answer}


# What the pages say in formulas and worked numbers.


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
