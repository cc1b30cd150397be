"""The playground's server: listens, loads its models, answers, ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from keras_transformer.playground.config import PlaygroundConfig
from keras_transformer.playground.directories import check_models
from keras_transformer.serving.server import (
    bind,
    check_installed,
    end_at_signals,
    log_to_stderr,
    shown_address,
)

# A question that still runs when the server is told to end is waited for so long.
_DRAIN_SECONDS = 5.0

logger = logging.getLogger(__package__)


def play(
    path: str | Path,
    host: str = "127.0.0.1",
    port: int = 8600,
    languages: Sequence[str] | None = None,
):
    """Serves a page on which to try one translator, or two side by side.

    It is for the person at this machine: whoever reaches the address may use the
    models. It returns when the process gets SIGTERM or SIGINT.

    Args:
        path: Directory of a training run.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        languages: Codes of source and target language for the page, such as "en" and
            "de", or `None`.

    Raises:
        FileNotFoundError: If a directory or a part of a model is missing.
        ImportError: If starlette or uvicorn is not installed.
        OSError: If the port is taken.
        ValueError: If there are more than two models, a directory holds none or one
            that is no translator, or the languages are not two.

    Example:
        >>> play("runs/en-de", languages=["en", "de"])
    """
    config, paths = PlaygroundConfig(host=host, port=port), [path]
    if languages is not None and len(languages) != 2:
        raise ValueError(
            "`languages` must be those of source and target. Received: "
            f"languages={languages!r}"
        )
    check_models(paths)
    check_installed("The playground", "playground")
    log_to_stderr(logger)
    with bind(config.host, config.port) as listener:
        # Here, so that a wrong directory or port is reported before TensorFlow loads.
        from keras_transformer.playground.models import load_models

        models = load_models(paths)
        asyncio.run(_serve(models, config, languages, listener))


async def _serve(models, config, languages, listener):
    from keras_transformer.playground.app import Playground
    from keras_transformer.serving.connections import uvicorn_server

    playground = Playground(models, config, languages)
    server = uvicorn_server(playground, _DRAIN_SECONDS)
    end_at_signals(server)
    listener.listen()
    logger.info("open %s (Ctrl-C ends it)", shown_address(listener))
    warming = asyncio.create_task(playground.warm())
    await server.serve(sockets=[listener])
    warming.cancel()
    logger.info("the playground has ended")
