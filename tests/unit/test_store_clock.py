"""The clock of a store: the time it follows, the store times it gives, and the steps of the wall clock it detects."""

from __future__ import annotations

import itertools
import json
import random
import time
from pathlib import Path

import numpy as np
import pytest

from flintmq.broker.store.tables.clock import HOLD_S, PACE, STEPS_MAX, SteadyClock
from tests.store_tools import UnsyncedFiles

START_MS = 1_795_300_000_000
HOUR_MS = 3_600_000


class Log:
    """A clock over a log that keeps only store times, one byte for each record.

    ``true_ms`` has the true time of each record, which no clock change affects.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ms = START_MS
        self.elapsed_ms = 1_000
        self.store_ms: list[int] = []
        self.true_ms: list[int] = []
        self.path = path
        monkeypatch.setattr(time, "time_ns", lambda: self.wall_ms * 1_000_000)
        monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: self.elapsed_ms * 1_000_000)
        self.open()

    def open(self) -> None:
        """Open the log, or open it again."""
        self.clock = SteadyClock(UnsyncedFiles(), self.path, lambda: (len(self.store_ms), self.last_ms))
        self.clock.begin(self.last_ms, len(self.store_ms))

    @property
    def last_ms(self) -> int:
        return self.store_ms[-1] if self.store_ms else 0

    def append(self) -> int:
        """Store a record and return its store time."""
        self.store_ms.append(self.clock.store_ms(self.last_ms))
        self.true_ms.append(self.elapsed_ms)
        return self.last_ms

    def passes(self, ms: int, *, in_steps_of: int = 500) -> None:
        """Let time pass, reading the clock at each step."""
        while ms > 0:
            step = min(ms, in_steps_of)
            self.wall_ms += step
            self.elapsed_ms += step
            self.clock.now_ms()
            ms -= step

    def stored_ms(self) -> list[int]:
        """Return the store time of each record by the clock's present correction."""
        offsets = np.arange(len(self.store_ms))
        found: list[int] = self.clock.stored_ms(offsets, np.array(self.store_ms, np.int64)).tolist()
        return found


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(tmp_path / "clock.json", monkeypatch)


def test_a_steady_wall_clock_is_followed_to_the_millisecond(log: Log) -> None:
    for step in (0, 1, 3, 400, 999, 1_000, 5_000, 100_000):
        log.passes(step, in_steps_of=step or 1)
        assert log.clock.now_ms() == log.clock.seen_ms() == log.wall_ms
        assert log.append() == log.wall_ms
    assert not log.path.exists()


def test_a_clock_that_drifts_and_a_small_step_are_followed_and_the_time_never_goes_back(log: Log) -> None:
    before = log.clock.now_ms()
    for step in (900, -400, 300, -500, 40, -40):
        log.wall_ms += step
        log.passes(100)
        assert log.clock.now_ms() >= before
        before = log.clock.now_ms()
    log.passes(2_000)
    assert log.clock.now_ms() == log.wall_ms
    for _ in range(600):
        log.wall_ms += 5
        log.passes(500)
        assert log.clock.now_ms() == log.wall_ms
    assert not log.path.exists()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 1_500, -1_500, 10 * 365 * 24 * HOUR_MS])
def test_a_jump_that_ends_in_time_has_changed_nothing(log: Log, jump_ms: int) -> None:
    log.append()
    for _ in range(3):
        log.wall_ms += jump_ms
        log.passes(HOLD_S * 1000 - 1_000)
        assert log.clock.now_ms() == log.clock.seen_ms() == log.wall_ms - jump_ms
        assert log.clock.held_ms() == jump_ms
        log.wall_ms -= jump_ms
        log.passes(1_000)
        assert log.append() == log.wall_ms
    assert log.clock.held_ms() == log.clock.moved_ms == 0
    assert not log.path.exists()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 1_500, -1_500])
def test_a_clock_that_stays_after_a_jump_is_trusted(log: Log, jump_ms: int) -> None:
    log.wall_ms += jump_ms
    log.passes(HOLD_S * 1000 + 500)
    assert log.clock.now_ms() == log.clock.seen_ms() == log.wall_ms
    assert log.clock.moved_ms == jump_ms


def test_a_clock_that_jumps_about_is_not_believed(log: Log) -> None:
    right_ms = log.wall_ms
    for jump_ms in (HOUR_MS, -2 * HOUR_MS, 5_000, 7_000, 90_000):
        log.wall_ms += jump_ms
        log.passes(HOLD_S * 1000 - 1_000)
        right_ms += HOLD_S * 1000 - 1_000
        assert log.clock.now_ms() == right_ms


def test_a_suspended_machine_wakes_up_to_the_right_time(log: Log) -> None:
    log.wall_ms += HOUR_MS
    log.elapsed_ms += HOUR_MS
    assert log.clock.now_ms() == log.wall_ms


def test_store_times_never_go_back_and_meet_the_clock_again(log: Log) -> None:
    first = log.append()
    log.wall_ms -= HOUR_MS
    log.passes(HOLD_S * 1000 + 500)
    assert log.append() == first
    ahead = log.last_ms - log.clock.now_ms()
    log.passes(HOUR_MS)
    assert 0 < log.append() - log.clock.now_ms() < ahead / PACE + 1
    log.passes(HOUR_MS // (PACE - 1) + 10_000)
    assert log.append() == log.clock.now_ms() == log.wall_ms
    assert log.store_ms == sorted(log.store_ms)


@pytest.mark.parametrize("seed", range(20))
def test_it_knows_when_each_record_was_stored_through_steps_starts_and_cuts_of_the_log(log: Log, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        chance = rng.random()
        if chance < 0.1:
            log.wall_ms += rng.choice((-1, 1)) * rng.randrange(2_000, 2 * HOUR_MS)
            log.passes(HOLD_S * 1000 + 500)
        elif chance < 0.15 and log.true_ms:
            # A start that finds the clock behind assumes that no time has passed.
            log.wall_ms, log.elapsed_ms = log.stored_ms()[-1] - rng.randrange(2_000, HOUR_MS), log.true_ms[-1]
            log.open()
        elif chance < 0.2:
            cut = len(log.store_ms) - rng.randrange(3)
            del log.store_ms[cut:], log.true_ms[cut:]
            log.open()
        elif chance < 0.4:
            log.passes(rng.randrange(200_000))
        log.append()
    assert log.store_ms == sorted(log.store_ms)
    by_clock = [log.clock.now_ms() - (log.elapsed_ms - true_ms) for true_ms in log.true_ms]
    off = [stored_ms - ms for stored_ms, ms in zip(log.stored_ms(), by_clock, strict=True)]
    assert min(off) >= 0
    assert max(off) < 2 * PACE * STEPS_MAX


def test_a_start_with_a_clock_before_the_newest_record_is_a_step(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    last = log.append()
    log.wall_ms -= HOUR_MS
    log.open()
    assert "3600.0 s behind the newest message" in caplog.text
    assert log.clock.now_ms() == log.wall_ms
    assert log.stored_ms() == [pytest.approx(log.wall_ms, abs=PACE)]
    assert log.append() == last
    log.open()
    assert log.stored_ms() == [pytest.approx(log.wall_ms, abs=PACE)] * 2


def test_records_of_another_broker_keep_their_times(log: Log) -> None:
    log.append()
    log.wall_ms -= HOUR_MS
    log.open()
    log.append()
    log.store_ms.append(log.wall_ms)
    log.true_ms.append(log.elapsed_ms)
    assert log.stored_ms()[-1] == log.wall_ms


def test_so_many_steps_are_kept(log: Log) -> None:
    for sign in itertools.islice(itertools.cycle((1, -1)), STEPS_MAX + 10):
        log.wall_ms += sign * HOUR_MS
        log.passes(HOLD_S * 1000 + 500)
    assert len(json.loads(log.path.read_text())["steps"]) == STEPS_MAX


STRANGE = [[value if at == place else 1 for at in range(4)] for place in range(4) for value in (10**30, -(2**62))]


@pytest.mark.parametrize(
    "content",
    ["{", "", "[]", '{"steps": 5}', '{"steps": [[1, 2]]}', '{"steps": [[0, 1e999, 0, 0]]}']
    + [json.dumps({"steps": [step]}) for step in STRANGE],
)
def test_a_damaged_file_costs_the_steps_alone(log: Log, caplog: pytest.LogCaptureFixture, content: str) -> None:
    log.path.write_text(content)
    log.open()
    assert "clock.json cannot be read" in caplog.text
    assert log.append() == log.wall_ms
