"""Requests that wait: a coroutine runs to its first wait at once, and a task does the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from flintmq.broker.requests.broker import Broker
from flintmq.broker.requests.request import COLD_READS_MAX, Request
from flintmq.broker.store import WouldBlock
from flintmq.protocol import commands
from flintmq.protocol.errors import InvalidParameter, SystemBusy
from tests.paired_brokers import Connected, broker_of, running


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path, "async", limits={"held_pulls_per_connection_max": 4}) as lifecycle:
        yield broker_of(lifecycle)


class Client(Connected):
    """One connection to the broker."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.broker = broker

    def asked(self) -> Request:
        """Return a request, whose handler is the test."""
        return self.request(commands.GET_MIN_OFFSET, commands.QueueRequest("orders", 1), b"body", unknown="x" * 1_000)

    def codes(self) -> list[int]:
        """Return the result codes of the answers so far."""
        return [frame.code for frame in self.answers()]

    async def done(self) -> None:
        """Wait until no task handles a request."""
        while self.broker.tasks:
            await asyncio.wait(self.broker.tasks)


async def offset(request: Request, read: Callable[[bool], int]) -> None:
    request.respond(commands.OffsetAnswer(offset=await request.read(read)))


def cold(until: threading.Event) -> Callable[[bool], int]:
    """Return a read that blocks in its thread until the event."""

    def read(hot: bool) -> int:
        if hot:
            raise WouldBlock
        assert until.wait(60)
        return 1

    return read


async def test_a_request_that_need_not_wait_is_answered_at_once_without_a_task(broker: Broker) -> None:
    client = Client(broker)
    client.asked().begin(offset(client.asked(), lambda hot: 1))
    assert (client.codes(), broker.tasks) == ([0], set())


async def test_an_error_before_the_first_wait_is_raised_and_a_later_one_becomes_the_response(broker: Broker) -> None:
    client, go = Client(broker), threading.Event()
    go.set()
    request = client.asked()

    async def refused(wait: bool) -> None:
        if wait:
            await request.read(cold(go))
        raise InvalidParameter("wrong")

    with pytest.raises(InvalidParameter):
        request.begin(refused(wait=False))
    request.begin(refused(wait=True))
    assert "unknown" not in request.frame.fields, "what waits keeps no memory"
    assert len(request.frame.body) == 0
    await client.done()
    assert client.codes() == [InvalidParameter.code]
    assert client.connection.deferred.is_idle()


async def test_an_unexpected_error_after_a_wait_is_answered(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(broker)
    request = client.asked()

    async def broken() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    request.begin(broken())
    await client.done()
    [code] = client.codes()
    assert code != 0
    assert "ZeroDivisionError" in caplog.text


async def test_cold_reads_of_a_connection_take_turns_and_too_many_are_refused(broker: Broker) -> None:
    client, go = Client(broker), threading.Event()
    for _ in range(4):
        request = client.asked()
        request.begin(offset(request, cold(go)))
    deferred = client.connection.deferred
    assert (deferred.cold_reads, len(deferred.cold_waiting)) == (COLD_READS_MAX, 4 - COLD_READS_MAX)
    request = client.asked()
    with pytest.raises(SystemBusy):
        request.begin(offset(request, cold(go)))
    go.set()
    await client.done()
    assert client.codes() == [0] * 4
    await asyncio.sleep(0)
    assert (deferred.cold_reads, len(broker.cold_reads), deferred.undispatched) == (0, 0, 0)


async def test_a_client_that_does_not_read_makes_its_cold_reads_wait(broker: Broker) -> None:
    client, go = Client(broker), threading.Event()
    go.set()
    client.connection.pause_writing()
    request = client.asked()
    request.begin(offset(request, cold(go)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert client.codes() == []
    assert client.connection.deferred.cold_reads == 0
    client.connection.resume_writing()
    await client.done()
    assert client.codes() == [0]


async def test_a_lost_connection_ends_what_waits_for_it(broker: Broker) -> None:
    client, go = Client(broker), threading.Event()
    read: list[bool] = []

    def counted(hot: bool) -> int:
        read.append(hot)
        return cold(go)(hot)

    for _ in range(3):
        request = client.asked()
        request.begin(offset(request, counted))
    for _ in range(5):
        await asyncio.sleep(0)
    client.connection.connection_lost(None)
    go.set()
    await client.done()
    assert read.count(False) == COLD_READS_MAX, "a read that had not begun never begins"
    assert (client.codes(), client.connection.deferred.undispatched) == ([], 0)
    # The threads are free for others.
    other = Client(broker)
    request = other.asked()
    request.begin(offset(request, cold(go)))
    await other.done()
    assert other.codes() == [0]


async def test_a_connection_that_ends_waits_for_its_tasks(broker: Broker) -> None:
    client, go = Client(broker), threading.Event()
    request = client.asked()
    request.begin(offset(request, cold(go)))
    client.connection.finish()
    assert not client.connection.responses.closed
    go.set()
    await client.done()
    assert client.codes() == [0]
    assert client.connection.responses.closed
