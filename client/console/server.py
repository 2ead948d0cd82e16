"""The console's process: opens the port, prints its address, and serves until it is told to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...protocol.errors import ConfigurationError
from ...protocol.names import network_of
from .app import Console, make_app
from .policy import ConsoleOptions

# ---- Connections of browsers: how long each may take, and which one is closed when there are too many.

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


CONNECTIONS_MAX = 500
"""Maximum number of open connections. A further one takes the place of one that waits for its browser, if any does."""
REQUESTS_MAX = 1_000
"""Maximum number of requests, those of connections that were just lost included, and of connections of which none waits
for its browser; further requests get the status 503."""
STOP_SECONDS = 2
NICENESS = 10
"""Lower priority of the process: on a machine that it shares with the broker, a page waits for the broker's clients and
not they for a page."""


def serve(options: ConsoleOptions, ready: Callable[[str], None]) -> None:
    """Serve the console until SIGTERM or Ctrl-C. ``ready``: called with its URL when it accepts connections.

    Raises ``ConfigurationError`` if the address is in use.
    """
    listener = _listen(options)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    try:
        asyncio.run(serve_on(listener, options, ready))
    finally:
        listener.close()


async def serve_on(listener: socket.socket, options: ConsoleOptions, ready: Callable[[str], None]) -> None:
    """Serve the console on a bound socket until a signal arrives or the task is cancelled."""
    options = dataclasses.replace(options, port=listener.getsockname()[1])  # the real one, if it was 0
    console = Console(options)

    class Connection(BrowserConnection):
        limit = ConnectionLimit(CONNECTIONS_MAX)

    class Handshake(TlsHandshake):
        served = Connection
        context = _tls_of(options)

    config = uvicorn.Config(
        make_app(console),
        http=Handshake if options.certificate else Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the console reads X-Forwarded-For itself, and only if it is told to
        limit_concurrency=REQUESTS_MAX,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = _Server(config, console)
    scheme = "https" if options.certificate else "http"
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    gc.collect()
    gc.freeze()  # later collections skip the modules and templates, which live as long as the process
    ready(f"{scheme}://{shown}:{port}/")
    await server.serve(sockets=[listener])


def _tls_of(options: ConsoleOptions) -> ssl.SSLContext | None:
    if options.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(options.certificate, options.key)
    return context


class _Server(uvicorn.Server):
    """A server that ends live streams before it stops: uvicorn would wait for them."""

    def __init__(self, config: uvicorn.Config, console: Console) -> None:
        super().__init__(config)
        self._console = console

    def stop(self) -> None:
        self._console.ending.set()
        self.should_exit = True

    def capture_signals(self):  # type: ignore[no-untyped-def] # a context manager of uvicorn's own
        """Leave the signals to ``serve_on``: uvicorn would raise them again after it has stopped."""
        import contextlib

        return contextlib.nullcontext()


def _listen(options: ConsoleOptions) -> socket.socket:
    """Return a bound, listening socket. Raises ``ConfigurationError`` with the reason."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        raise ConfigurationError(
            f"the console cannot listen on {options.host}:{options.port}: {error.strerror or error}; choose another "
            "address with --listen HOST:PORT"
        ) from None
    return listener
