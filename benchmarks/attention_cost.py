"""Time and peak memory of one layer against the length of its input.

Full self-attention, recurrence (a GRU), convolution, attention to a local window and
linear attention, all of one width, compared with the formulas of their operations.
Each layer and length has a process of its own, so that its peak memory is its own.

    python benchmarks/attention_cost.py --output attention_cost.json
    python benchmarks/attention_cost.py --training --lengths 512 1024 2048

Results go to the JSON file, the table to the same name with .md and to standard output,
the plot (matplotlib) to the same name with .png, progress to standard error. Memory is
read from /proc, so this needs Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from attention_cost_report import KINDS, Sizes, plot, table
from figures import quartiles
from runner import describe_machine, positive, progress
from worker import thread_limits

_SECONDS_A_TURN = 0.2  # shorter calls are repeated within a turn


def make_layer(kind: str, sizes: Sizes):
    """Returns the Keras layer of a kind.

    Args:
        kind: A key of `KINDS`.
        sizes: Its sizes.
    """
    import keras

    from keras_transformer import MultiHeadAttention

    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    from linear_attention import LinearAttention
    from local_attention import LocalAttention

    heads, width = sizes.heads, sizes.width
    if kind == "full attention":
        return MultiHeadAttention(heads, width // heads, use_bias=False)
    if kind == "recurrence":
        return keras.layers.GRU(width, return_sequences=True)
    if kind == "convolution":
        return keras.layers.Conv1D(width, sizes.kernel, padding="same")
    if kind == "local attention":
        return LocalAttention(
            heads, width // heads, window=sizes.window, use_bias=False
        )
    return LinearAttention(heads, width // heads, use_bias=False)


def measure(kind: str, length: int, sizes: Sizes, repeats: int, training: bool) -> dict:
    """Measures one layer at one length, in this process.

    Args:
        kind: A key of `KINDS`.
        length: Positions of the input, n.
        sizes: Sizes of the layer.
        repeats: Turns.
        training: Whether the gradients of input and weights are computed too.

    Returns:
        The keys "seconds", of a call in each turn, "peak_memory", by how many bytes
        resident memory rose above its value before the first call, and "versions".
    """
    import keras
    import numpy as np
    import tensorflow as tf

    layer, shape = make_layer(kind, sizes), (sizes.batch, length, sizes.width)

    @tf.function
    def call(inputs):
        if not training:
            return layer(inputs)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(tf.square(layer(inputs, training=True)))
        return tape.gradient(loss, [inputs, *layer.trainable_weights])

    layer.build(shape)
    # Libraries load on the first call: one on a short input, which is not measured.
    random = np.random.default_rng(0)
    call(tf.constant(random.standard_normal((sizes.batch, 16, sizes.width), "float32")))
    inputs = tf.constant(random.standard_normal(shape, "float32"))
    before = reset_peak()
    call(inputs)
    peak_memory = peak() - before
    seconds = [_turn(lambda: call(inputs)) for _ in range(repeats)]
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    return {"seconds": seconds, "peak_memory": peak_memory, "versions": versions}


def _turn(call):
    """Seconds of a call, the mean of as many as fill a turn."""
    start, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - start < _SECONDS_A_TURN:
        # A call is over when its result can be read.
        outputs = call()
        last = outputs[-1] if isinstance(outputs, (list, tuple)) else outputs
        last.numpy()
        calls += 1
    return (time.perf_counter() - start) / calls


def reset_peak() -> int:
    """Forgets the peak of the resident memory and returns its present size (bytes)."""
    # Memory freed but not returned to the system would be reused unnoticed.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    return _status("VmRSS")


def peak() -> int:
    """Most resident memory since `reset_peak` (bytes)."""
    return _status("VmHWM")


def _status(name):
    lines = Path("/proc/self/status").read_text("ascii", errors="replace").splitlines()
    (line,) = (line for line in lines if line.startswith(name + ":"))
    return 1024 * int(line.split()[1])


def measure_apart(kind: str, length: int, arguments: argparse.Namespace) -> dict:
    """As `measure`, in a process of its own.

    Args:
        kind: A key of `KINDS`.
        length: Positions of the input.
        arguments: From the command line.

    Returns:
        What `measure` returns, or the key "failure" with the reason.
    """
    sizes = dataclasses.asdict(arguments.sizes)
    task = [kind, length, sizes, arguments.repeats, arguments.training]
    environment = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, __file__, "--measure", json.dumps(task)],
        env=os.environ | thread_limits(arguments.threads) | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["it printed nothing"]
        return {"failure": f"status {done.returncode}: {words[-1]}"}
    return json.loads(done.stdout.splitlines()[-1])


def run(arguments: argparse.Namespace) -> dict:
    """Measures every kind at every length.

    Args:
        arguments: From the command line.
    """
    results = {
        "machine": describe_machine(),
        "versions": {},
        "threads": arguments.threads,
        "training": arguments.training,
        "sizes": dataclasses.asdict(arguments.sizes),
        "lengths": sorted(arguments.lengths),
        "kinds": {kind: {} for kind in arguments.kinds},
    }
    for kind in arguments.kinds:
        for length in results["lengths"]:
            found = measure_apart(kind, length, arguments)
            results["versions"] |= found.pop("versions", {})
            results["kinds"][kind][str(length)] = found
            if "failure" in found:
                progress(f"{kind}, {length}: {found['failure']}")
                continue
            found |= quartiles(found["seconds"])
            progress(f"{kind}, {length}: {1e3 * found['median']:.3g} ms")
    return results


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    result = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    result.add_argument(
        "--lengths", type=positive, nargs="+", default=[512, 1024, 2048, 4096, 8192]
    )
    result.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    result.add_argument("--repeats", type=positive, default=5)
    result.add_argument("--threads", type=positive, default=2)
    result.add_argument(
        "--training", action="store_true", help="forward and backward, not forward only"
    )
    for field in dataclasses.fields(Sizes):
        result.add_argument(f"--{field.name}", type=positive, default=field.default)
    result.add_argument("--output", type=Path, default=Path("attention_cost.json"))
    result.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    return result


def main() -> int:
    """Reads the command line, measures, and writes results, table and plot.

    Returns:
        The exit status: 1 if a measurement failed.
    """
    arguments = parser().parse_args()
    if arguments.measure:
        kind, length, sizes, *rest = arguments.measure
        print(json.dumps(measure(kind, length, Sizes(**sizes), *rest)))
        return 0
    names = (field.name for field in dataclasses.fields(Sizes))
    arguments.sizes = Sizes(**{name: getattr(arguments, name) for name in names})
    results = run(arguments)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    text = table(results)
    arguments.output.with_suffix(".md").write_text(text + "\n", "utf-8")
    print(text)
    with contextlib.suppress(ImportError):
        plot(results, arguments.output.with_suffix(".png"))
    found = (one for kind in results["kinds"].values() for one in kind.values())
    return int(any("failure" in one for one in found))


if __name__ == "__main__":
    sys.exit(main())
