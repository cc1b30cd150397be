"""Seconds that clients of `keras-transformer serve` wait, and the server's memory.

Each export is served by a process of its own. Clients send a sentence of 29 words, wait
for the answer and send the next one. The server runs one request at a time.

    python benchmarks/export_ours.py base float32 exports/base
    python benchmarks/latency.py exports/base/beam4
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import itertools
import json
import os
import re
import socket
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from figures import markdown
from workload import source_ids, word

HOST = "127.0.0.1"


def sentences(count: int) -> list[str]:
    """Sentences of 29 words, which are 30 tokens with the end."""
    return [" ".join(map(word, ids)) for ids in source_ids(count)[:, :-1].tolist()]


def free_port() -> int:
    """Returns a port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]


class Server:
    """`keras-transformer serve` in a process of its own.

    Args:
        directory: saved_models/NAME.

    Raises:
        RuntimeError: If the server ends before it answers.
    """

    def __init__(self, directory: Path):
        self.port, self.path = free_port(), f"/v1/models/{directory.resolve().name}"
        self.process = subprocess.Popen(
            ["keras-transformer", "serve", directory, "--port", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        while not self._answers():
            if self.process.poll() is not None:
                raise RuntimeError(f"The server of {directory} ended unasked")
            time.sleep(0.2)

    def _answers(self):
        try:
            connection = http.client.HTTPConnection(HOST, self.port)
            connection.request("GET", self.path)
            return connection.getresponse().status == 200
        except OSError:
            return False

    def client(self, texts: Sequence[str]) -> list[float]:
        """Translates texts, one a request, over one connection.

        Returns:
            Seconds of each request.

        Raises:
            ValueError: If a status is not 200.
        """
        connection, seconds = http.client.HTTPConnection(HOST, self.port), []
        for text in texts:
            start = time.perf_counter()
            body = json.dumps({"instances": [{"text": text}]})
            connection.request("POST", f"{self.path}:predict", body)
            answer = connection.getresponse()
            said = answer.read()
            seconds.append(time.perf_counter() - start)
            if answer.status != 200:
                raise ValueError(f"The server answered {answer.status}: {said[:200]!r}")
        return seconds

    def clients(self, count: int, requests: int) -> list[float]:
        """Lets so many clients share requests, all at once.

        Returns:
            Seconds of each request.
        """
        texts = sentences(requests)
        shares = [texts[first::count] for first in range(count)]
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            return list(itertools.chain(*pool.map(self.client, shares)))

    def peak(self) -> int:
        """Returns the most bytes that the process had resident (Linux)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])

    def stop(self):
        """Ends the process."""
        self.process.terminate()
        self.process.wait()


def measure(directory: Path, clients: Sequence[int], requests: int) -> list[list]:
    """Returns a row of the table for each number of clients."""
    server, rows = Server(directory), []
    try:
        server.clients(1, 3)
        for count in clients:
            seconds = server.clients(count, requests)
            cuts = statistics.quantiles(seconds, n=100, method="inclusive")
            median, late = (f"{1000 * cuts[at - 1]:.0f}" for at in (50, 99))
            rows.append([directory, count, median, late, server.peak() >> 20])
    finally:
        server.stop()
    return rows


def main(arguments=None):
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directories", nargs="+", type=Path, help="saved_models/NAME")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--requests", type=int, default=200, help="of each row")
    options = parser.parse_args(arguments)
    rows = []
    for directory in options.directories:
        rows += measure(directory, options.clients, options.requests)
    heading = ("export", "clients", "p50 (ms)", "p99 (ms)", "peak memory (MiB)")
    print(markdown(heading, rows))


if __name__ == "__main__":
    main()
