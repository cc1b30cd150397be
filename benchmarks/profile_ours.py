"""Where the time of our SavedModel goes: seconds of each kind of operation.

    python benchmarks/export_ours.py base float32 exports/base
    python benchmarks/profile_ours.py exports/base/beam4/1 --batch 32

TensorFlow's profiler is on, which slows the call somewhat. An operation's time is that
of the thread that started it, waiting for its other threads included; operations that
run at the same time count in full. A graph compiled with XLA is one operation.
"""

from __future__ import annotations

import argparse
import collections
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401
from tensorflow.tsl.profiler.protobuf import xplane_pb2
from workload import source_ids, word


def operations(folder: Path) -> dict[str, tuple[int, float]]:
    """Reads a profile.

    Args:
        folder: Directory that `tf.profiler` wrote.

    Returns:
        For each kind of operation, such as "MatMul", how often it ran and its seconds,
        without those of operations inside it.
    """
    found = collections.defaultdict(lambda: (0, 0.0))
    for path in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        for plane in space.planes:
            names = {key: value.name for key, value in plane.event_metadata.items()}
            for thread in plane.lines:
                for kind, picoseconds in own_times(thread.events, names):
                    count, seconds = found[kind]
                    found[kind] = (count + 1, seconds + picoseconds / 1e12)
    return dict(found)


def own_times(events: Iterable, names: Mapping[int, str]) -> Iterator[tuple[str, int]]:
    """Yields kind and picoseconds of a thread's operations, without those inside them.

    Args:
        events: Events of one thread: `metadata_id`, `offset_ps`, `duration_ps`.
        names: Name of each `metadata_id`. Operations are called "NAME:KIND".

    Returns:
        An iterator over pairs.
    """
    kinds = {key: _kind(name) for key, name in names.items()}
    timed = [event for event in events if kinds[event.metadata_id]]
    timed.sort(key=lambda event: (event.offset_ps, -event.duration_ps))
    enclosing = []  # of each [end, kind, picoseconds of its own]
    for event in timed:
        while enclosing and enclosing[-1][0] <= event.offset_ps:
            yield tuple(enclosing.pop()[1:])
        if enclosing:
            enclosing[-1][2] -= event.duration_ps
        end = event.offset_ps + event.duration_ps
        enclosing.append([end, kinds[event.metadata_id], event.duration_ps])
    for _, kind, picoseconds in enclosing:
        yield kind, picoseconds


def _kind(name):
    """Kind of the operation of an event, "" if it is of the runtime itself."""
    _, _, kind = name.rpartition(":")
    is_operation = "::" not in name and kind != name and kind.isidentifier()
    return kind if is_operation else ""


def main():
    """Profiles one call and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("saved_model", type=Path, help="such as exports/base/beam4/1")
    parser.add_argument("--batch", type=int, default=32, help="sentences (default 32)")
    arguments = parser.parse_args()
    module = tf.saved_model.load(str(arguments.saved_model))
    serve = module.signatures["serving_default"]
    rows = source_ids(arguments.batch)[:, :-1]
    texts = tf.constant([" ".join(map(word, row)) for row in rows])
    for _ in range(2):
        serve(text=texts)
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            start = time.perf_counter()
            serve(text=texts)["translation"].numpy()
            seconds = time.perf_counter() - start
        found = operations(Path(folder))
    print(
        f"one call: {seconds * 1e3:.1f} ms\n\n| operation | runs | ms |\n|---|---|---|"
    )
    for kind, (count, own) in sorted(found.items(), key=lambda item: -item[1][1]):
        print(f"| {kind} | {count} | {own * 1e3:.1f} |")


if __name__ == "__main__":
    main()
