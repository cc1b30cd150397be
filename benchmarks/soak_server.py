"""Minutes of mixed load on the local server: latency, failures, memory, drain.

    python benchmarks/soak_server.py saved_models/NAME/1 --minutes 5 --clients 8

Clients send single sentences, batches, n-best requests where the SavedModel has that
signature, and bad requests. Each good answer must have the strings that a lone client
got before the load. Half-way a copy of the SavedModel is dropped in as a new version;
at the end the server gets SIGTERM during the load. The exit status is 1 if a request
was answered wrongly or not at all, the new version was not taken up, memory grew or the
drain was not clean.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

SERVER = """
import sys
from keras_transformer.serving import ServingConfig, serve
serve(sys.argv[1], ServingConfig(port=0))
"""
TEXTS = (
    "A man is sleeping.", "Two dogs are running through the snow.", "",
    "The children play in front of the old house while it rains.", "Yes.",
    "\N{GRINNING FACE} \N{SNOWMAN}", "שלום", "a\0b", "</s> <pad>", "word " * 60,
)  # fmt: skip
BAD = (
    (b"", 400),
    (b'{"instances": ["a"', 400),
    (b'{"instances": [1]}', 400),
    (b'{"instances": [["a"]]}', 400),
    (b'{"instances": []}', 400),
    (b'{"signature_name": "x", "instances": ["a"]}', 400),
    (b"\xff\xfe", 400),
    (b"[" * 50_000, 400),
)
# A request sent this long (seconds) before the signal must be answered; a later one may
# reach a connection that the server is closing, which HTTP cannot tell from a failure.
SURELY_BEFORE = 0.1
# Most memory: the median at the end over that just after the new version came.
MOST_GROWTH = 1.05


@dataclasses.dataclass
class Request:
    """A body, the kind that it is counted under, and the answer it must get."""

    kind: str
    body: object
    status: int = 200
    strings: object = None


@dataclasses.dataclass
class Results:
    """What the clients saw; times in seconds of `time.perf_counter`."""

    latencies: dict = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list)
    )
    failures: list = dataclasses.field(default_factory=list)
    # Requests that got no answer: when sent, and the error.
    unanswered: list = dataclasses.field(default_factory=list)
    memory: list = dataclasses.field(default_factory=list)


def strings_of(answer):
    """An answer without its numbers, whose last bits depend on the batch."""
    if isinstance(answer, dict):
        return {name: strings_of(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return [strings_of(value) for value in answer]
    return answer if isinstance(answer, str) else None


def good_requests(client, url, texts):
    """Every good request, with the strings that a lone client gets."""
    requests = [Request("single", {"instances": [text]}) for text in texts]
    requests += [
        Request("batch", {"instances": random.Random(n).choices(texts, k=8)})
        for n in range(len(texts))
    ]
    found = client.get(url + "/metadata").json()["metadata"]["signature_def"]
    if "nbest" in found["signature_def"]:
        requests += [
            Request("nbest", {"signature_name": "nbest", "instances": [text]})
            for text in texts
        ]
    for request in requests:
        response = client.post(url + ":predict", json=request.body)
        response.raise_for_status()
        request.strings = strings_of(response.json())
    return requests


def send(client, url, request, results):
    """Sends one request and keeps what came of it; returns whether it was answered."""
    content = {"content" if isinstance(request.body, bytes) else "json": request.body}
    start = time.perf_counter()
    try:
        response = client.post(url + ":predict", **content)
    except httpx.TransportError as error:
        results.unanswered.append((start, repr(error)))
        return False
    results.latencies[request.kind].append(time.perf_counter() - start)
    wrong = response.status_code != request.status
    if not wrong and request.status == 200:
        wrong = strings_of(response.json()) != request.strings
    if wrong:
        results.failures.append(f"{request} got {response.status_code} {response.text}")
    return True


def load(url, requests, results, seed, stop):
    """One client: sends until the server goes or `stop` is set."""
    rng = random.Random(seed)
    bad = [Request("bad", body, status) for body, status in BAD]
    with httpx.Client(timeout=60) as client:
        while not stop.is_set():
            pick = rng.choice(bad if rng.random() < 0.1 else requests)
            if not send(client, url, pick, results):
                return


def resident_mib(pid):
    """Memory of a process (MiB)."""
    done = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1024


@contextlib.contextmanager
def server_process(directory):
    """Yields a server's process and its URL."""
    started = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(directory)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in started.stderr:
            if match := re.search(r"(http://\S+) is served", line):
                break
        else:
            sys.exit("the server did not start")
        # Keep reading, so that the server never waits for a reader.
        threading.Thread(target=started.stderr.read, daemon=True).start()
        yield started, match[1]
    finally:
        started.kill()
        started.wait()


def watch_memory(pid, seconds, results):
    """Records the memory once a second, for `seconds`."""
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        results.memory.append((now, resident_mib(pid)))
        time.sleep(1)


def drop_in(model, directory, url):
    """Copies a new version in; returns the seconds until it serves, or `None`."""
    partial = directory / ".2.partial"
    shutil.copytree(model, partial)
    partial.rename(directory / "2")
    start = time.perf_counter()
    while time.perf_counter() < start + 60:
        status = httpx.get(url, timeout=60).json()["model_version_status"]
        if [version["state"] for version in status] == ["AVAILABLE", "END"]:
            return time.perf_counter() - start
        time.sleep(0.1)
    return None


def soak(arguments, directory, results):
    """Runs the load; returns the facts that are printed and checked."""
    facts = {}
    with server_process(directory) as (process, url):
        with httpx.Client(timeout=60) as client:
            requests = good_requests(client, url, arguments.texts or TEXTS)
        stop = threading.Event()
        clients = [
            threading.Thread(target=load, args=(url, requests, results, n, stop))
            for n in range(arguments.clients)
        ]
        for client in clients:
            client.start()
        half = arguments.minutes * 30
        watch_memory(process.pid, half, results)
        facts["switch_seconds"] = drop_in(arguments.model, directory, url)
        facts["switch_time"] = time.perf_counter()
        watch_memory(process.pid, half, results)
        signalled = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        facts["status"] = process.wait(120)
        facts["drain_seconds"] = time.perf_counter() - signalled
        stop.set()
        for client in clients:
            client.join()
    for start, error in results.unanswered:
        if start < signalled - SURELY_BEFORE:
            results.failures.append(f"no answer: {error}")
    return facts


def growth(results, switch_time):
    """Memory at the end over memory after the new version came, as a ratio."""
    after = [mib for moment, mib in results.memory if moment > switch_time]
    part = max(1, len(after) // 4)
    # The first quarter still holds the old version's memory.
    return statistics.median(after[-part:]) / statistics.median(after[part : 2 * part])


def report(results, facts, minutes):
    """Prints the figures; returns what went wrong."""
    total = 0
    print("| requests | number | p50 (ms) | p95 (ms) | p99 (ms) | longest (ms) |")
    print("|---|---|---|---|---|---|")
    for kind, latencies in sorted(results.latencies.items()):
        total += len(latencies)
        cuts = statistics.quantiles(latencies, n=100)
        row = [cuts[49], cuts[94], cuts[98], max(latencies)]
        shown = " | ".join(f"{seconds * 1000:.1f}" for seconds in row)
        print(f"| {kind} | {len(latencies)} | {shown} |")
    print(f"{total} requests, {total / minutes / 60:.0f} a second")
    print(f"failed: {len(results.failures)}", *results.failures[:5], sep="\n  ")
    step = max(1, len(results.memory) // 10)
    samples = [f"{mib:.0f}" for _, mib in results.memory[::step]]
    ratio = growth(results, facts["switch_time"])
    print(f"memory (MiB): {' '.join(samples)}; end / after the switch: {ratio:.3f}")
    switch = facts["switch_seconds"]
    print("new version:", "never" if switch is None else f"after {switch:.1f} s")
    print(f"drain: {facts['drain_seconds']:.2f} s, exit status {facts['status']}")
    problems = {
        "failed requests": results.failures,
        "the new version was not taken up": switch is None,
        "memory grew": ratio > MOST_GROWTH,
        "the drain was not clean": facts["status"] != 0,
    }
    return [name for name, found in problems.items() if found]


def main():
    """Runs the soak and prints what it found; exits with 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a SavedModel: NAME/VERSION")
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the load")
    parser.add_argument("--clients", type=int, default=8, help="concurrent clients")
    parser.add_argument("--texts", type=Path, help="file of sentences, one a line")
    arguments = parser.parse_args()
    if arguments.texts is not None:
        arguments.texts = arguments.texts.read_text(encoding="utf-8").splitlines()
    results = Results()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "soak"
        shutil.copytree(arguments.model, directory / "1")
        facts = soak(arguments, directory, results)
    problems = report(results, facts, arguments.minutes)
    if problems:
        sys.exit("; ".join(problems))


if __name__ == "__main__":
    main()
