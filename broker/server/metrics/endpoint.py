"""The pages of the metrics' port: ``/metrics``, ``/healthz``, ``/readyz``.

The port opens before the store is recovered and closes last, so that a supervisor can tell a broker that starts, or
stops, from one that hangs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from concurrent.futures import Executor
from http import HTTPStatus

from ....protocol.errors import ConfigurationError
from ...config import METRICS_OFF
from ...services.service import Service
from ..handlers.context import Broker
from ..server import bind
from .collector import metrics_text
from .exposition import CONTENT_TYPE
from .hosts import Hosts
from .http import HttpServer, Page

log = logging.getLogger(__name__)

PORT_MAX = 65_535
SETTING = "metrics.listen"

_INDEX = b"FlintMQ: /metrics for Prometheus, /healthz whether the broker lives, /readyz whether it takes messages\n"


def listen_for_metrics(listen: str, broker_port: int) -> list[socket.socket]:
    """Sockets that listen where the setting says; none where it says off.

    Without a setting: on loopback, the port behind the broker's, or a free one where that is taken. Raises
    ``ConfigurationError`` where the address that was chosen cannot be had.
    """
    if listen == METRICS_OFF:
        return []
    if listen:
        return bind(listen, SETTING, backlog=16)
    if broker_port < PORT_MAX:
        try:
            return bind(f"127.0.0.1:{broker_port + 1}", SETTING, backlog=16)
        except ConfigurationError as error:  # the start goes on: nobody asked for just that port
            log.warning("metrics are on another port than usual, a free one: %s; metrics.listen fixes it", error)
    return bind("127.0.0.1:0", SETTING, backlog=16)


class MetricsEndpoint:
    """The pages of one broker. ``executor``: where metrics are collected, beside the loop; ``hosts``: by which
    names it may be asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor, hosts: Hosts) -> None:
        self._loop = loop
        self._executor = executor
        self._server = HttpServer(loop, self._page, hosts)
        self._stage = "starting"
        self._broker: Broker | None = None
        self._services: Sequence[Service] = ()
        self._scrape: asyncio.Future[bytes] | None = None
        self.address: tuple[str, int] | None = None
        """Where it listens; None: nowhere."""

    async def open(self, sockets: list[socket.socket]) -> None:
        """Serve on sockets that listen."""
        if sockets:
            host, port = sockets[0].getsockname()[:2]
            self.address = (host, port)
            await self._server.start(sockets)

    def close(self) -> None:
        """Close the port. May be called again."""
        self._server.close()

    def starting(self, stage: str, done: int, total: int) -> None:
        """How far the start is, for ``/readyz``; ``total`` 0: not known. Any thread."""
        self._stage = f"starting: {stage}" + (f", {done * 100 // total} %" if total else "")

    def started(self, broker: Broker, services: Sequence[Service]) -> None:
        """The broker serves."""
        self._services = services
        self._broker = broker
        self._stage = ""

    def stopping(self) -> None:
        """The broker stops: it is not ready any more."""
        self._stage = "stopping"

    async def _page(self, path: str) -> Page:
        if path == "/metrics":
            return await self._metrics_page()
        if path == "/healthz":
            return _verdict(self._ill(), "ok")
        if path == "/readyz":
            return _verdict(self._not_ready(), "ready")
        if path == "/":
            return Page(_INDEX)
        return Page(b"there is no such page\n" + _INDEX, HTTPStatus.NOT_FOUND)

    def _ill(self) -> str:
        """What ended that the broker cannot go on without. That this is answered at all says that the loop lives."""
        if self._stage:
            return ""
        ended = [service.name for service in self._services if not service.alive]
        return f"the service {', '.join(ended)} ended" if ended else ""

    def _not_ready(self) -> str:
        if self._stage or self._broker is None:
            return self._stage
        return self._ill() or self._broker.write_refusal()

    async def _metrics_page(self) -> Page:
        if self._stage or self._broker is None:
            return _verdict(self._stage, "")
        if self._scrape is None:
            self._scrape = self._loop.run_in_executor(self._executor, metrics_text, self._broker)
            self._scrape.add_done_callback(self._scraped)
        # Whoever asks meanwhile gets the same text; one that goes away does not take it from the others.
        return Page(await asyncio.shield(self._scrape), content_type=CONTENT_TYPE)

    def _scraped(self, scrape: asyncio.Future[bytes]) -> None:
        self._scrape = None


def _verdict(problem: str, good: str) -> Page:
    if problem:
        return Page(f"{problem}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)
    return Page(f"{good}\n".encode())
