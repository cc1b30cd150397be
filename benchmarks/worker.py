"""One contender in a process of its own, so that no library disturbs another's threads.

The runner writes commands and reads replies, each one line of JSON:

    {"command": "prepare", "setting": NAME}    -> {"calls": calls that fill a turn}
    {"command": "run", "calls": N}             -> {"seconds": of a call, "result": ...,
                                                   "peak_memory": in bytes,
                                                   "compile_seconds": ...,
                                                   "idle_cpu_seconds": ...}
    {"command": "rest"}                        -> {}

`rest` marks the moment from which the process should be still; the next reply to `run`
says how much processor time it used since then, which betrays threads that spin while
they wait. `compile_seconds` is how much longer the first call of all took than the
second, in which nothing was traced or compiled.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

# Where the package lies, which needs no installation.
ROOT = Path(__file__).resolve().parents[1]
# Not a contender: measures the peaks that a limit needs.
MACHINE = "machine"
_SECONDS_A_TURN = 1.0  # calls shorter than this are repeated within a turn


class WorkerError(RuntimeError):
    """A contender failed; the text is the last line it wrote."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way of doing the work, run in a process of its own.

    `module` has a class `Peer(size, variant, threads, folder)` with `versions` and
    three methods: `prepare(setting)`, `run()`, whose time is measured, and
    `result(output)`, which says in JSON what `run` did.
    """

    module: str
    variant: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Worker:
    """The runner's end: starts the process and asks it.

    Args:
        contender: What to run.
        workload: Name of a module with `SIZES`, `SETTINGS` and `check(result)`, which
            raises an error if the work was not done.
        size: A key of `SIZES`.
        threads: Threads of computation, and processors it may use.
        folder: Directory for the contender's files.
        log: File to which all that the process prints is appended.

    Raises:
        WorkerError: If the contender cannot be loaded.
    """

    def __init__(
        self,
        contender: Contender,
        workload: str,
        size: str,
        threads: int,
        folder: Path,
        log: Path,
    ):
        self._log = log
        environment = os.environ | contender.environment | thread_limits(threads)
        told = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
        environment["PYTHONPATH"] = os.pathsep.join([*told, str(ROOT)])
        names = [contender.module, contender.variant, workload, size]
        with log.open("ab") as printed:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *names, str(threads), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                env=environment,
                text=True,
            )
        self.versions = self._reply()["versions"]

    def prepare(self, setting_name: str) -> int:
        """Warms up; returns the number of calls that fill a turn."""
        return self._ask(command="prepare", setting=setting_name)["calls"]

    def run(self, calls: int) -> dict:
        """Runs `calls` times; returns the reply (see the module)."""
        return self._ask(command="run", calls=calls)

    def rest(self):
        """Marks the moment from which the process should be still."""
        self._ask(command="rest")

    def close(self):
        """Ends the process."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, **command):
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            pass  # `_reply` says why.
        return self._reply()

    def _reply(self):
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise WorkerError(last_line(self._log))
        return json.loads(line)


def thread_limits(threads: int) -> dict[str, str]:
    """Environment variables that give each library `threads` threads."""
    names = (
        "OMP_NUM_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
    )
    return dict.fromkeys(names, str(threads)) | {"TF_CPP_MIN_LOG_LEVEL": "3"}


def last_line(path: Path) -> str:
    """Returns the last line of a log."""
    lines = path.read_text("utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "The process ended and printed nothing."


def serve(
    module: str, variant: str, workload: str, size: str, threads: int, folder: str
):
    """The contender's end: loads it once, then answers commands until they end."""
    # Libraries print where they like: replies get a descriptor of their own.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])

    def reply(**values):
        print(json.dumps(values), file=replies, flush=True)

    work = importlib.import_module(workload)
    peer_class = importlib.import_module(module).Peer
    peer = peer_class(work.SIZES[size], variant, threads, folder)
    reply(versions=peer_class.versions)
    resting_since = time.process_time()
    for line in sys.stdin:
        command = json.loads(line)
        if command["command"] == "prepare":
            peer.prepare(work.SETTINGS[command["setting"]])
            calls, compiling = _warm_up(peer, work.check)
            reply(calls=calls)
        elif command["command"] == "rest":
            reply()
            resting_since = time.process_time()
        else:
            idle = time.process_time() - resting_since
            found = _run(peer, command["calls"], work.check)
            reply(idle_cpu_seconds=idle, compile_seconds=compiling, **found)


def _warm_up(peer, check):
    """Returns how many calls fill a turn, and how many seconds compiling took."""
    first, second = (_run(peer, 1, check)["seconds"] for _ in range(2))
    return math.ceil(_SECONDS_A_TURN / second), first - second


def _run(peer, calls, check):
    start = time.perf_counter()
    for _ in range(calls):
        output = peer.run()
    seconds = (time.perf_counter() - start) / calls
    result = peer.result(output)
    check(result)
    return {"seconds": seconds, "result": result, "peak_memory": peak_memory()}


def peak_memory() -> int:
    """Most memory that this process ever had resident (bytes)."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


if __name__ == "__main__":
    *names_of_the_work, thread_count, directory = sys.argv[1:]
    serve(*names_of_the_work, int(thread_count), directory)
