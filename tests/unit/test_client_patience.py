"""The decision to poll for a response before sleeping."""

from __future__ import annotations

import threading
import time

import pytest

from flintmq.client.sync import connection
from flintmq.client.sync.connection import JUDGED_EVERY, LOOK_SECONDS, SKIPPED_MAX, SpinWait

POLL_SECONDS = 1e-6


class Clock:
    """A clock that only a poll moves, so that a busy machine does not make polls late."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Socket:
    """A socket that is readable at the ``ready_at``-th poll; each poll takes ``POLL_SECONDS``."""

    def __init__(self, clock: Clock, ready_at: int | None) -> None:
        self.ready_at = ready_at
        self.looks = 0
        self._clock = clock

    def poll(self, timeout: int, /) -> object:
        assert timeout == 0
        self.looks += 1
        self._clock.seconds += POLL_SECONDS
        return [1] if self.looks == self.ready_at else []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> SpinWait:
    """Return the policy in a process with two CPUs and no other busy threads."""
    monkeypatch.setattr(connection, "processors", lambda: 2)
    monkeypatch.setattr(connection, "_cpu_of_other_threads", lambda: 0.0)
    return SpinWait(clock)


def test_a_response_that_arrives_soon_is_found_without_sleeping(judged: SpinWait, clock: Clock) -> None:
    for _ in range(JUDGED_EVERY * 2):
        assert judged.worthwhile()
        assert judged.look(Socket(clock, ready_at=3))


def test_after_polling_in_vain_more_and_more_waits_sleep_at_once(judged: SpinWait, clock: Clock) -> None:
    skipped = []
    for _ in range(12):
        waits = 0
        while not judged.worthwhile():
            waits += 1
        skipped.append(waits)
        began = clock.seconds
        assert not judged.look(Socket(clock, ready_at=None))
        assert clock.seconds - began >= LOOK_SECONDS
    assert skipped == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, SKIPPED_MAX, SKIPPED_MAX]


def test_one_successful_poll_resets_the_skipping(judged: SpinWait, clock: Clock) -> None:
    for _ in range(5):
        while not judged.worthwhile():
            pass
        judged.look(Socket(clock, ready_at=None))
    while not judged.worthwhile():
        pass
    assert judged.look(Socket(clock, ready_at=1))
    assert judged.worthwhile()
    judged.look(Socket(clock, ready_at=None))
    assert not judged.worthwhile()
    assert judged.worthwhile()


def test_on_a_single_cpu_the_client_does_not_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "processors", lambda: 1)
    alone = SpinWait()
    assert not any(alone.worthwhile() for _ in range(JUDGED_EVERY * 2))


def test_the_client_does_not_poll_while_other_threads_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "processors", lambda: 2)
    mine = SpinWait()
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            sum(range(1000))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        deadline = time.monotonic() + 30
        while mine.worthwhile() and time.monotonic() < deadline:
            pass  # the worker may not have run yet at the first measurement
        assert not mine.worthwhile()
    finally:
        ended.set()
        worker.join()
