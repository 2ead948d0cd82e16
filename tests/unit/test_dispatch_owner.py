"""Dispatch has one owner at a time, also while the broker stops."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from flintmq.broker.app.lifecycle import Lifecycle
from flintmq.broker.config import Settings
from flintmq.broker.store import MessageStore
from tests.store_tools import append, plain


def test_the_loop_dispatches_nothing_while_a_stop_dispatches_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's timers run on during a stop; two owners would write the same units and index entries twice."""
    settings = Settings.model_validate(
        {
            "store": {"path": str(tmp_path / "store"), "commitlog_file_bytes": 4 << 20},
            "server": {"listen": "127.0.0.1:0"},
            "flush": {"policy": "async"},
            "metrics": {"listen": "off"},
        }
    )
    owners: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        lifecycle = Lifecycle(settings, _fail)
        await lifecycle.start(lambda stage, done, total: None)
        broker = lifecycle._broker
        assert broker is not None
        append(broker.store, "orders", 0, plain(10))
        dispatch = MessageStore.dispatch

        async def loops_turn() -> None:
            broker.dispatch.is_done()

        def recorded(store: MessageStore, end_offset: int, chunk_bytes: int = 0) -> list[tuple[str, int, int]]:
            first = not owners
            owners.append(threading.get_ident())
            if first:
                assert owners[0] != threading.main_thread().ident, "the stop dispatches in a thread"
                asyncio.run_coroutine_threadsafe(loops_turn(), loop).result()
            return dispatch(store, end_offset, chunk_bytes)

        monkeypatch.setattr(MessageStore, "dispatch", recorded)
        await lifecycle.stop()
        assert broker.store.reput_offset == broker.store.write_offset

    asyncio.run(run())
    assert len(set(owners)) == 1


def _fail(name: str, error: BaseException) -> None:
    raise AssertionError(f"{name} failed: {error}")
