"""The versions of a model: which are there, which one is served.

As in TensorFlow Serving's default policy the highest version is served: a new one is
loaded while the old one serves, then takes over, and the old one is dropped when its
last request has ended; if the highest is removed, the next one below is loaded.
Deliberate differences: where the highest does not load, the next one below is served;
a version that did not load is tried again when its files change, not after a minute;
and if every version is removed, the served one stays. Versions are loaded one at a
time, but a load that hangs, as on a disk that does not answer, is given up as soon as
another version is wanted.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_transformer.serving.errors import RequestError, code_name, describe

# How often TensorFlow Serving looks for new versions, too.
POLL_SECONDS = 1.0
# After this long, a load is given up if another version is wanted.
LOAD_SECONDS = 30.0
LARGEST_VERSION = 2**63 - 1

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Version:
    """What is known of one version; `model` while it is loaded."""

    state: str = "START"
    error_code: str = "OK"
    error_message: str = ""
    model: Any = None
    requests: int = 0
    # Names, sizes and times of the files that did not load.
    failed: frozenset | None = None


def check_directory(directory: str | Path):
    """Checks that a directory has versions to serve.

    Args:
        directory: NAME, with a SavedModel in each NAME/VERSION.

    Raises:
        FileNotFoundError: If it has none.
    """
    directory = Path(directory)
    if _on_disk(directory):
        return
    if (directory / "saved_model.pb").exists():
        raise FileNotFoundError(
            f"{directory} is one version: give the directory above it."
        )
    raise FileNotFoundError(
        f"{directory} holds no SavedModel: no directory that has a version number as "
        "its name, such as 1."
    )


class ModelVersions:
    """A directory of versions, one of them served.

    Args:
        directory: NAME, with a SavedModel in each NAME/VERSION.
        load: Called with the path of a version in a thread; returns its model.
    """

    def __init__(self, directory: str | Path, load: Callable[[Path], Any]):
        self.directory = Path(directory)
        self.name = self.directory.resolve().name
        self.served: int | None = None
        self._load = load
        self._loads: set[concurrent.futures.Future] = set()
        self._versions: dict[int, _Version] = {}
        self._has_garbage = False

    @property
    def is_loading(self) -> bool:
        """Whether a version is being loaded, even one that was given up."""
        return bool(self._loads)

    async def load_first(self):
        """Loads the highest version that loads.

        Raises:
            ValueError: If none loads.
        """
        while self.served is None and (number := self._wanted()) is not None:
            await self._switch_to(number)
        if self.served is None:
            reasons = "; ".join(
                f"version {number}: {version.error_message}"
                for number, version in sorted(self._versions.items(), reverse=True)
            )
            raise ValueError(f"{self.directory} has no version that loads. {reasons}")

    async def watch(self):
        """Looks for new versions until it is cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.poll()
            except Exception:
                logger.exception("cannot look for versions in %s", self.directory)

    async def poll(self):
        """Switches to another version if it is time to."""
        if self._has_garbage:
            # Reference cycles keep a SavedModel alive, perhaps gigabytes of weights.
            self._has_garbage = False
            gc.collect()
        number = self._wanted()
        if number not in (None, self.served):
            await self._switch_to(number)

    @contextlib.contextmanager
    def lease(self, name: str, number: int | None) -> Iterator[tuple[int, Any]]:
        """Gives a version's number and model, which stays loaded meanwhile.

        Args:
            name: The model's name, as the request has it.
            number: The version; `None` is the served one.

        Raises:
            RequestError: If that version is not served (404).
        """
        if name != self.name or number not in (None, self.served):
            which = (
                f"Latest({name})" if number is None else f"Specific({name}, {number})"
            )
            raise RequestError(404, f"Servable not found for request: {which}")
        number = self.served
        version = self._versions[number]
        version.requests += 1
        try:
            yield number, version.model
        finally:
            version.requests -= 1
            self._drop_if_idle(number)

    def status(self, name: str, number: int | None) -> dict:
        """Returns the state of one version or of all, as TensorFlow Serving's JSON.

        Args:
            name: The model's name, as the request has it.
            number: The version; `None` is all of them.

        Raises:
            RequestError: If the model or the version was never seen (404).
        """
        known = self._versions if name == self.name else {}
        if number is not None and number not in known:
            raise RequestError(404, f"Could not find version {number} of model {name}")
        if not known:
            raise RequestError(404, f"Could not find any versions of model {name}")
        numbers = sorted(known, reverse=True) if number is None else [number]
        return {"model_version_status": [self._status_of(n) for n in numbers]}

    def _status_of(self, number):
        version = self._versions[number]
        status = {
            "error_code": version.error_code,
            "error_message": version.error_message,
        }
        return {"version": str(number), "state": version.state, "status": status}

    def _wanted(self):
        """Returns the highest version that has not failed, or `None`."""
        for number, path in _on_disk(self.directory).items():
            version = self._versions.get(number)
            failed = None if version is None else version.failed
            if failed is None or failed != _files_of(path):
                return number
        return None

    async def _switch_to(self, number):
        path = _on_disk(self.directory).get(number)
        if path is None:
            return
        version = self._versions[number] = _Version("LOADING")
        files = _files_of(path)
        try:
            _check_regular(path)
            model = await self._load_unless_stuck(number, path)
        except Exception as error:
            version.state, version.failed = "END", files
            version.error_code = code_name(error)
            version.error_message = describe(error)
            logger.error("%s does not load: %s", path, version.error_message)
            return
        version.state, version.model = "AVAILABLE", model
        old, self.served = self.served, number
        logger.info("version %d is served", number)
        if old is not None:
            self._versions[old].state = "UNLOADING"
            self._drop_if_idle(old)

    async def _load_unless_stuck(self, number, path):
        load = asyncio.wrap_future(self._start_load(path))
        await asyncio.wait([load], timeout=LOAD_SECONDS)
        while not load.done():
            if self._wanted() != number:
                load.cancel()
                raise TimeoutError(f"not loaded after {LOAD_SECONDS:g} seconds")
            await asyncio.wait([load], timeout=POLL_SECONDS)
        return load.result()

    def _start_load(self, path):
        load = concurrent.futures.Future()
        load.set_running_or_notify_cancel()
        load.add_done_callback(self._loads.discard)
        self._loads.add(load)

        def run():
            try:
                load.set_result(self._load(path))
            except Exception as error:
                load.set_exception(error)

        # Not from a pool: Python waits for its threads, and this one may never end.
        threading.Thread(target=run, name="loader", daemon=True).start()
        return load

    def _drop_if_idle(self, number):
        version = self._versions[number]
        if version.state == "UNLOADING" and not version.requests:
            version.state, version.model = "END", None
            self._has_garbage = True
            logger.info("version %d is unloaded", number)


def _on_disk(directory):
    """Returns the directories whose names are version numbers, highest first."""
    if not directory.is_dir():
        return {}
    numbers = {
        int(child.name): child
        for child in directory.iterdir()
        if child.name.isascii() and child.name.isdecimal() and child.is_dir()
    }
    known = {n: path for n, path in numbers.items() if n <= LARGEST_VERSION}
    return dict(sorted(known.items(), reverse=True))


def _files_of(path):
    """Returns names, sizes and times of a directory's files, which show a change."""
    found = set()
    for child in path.rglob("*"):
        with contextlib.suppress(OSError):
            stat = child.stat()
            found.add((str(child), stat.st_size, stat.st_mtime_ns))
    return frozenset(found)


def _check_regular(path):
    """Raises an error for named pipes and the like: reading one may never end."""
    for child in path.rglob("*"):
        if child.exists() and not (child.is_file() or child.is_dir()):
            raise ValueError(f"{child} is neither a file nor a directory")
