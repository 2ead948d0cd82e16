"""The checkpoint service pauses after a long sync of queues and index, unless a start would have much to dispatch."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from flintmq.broker.background.checkpoint import UNSYNCED_BYTES_MAX, CheckpointService
from flintmq.broker.store import MessageStore


class SlowStore:
    """A store whose sync of queues and index takes ``sync_seconds`` of a clock that stands still otherwise."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sync_seconds = 0.0
        self.syncs = 0
        self.reput_offset = 0
        self.failed = None
        self.settings = SimpleNamespace(checkpoint_interval_ms=5000)
        self.consumer_offsets = self.groups = SimpleNamespace(dirty=False)
        self.topics = SimpleNamespace(dirty=False, version=0)

    def sync_derived(self) -> None:
        self.now += self.sync_seconds
        self.syncs += 1


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    store = SlowStore()
    monkeypatch.setattr(time, "monotonic", lambda: store.now)
    return store


@pytest.fixture
def service(store: SlowStore) -> CheckpointService:
    def post(*_: object) -> None:
        raise AssertionError("nothing is posted to a loop")

    return CheckpointService(cast(MessageStore, store), post, post)


def rounds(service: CheckpointService, store: SlowStore, count: int) -> int:
    """Run rounds 5 s apart, with new messages before each; return the number of syncs."""
    before = store.syncs
    for _ in range(count):
        store.reput_offset += 1000
        service.do_once()
        store.now += 5.0
    return store.syncs - before


def test_short_syncs_run_in_each_round(service: CheckpointService, store: SlowStore) -> None:
    store.sync_seconds = 0.1
    assert rounds(service, store, 10) == 10


def test_a_long_sync_is_followed_by_a_pause_in_proportion(service: CheckpointService, store: SlowStore) -> None:
    store.sync_seconds = 1.0
    assert rounds(service, store, 13) == 4  # 20 s of pause: one sync in four rounds


def test_the_pause_is_bounded(service: CheckpointService, store: SlowStore) -> None:
    store.sync_seconds = 1000.0
    assert rounds(service, store, 25) == 3  # 60 s: one sync in twelve rounds


def test_a_large_backlog_is_synced_without_a_pause(service: CheckpointService, store: SlowStore) -> None:
    store.sync_seconds = 1.0
    rounds(service, store, 1)
    store.reput_offset += UNSYNCED_BYTES_MAX
    assert rounds(service, store, 1) == 1
