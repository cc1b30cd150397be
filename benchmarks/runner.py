"""Contenders in processes of their own, taking turns, whatever their work is.

The contenders take turns, A B C A B C, so that a change in the machine's
speed affects all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from worker import MACHINE, Contender, Worker, WorkerError

# OpenMP threads spin for up to 0.2 s after a call: the next turn waits.
_PAUSE_SECONDS = 0.4
# Instructions that decide how fast matrices are multiplied, as Linux names them.
_INSTRUCTIONS = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
)  # fmt: skip
_IDLE_SHARE = 0.02  # processor time of one that waits, over the time it waits


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is measured, and how its figures become results.

    Args:
        name: Name of the results file, without its ending.
        workload: Module with `SIZES`, `SETTINGS` and `check`; a setting has the `size`
            it needs and the `tokens` that a call of a contender makes.
        contenders: Who takes part.
        groups: Names of the contenders that take turns with each other and so are in
            memory at the same time. One may be in several groups.
        summarise: Makes the results of a setting, given its name and, for each group,
            the replies of each contender to its turns (see `worker`).
        tables: Makes Markdown of the results of all settings.
        load: Called with contender, size, folder and log before a contender is loaded.
    """

    name: str
    workload: ModuleType
    contenders: Mapping[str, Contender]
    groups: Sequence[Sequence[str]]
    summarise: Callable[[str, Sequence[Mapping[str, list[dict]]]], dict]
    tables: Callable[[Mapping[str, dict]], str]
    load: Callable[[str, str, Path, Path], None] = lambda *_: None


def main(benchmark: Benchmark, arguments: argparse.Namespace) -> int:
    """Measures, and writes the results.

    Args:
        benchmark: What to measure.
        arguments: The command line's, from `parser`.

    Returns:
        The exit status: 1 if a contender had to be left out.
    """
    settings = benchmark.workload.SETTINGS
    with tempfile.TemporaryDirectory(prefix=f"{benchmark.name}-") as folder:
        run = Run(benchmark, arguments, Path(folder))
        for size in dict.fromkeys(settings[name].size for name in arguments.only):
            run.measure(size)
            # What was measured is kept if a later size is interrupted.
            text = _write(benchmark, run.results, arguments.output)
    _warn_about_the_restless(run.results["idle_share"])
    print(text)
    return 1 if run.results["failures"] else 0


def _write(benchmark, results, output):
    """Writes what was measured so far; returns the tables."""
    text = benchmark.tables(results["settings"])
    for what, why in results["failures"].items():
        text += f"\n\nLeft out: {what}: {why}"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=1), encoding="utf-8")
    output.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    return text


def parser(
    benchmark: Benchmark, description: str, settings: Sequence[str]
) -> argparse.ArgumentParser:
    """Returns the command line that all benchmarks share.

    Args:
        benchmark: What to measure.
        description: Text of the help.
        settings: Names of the settings that are measured by default.
    """
    known, contenders = benchmark.workload.SETTINGS, list(benchmark.contenders)
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument(
        "--repeats", type=positive, default=5, help="turns of each (default 5)"
    )
    result.add_argument(
        "--only",
        nargs="+",
        metavar="SETTING",
        choices=known,
        default=list(settings),
        help=f"of {', '.join(known)} (default {', '.join(settings)})",
    )
    result.add_argument(
        "--contenders",
        nargs="+",
        metavar="NAME",
        choices=contenders,
        default=contenders,
        help=f"default all: {', '.join(contenders)}",
    )
    result.add_argument(
        "--threads", type=positive, default=2, help="of each contender (default 2)"
    )
    result.add_argument(
        "--output",
        type=Path,
        default=Path(f"{benchmark.name}.json"),
        help="results; the tables go beside it as .md (default %(default)s)",
    )
    return result


def positive(text: str) -> int:
    """Reads a whole number of at least 1 from the command line."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {text}")
    return value


class Run:
    """Loads the contenders of one size and group after another; they take turns.

    A contender that fails is left out from then on, and the results say why.

    Args:
        benchmark: What to measure.
        arguments: The command line's.
        folder: Directory for models and logs.
    """

    def __init__(
        self, benchmark: Benchmark, arguments: argparse.Namespace, folder: Path
    ):
        self._benchmark = benchmark
        self._arguments = arguments
        self._folder = folder
        self._workers = {}
        self._resting_since = {}
        self.results = {
            "machine": describe_machine(),
            "threads": arguments.threads,
            "repeats": arguments.repeats,
            "versions": {"python": platform.python_version()},
            "settings": {},
            "failures": {},
            # The largest share of its waiting time during which one computed.
            "idle_share": {},
        }

    def measure(self, size: str):
        """Measures the chosen settings of one size."""
        settings = self._benchmark.workload.SETTINGS
        names = [name for name in self._arguments.only if settings[name].size == size]
        replies = {name: [] for name in names}
        for number, group in enumerate(self._groups()):
            with contextlib.ExitStack() as stack:
                for contender in group:
                    with self._leave_out_if_it_fails(contender, size):
                        self._load(contender, size, f"{contender}-{number}", stack)
                for name in names:
                    replies[name].append(self._take_turns(name, self._warm_up(name)))
            self._workers.clear()
        for name in names:
            self.results["settings"][name] = self._benchmark.summarise(
                name, replies[name]
            )

    def _groups(self):
        """The groups of the chosen contenders that are not part of another group."""
        groups = [
            tuple(name for name in self._arguments.contenders if name in group)
            for group in self._benchmark.groups
        ]
        return [
            group
            for group in dict.fromkeys(groups)
            if group and not any(set(group) < set(other) for other in groups)
        ]

    def _load(self, contender, size, process_name, stack):
        progress(f"{contender}: loading {size}")
        folder = self._folder / process_name / size
        folder.mkdir(parents=True)
        log = self._folder / f"{process_name}-{size}.log"
        self._benchmark.load(contender, size, folder, log)
        worker = Worker(
            self._benchmark.contenders[contender],
            self._benchmark.workload.__name__,
            size,
            self._arguments.threads,
            folder,
            log,
        )
        stack.callback(worker.close)
        self._workers[contender] = worker
        self.results["versions"].update(worker.versions)

    def _warm_up(self, name):
        """Warms up all contenders; returns how many calls make a turn of each."""
        calls = {}
        for contender, worker in list(self._workers.items()):
            progress(f"{name}: warming up {contender}")
            with self._leave_out_if_it_fails(contender, name):
                calls[contender] = worker.prepare(name)
                self._rest(contender)
        return calls

    def _take_turns(self, name, calls):
        """Returns all replies of each contender that completed every turn."""
        tokens = self._benchmark.workload.SETTINGS[name].tokens
        replies, total = {contender: [] for contender in calls}, self._arguments.repeats
        for repeat in range(1, total + 1):
            for contender in list(self._workers):
                with self._leave_out_if_it_fails(contender, name):
                    reply = self._turn(contender, calls[contender])
                    replies[contender].append(reply)
                    speed = f" {tokens / reply['seconds']:.0f} tokens/s"
                    figure = "" if contender == MACHINE else speed
                    progress(f"{name}: {repeat}/{total} {contender}{figure}")
        return {
            contender: each
            for contender, each in replies.items()
            if contender in self._workers
        }

    def _turn(self, contender, calls):
        waited = time.perf_counter() - self._resting_since[contender]
        reply = self._workers[contender].run(calls)
        shares = self.results["idle_share"]
        share = reply["idle_cpu_seconds"] / waited
        shares[contender] = max(share, shares.get(contender, 0.0))
        self._rest(contender)
        return reply

    def _rest(self, contender):
        time.sleep(_PAUSE_SECONDS)
        self._workers[contender].rest()
        self._resting_since[contender] = time.perf_counter()

    @contextlib.contextmanager
    def _leave_out_if_it_fails(self, contender, what):
        try:
            yield
        except WorkerError as error:
            self._workers.pop(contender, None)
            self.results["failures"][f"{contender}, {what}"] = str(error)
            progress(f"{contender} is left out: {error}")


def describe_machine() -> dict:
    """Returns the processor's name and number, the system and the date."""
    processor = {"model name": platform.processor() or platform.machine()}
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        processor |= {key.strip(): value.strip() for key, value in pairs}
    flags = processor.get("flags", "").split()
    return {
        "processor": processor["model name"],
        "family": processor.get("cpu family"),
        "instructions": [name for name in _INSTRUCTIONS if name in flags],
        "processors": os.cpu_count(),
        "system": platform.platform(),
        "date": datetime.date.today().isoformat(),
    }


def progress(text: str):
    """Writes a line to standard error, the time before it."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def _warn_about_the_restless(idle_share):
    for contender, share in idle_share.items():
        if share > _IDLE_SHARE:
            progress(f"{contender} computed during {share:.1%} of its waiting time")
