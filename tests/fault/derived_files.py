"""Stores whose ConsumeQueues and index are damaged and rebuilt."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore
from tests.store_tools import (
    Sent,
    assert_found,
    assert_holds,
    copy_store,
    index_files,
    kill,
    plain,
    put,
    queue_files,
    reopen,
)

End = Callable[[MessageStore], None]
Filled = Callable[[End], tuple[Path, list[Sent]]]
Damage = Callable[[Path], None]
QUEUE = Path("consumequeue") / "orders" / "1"


def close(store: MessageStore) -> None:
    store.close()


def sync_and_kill(store: MessageStore) -> None:
    """Kill the store just after queues and index were synced: recovery has nothing to dispatch."""
    store.sync_derived()
    kill(store)


both_ends = pytest.mark.parametrize("end", [sync_and_kill, kill])


def no_damage(path: Path) -> None:
    """Change nothing."""


def all_queues_gone(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")


def a_queue_gone(path: Path) -> None:
    shutil.rmtree(path / QUEUE)


def assert_rebuilt(filled: tuple[Path, list[Sent]], tmp_path: Path, damage: Damage, *, reported: bool = True) -> None:
    """Check that all files are rebuilt byte for byte, stay that way, and that new messages can be appended."""
    source, sent = filled
    path = copy_store(source, tmp_path / "store")
    damage(path)
    store, report = reopen(path)
    assert report.rebuilt or not reported
    assert report.truncated_bytes == 0
    assert_holds(store, sent)
    kill(store)
    assert queue_files(path) == queue_files(source)
    assert index_files(path) == index_files(source)
    assert not list((path / "flintmq" / "aside").glob("*"))
    store, report = reopen(path)
    assert report.rebuilt == []
    new = [
        each for topic, queue in (("orders", 1), ("new", 0)) for each in put(store, topic, queue, plain(60, first=5000))
    ]
    store.close()
    store, report = reopen(path)
    assert report.rebuilt == []
    assert_holds(store, [*sent, *new], keys=False)
    assert_found(store, new)
    store.close()
