"""Benchmarks: limits, figures, tables, workloads; each contender of a tiny training."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """Imports a module of benchmarks/, a folder of scripts and not a package."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


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


def test_limit_of_one_sentence_is_its_weight_bytes_over_the_bandwidth(module):
    floor, workload = module("floor"), module("workload")
    size = workload.Size(
        num_layers=1, d_model=2, d_ff=3, num_heads=1, vocabulary_size=32000
    )
    setting = workload.Setting("toy", batch=1, beam=1)
    seconds = 2 * (36 + 30 * (36 + 64000)) / 1e6
    assert floor.limit(size, setting, 2, 1e30, 1e6) == pytest.approx(30 / seconds)


def test_limit_agrees_with_the_figures_that_the_project_started_from(module):
    """At 471 GFLOP/s and 78 GB/s of a two-core machine, in float32."""
    floor, workload = module("floor"), module("workload")
    expected = {"base-32-beam4": 1344, "base-32-greedy": 3905, "base-1-greedy": 476}
    for name, tokens in expected.items():
        setting = workload.SETTINGS[name]
        found = floor.limit(workload.SIZES["base"], setting, 4, 471e9, 78e9)
        assert found == pytest.approx(tokens, rel=0.05), name


def test_quartiles(module):
    figures = module("figures")
    expected = {"median": 3.0, "quartile_1": 2.0, "quartile_3": 4.0}
    assert figures.quartiles([5.0, 1.0, 4.0, 2.0, 3.0]) == expected
    assert set(figures.quartiles([7.0]).values()) == {7.0}


def test_ratios_compare_the_turns_of_one_round(module):
    """The machine slows down threefold: speeds fall, ratios stay."""
    report = module("report")
    seconds = {"ours-float32": [1.0, 3.0], "ctranslate2-float32": [2.0, 6.0]}
    summary = report.summarise("base-32-beam4", seconds, [])
    assert summary["tokens_per_second"]["ours-float32"]["median"] == 640.0
    ratio = summary["ratios"]["ours-float32 / ctranslate2-float32"]
    assert set(ratio.values()) == {2.0}


def test_best_way_of_kerashub_counts(module):
    report = module("report")
    seconds = {"kerashub-tensorflow": [3.0, 3.0], "kerashub-jax": [1.5, 1.5]}
    speeds = report.speeds("small-1-greedy", seconds)
    assert speeds["kerashub-best"] == speeds["kerashub-jax"] == [20.0, 20.0]


def test_limits_take_the_best_peak_of_all_rounds(module):
    report = module("report")
    keys = ("float32_flops", "float32_bandwidth", "bfloat16_flops")
    slow = dict.fromkeys((*keys, "bfloat16_bandwidth"), 1e9)
    mixed = [slow | {"float32_flops": 4e9}, slow | {"float32_bandwidth": 4e9}]
    both = slow | {"float32_flops": 4e9, "float32_bandwidth": 4e9}
    name = "base-1-greedy"
    assert report.limits(name, mixed) == report.limits(name, [both])
    assert report.limits(name, mixed)["float32"] == pytest.approx(
        4 * report.limits(name, [slow])["float32"]
    )
    assert report.limits(name, []) == {}


def test_tables_name_speed_spread_target_and_share_of_the_limit(module):
    report = module("report")
    seconds = {"ours-float32": [0.960, 0.960], "ctranslate2-float32": [1.2, 1.2]}
    summary = report.summarise("base-32-beam4", seconds, [])
    summary["limit"] = {"float32": 2000.0, "bfloat16": 4000.0}
    speeds, ratios = report.tables({"base-32-beam4": summary}).split("\n\n")
    heading, _, row = (line.strip("| ").split(" | ") for line in speeds.splitlines())
    cells = dict(zip(heading, row, strict=True))
    assert cells["limit fp32 / bf16"] == "2000 / 4000"
    assert cells["CTranslate2 fp32"] == "800 (800 to 800)"
    assert cells["ours fp32"] == "1000 (1000 to 1000)"
    assert cells["KerasHub best"] == "-"
    found = [line.strip("| ").split(" | ") for line in ratios.splitlines()[2:]]
    pair = "ours-float32 / ctranslate2-float32"
    assert found == [
        ["base-32-beam4", pair, "1.25 (1.25 to 1.25)", "1.3", "no"],
        ["base-32-beam4", "ours-float32 / limit", "0.50", "-", "-"],
    ]


def test_targets_are_of_settings_and_pairs_that_are_measured(module):
    report, contenders = module("report"), module("contenders")
    assert set(report.TARGETS) <= set(module("workload").SETTINGS)
    for targets in report.TARGETS.values():
        for ours, peer, _ in targets:
            assert {ours, peer} <= set(contenders.CONTENDERS)
            assert (ours, peer) in report.PAIRS


def test_sentences_have_30_tokens_and_are_the_same_in_every_batch(module):
    workload = module("workload")
    ids = workload.source_ids(32)
    assert ids.shape == (32, 30)
    assert (ids[:, -1] == workload.END_ID).all()
    assert (ids[:, :-1] > workload.UNKNOWN_ID).all()
    for size in workload.SIZES.values():
        assert (ids[:, :-1] < size.vocabulary_size).all()
    np.testing.assert_array_equal(workload.source_ids(1), ids[:1])


def test_every_piece_has_a_word_of_its_own(module):
    workload = module("workload")
    words = {workload.word(i) for i in range(32000)}
    assert len(words) == 32000
    assert all(re.fullmatch("[a-z]{5}", word) for word in words)


@pytest.mark.parametrize("lengths", ([28, 30], [31], [0]))
def test_decoding_that_ends_early_is_refused(module, lengths):
    workload = module("workload")
    workload.check([29, 30])
    with pytest.raises(ValueError, match="decoded for 30 tokens. Received: lengths"):
        workload.check(lengths)


@pytest.mark.parametrize("script", ("decoding.py", "training.py", "training_gpu.py"))
def test_names_of_the_command_line_are_checked(script):
    done = subprocess.run(
        [sys.executable, FOLDER / script, "--only", "huge"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "invalid choice: 'huge'" in done.stderr


def test_a_contender_finds_the_package_that_is_not_installed(
    module, monkeypatch, tmp_path
):
    worker, started = module("worker"), {}

    def start(command, env, **_):
        started.update(env)
        return SimpleNamespace(stdout=io.StringIO('{"versions": {}}\n'))

    monkeypatch.setattr(worker.subprocess, "Popen", start)
    monkeypatch.setenv("PYTHONPATH", "told")
    contender = worker.Contender("module", "variant")
    worker.Worker(contender, "workload", "tiny", 1, tmp_path, tmp_path / "log")
    # What the user says comes first.
    assert started["PYTHONPATH"].split(os.pathsep) == ["told", str(FOLDER.parent)]


def test_programs_that_import_take_turns(module, tmp_path):
    import_time = module("import_time")
    log = tmp_path / "log"
    program = "import time; time.sleep({}); open({!r}, 'a').write({!r})"
    programs = {
        name: program.format(pause, str(log), name)
        for name, pause in (("a", 0.0), ("b", 0.4))
    }
    seconds = import_time.measure(programs, rounds=2)
    assert log.read_text() == "ababab"  # The first round is not counted.
    assert [len(turns) for turns in seconds.values()] == [2, 2]
    assert min(seconds["b"]) > 0.4
    last = import_time.table({"x": [1.0, 2.0, 4.0], "y": [2.0, 4.0, 8.0]}, "x")
    assert last.splitlines()[-1] == "| y | 4.00 (3.00 to 6.00) | 2.00 (2.00 to 2.00) |"
    with pytest.raises(subprocess.CalledProcessError):
        import_time.measure({"a": "raise SystemExit(3)"}, rounds=1)
    for program in import_time.PROGRAMS.values():
        compile(program, "program", "exec")


def test_products_of_a_step_are_counted_by_hand(module):
    step_cost, workload = module("step_cost"), module("workload")
    size = workload.Size(
        num_layers=2, d_model=3, d_ff=5, num_heads=1, vocabulary_size=7
    )
    count = step_cost.by_hand(size, step_cost.Batch(rows=11, length=4))
    # Encoder 4 * 9 + 2 * 15, decoder 8 * 9 + 2 * 15, of two layers, 44 tokens.
    assert count.weights == 3 * 2 * 44 * 2 * (66 + 102)
    # Scores and sums of three attentions of two layers: 2 * 3 each, 4 by 4 in 11 rows.
    assert count.attention == 3 * 2 * 3 * 2 * 2 * 3 * 11 * 16
    assert count.logits == 3 * 2 * 44 * 3 * 7
    # 6 of 16 scores of the decoder's self-attention are hidden.
    assert count.hidden * 3 * 16 == count.attention * 6


@pytest.mark.slow
def test_cost_of_a_step_is_what_is_counted_by_hand():
    pytest.importorskip("jax")
    arguments = ["--sizes", "base", "--layers", "1", "--tokens", "640"]
    done = subprocess.run(
        [sys.executable, FOLDER / "step_cost.py", *arguments]
        + ["--length", "16", "--vocabulary-size", "1000"],
        capture_output=True,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr
    memory, cost = (
        dict(zip(*(rows[i].strip("| ").split(" | ") for i in (0, 2)), strict=True))
        for rows in (part.splitlines() for part in done.stdout.strip().split("\n\n"))
    )
    # 7,862,272 weights and Adam's two moments, in float32, all of them donated.
    assert float(memory["arguments"]) == float(memory["donated"]) == 0.09
    assert 0 < float(memory["held"]) <= float(memory["temporaries"])
    assert 1.0 <= float(cost["XLA"]) / float(cost["by hand"]) < 1.2


def test_profile_counts_an_operation_without_those_inside_it(module):
    own_times = module("profile_ours").own_times
    names = {1: "a/while:While", 2: "a/MatMul:_FusedMatMul", 3: "Executor::Process"}

    def event(metadata_id, offset_ps, duration_ps):
        return SimpleNamespace(
            metadata_id=metadata_id, offset_ps=offset_ps, duration_ps=duration_ps
        )

    events = [event(2, 70, 9), event(1, 0, 50), event(2, 10, 20), event(3, 11, 5)]
    found = sorted(own_times(events, names))
    assert found == [("While", 30), ("_FusedMatMul", 9), ("_FusedMatMul", 20)]


def test_training_batches_are_padded_pairs_that_end_and_shift(module):
    workload = module("training_workload")
    for setting in workload.SETTINGS.values():
        vocabulary_size = workload.SIZES[setting.size].vocabulary_size
        counted = 0
        for (source, target_in), target_out in workload.batches(setting):
            assert source.shape == target_in.shape == target_out.shape
            assert target_out.size <= max(setting.target_tokens, target_out.shape[1])
            assert target_out.shape[1] <= setting.longest_padded
            np.testing.assert_array_equal(target_in[:, 0], workload.START_ID)
            assert not (target_in == workload.END_ID).any()
            for ids in (source, target_out):
                lengths = (ids != workload.PAD_ID).sum(axis=1)
                assert setting.shortest <= lengths.min()
                assert lengths.max() <= setting.longest
                last = ids[np.arange(len(ids)), lengths - 1]
                np.testing.assert_array_equal(last, workload.END_ID)
                assert (ids == workload.END_ID).sum() == len(ids)
                assert ids.max() < vocabulary_size
                counted += lengths.sum()
            kept = target_in[:, 1:] != workload.PAD_ID
            shifted = target_out[:, :-1]
            np.testing.assert_array_equal(target_in[:, 1:][kept], shifted[kept])
            assert (shifted[~kept] <= workload.END_ID).all()
        assert counted == setting.tokens


def test_training_batches_hold_the_tokens_of_the_setting(module):
    """In the order of their buckets: as many pairs as fit into 4096 tokens."""
    workload = module("training_workload")
    shapes = [ids.shape for _, ids in workload.batches(workload.SETTINGS["tiny"])]
    assert set(shapes) == {(512, 8), (256, 16), (170, 24), (128, 32), (102, 40)}
    for name, shape in {"small": (64, 32), "base": (32, 32)}.items():
        batches = workload.batches(workload.SETTINGS[name])
        assert {ids.shape for _, ids in batches} == {shape}


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


def test_limits_of_training_agree_with_those_that_the_project_started_from(module):
    """At 471 GFLOP/s; those counted no attention and no difference of lengths."""
    floor, workload = module("training_floor"), module("training_workload")
    for name, tokens in {"tiny": 61100, "small": 21400, "base": 2700}.items():
        setting = workload.SETTINGS[name]
        found = floor.limit(workload.SIZES[name], setting, 471e9)
        assert found == pytest.approx(tokens, rel=0.06), name


def training_replies(**seconds):
    """Replies of contenders that took so long, and of a machine of 1 TFLOP/s."""
    turns = {
        name.replace("_", "-"): [
            {"seconds": s, "peak_memory": 5e8 + s, "result": {"loss": 4.0}}
            for s in each
        ]
        for name, each in seconds.items()
    }
    peaks = {"float32_flops": 1e12, "bfloat16_flops": 2e12}
    return turns | {"machine": [{"seconds": 1.0, "peak_memory": 1, "result": peaks}]}


def test_training_compares_our_best_with_the_best_peer_of_its_type(module):
    replies = training_replies(
        ours_float32=[4.0, 8.0],
        ours_float32_xla=[2.0, 4.0],
        kerashub_float32=[6.0, 12.0],
        pytorch_float32=[5.0, 10.0],
        ours_bfloat16=[1.0, 1.0],
    )
    summary = module("training_report").summarise("base", [replies])
    pair = summary["ratios"]["float32"]
    assert (pair["ours"], pair["peer"]) == ("ours-float32-xla", "pytorch-float32")
    assert (pair["quartile_1"], pair["median"], pair["quartile_3"]) == (2.5, 2.5, 2.5)
    assert summary["ratios"]["bfloat16"] is None
    assert summary["contenders"]["ours-float32"]["peak_memory"] == 5e8 + 8.0
    assert summary["limit"]["bfloat16"] == 2 * summary["limit"]["float32"]


def test_training_tables_name_speed_share_memory_and_target(module):
    report, workload = module("training_report"), module("training_workload")
    replies = training_replies(ours_float32=[2.0, 2.0], marian_float32=[3.0, 3.0])
    text = report.tables({"base": report.summarise("base", [replies])})
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    tokens = workload.SETTINGS["base"].tokens
    limit = report.limits("base", [replies["machine"][0]["result"]])["float32"]
    share = f"{tokens / 2 / limit:.2f}"
    speed = f"{tokens / 2:.0f}"
    row = ["ours-float32", f"{speed} ({speed} to {speed})", share, "0.50"]
    assert row in rows
    pair = ["base", "ours-float32 / marian-float32", "1.50 (1.50 to 1.50)"]
    assert [*pair, "1.3", "yes"] in rows


@pytest.mark.parametrize("loss", (float("nan"), float("inf"), 0.0, -1.0))
def test_training_that_does_not_learn_is_refused(module, loss):
    workload = module("training_workload")
    workload.check({"loss": 3.9})
    with pytest.raises(ValueError, match="positive number of nats. Received: loss="):
        workload.check({"loss": loss})


def test_training_ratios_are_of_turns_in_the_same_group(module):
    """The machine slows down threefold after the first group: ratios stay."""
    groups = [
        training_replies(ours_float32=[1.0, 1.0], kerashub_float32=[5.0, 5.0]),
        training_replies(ours_float32=[3.0, 3.0], pytorch_float32=[6.0, 6.0]),
    ]
    summary = module("training_report").summarise("base", groups)
    pair = summary["ratios"]["float32"]
    assert (pair["peer"], pair["median"]) == ("kerashub-float32", 5.0)
    assert summary["contenders"]["ours-float32"]["seconds"] == [1.0, 1.0, 3.0, 3.0]
    assert len(summary["peaks"]) == 2


def test_training_contenders_take_turns_with_ours_of_their_type(module):
    contenders = module("training_contenders")
    names = [name for group in contenders.GROUPS for name in group]
    assert set(names) == set(contenders.CONTENDERS)
    for group in contenders.GROUPS:
        (dtype,) = {name.split("-")[1] for name in group if name != "machine"}
        assert {f"ours-{dtype}", f"ours-{dtype}-xla", "machine"} < set(group)
        assert any(not name.startswith(("ours-", "machine")) for name in group)


def test_groups_without_any_rival_that_was_chosen_are_left_out(module):
    runner, contenders = module("runner"), module("training_contenders")
    benchmark = SimpleNamespace(groups=contenders.GROUPS)

    def groups(*names):
        arguments = SimpleNamespace(contenders=names, threads=1, repeats=1)
        return runner.Run(benchmark, arguments, None)._groups()

    assert groups("ours-float32", "machine") == [("ours-float32", "machine")]
    assert groups("tutorial-float32", "ours-float32", "ours-bfloat16", "machine") == [
        ("tutorial-float32", "ours-float32", "machine"),
        ("ours-bfloat16", "machine"),
    ]
    assert len(groups(*contenders.CONTENDERS)) == len(contenders.GROUPS)


def test_an_interrupted_benchmark_keeps_what_it_measured(module, monkeypatch, tmp_path):
    runner = module("runner")

    def measure(self, size):
        if size == "small":
            raise KeyboardInterrupt
        self.results["settings"][size] = {"speed": 7}
        self.results["failures"]["a peer, tiny"] = "no compiler"

    monkeypatch.setattr(runner.Run, "measure", measure)
    sizes = {name: SimpleNamespace(size=name) for name in ("tiny", "small")}
    benchmark = SimpleNamespace(
        name="test",
        workload=SimpleNamespace(SETTINGS=sizes),
        tables=lambda settings: f"of {', '.join(settings)}",
    )
    output = tmp_path / "new" / "found.json"
    arguments = SimpleNamespace(only=list(sizes), threads=1, repeats=1, output=output)
    with pytest.raises(KeyboardInterrupt):
        runner.main(benchmark, arguments)
    assert json.loads(output.read_text("utf-8"))["settings"] == {"tiny": {"speed": 7}}
    expected = "of tiny\n\nLeft out: a peer, tiny: no compiler\n"
    assert output.with_suffix(".md").read_text("utf-8") == expected


def test_losses_of_the_keras_peers_agree_with_ours(module):
    from keras_transformer import MaskedCrossentropy

    peers = module("peers.keras_training")
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 2, (3, 5, 11)).astype("float32")
    targets = np.array([[3, 6, 1, 2, 5], [4, 2, 0, 0, 0], [1, 1, 2, 0, 0]], "int32")
    expected = float(MaskedCrossentropy(label_smoothing=0.1)(targets, logits))
    for loss in (peers.graph_crossentropy, peers.compiled_crossentropy):
        assert float(loss(targets, logits)) == pytest.approx(expected, rel=1e-5)


def trained(script, folder, *arguments):
    """Runs a training benchmark of the toy size; returns its results."""
    output = folder / "results.json"
    done = subprocess.run(
        [sys.executable, FOLDER / script, "--only", "toy", "--repeats", "1"]
        + ["--output", output, "--contenders", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr
    assert output.with_suffix(".md").read_text("utf-8").strip() == done.stdout.strip()
    return json.loads(output.read_text("utf-8"))["settings"]["toy"]["contenders"]


@pytest.mark.slow
def test_training_benchmark_runs_ours(tmp_path):
    found = trained("training.py", tmp_path, "ours-float32")["ours-float32"]
    # A vocabulary of 50 whose ids are uniform: log 50 = 3.9 nats, and a bad start.
    assert 3.5 < found["loss"] < 6.0
    assert found["tokens_per_second"]["median"] > 0
    assert 1e8 < found["peak_memory"] < 1e10


@pytest.mark.slow
def test_training_benchmark_runs_every_contender(module, tmp_path):
    for name in ("torch", "transformers", "keras_hub"):
        pytest.importorskip(name)
    names = module("training_contenders").CONTENDERS
    found = trained("training.py", tmp_path, *names)
    assert {*found, "machine"} == set(names)
    assert all(3.5 < figures["loss"] < 6.0 for figures in found.values())


@pytest.mark.slow
def test_training_benchmark_for_gpus_runs_without_one(module, tmp_path):
    for name in ("torch", "jax"):
        pytest.importorskip(name)
    names = module("training_gpu").CONTENDERS
    found = trained("training_gpu.py", tmp_path, *names)
    assert {*found, "machine"} == set(names)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ("jax", "torch"))
def test_package_trains_where_tensorflow_cannot_be_imported(backend):
    pytest.importorskip(backend)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TENSORFLOW],
        capture_output=True,
        text=True,
        env=os.environ | {"KERAS_BACKEND": backend},
    )
    assert done.returncode == 0, done.stderr
    first, last = json.loads(done.stdout.splitlines()[-1])
    assert last < first


_WITHOUT_TENSORFLOW = """
import json, sys
sys.modules |= {"tensorflow": None, "tensorflow_text": None}
import keras, numpy as np
import keras_transformer as kt

keras.utils.set_random_seed(1)
config = kt.TransformerConfig(
    source_vocabulary_size=23, target_vocabulary_size=23, d_model=16, d_ff=32,
    num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
)
model = kt.Transformer(config, dtype="mixed_bfloat16")
rate = kt.TransformerSchedule(config.d_model, warmup_steps=20)
model.compile(
    keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9),
    loss=kt.MaskedCrossentropy(label_smoothing=0.1),
    metrics=[kt.MaskedAccuracy(), kt.Perplexity()],
)
ids = np.random.default_rng(1).integers(4, 9, (64, 7)).astype("int32")
ids[::3, 5:] = 0
history = model.fit((ids, ids), ids, batch_size=16, epochs=4, verbose=0).history
assert {"loss", "accuracy", "perplexity"} == set(history)
print(json.dumps([float(history["loss"][0]), float(history["loss"][-1])]))
"""
