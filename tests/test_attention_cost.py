"""The benchmark of attention's cost: formulas, table, plot, and a tiny run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def cost(monkeypatch):
    """The script as a module; benchmarks/ is no package."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield importlib.import_module("attention_cost")
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def report(cost):
    """Formulas, table and plot."""
    return sys.modules["attention_cost_report"]


@pytest.fixture
def results():
    """Figures as if attention were exactly quadratic and convolution linear."""
    lengths = [100, 200, 400]

    def of(power):
        return {
            str(n): {"seconds": [n**power / 1e6] * 3, "peak_memory": 2**20 * n**power}
            for n in lengths
        }

    return {
        "sizes": {"width": 4, "heads": 2, "window": 1, "kernel": 3, "batch": 1},
        "lengths": lengths,
        "kinds": {"full attention": of(2), "convolution": of(1)},
    }


def test_formulas_of_a_small_layer(report):
    """By hand at n = 10, d = 4, h = 2, w = 1, k = 3."""
    sizes = report.Sizes(width=4, heads=2, window=1, kernel=3)
    expected = {
        "full attention": 4 * 160 + 2 * 400,
        "recurrence": 6 * 160,
        "convolution": 3 * 160,
        "local attention": 4 * 160 + 2 * 120,
        "linear attention": 4 * 160 + 160,
    }
    found = {name: kind.operations(10, sizes) for name, kind in report.KINDS.items()}
    assert found == expected


def test_only_full_attention_grows_faster_than_the_length(report):
    for name, kind in report.KINDS.items():
        for formula in (kind.operations, kind.memory):
            values = [formula(n, report.Sizes()) for n in (10**6, 2 * 10**6)]
            power = 2 if name == "full attention" else 1
            found = report.slope([10**6, 2 * 10**6], values)
            assert found == pytest.approx(power, abs=1e-2), name


def test_slope_is_the_exponent_between_the_last_two_lengths(report):
    assert report.slope([1, 2, 4], [7, 3, 24]) == pytest.approx(3)
    assert report.slope([1, 2], [3, None]) is None
    assert report.slope([2], [3]) is None


def test_table_shows_figures_and_slopes_beside_the_formula(report, results):
    results["kinds"]["convolution"]["200"] = {"failure": "no memory"}
    time, memory, failed, _ = report.table(results).splitlines()[2:]
    cells = [cell.strip() for cell in time.strip("|").split("|")]
    assert cells == [
        "full attention", "4 n d² + 2 n² d", "time (ms)", "10", "40", "160",
        "2.00", "1.97",
    ]  # fmt: skip
    assert memory.split("|")[3].strip() == "memory (MiB)"
    assert [cell.strip() for cell in failed.split("|")[4:8]] == ["0.1", "-", "0.4", "-"]


def test_plot_has_a_measured_and_a_dashed_line_of_each_layer(
    report, results, tmp_path, monkeypatch
):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    closed = []
    monkeypatch.setattr(pyplot, "close", closed.append)
    report.plot(results, tmp_path / "cost.png")
    monkeypatch.undo()
    (figure,) = closed
    for ax in figure.axes:
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert [line.get_linestyle() for line in ax.lines] == ["-", "--"] * 2
        for measured, formula in zip(ax.lines[::2], ax.lines[1::2], strict=True):
            assert measured.get_ydata()[-1] == pytest.approx(formula.get_ydata()[-1])
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    pyplot.close(figure)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_tiny_run_measures_time_and_memory(tmp_path):
    output = tmp_path / "cost.json"
    done = subprocess.run(
        [
            sys.executable, FOLDER / "attention_cost.py", "--lengths", "64", "8",
            "--kinds", "local attention", "--repeats", "2", "--width", "8",
            "--heads", "2", "--window", "2", "--training", "--output", output,
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(output.read_text("utf-8"))
    assert results["lengths"] == [8, 64]
    for found in results["kinds"]["local attention"].values():
        assert len(found["seconds"]) == 2
        assert min(found["seconds"]) > 0
        assert found["peak_memory"] >= 0
    assert done.stdout.strip() == output.with_suffix(".md").read_text("utf-8").strip()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_every_layer_runs(tmp_path):
    for extra in ([], ["--training"]):
        done = subprocess.run(
            [
                sys.executable, FOLDER / "attention_cost.py", "--lengths", "16",
                "--repeats", "1", "--width", "8", "--heads", "2", "--window", "2",
                "--output", tmp_path / "cost.json", *extra,
            ],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_failed_measurement_is_told_and_ends_with_status_1(
    cost, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(cost, "measure_apart", lambda *_: {"failure": "no memory"})
    arguments = ["attention_cost.py", "--lengths", "8", "--kinds", "convolution"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--output", f"{tmp_path}/cost.json"])
    assert cost.main() == 1
    captured = capsys.readouterr()
    assert "convolution, 8: no memory" in captured.err
