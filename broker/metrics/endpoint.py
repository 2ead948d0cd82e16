"""The metrics endpoint: ``/metrics``, ``/healthz`` and ``/readyz`` from a small HTTP/1.1 server for a few pages.

The port opens before the store is recovered and closes last, so that a supervisor can distinguish a broker that is
starting or stopping from one that hangs.

The server takes GET and HEAD, one request per connection. It runs on the broker's event loop, so no client may cost
much: a request has at most ``HEAD_BYTES_MAX``, must arrive within ``HEAD_S``, on one of at most ``CONNECTIONS_MAX``
connections; the server never reads a body. That of prometheus-client (wsgiref) starts a thread for each connection,
without a limit, and has no time limit for a request: clients that send nothing, or a byte now and then, would fill the
process with threads.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from ...protocol.errors import ConfigurationError
from ...protocol.names import AllowedHosts
from ..addresses import parse_address
from ..background.loop_work import Service
from ..config import METRICS_OFF
from ..net.server import bind
from ..requests.broker import Broker
from .collector import CONTENT_TYPE, metrics_text

# ---- Check of the Host header of requests to the metrics endpoint, which protects it from DNS rebinding.

_HOST_LINE = re.compile(rb"^host[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class Hosts:
    """Allowed names: loopback, the host in ``listen`` (HOST:PORT or ""), and ``names`` (separated by ``;``)."""

    def __init__(self, listen: str, names: str) -> None:
        own = [parse_address(listen)[0]] if listen else []
        self._allowed = AllowedHosts([*own, *names.split(";")])

    def refusal(self, head: bytes, local_address: str) -> str:
        """Return why a request with this head must be refused, or "". ``local_address``: the address it arrived at.

        A request without a Host is accepted, because it does not come from a browser.
        """
        given = _HOST_LINE.findall(head)
        if not given:
            return ""
        if len(given) > 1:
            return "a request must have only one Host"
        name = given[0].decode("latin-1")
        if self._allowed.allows(name, local_address):
            return ""
        return (
            f"{name[:100]!a} is not an allowed name of this broker; to allow it, add it to metrics.hosts at the broker"
        )


log = logging.getLogger(__name__)

CONNECTIONS_MAX = 16
HEAD_BYTES_MAX = 8192
HEAD_S = 5.0
"""Time for a client to send its request."""
ANSWER_S = 30.0
"""Time until the client has received the response."""
LINGER_S = 1.0
"""Time after the response in which the client may close first; further input is discarded. If the client has not sent
everything, closing at once would reset the connection, and the client might never read the response."""

TEXT = "text/plain; charset=utf-8"

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,2048}) HTTP/1\.[01]\r?\Z")
_HEAD_END = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a response."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


Answer = Callable[[str], Awaitable[Page]]
"""Function that returns the page at a path (without its query)."""


class HttpServer:
    """A server for the pages of ``answer``, on listening sockets, from ``start`` to ``close``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Answer, hosts: Hosts) -> None:
        self.loop = loop
        self.answer = answer
        self.hosts = hosts
        self.connections: dict[_Connection, None] = {}
        """Open connections, the oldest first."""
        self._servers: list[asyncio.Server] = []

    async def start(self, sockets: list[socket.socket]) -> None:
        """Accept connections; ``close`` closes the sockets."""
        for sock in sockets:
            self._servers.append(await self.loop.create_server(lambda: _Connection(self), sock=sock))

    def make_room(self) -> bool:
        """Close the oldest connection that is not being answered; return False if there is none.

        Otherwise clients that connect and send nothing could lock out health checks.
        """
        for connection in self.connections:
            if not connection.answering:
                # At once: ``connection_lost`` comes in a later turn, and until then the connection would still count.
                del self.connections[connection]
                connection.abort()
                return True
        return False

    def close(self) -> None:
        """Stop accepting and close all connections. May be called again."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in list(self.connections):
            connection.abort()


class _Connection(asyncio.Protocol):
    """One client's connection: read a request, answer it, close."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport = cast(asyncio.Transport, None)  # set before the first byte can arrive
        self._received = bytearray()
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._server.connections) >= CONNECTIONS_MAX and not self._server.make_room():
            self._transport.abort()
            return
        self._server.connections[self] = None
        self._within(HEAD_S, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._asked:
            return
        self._received += data
        end = _HEAD_END.search(self._received)
        if end is not None and end.start() <= HEAD_BYTES_MAX:
            self._ask(bytes(self._received[: end.start()]))
        elif self._received.startswith(b"\0"):  # a FlintMQ frame at the wrong port; its client waits for a response
            self._refuse(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1.1 request")
        elif len(self._received) > HEAD_BYTES_MAX:
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request must have at most {HEAD_BYTES_MAX} bytes"
            )

    def eof_received(self) -> bool:
        return self._asked and self._task is not None  # a client that closed only its sending half gets its response

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    @property
    def answering(self) -> bool:
        """True while a response is being produced or sent."""
        return self._task is not None or self._transport.get_write_buffer_size() > 0

    def abort(self) -> None:
        self._transport.abort()

    def _within(self, seconds: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.loop.call_later(seconds, call)

    def _too_slow(self) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"a request must arrive within {HEAD_S:g} s")

    def _ask(self, head: bytes) -> None:
        line = _REQUEST_LINE.match(head.partition(b"\n")[0])
        if line is None:
            self._refuse(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1.1 request")
        elif line[1] not in (b"GET", b"HEAD"):
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed", ("Allow", "GET, HEAD"))
        elif refusal := self._server.hosts.refusal(head, self._transport.get_extra_info("sockname")[0]):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, refusal)
        else:
            self._asked = True
            self._received.clear()
            self._within(ANSWER_S, self.abort)
            path = line[2].decode().partition("?")[0]
            self._task = self._server.loop.create_task(self._answer(path, with_body=line[1] == b"GET"))

    async def _answer(self, path: str, *, with_body: bool) -> None:
        try:
            page = await self._server.answer(path)
        except Exception as error:  # one page must not take the broker down
            log.error("cannot produce the page %s", path[:100], exc_info=error)
            page = Page(b"the page failed; see the broker's log for details\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        self._send(page, with_body=with_body)

    def _refuse(self, status: HTTPStatus, why: str, *headers: tuple[str, str]) -> None:
        self._asked = True
        self._received.clear()
        self._send(Page(f"{why}\n".encode(), status, headers=headers), with_body=True)

    def _send(self, page: Page, *, with_body: bool) -> None:
        self._task = None
        if self._transport.is_closing():
            return
        lines = [
            f"HTTP/1.1 {page.status.value} {page.status.phrase}",
            f"Content-Type: {page.content_type}",
            f"Content-Length: {len(page.body)}",
            "Cache-Control: no-store",
            "Connection: close",
            *(f"{name}: {value}" for name, value in page.headers),
        ]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        self._transport.write(head + page.body if with_body else head)
        self._transport.write_eof()
        self._within(ANSWER_S if self._transport.get_write_buffer_size() else LINGER_S, self.abort)


log = logging.getLogger(__name__)

# ---- The pages.

PORT_MAX = 65_535
SETTING = "metrics.listen"

_INDEX = b"FlintMQ: /metrics for Prometheus, /healthz for liveness, /readyz for readiness, with a replica's role\n"


def listen_for_metrics(listen: str, broker_port: int) -> list[socket.socket]:
    """Return listening sockets for the address of the setting, or none if it is "off".

    If the setting is empty, listen on loopback, on the broker's port + 1 or, if that is taken, on a free port. Raises
    ``ConfigurationError`` if the address of the setting cannot be bound.
    """
    if listen == METRICS_OFF:
        return []
    if listen:
        return bind(listen, SETTING, backlog=16)
    if broker_port < PORT_MAX:
        try:
            return bind(f"127.0.0.1:{broker_port + 1}", SETTING, backlog=16)
        except ConfigurationError as error:  # not fatal: the operator did not ask for this port
            log.warning("metrics use a free port instead of the usual one: %s; set metrics.listen to fix it", error)
    return bind("127.0.0.1:0", SETTING, backlog=16)


class MetricsEndpoint:
    """The pages of one broker. ``executor``: collects metrics in its threads; ``hosts``: the allowed Host names."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor, hosts: Hosts) -> None:
        self._loop = loop
        self._executor = executor
        self._server = HttpServer(loop, self._page, hosts)
        self._stage = "starting"
        self._broker: Broker | None = None
        self._services: Sequence[Service] = ()
        self._scrape: asyncio.Future[bytes] | None = None
        self.address: tuple[str, int] | None = None
        """Host and port that it listens on; None if it does not listen."""

    async def open(self, sockets: list[socket.socket]) -> None:
        if sockets:
            host, port = sockets[0].getsockname()[:2]
            self.address = (host, port)
            await self._server.start(sockets)

    def close(self) -> None:
        """Close the port. May be called again."""
        self._server.close()

    def starting(self, stage: str, done: int, total: int) -> None:
        """Set the progress of the start for ``/readyz``; ``total`` 0 if unknown. Callable from any thread."""
        self._stage = f"starting: {stage}" + (f", {done * 100 // total} %" if total else "")

    def started(self, broker: Broker, services: Sequence[Service]) -> None:
        self._services = services
        self._broker = broker
        self._stage = ""

    def stopping(self) -> None:
        """Report the broker as stopping, no longer ready."""
        self._stage = "stopping"

    async def _page(self, path: str) -> Page:
        if path == "/metrics":
            return await self._metrics_page()
        if path == "/healthz":
            return _verdict(self._ill(), "ok")
        if path == "/readyz":
            return _verdict(*self._readiness())
        if path == "/":
            return Page(_INDEX)
        return Page(b"page not found\n" + _INDEX, HTTPStatus.NOT_FOUND)

    def _ill(self) -> str:
        """Return which necessary services have ended, or "". Any response at all shows that the event loop runs."""
        if self._stage:
            return ""
        ended = [service.name for service in self._services if not service.alive]
        return f"the service {', '.join(ended)} ended" if ended else ""

    def _readiness(self) -> tuple[str, str]:
        """Return the problem, or "", and the words for a ready broker.

        A follower in sync is ready too: it could take over, and a supervisor that restarts members one after another
        must wait for just that.
        """
        broker = self._broker
        if self._stage or broker is None:
            return self._stage, ""
        member, problem = broker.member, self._ill()
        if member is None:
            return problem or broker.write_refusal(), "ready"
        if member.serves:
            return problem or broker.write_refusal(), "ready: primary"
        problem = problem or broker.store_refusal() or member.status().standby_problem()
        return problem, "ready: follower in sync"

    async def _metrics_page(self) -> Page:
        if self._stage or self._broker is None:
            return _verdict(self._stage, "")
        if self._scrape is None:
            self._scrape = self._loop.run_in_executor(self._executor, metrics_text, self._broker)
            self._scrape.add_done_callback(self._scraped)
        # Concurrent scrapes share one result. It is shielded, so that a client that disconnects does not cancel it for
        # the others.
        return Page(await asyncio.shield(self._scrape), content_type=CONTENT_TYPE)

    def _scraped(self, scrape: asyncio.Future[bytes]) -> None:
        self._scrape = None


def _verdict(problem: str, good: str) -> Page:
    if problem:
        return Page(f"{problem}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)
    return Page(f"{good}\n".encode())
