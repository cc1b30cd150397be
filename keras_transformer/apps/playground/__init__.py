"""A page on this machine to try a training run with.

Importing it loads neither TensorFlow nor the web server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keras_transformer.apps.serving.server import listening, run
from keras_transformer.search.run_directory import trained_directory
from keras_transformer.terminal import native_messages_hidden

__all__ = ["play"]


def play(
    directory: str | Path,
    host: str = "127.0.0.1",
    port: int = 8600,
    languages: Sequence[str] | None = None,
) -> None:
    """Serves a page on which to try the translator of a training run.

    The page translates while one types, shows other translations with their scores, and
    what each word looks at. It is for the person at this machine: whoever reaches the
    address may use the model. It returns at Ctrl-C.

    Args:
        directory: Directory of the run.
        host: Address to listen on. At any but 0.0.0.0 and :: a request must name it, or
            this machine, in its `Host`.
        port: Port to listen on; 0 picks a free one.
        languages: Codes of source and target language for the page, such as "en" and
            "de", or `None`.

    Raises:
        FileNotFoundError: If the directory holds no run, or a part of it is missing.
        ImportError: If starlette or uvicorn is not installed.
        OSError: If the port cannot be had.
        ValueError: If the run is damaged, the port is out of range, or the languages
            are not two.

    Example:
        >>> play("runs/en-de", languages=["en", "de"])
    """
    if languages is not None and len(languages) != 2:
        raise ValueError(
            "`languages` must be those of source and target. Received: "
            f"languages={languages!r}"
        )
    trained_directory(directory)
    with listening(host, port, extra="playground") as listener:
        with native_messages_hidden():
            from keras_transformer.apps.playground.page_app import make_app
            from keras_transformer.apps.playground.played_run import PlayedRun

        app = make_app(PlayedRun(directory), host, languages)
        run(app, listener, "/", "warning")
