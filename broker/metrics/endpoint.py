"""The pages of the metrics endpoint: ``/metrics``, ``/healthz``, ``/readyz``.

The port opens before the store is recovered and closes last, so that a supervisor can distinguish a broker that is
starting or stopping from one that hangs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from concurrent.futures import Executor
from http import HTTPStatus

from ...protocol.errors import ConfigurationError
from ..background.loop_work import Service
from ..config import METRICS_OFF
from ..net.server import bind
from ..requests.broker import Broker
from .collector import CONTENT_TYPE, metrics_text
from .http import Hosts, HttpServer, Page

log = logging.getLogger(__name__)

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
        """Report the broker as ready from now on."""
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
        problem = problem or broker.store_refusal() or member.status().standby_problem(member.identity.member)
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
