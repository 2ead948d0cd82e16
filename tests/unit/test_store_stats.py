"""StoreStatsService: rates, ages, space and quantiles from its samples, on a real store. The test sets the clock."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.background.flush import flush_service
from flintmq.broker.background.services import WINDOW_S, CheckpointService, Disk, StoreStatsService
from flintmq.broker.config import RetentionSection
from flintmq.protocol.errors import ServiceNotAvailable
from tests.store_tools import append, dispatch, open_store, plain, put

GIB = 1 << 30


class Bench:
    """A store and the service; the test sets ``now`` and ``disk``."""

    def __init__(self, path: Path) -> None:
        self.now = 1000.0
        self.disk = Disk(used_bytes=10 * GIB, free_bytes=90 * GIB)
        self.store = open_store(path)
        post: Any = self._post
        self.flush = flush_service(self.store, post, self._fatal)
        self.checkpoint = CheckpointService(self.store, post, self._fatal)
        self.stats = StoreStatsService(
            self.store,
            RetentionSection(),
            self.flush,
            self.checkpoint,
            post,
            self._fatal,
            clock=lambda: self.now,
            disk=lambda path: self.disk,
        )

    def _post(self, call: Any, *arguments: Any) -> None:
        call(*arguments)

    def _fatal(self, what: str, error: BaseException) -> None:
        raise AssertionError(what) from error

    def sample(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.stats.do_once()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "store")
    yield bench
    bench.store.close()


# ---- the disk ----


@pytest.mark.parametrize(
    ("used", "free", "room"),
    [
        (10, 90, 82),  # up to the headroom of 8, which is reached after the 90 %
        (20, 20, 16),  # up to the 90 %, which are reached after the headroom
        (36, 4, 0),  # refused
        (93, 7, 0),
        (85, 7, 0),  # below the headroom, at 92 %
    ],
)
def test_free_space_ends_at_the_limit_that_refuses_messages(bench: Bench, used: int, free: int, room: int) -> None:
    bench.disk = Disk(used * GIB, free * GIB)
    bench.sample()
    settings = RetentionSection()
    assert bench.stats.room_bytes() == room * GIB
    before = Disk((used + room) * GIB - 1, (free - room) * GIB + 1)
    behind = Disk((used + room) * GIB + 1, (free - room) * GIB - 1)
    assert behind.tight(settings.disk_refuse_percent, settings.headroom_bytes)
    assert room == 0 or not before.tight(settings.disk_refuse_percent, settings.headroom_bytes)


def test_a_store_that_refuses_messages_has_no_room_although_the_newest_sample_shows_some(bench: Bench) -> None:
    bench.sample()
    assert bench.stats.room_bytes() > 0
    bench.store.refusal = lambda: ServiceNotAvailable("full", retry_after_ms=1000)
    assert bench.stats.room_bytes() == 0
    assert bench.stats.runway_seconds() == 0.0


def test_the_runway_is_the_room_at_the_rate_of_the_last_minute(bench: Bench) -> None:
    bench.sample()
    assert bench.stats.runway_seconds() == math.inf
    begin = bench.store.write_offset
    put(bench.store, "orders", 0, plain(100, size=1000))
    bench.sample(10.0)
    log_bytes = bench.store.write_offset - begin
    derived_bytes = 100 * (20 + 20)  # a unit and the entry of one key for each
    assert bench.stats.write_rate() == pytest.approx((log_bytes + derived_bytes) / 10)
    assert bench.stats.runway_seconds() == pytest.approx(bench.stats.room_bytes() / bench.stats.write_rate())
    for _ in range(WINDOW_S + 1):
        bench.sample()
    assert bench.stats.runway_seconds() == math.inf
    bench.disk = Disk(97 * GIB, 3 * GIB)
    bench.sample()
    assert bench.stats.runway_seconds() == 0.0


# ---- lag ----


def test_each_stage_reports_its_backlog(bench: Bench) -> None:
    bench.checkpoint.do_once()
    begin = bench.store.write_offset
    append(bench.store, "orders", 0, plain(3))
    behind = bench.store.write_offset - begin
    assert {stage: count for stage, (count, _) in bench.stats.lags().items()} == {
        "flush": behind,
        "reput": behind,
        "checkpoint": behind,
    }
    bench.store.flush()
    assert bench.stats.lags()["flush"] == (0, 0.0)
    assert bench.stats.lags()["reput"][0] == behind
    dispatch(bench.store)
    assert bench.stats.lags()["reput"] == (0, 0.0)
    assert bench.stats.lags()["checkpoint"][0] == behind
    bench.checkpoint.do_once()
    assert bench.stats.lags()["checkpoint"] == (0, 0.0)


def test_the_age_is_that_of_the_oldest_byte_that_waits(bench: Bench) -> None:
    append(bench.store, "orders", 0, plain(1))
    assert bench.stats.lags()["flush"][1] == 0.0, "no sample has seen it"
    bench.sample()
    append(bench.store, "orders", 0, plain(1))
    bench.sample(5.0)
    bench.sample(2.0)
    assert bench.stats.lags()["flush"][1] == 7.0
    bench.store.flush()
    assert bench.stats.lags()["flush"][1] == 0.0
    assert bench.stats.lags()["reput"][1] == 7.0
    dispatch(bench.store)
    bench.checkpoint.do_once()
    bench.sample()
    append(bench.store, "orders", 0, plain(1))
    bench.sample()
    bench.sample(3.0)
    assert bench.stats.lags()["flush"][1] == 3.0, "what went before counts no more"


# ---- flushes ----


def test_flush_quantiles_are_those_of_the_last_minute(bench: Bench) -> None:
    assert bench.stats.flush_quantiles(0.5, 0.99) == [0.0, 0.0]
    bench.sample()
    bench.flush.latencies.observe(2.5, 100)
    p50, p99 = bench.stats.flush_quantiles(0.5, 0.99)
    assert 2.0 < p50 < p99 <= 3.0
    for _ in range(WINDOW_S):
        bench.sample()
    bench.flush.latencies.observe(0.00012, 100)
    bench.sample()
    assert 0.0001 < bench.stats.flush_quantiles(0.99)[0] <= 0.00015
