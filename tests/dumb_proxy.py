"""A TCP proxy whose connections can go dumb: they take every byte, and give none."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.conftest import RunningBroker


class DumbProxy:
    """A proxy in front of a broker. After ``turn_dumb`` the connections that exist give no byte back, like those
    through a tunnel or a NAT that has forgotten them; new ones work.

    ``carries_requests``: whether the broker still gets what such a connection takes.
    """

    def __init__(self, running: RunningBroker, *, carries_requests: bool) -> None:
        self._broker = (running.host, running.port)
        self._carries_requests = carries_requests
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._dumb: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def turn_dumb(self) -> None:
        """Make all connections that exist dumb."""
        self._dumb.update(self._sockets)

    def close(self) -> None:
        """End all connections."""
        for each in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in [self._listener, *self._sockets]:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(self._broker)
            self._sockets += [client, broker]
            for source, sink, carries_when_dumb in ((client, broker, self._carries_requests), (broker, client, False)):
                thread = threading.Thread(target=self._carry, args=(source, sink, carries_when_dumb))
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket, carries_when_dumb: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if carries_when_dumb or source not in self._dumb:
                    sink.sendall(data)
        if source not in self._dumb:  # the other end of a forgotten connection never learns that it ended
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
