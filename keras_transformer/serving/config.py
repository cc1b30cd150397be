"""The options of the local server; the command line builds its flags from them."""

from __future__ import annotations

import dataclasses

from keras_transformer.config.options import Config, documented, option


@documented
@dataclasses.dataclass(frozen=True)
class ServingConfig(Config):
    """Where the local server listens, and its limits."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(
        8501, "port to listen on; 0 picks a free one", minimum=0, maximum=65535
    )
    max_batch_size: int | None = option(
        None,
        "instances that run together: a larger request is cut into several batches "
        "(default: as in batching_parameters.txt beside the versions, or 32)",
        minimum=1,
    )
    max_instances: int = option(1024, "most instances of one request", minimum=1)
    max_request_mib: float = option(8.0, "largest request body (MiB)", above=0.0)
    max_concurrent: int = option(
        128, "requests in progress; further ones are answered 503", minimum=1
    )
    request_timeout_s: float = option(
        30.0, "longest that a request may take (seconds)", above=0.0
    )
    drain_timeout_s: float = option(
        30.0, "longest wait for running requests at the end (seconds)", above=0.0
    )
