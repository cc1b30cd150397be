"""SavedModels of a few operations, and a server of them in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import httpx
import tensorflow as tf

from keras_transformer.serving import ServingConfig
from keras_transformer.serving.app import RestApi
from keras_transformer.serving.batching import Workers
from keras_transformer.serving.connections import uvicorn_server
from keras_transformer.serving.served_model import ServedModel
from keras_transformer.serving.server import bind
from keras_transformer.serving.versions import ModelVersions

SECONDS = 60.0


def _spec(name, dtype, *inner):
    return tf.TensorSpec([None, *inner], dtype, name=name)


class TinyModule(tf.Module):
    """Signatures of many types whose answers are easy to work out."""

    def __init__(self, prefix):
        super().__init__()
        self.prefix = tf.Variable(prefix)

    @tf.function(input_signature=[_spec("text", tf.string)])
    def upper(self, text):
        return {"upper": self.prefix + tf.strings.upper(text, encoding="utf-8")}

    @tf.function(input_signature=[_spec("text", tf.string), _spec("times", tf.int32)])
    def repeat(self, text, times):
        """`text` repeated and its bytes counted; times=0 fails the whole run."""
        check = tf.debugging.assert_positive(times, message="times must be positive")
        with tf.control_dependencies([check]):
            ragged = tf.RaggedTensor.from_row_lengths(tf.repeat(text, times), times)
        joined = tf.strings.reduce_join(ragged, axis=1)
        return {"joined": joined, "length": tf.strings.length(joined)}

    @tf.function(input_signature=[_spec("x", tf.float32, 2)])
    def half(self, x):
        return {"y": x / 2}

    @tf.function(input_signature=[_spec("x", tf.float32)])
    def total(self, x):
        return {"y": x, "sum": tf.reduce_sum(x)}

    @tf.function(input_signature=[_spec("x", tf.float32)])
    def halve_rows(self, x):
        """One row for two of the input, though its shape does not tell."""
        return {"y": x[: tf.shape(x)[0] // 2]}

    @tf.function(input_signature=[_spec("text", tf.string)])
    def letters(self, text):
        """[B, T] letters, "" where padded: T is that of the longest text."""
        ragged = tf.strings.unicode_split(text, "UTF-8", errors="replace")
        return {"letters": ragged.to_tensor(""), "count": ragged.row_lengths()}

    @tf.function(input_signature=[_spec("data", tf.string)])
    def echo(self, data):
        return {"same_bytes": data}

    @tf.function(
        input_signature=[
            _spec("flag", tf.bool),
            _spec("wide", tf.int64),
            _spec("exact", tf.float64),
            _spec("small", tf.uint8),
        ]
    )
    def kinds(self, flag, wide, exact, small):
        return {"flag": ~flag, "wide": -wide, "exact": exact, "small": small + 1}

    @tf.function(input_signature=[_spec("steps", tf.int32)])
    def spin(self, steps):
        """Takes about a second for 300,000 steps."""
        last = tf.reduce_max(steps)
        count = tf.while_loop(lambda i: i < last, lambda i: [i + 1], [0])[0]
        return {"count": tf.fill(tf.shape(steps), count)}


def write_model(directory: Path, version: int, prefix: str = "") -> Path:
    """Writes `directory`/`version` whole; `prefix` goes before each "upper"."""
    module = TinyModule(prefix)
    names = ("repeat", "half", "total", "halve_rows", "letters", "echo", "kinds")
    signatures = {name: getattr(module, name) for name in (*names, "spin")}
    partial = directory / f".{version}.partial"
    tf.saved_model.save(
        module, str(partial), signatures={"serving_default": module.upper, **signatures}
    )
    return partial.rename(directory / str(version))


class RunningServer:
    """A server of a model's directory, in a thread, on a free port."""

    def __init__(self, directory, **options):
        self.config = ServingConfig(port=0, **options)
        self.workers = Workers(2)
        self.versions = ModelVersions(
            directory, lambda path: ServedModel(path, self.workers, self.config)
        )
        app = RestApi(self.versions, self.config)
        self.server = uvicorn_server(app, self.config.drain_timeout_s)
        self._socket = bind(self.config.host, self.config.port)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        wait_until(lambda: self.server.started or not self._thread.is_alive())
        port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1/models/{self.versions.name}"
        self.client = httpx.Client(timeout=SECONDS)

    async def _run(self):
        await self.versions.load_first()
        watching = asyncio.create_task(self.versions.watch())
        await self.server.serve(sockets=[self._socket])
        watching.cancel()

    def predict(self, body, path=":predict"):
        """POSTs JSON, or the bytes themselves."""
        content = {"content" if isinstance(body, bytes) else "json": body}
        return self.client.post(self.url + path, **content)

    def close(self):
        """Drains as SIGTERM makes it do."""
        self.server.should_exit = True
        self._thread.join(SECONDS)
        self.client.close()
        self._socket.close()
        assert not self._thread.is_alive()


@contextlib.contextmanager
def running(directory, **options):
    """Gives a `RunningServer` and closes it."""
    server = RunningServer(directory, **options)
    try:
        yield server
    finally:
        server.close()


def wait_until(condition):
    """Returns when `condition()` holds; fails after a minute."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.01)
