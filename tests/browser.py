"""A headless Chromium for tests of pages, and a server whose answers can fail."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()


@contextlib.contextmanager
def chromium() -> Iterator:
    """Yields the system's Chromium, driven by playwright; skips where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="drives the browser")
    names = (os.environ.get("CHROMIUM", "chromium"), "chromium-browser")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium: CHROMIUM or the PATH must name it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


class Site:
    """Serves a folder at `url`, and changes answers on request. A context manager.

    Attributes:
        requests: Method and path of each request so far.
        faults: Content to answer with, by path; `None` is status 404.
        pause: Seconds to wait before each 64 KiB.
    """

    def __init__(self, folder: Path):
        self.requests: list[tuple[str, str]] = []
        self.faults: dict[str, bytes | None] = {}
        self.pause = 0.0
        site = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self):
                site._answer(self, folder)

            do_POST = do_GET

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/translator/"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        """Ends the server: from here on its address cannot be reached."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, handler, folder):
        self.requests.append((handler.command, handler.path))
        name = handler.path.removeprefix("/translator/") or "index.html"
        content = self.faults.get(name, b"")
        if content == b"" and (folder / name).is_file():
            content = (folder / name).read_bytes()
        if not content:
            handler.send_error(404)
            return
        handler.send_response(200)
        handler.send_header("Content-Type", handler.guess_type(name))
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        with contextlib.suppress(OSError):  # The browser may have gone.
            for start in range(0, len(content), 65536):
                time.sleep(self.pause)
                handler.wfile.write(content[start : start + 65536])
