"""The options of the playground; the command line builds its flags from them."""

from __future__ import annotations

import dataclasses

from keras_transformer.config.options import Config, documented, option


@documented
@dataclasses.dataclass(frozen=True)
class PlaygroundConfig(Config):
    """Where the playground listens, and how long a text may be."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(
        8600, "port to listen on; 0 picks a free one", minimum=0, maximum=65535
    )
    max_text_length: int = option(
        2000, "longest text and beginning (characters)", minimum=1, maximum=10_000
    )
