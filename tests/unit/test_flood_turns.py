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
from tests.paired_brokers import broker_of, running
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
