"""Held pulls: who is given back, when, and why. The clock is the test's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flintmq.broker.services.long_polling import STALE_ENTRIES_MIN, PullRequestHoldService, Wake


class Clock:
    """A clock that moves when told, and calls what is due."""

    class Call:
        def __init__(self, at: float, function: Callable[[], None]) -> None:
            self.at = at
            self.function = function
            self.cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[Clock.Call] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, function: Callable[[], None]) -> Clock.Call:
        self.calls.append(Clock.Call(at, function))
        return self.calls[-1]

    @property
    def pending(self) -> list[Clock.Call]:
        return [call for call in self.calls if not call.cancelled]

    def move_to(self, now: float) -> None:
        while due := [call for call in self.pending if call.at <= now]:
            first = min(due, key=lambda call: call.at)
            self.now = max(self.now, first.at)
            self.calls.remove(first)
            first.function()
        self.now = now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(clock: Clock) -> PullRequestHoldService:
    return PullRequestHoldService(clock.time, clock.call_at)


def noted(log: list[tuple[str, Wake]], name: str) -> Callable[[Wake], None]:
    return lambda wake: log.append((name, wake))


def test_a_pull_is_woken_when_its_queue_grows_beyond_its_offset(service: PullRequestHoldService) -> None:
    log: list[tuple[str, Wake]] = []
    service.hold("t", 0, 5, 10.0, noted(log, "five"))
    service.hold("t", 0, 7, 10.0, noted(log, "seven"))
    service.hold("t", 1, 5, 10.0, noted(log, "other queue"))
    service.hold("u", 0, 5, 10.0, noted(log, "other topic"))
    service.wake("t", 0, 5)
    assert log == []
    service.wake("t", 0, 6)
    assert log == [("five", Wake.ARRIVED)]
    service.wake("t", 0, 8)
    assert log == [("five", Wake.ARRIVED), ("seven", Wake.ARRIVED)]
    assert len(service) == 2


def test_a_pull_is_given_back_once(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []
    service.hold("t", 0, 0, 10.0, noted(log, "one"))
    service.wake("t", 0, 1)
    service.wake("t", 0, 2)
    clock.move_to(20.0)
    service.answer_all()
    assert log == [("one", Wake.ARRIVED)]
    assert len(service) == 0


def test_pulls_expire_at_their_own_deadlines_with_one_timer(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []
    for deadline in (3.0, 1.0, 2.0):
        service.hold("t", 0, 0, deadline, noted(log, str(deadline)))
        assert len(clock.pending) == 1
    clock.move_to(0.9)
    assert log == []
    clock.move_to(2.0)
    assert log == [("1.0", Wake.EXPIRED), ("2.0", Wake.EXPIRED)]
    assert len(clock.pending) == 1
    clock.move_to(3.0)
    assert [name for name, _ in log] == ["1.0", "2.0", "3.0"]
    assert clock.pending == []


def test_a_cancelled_pull_is_never_called(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []
    held = service.hold("t", 0, 0, 1.0, noted(log, "one"))
    held.cancel()
    held.cancel()
    service.wake("t", 0, 1)
    clock.move_to(2.0)
    assert log == []
    assert len(service) == 0


def test_a_callback_may_cancel_another_that_is_being_given_back(service: PullRequestHoldService) -> None:
    log: list[tuple[str, Wake]] = []
    first = service.hold("t", 0, 0, 1.0, lambda wake: second.cancel())
    second = service.hold("t", 0, 0, 1.0, noted(log, "second"))
    service.wake("t", 0, 1)
    assert log == []
    assert first is not second
    assert len(service) == 0


def test_a_callback_may_hold_again(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []

    def again(wake: Wake) -> None:
        log.append(("filtered", wake))
        if wake is Wake.ARRIVED:
            service.hold("t", 0, len(log), 5.0, again)

    service.hold("t", 0, 0, 5.0, again)
    service.wake("t", 0, 1)
    service.wake("t", 0, 2)
    clock.move_to(5.0)
    assert [wake for _, wake in log] == [Wake.ARRIVED, Wake.ARRIVED, Wake.EXPIRED]


def test_all_are_answered_at_a_stop(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []
    for queue in range(3):
        service.hold("t", queue, 0, 10.0, noted(log, str(queue)))
    service.answer_all()
    assert sorted(log) == [("0", Wake.STOPPED), ("1", Wake.STOPPED), ("2", Wake.STOPPED)]
    assert clock.pending == []
    assert len(service) == 0


def test_waking_a_topic_gives_back_all_of_its_queues(service: PullRequestHoldService) -> None:
    log: list[tuple[str, Wake]] = []
    service.hold("t", 0, 100, 10.0, noted(log, "a"))
    service.hold("t", 1, 100, 10.0, noted(log, "b"))
    service.hold("u", 0, 100, 10.0, noted(log, "c"))
    service.wake_topic("t")
    assert [name for name, _ in log] == ["a", "b"]


def test_what_is_done_with_does_not_pile_up(service: PullRequestHoldService) -> None:
    log: list[tuple[str, Wake]] = []
    for number in range(20 * STALE_ENTRIES_MIN):
        service.hold("t", 0, number, 600.0, noted(log, "x"))
        service.wake("t", 0, number + 1)
    assert len(log) == 20 * STALE_ENTRIES_MIN
    assert len(service._deadlines) <= 2 * STALE_ENTRIES_MIN
    assert service._by_queue == {}
