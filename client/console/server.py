"""The console's process: opens the port, prints its address, and serves until it is told to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import signal
import socket
import ssl
from collections.abc import Callable

import uvicorn

from ...protocol.errors import ConfigurationError
from .app import Console, make_app
from .connections import BrowserConnection, ConnectionLimit, TlsHandshake
from .options import ConsoleOptions

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
        """Stop serving soon."""
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
