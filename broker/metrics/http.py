"""A small HTTP/1.1 server for a few pages: GET and HEAD, one request per connection, all resources bounded.

It runs on the broker's event loop, so no client may cost much: a request has at most ``HEAD_BYTES_MAX``, must arrive
within ``HEAD_S``, on one of at most ``CONNECTIONS_MAX`` connections; the server never reads a body.

The server of prometheus-client (wsgiref) starts a thread for each connection, without a limit, and has no time limit
for a request: clients that send nothing, or a byte now and then, would fill the process with threads.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from ...protocol.names import AllowedHosts
from ..addresses import parse_address

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
