"""A headless Chromium for tests, driven through chromedriver, and a server for it.

chromedriver speaks the W3C's WebDriver protocol: JSON over HTTP.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # The protocol's name of the key.
_ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu"]


def chromedriver() -> str:
    """Returns the program's path; skips the test where there is none."""
    path = shutil.which(os.environ.get("CHROMEDRIVER", "chromedriver"))
    if path is None:
        pytest.skip("no Chromium: CHROMEDRIVER or the PATH must name chromedriver")
    return path


def litert_js() -> Path:
    """Returns the folder of npm packages with LiteRT.js; skips where there is none."""
    folder = os.environ.get("LITERT_JS")
    if not folder:
        pytest.skip(
            "no LiteRT.js: LITERT_JS must name the node_modules of "
            "`npm install @litertjs/core@2.5.3`"
        )
    return Path(folder)


class Browser:
    """One window of Chromium. Use it as a context manager."""

    def __init__(self, width: int = 1000, height: int = 720):
        self._driver = subprocess.Popen(
            [chromedriver(), "--port=0"], stdout=subprocess.PIPE, text=True
        )
        for line in self._driver.stdout:
            if started := re.search(r"successfully on port (\d+)", line):
                break
        self._url = f"http://127.0.0.1:{started[1]}/session"
        chromium = {"args": _ARGUMENTS}
        wanted = {"browserName": "chrome", "goog:chromeOptions": chromium}
        wanted["goog:loggingPrefs"] = {"browser": "ALL"}
        answer = self._post("", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/{answer['sessionId']}"
        self.resize(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._request("DELETE", "", None)
        self._driver.terminate()
        self._driver.wait()
        self._driver.stdout.close()

    def open(self, url: str):
        """Loads a page."""
        self._post("/url", {"url": url})

    def run(self, script: str, *arguments):
        """Runs the body of a function; returns its value, a promise's once it comes."""
        return self._post("/execute/sync", {"script": script, "args": arguments})

    def wait(self, expression: str, seconds: float = 120):
        """Waits until an expression is true; returns its value."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {expression}")):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression}: {self.text('body')}; {self.log()}")
            time.sleep(0.02)
        return value

    def type(self, selector: str, text: str):
        """Types into an element, key by key; no characters beyond U+FFFF."""
        found = self._post("/element", {"using": "css selector", "value": selector})
        self._post(f"/element/{found[_ELEMENT]}/value", {"text": text})

    def text(self, selector: str) -> str:
        """Returns the text of an element that can be seen."""
        return self.run(
            "return document.querySelector(arguments[0]).innerText", selector
        )

    def screenshot(self) -> bytes:
        """Returns a PNG of the window."""
        return base64.b64decode(self._request("GET", "/screenshot", None))

    def log(self) -> list[str]:
        """Returns the errors that the console has told since the last call."""
        rows = self._post("/se/log", {"type": "browser"})
        return [row["message"] for row in rows if row["level"] == "SEVERE"]

    def resize(self, width: int, height: int, touch: bool = False):
        """Gives the page a size in CSS pixels, as a telephone's if `touch`."""
        size = {
            "width": width,
            "height": height,
            "deviceScaleFactor": 2 if touch else 1,
        }
        self.tell("Emulation.setDeviceMetricsOverride", mobile=touch, **size)

    def scheme(self, name: str):
        """Asks pages for "light" or "dark" colours."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.tell("Emulation.setEmulatedMedia", features=features)

    def tell(self, command: str, **parameters):
        """Sends a command of Chromium's own protocol."""
        self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _post(self, path, content):
        return self._request("POST", path, json.dumps(content).encode())

    def _request(self, method, path, content):
        request = urllib.request.Request(self._url + path, content, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None


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

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                site._answer(self, folder)

            def do_POST(self):
                site._answer(self, folder)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/translator/"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
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
        types = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
        handler.send_response(200)
        kind = types.get(Path(name).suffix, "application/octet-stream")
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        with contextlib.suppress(OSError):  # The browser may have gone.
            for start in range(0, len(content), 65536):
                time.sleep(self.pause)
                handler.wfile.write(content[start : start + 65536])
