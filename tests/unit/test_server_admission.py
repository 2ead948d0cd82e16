"""Maximum number of connections from one address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flintmq.broker.net.connection import ClientConnection
from flintmq.broker.net.server import Listener, Server
from flintmq.protocol.errors import SystemBusy
from flintmq.protocol.frames import FrameParser
from tests.paired_brokers import running

LISTENER = Listener([])


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
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """Yield the server of a running broker; it accepts connections, and does not serve them."""
    async with running(tmp_path, "async", limits={"connections_per_address_max": 2}) as lifecycle:
        assert lifecycle._server is not None
        monkeypatch.setattr(lifecycle._server, "_take", _taken)
        yield lifecycle._server


async def _taken(connection: ClientConnection, sock: socket.socket) -> None:
    sock.detach()


async def test_an_address_has_so_many_connections_and_loopback_as_many_as_it_likes(server: Server) -> None:
    assert [await admitted(server, "192.0.2.7") for _ in range(3)] == [True, True, False]
    assert not await admitted(server, "::ffff:192.0.2.7"), "the same address, in IPv6's writing"
    assert await admitted(server, "192.0.2.8"), "another address"
    assert all([await admitted(server, host) for host in ("127.0.0.1", "127.9.9.9", "::1") for _ in range(3)])
    next(each for each in server._connections if each.peer.address[0] == "192.0.2.7").connection_lost(None)
    assert [await admitted(server, "192.0.2.7") for _ in range(2)] == [True, False]
    for each in list(server._connections):
        each.connection_lost(None)
    assert (server._by_address, server._broker.connections) == ({}, 0)
