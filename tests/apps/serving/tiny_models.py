"""A SavedModel of a few operations, and servers in threads."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import httpx
import tensorflow as tf
import uvicorn

from keras_transformer.apps.serving.rest_app import make_app
from keras_transformer.apps.serving.served_model import ServedModel
from keras_transformer.apps.serving.server import address, listening

SECONDS = 60.0


def _spec(name, dtype, *inner):
    return tf.TensorSpec([None, *inner], dtype, name=name)


class TinyModule(tf.Module):
    """Signatures of many types whose answers are easy to work out."""

    @tf.function(input_signature=[_spec("text", tf.string)])
    def upper(self, text):
        return {"upper": tf.strings.upper(text, encoding="utf-8")}

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

    @tf.function(input_signature=[_spec("text", tf.string)])
    def letters(self, text):
        """[B, T] letters, "" where padded: T is that of the longest text."""
        ragged = tf.strings.unicode_split(text, "UTF-8", errors="replace")
        return {"letters": ragged.to_tensor(""), "count": ragged.row_lengths()}

    @tf.function(input_signature=[_spec("data_bytes", tf.string)])
    def echo(self, data_bytes):
        return {"same_bytes": data_bytes}

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

    @tf.function(input_signature=[tf.TensorSpec([2], tf.int32, name="x")])
    def first(self, x):
        return {"y": x[0]}

    @tf.function(input_signature=[_spec("steps", tf.int32)])
    def spin(self, steps):
        """Takes about a second for 300,000 steps."""
        last = tf.reduce_max(steps)
        count = tf.while_loop(lambda i: i < last, lambda i: [i + 1], [0])[0]
        return {"count": tf.fill(tf.shape(steps), count)}


def write_model(directory: Path, version: int) -> Path:
    """Writes `directory`/`version`."""
    module, path = TinyModule(), directory / str(version)
    names = ("repeat", "half", "total", "letters", "echo", "kinds", "first", "spin")
    signatures = {name: getattr(module, name) for name in names}
    signatures["serving_default"] = module.upper
    tf.saved_model.save(module, str(path), signatures=signatures)
    return path


class Client:
    """Asks the model at a URL."""

    def __init__(self, url):
        self.url = url
        self.client = httpx.Client(timeout=SECONDS)

    def predict(self, body):
        """POSTs JSON."""
        return self.client.post(self.url + ":predict", json=body)


@contextlib.contextmanager
def running(directory):
    """Serves version 1 of a model in a thread; gives its `Client`."""
    model = ServedModel(directory / "1")
    with serving(make_app(model, "127.0.0.1")) as url:
        client = Client(f"{url}/v1/models/{model.name}")
        with client.client:
            yield client


@contextlib.contextmanager
def serving(app, port=0):
    """Serves an application in a thread; gives its address."""
    with listening("127.0.0.1", port) as listener:
        listener.listen()
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield address(listener)
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive()
