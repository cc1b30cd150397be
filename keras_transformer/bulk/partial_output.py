"""A file written window by window, which a later process can continue.

While it is written there is a folder OUTPUT.partial with two files:

    translations   what OUTPUT will hold
    journal.jsonl  a line about the job, then one for each window: source lines done,
                   bytes of `translations`, digest of those source lines

A window's translations reach the disk before its line in the journal does, so bytes
that the journal does not count are left over from a crash, and are cut off. The folder
is locked while a process writes; the lock ends with the process, however it ends.

Others may be allowed to write to the directory around it. So a folder found there is
continued only if it is the user's own and holds nothing but plain files.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gzip
import hashlib
import itertools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.files import (
    check_not_directory,
    naming,
    sync_directory,
    take_lock,
)
from keras_transformer.text.lines import one_line

_FORMAT = 1


class PartialOutput:
    """Writes OUTPUT window by window; it appears under its name when it is whole.

    Use it as a context manager. Every window whose `append` has returned is kept, even
    if the block ends without `finish` or the process dies.

    Args:
        output: File to write; each window is a gzip member if its name ends in ".gz".
        fingerprint: Names what makes the translations: the model and its options.

    Raises:
        BlockingIOError: If another process is writing `output`.
        IsADirectoryError: If `output` is a directory.
        ValueError: If `output` is a pipe or a device; if OUTPUT.partial belongs to
            somebody else, has links, or was made with another `fingerprint`.

    Example:
        >>> with PartialOutput("out.txt", "model 1") as partial:
        ...     texts = iter(["a dog", "a cat"])
        ...     partial.skip_done(texts)
        ...     for text in texts:
        ...         partial.append([text], [translate(text)])
        ...     partial.finish()
    """

    def __init__(self, output: str | Path, fingerprint: str):
        self.output = Path(output)
        self.fingerprint = fingerprint
        self.folder = self.output.with_name(f"{self.output.name}.partial")
        self.lines = 0  # source lines whose translations are kept
        self._bytes = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._expected_digest = self._digest.hexdigest()
        self._check_output()

    def _check_output(self):
        check_not_directory(self.output)
        if self.output.exists() and not self.output.is_file():
            raise ValueError(
                f"{self.output} must be a regular file: translations are written "
                "beside it and moved there when they are whole."
            )

    def __enter__(self):
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir()
        self._lock = self._locked()
        try:
            self._check_entries()
            self._recover()
            self._translations = self._open("translations", "ab")
            self._journal = self._open("journal.jsonl", "ab")
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *exception):
        for stream in (self._translations, self._journal):
            # On a full disk, closing fails as writing did, which has raised already.
            with contextlib.suppress(OSError):
                stream.close()
        os.close(self._lock)

    def _locked(self):
        """Locks the folder and returns the descriptor that holds the lock."""
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            descriptor = os.open(self.folder, flags)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise self._refused("it is a link or a file") from None
        try:
            if os.fstat(descriptor).st_uid != self._owner:
                raise self._refused("it belongs to somebody else")
            # Its last holder may have removed it since it was opened.
            if take_lock(descriptor, self.folder):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        raise BlockingIOError(
            f"Another process is writing {self.output}. Wait until it ends, or choose "
            "another output."
        )

    @functools.cached_property
    def _owner(self):
        """The owner of files written here; on a network maybe not the process' user."""
        with tempfile.TemporaryFile(dir=self.output.parent) as new:
            return os.fstat(new.fileno()).st_uid

    def _check_entries(self):
        with os.scandir(self._lock) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                    raise self._refused(f"{entry.name} in it is a link or not a file")
                if status.st_uid != self._owner:
                    raise self._refused(f"{entry.name} in it belongs to somebody else")

    def _refused(self, reason):
        return ValueError(
            f"{self.folder} must be a directory of your own with plain files in it: "
            "unfinished translations are kept there. Remove it or choose another "
            f"output. Received: {reason}"
        )

    def _open(self, name, mode):
        """Opens a file in the locked folder; never follows a link."""

        def opener(path, flags):
            with naming(path, name):
                return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=self._lock)

        return open(self.folder / name, mode, opener=opener)

    def _recover(self):
        """Cuts both files back to the last window that is whole in both."""
        job, *windows = list(self._whole_lines()) or [None]
        if job is None:
            self._begin()
            return
        if json.loads(job)["fingerprint"] != self.fingerprint:
            raise self._mismatch("another model or other options")
        self._return_finished(windows)
        with self._open("translations", "ab") as stream:
            size = stream.tell()
            while windows and json.loads(windows[-1])["bytes"] > size:
                windows.pop()
            if windows:
                last = json.loads(windows[-1])
                self.lines, self._bytes = last["lines"], last["bytes"]
                self._expected_digest = last["source"]
            stream.truncate(self._bytes)
        with self._open("journal.jsonl", "ab") as stream:
            stream.truncate(len(job) + sum(map(len, windows)))

    def _whole_lines(self):
        """Yields the lines of the journal up to one that a crash left half-written."""
        try:
            stream = self._open("journal.jsonl", "rb")
        except FileNotFoundError:
            return
        with stream:
            for line in stream:
                try:
                    json.loads(line)
                except ValueError:
                    return
                if not line.endswith(b"\n"):
                    return
                yield line

    def _begin(self):
        self._open("translations", "wb").close()
        job = {"format": _FORMAT, "fingerprint": self.fingerprint}
        with self._open("journal.jsonl", "wb") as stream:
            _append(stream, json.dumps(job).encode() + b"\n")
        os.fsync(self._lock)

    def _return_finished(self, windows):
        """Undoes a `finish` that was killed before it removed the folder."""
        exists = (self.folder / "translations").exists()
        if exists or not windows or not self.output.is_file():
            return
        if self.output.stat().st_size == json.loads(windows[-1])["bytes"]:
            # A copy, since the output is whole and must stay so.
            with (
                open(self.output, "rb") as whole,
                self._open("translations", "wb") as copy,
            ):
                shutil.copyfileobj(whole, copy)

    def _mismatch(self, other):
        return ValueError(
            f"{self.folder} holds an unfinished translation with {other}. To continue "
            "it, use what it was begun with. To start again, remove it: "
            f"rm -r {self.folder}"
        )

    def skip_done(self, texts: Iterator[str]):
        """Skips the first lines of `texts`, those whose translations are kept.

        Args:
            texts: Iterator over the lines of the source, from the first.

        Raises:
            ValueError: If they are not the lines that were translated.
        """
        for text in itertools.islice(texts, self.lines):
            self._update_digest(text)
        if self._digest.hexdigest() != self._expected_digest:
            raise self._mismatch("another input: its first lines have changed since")

    def _update_digest(self, text):
        self._digest.update(text.encode("utf-8") + b"\n")

    def append(self, texts: list[str], translations: list[str]):
        """Adds a window; once this returns, no crash can lose it.

        Args:
            texts: The next lines of the source.
            translations: Their translations; line breaks in one become spaces.
        """
        for text in texts:
            self._update_digest(text)
        content = self._encode(translations)
        _append(self._translations, content)
        self.lines += len(texts)
        self._bytes += len(content)
        window = {
            "lines": self.lines,
            "bytes": self._bytes,
            "source": self._digest.hexdigest(),
        }
        _append(self._journal, json.dumps(window).encode() + b"\n")

    def _encode(self, translations):
        content = "".join(one_line(text) + "\n" for text in translations)
        content = content.encode("utf-8")
        if self.output.suffix == ".gz":
            # No time and no name in the header: a resumed file has the same bytes.
            return gzip.compress(content, mtime=0)
        return content

    def finish(self):
        """Gives the file its name and removes the folder."""
        if not self._bytes:
            # Even without a line, a gzip file has a header.
            _append(self._translations, self._encode([]))
        os.replace("translations", self.output, src_dir_fd=self._lock)
        sync_directory(self.output.parent)
        shutil.rmtree(self.folder)


def _append(stream, content):
    with naming(stream.name):
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
