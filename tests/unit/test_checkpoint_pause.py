"""The checkpoint service pauses after a long sync of queues and index, unless a start would have much to dispatch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.broker.background import services
from flintmq.broker.background.services import CheckpointService
from flintmq.broker.store import MessageStore
from tests.store_tools import HOST, SMALL, UnsyncedFiles, make_topic, plain, put


class SlowStore(MessageStore):
    """A store whose sync of queues and index takes ``sync_seconds`` of a clock that stands still otherwise."""

    now = 0.0
    sync_seconds = 0.0
    syncs = 0

    def sync_derived(self) -> bool:
        self.now += self.sync_seconds
        self.syncs += 1
        return super().sync_derived()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStore]:
    store = SlowStore(tmp_path, SMALL, store_host=HOST, files=UnsyncedFiles())
    store.open()
    make_topic(store, "orders", 1)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: store.now)
        yield store
    store.close()


@pytest.fixture
def service(store: SlowStore) -> CheckpointService:
    def post(*_: object) -> None:
        raise AssertionError("nothing is posted to a loop")

    return CheckpointService(store, post, post)


def rounds(service: CheckpointService, store: SlowStore, count: int) -> int:
    """Run rounds 5 s apart, with new messages before each; return the number of syncs."""
    before = store.syncs
    for _ in range(count):
        put(store, "orders", 0, plain(1))
        service.do_once()
        store.now += 5.0
    return store.syncs - before


def test_short_syncs_run_in_each_round(service: CheckpointService, store: SlowStore) -> None:
    store.sync_seconds = 0.1
    assert rounds(service, store, 10) == 10


def test_a_long_sync_is_followed_by_a_pause_in_proportion(service: CheckpointService, store: SlowStore) -> None:
    store.sync_seconds = 1.0
    assert rounds(service, store, 13) == 4  # 20 s of pause: one sync in four rounds


def test_without_a_share_each_round_syncs_however_long_a_sync_takes(store: SlowStore) -> None:
    def post(*_: object) -> None:
        raise AssertionError("nothing is posted to a loop")

    store.sync_seconds = 1000.0
    assert rounds(CheckpointService(store, post, post, sync_share=0), store, 10) == 10


def test_the_pause_is_bounded(service: CheckpointService, store: SlowStore) -> None:
    store.sync_seconds = 1000.0
    assert rounds(service, store, 25) == 3  # 60 s: one sync in twelve rounds


def test_a_large_backlog_is_synced_without_a_pause(
    service: CheckpointService, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "UNSYNCED_BYTES_MAX", 2000)
    store.sync_seconds = 1.0
    rounds(service, store, 1)
    assert rounds(service, store, 1) == 0
    put(store, "orders", 0, plain(20))
    assert rounds(service, store, 1) == 1
