"""Limits on connections: their number, and the time for the head of a request.

uvicorn has neither limit: clients that send nothing could use up the descriptors of the
process and keep everyone else out. Needs uvicorn.
"""

from __future__ import annotations

import functools
import os
import resource
import socket

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 75
_MOST_CONNECTIONS = 1024
# asyncio accepts up to this many in each turn of its loop. A connection that is closed
# at once still holds its descriptor for up to four turns.
_ACCEPTED_AT_ONCE = 16
# For those, and for the files of a version that is loaded meanwhile.
_RESERVED_DESCRIPTORS = 4 * _ACCEPTED_AT_ONCE + 32


class Listener(socket.socket):
    """A listening socket that lets more clients wait than asyncio accepts at once."""

    def listen(self, backlog: int = 0):
        """Starts to listen; the `backlog` that asyncio asks for is ignored."""
        super().listen(socket.SOMAXCONN)


class Connection(H11Protocol):
    """A connection that is closed if the head of a request comes too slowly.

    When there are too many connections, the one that has sent no request for longest is
    closed, so that a client that sends one at once always finds room.

    Args:
        most: Most connections at a time.
        **options: What uvicorn passes.
    """

    def __init__(self, most: int, **options):
        super().__init__(**options)
        self._most = most
        self._head_timer = None
        self._is_dropped = False
        self._waits_since = self.loop.time()

    def connection_made(self, transport):
        """Makes room for a new connection; called by asyncio."""
        super().connection_made(transport)
        self._set_head_timer()
        kept = [other for other in self.connections if not other._is_dropped]
        if len(kept) > self._most:
            waiting = [other for other in kept if other._waits_for_head()]
            min(waiting, key=lambda other: other._waits_since)._drop()

    def data_received(self, data):
        """Reads what a client sends, in pieces; called by asyncio."""
        super().data_received(data)
        self._set_head_timer()

    def on_response_complete(self):
        """Notes the end of an answer; called by uvicorn."""
        super().on_response_complete()
        self._waits_since = self.loop.time()

    def _waits_for_head(self):
        return self.cycle is None or self.cycle.response_complete

    def _set_head_timer(self):
        """Runs the timer from the first byte of a head to its last."""
        if self._waits_for_head():
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_SECONDS, self._drop)
        elif self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _drop(self):
        self._is_dropped = True
        self.transport.abort()


def most_connections() -> int:
    """Returns how many connections this process has descriptors for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    free = limit - len(os.listdir("/dev/fd")) - _RESERVED_DESCRIPTORS
    return max(1, min(_MOST_CONNECTIONS, free))


def uvicorn_server(app, drain_timeout_s: float) -> uvicorn.Server:
    """Returns the server of an application.

    Args:
        app: An ASGI application.
        drain_timeout_s: Longest wait for running requests at the end (seconds).
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=functools.partial(Connection, most_connections()),
            ws="none",
            loop="asyncio",
            lifespan="off",
            access_log=False,
            # Warnings are about what clients send, who could fill the disk with them.
            log_level="error",
            server_header=False,
            backlog=_ACCEPTED_AT_ONCE,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=drain_timeout_s,
        )
    )
