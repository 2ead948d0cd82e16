"""A TCP proxy whose connections can go dumb: they take every byte, and give none."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.tcp_proxy import Link, TcpProxy

if TYPE_CHECKING:
    from tests.conftest import RunningBroker


class DumbProxy(TcpProxy):
    """A proxy in front of a broker. After ``turn_dumb`` the connections that exist give no byte back, like those
    through a tunnel or a NAT that has forgotten them; new ones work.

    ``carries_requests``: whether the broker still gets what such a connection takes.
    """

    def __init__(self, running: RunningBroker, *, carries_requests: bool) -> None:
        self._carries_requests = carries_requests
        self._dumb: set[Link] = set()
        super().__init__(running.host, running.port)

    def turn_dumb(self) -> None:
        """Make all connections that exist dumb."""
        self._dumb.update(self._links)

    def _carry_requests(self, link: Link) -> None:
        self._carry(link, link.client, link.broker, carries_when_dumb=self._carries_requests)

    def _carry_answers(self, link: Link) -> None:
        self._carry(link, link.broker, link.client, carries_when_dumb=False)

    def _carry(self, link: Link, source: socket.socket, sink: socket.socket, *, carries_when_dumb: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if carries_when_dumb or link not in self._dumb:
                    sink.sendall(data)
        if link not in self._dumb:  # the other end of a forgotten connection never learns that it ended
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def dumb_proxy(running: RunningBroker, *, carries_requests: bool = False) -> Iterator[DumbProxy]:
    """Yield a proxy in front of a broker."""
    proxy = DumbProxy(running, carries_requests=carries_requests)
    try:
        yield proxy
    finally:
        proxy.close()
