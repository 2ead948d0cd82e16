"""Connections of browsers: how long each may take, and which one is closed when there are too many."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from typing import Any, ClassVar, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...protocol.hosts import network_of

HEADER_SECONDS = 10.0
"""Seconds for the TLS handshake, and then for the header of a request."""
BODY_SECONDS = 60.0
"""Seconds for the body of a request."""
STUCK_SECONDS = 30.0
"""Seconds for which a browser may take nothing of a response."""


class Closable(Protocol):
    """A connection. ``network``: where it comes from."""

    network: str

    @property
    def is_waiting(self) -> bool:
        """Predicate: does the console wait for the other side?"""

    def drop(self) -> None:
        """Close the connection at once."""


class ConnectionLimit:
    """The open connections, the oldest first. At the maximum, a new one takes the place of one that waits for its
    browser: of the network with most of these, the oldest."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._open: dict[Closable, None] = {}

    def add(self, connection: Closable) -> None:
        """Count a new connection, and close another one if there are too many."""
        if len(self._open) >= self.maximum:
            waiting = [each for each in self._open if each.is_waiting]
            if waiting:
                ((busiest, _),) = Counter(each.network for each in waiting).most_common(1)
                next(each for each in waiting if each.network == busiest).drop()
        self._open[connection] = None

    def remove(self, connection: Closable) -> None:
        """Forget a connection that is closed."""
        self._open.pop(connection, None)


class BrowserConnection(H11Protocol):
    """uvicorn's connection with time limits. ``limit``: shared by all connections of a server."""

    limit: ClassVar[ConnectionLimit]
    network = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._phase: Any = None
        self.network = network_of(self.client[0] if self.client else "")
        self.limit.add(self)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limits."""
        self.limit.remove(self)
        for timer in (self._deadline, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Begin to wait until the browser takes more of a response."""
        super().pause_writing()
        self._stuck = self.loop.call_later(STUCK_SECONDS, self.drop)

    def resume_writing(self) -> None:
        """Go on with a response."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    @property
    def is_waiting(self) -> bool:
        """Predicate: has at most a part of a request arrived?"""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def drop(self) -> None:
        """Close the connection at once."""
        self.limit.remove(self)
        self.connections.discard(self)  # before the loop says that it is lost, so that others are served meanwhile
        self.transport.abort()

    def _look(self) -> None:
        """Start the time limit of a new phase: waiting for a header, for the rest of a body, or for the console."""
        if self.conn.their_state is self._phase:
            return
        self._phase = self.conn.their_state
        if self._deadline is not None:
            self._deadline.cancel()
        seconds = {h11.IDLE: HEADER_SECONDS, h11.SEND_BODY: BODY_SECONDS}.get(self._phase)
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.drop)


class TlsHandshake(asyncio.Protocol):
    """A connection until TLS is agreed on, which counts as any other one. ``context``, ``served``: TLS, and the class
    of the connections afterwards."""

    context: ClassVar[ssl.SSLContext | None]
    served: ClassVar[type[BrowserConnection]]
    is_waiting = True

    def __init__(self, **given: Any) -> None:
        """``given``: what uvicorn passes to its connections."""
        self._given = given
        self._early = b""
        self.network = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.pause_reading()  # the first bytes are for the handshake
        peer = transport.get_extra_info("peername")
        self.network = network_of(peer[0] if peer else "")
        self.served.limit.add(self)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        """Keep what comes right behind the handshake."""
        self._early += data

    def drop(self) -> None:
        """Close the connection at once."""
        self.served.limit.remove(self)
        self._transport.abort()

    async def _shake_hands(self) -> None:
        assert self.context is not None
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport, self, self.context, server_side=True, ssl_handshake_timeout=HEADER_SECONDS
            )
        except OSError:  # also of TLS, and the time limit: no page could show the reason
            self._transport.abort()
            return
        finally:
            self.served.limit.remove(self)
        if transport is None or transport.is_closing():
            return
        connection = self.served(**self._given)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if self._early:
            connection.data_received(self._early)
