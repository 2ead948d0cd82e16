"""Maximum number of connections from one address."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.broker.config_sources import load_settings
from flintmq.broker.net.server import Listener, Server
from flintmq.protocol.errors import SystemBusy
from flintmq.protocol.frames import FrameParser


class Gone:
    """A connection that exists until ``lose`` is called."""

    def __init__(self, broker: Any, address: tuple[str, int], on_lost: Any) -> None:
        self.peer = SimpleNamespace(address=address, lost=False)
        self.lose = lambda: on_lost(self)


LISTENER = Listener([], connect=Gone)  # type: ignore[arg-type] # what of a connection admission looks at


async def admitted(server: Server, host: str) -> bool:
    """Return whether the server accepts a connection from ``host``; the test holds the other end of a real socket."""
    ours, theirs = socket.socketpair()
    server._admit(theirs, (host, 40_000), LISTENER)
    await asyncio.gather(*server._starting)
    with ours:
        ours.setblocking(False)
        try:
            blob = ours.recv(4096)
        except BlockingIOError:
            return True
    parser = FrameParser(4096)
    parser.writable()[: len(blob)] = blob
    parser.received(len(blob))
    frame = parser.next_frame()
    assert frame is not None
    assert frame.code == SystemBusy.code
    assert "2 connections from 192.0.2.7 are open, which is limits.connections_per_address_max" in str(frame.fields)
    return False


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    flags = {"limits.connections_per_address_max": 2}
    settings = load_settings(config=None, environment={}, assignments=[], flags=flags)

    def make() -> Server:
        broker = SimpleNamespace(
            limits=settings.limits,
            settings=settings,
            loop=asyncio.get_running_loop(),
            counters=SimpleNamespace(connections_accepted=0, connections_refused=0),
            connections=0,
            when_settings_change=[],
            tls=None,
            authenticator=None,
        )
        made = Server(broker, [])  # type: ignore[arg-type] # what of a Broker admission looks at
        monkeypatch.setattr(made, "_take", _taken)
        return made

    return make


async def _taken(connection: Gone, sock: socket.socket) -> None:
    sock.detach()


def test_an_address_has_so_many_connections_and_loopback_as_many_as_it_likes(server: Any) -> None:
    async def run() -> None:
        made = server()
        assert [await admitted(made, "192.0.2.7") for _ in range(3)] == [True, True, False]
        assert not await admitted(made, "::ffff:192.0.2.7"), "the same address, in IPv6's writing"
        assert await admitted(made, "192.0.2.8"), "another address"
        assert all([await admitted(made, host) for host in ("127.0.0.1", "127.9.9.9", "::1") for _ in range(3)])
        next(each for each in made._connections if each.peer.address[0] == "192.0.2.7").lose()
        assert [await admitted(made, "192.0.2.7") for _ in range(2)] == [True, False]
        for each in list(made._connections):
            each.lose()
        assert (made._by_address, made._broker.connections) == ({}, 0)

    asyncio.run(run())
