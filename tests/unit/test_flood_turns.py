"""With sync flush, a producer that uses up its turns does not fill the disk's queue for the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flintmq.broker.background.flush import GroupCommitService
from flintmq.broker.requests import dispatch
from flintmq.broker.requests.broker import Broker
from flintmq.broker.requests.dispatch import TURN_BACKLOG_SHARED_BYTES
from flintmq.protocol.commands import HELLO, PROTOCOL_VERSION, HelloRequest
from flintmq.protocol.fields import encode_fields
from flintmq.protocol.frames import REQUEST, encode_frame
from tests.paired_brokers import Connected, broker_of, running
from tests.store_tools import append, plain

LARGE = TURN_BACKLOG_SHARED_BYTES // 6


@asynccontextmanager
async def hanging_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """Yield a broker whose log is flushed only by the test."""
    async with running(folder / "store", "sync") as lifecycle:
        with monkeypatch.context() as patched:
            patched.setattr(GroupCommitService, "wake", lambda service: None)
            yield broker_of(lifecycle)


def share(broker: Broker) -> None:
    """Let two connections have turns."""
    for connection in ("one", "another"):
        broker.dispatch.sharing.turn(connection, time.monotonic())


async def loop_turns() -> None:
    """Let the loop run all that is due now."""
    for _ in range(5):
        await asyncio.sleep(0)


Turns = asyncio.Queue[str]
Check = Callable[[Broker, Turns], Awaitable[None]]


async def comes_after_the_flush(broker: Broker, turns: Turns) -> None:
    await loop_turns()
    assert turns.empty()
    broker.flush.last_work()
    await turns.get()


async def comes_although_the_disk_hangs(broker: Broker, turns: Turns) -> None:
    await turns.get()
    broker.flush.last_work()


async def comes_at_once(broker: Broker, turns: Turns) -> None:
    await loop_turns()
    turns.get_nowait()
    broker.flush.last_work()


@pytest.mark.parametrize(
    ("size", "shared", "check"),
    [
        (LARGE, True, comes_after_the_flush),
        (LARGE, True, comes_although_the_disk_hangs),
        (LARGE, False, comes_at_once),
        (1000, True, comes_at_once),
    ],
)
def test_the_next_turn_waits_for_the_disk_only_if_others_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, shared: bool, check: Check
) -> None:
    monkeypatch.setattr(dispatch, "DISPATCH_WAIT_S", 0.05 if check is comes_although_the_disk_hangs else 60.0)

    async def run() -> None:
        turns = Turns()
        async with hanging_disk(tmp_path, monkeypatch) as broker:
            append(broker.store, "orders", 0, plain(6, size=size))
            if shared:
                share(broker)
            broker.dispatch.next_turn(lambda: turns.put_nowait("turn"))
            await check(broker, turns)
            await loop_turns()
            assert turns.empty()

    asyncio.run(run())


@pytest.mark.parametrize(("number", "counts"), [(0, True), (-1, False)])
def test_the_reports_of_a_follower_do_not_make_a_single_producer_one_of_several(
    tmp_path: Path, number: int, counts: bool
) -> None:
    """``number``: of the follower that the second connection is; 0: it is a client."""

    async def run() -> None:
        async with running(tmp_path / "store", "sync") as lifecycle:
            broker = broker_of(lifecycle)
            producer, other = Connected(broker).connection, Connected(broker).connection
            other.peer.follower = number
            hello = encode_frame(REQUEST, HELLO.code, 1, encode_fields(HelloRequest(PROTOCOL_VERSION, "test")))
            for connection in (producer, other):
                view = connection.get_buffer(len(hello))
                view[: len(hello)] = hello
                connection.buffer_updated(len(hello))
            assert broker.dispatch.sharing.last is (other if counts else producer)
            for connection in (producer, other):
                connection.connection_lost(None)

    asyncio.run(run())


@pytest.mark.parametrize("awaited", [True, False])
def test_a_follower_dispatches_at_once_only_what_a_client_may_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, awaited: bool
) -> None:
    monkeypatch.setattr(dispatch, "FOLLOWER_LAZY_S", 60.0)

    async def run() -> None:
        async with running(tmp_path / "store", "sync") as lifecycle:
            broker = broker_of(lifecycle)
            broker.dispatch.follows = True
            broker.dispatch.popped = {"another topic"} if awaited else set()
            append(broker.store, "orders", 0, plain(3))
            on_disk = asyncio.get_running_loop().create_future()
            broker.flush.wait_for(broker.store.write_offset, on_disk.set_result)
            broker.flush.wake()
            assert await on_disk is None
            await loop_turns()
            assert (broker.store.reput_offset == broker.store.write_offset) == awaited
            assert broker.dispatch.is_done()  # as every request that reads the queues asks first
            assert broker.store.reput_offset == broker.store.write_offset

    asyncio.run(run())
