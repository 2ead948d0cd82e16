"""Held pulls: which are released, when, and why. The test sets the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from flintmq.broker.background.held_pulls import (
    LOOK_AGAIN_S,
    PASSED_OVER_S,
    STALE_ENTRIES_MIN,
    PullRequestHoldService,
    Wake,
)
from flintmq.broker.background.loop_work import SLICE_S, StepScheduler


class Clock:
    """A clock that the test advances; it runs the calls that are due."""

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
        self.soon: list[Callable[[], None]] = []
        """Calls that are due in the loop's next turn."""

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, function: Callable[[], None]) -> Clock.Call:
        self.calls.append(Clock.Call(at, function))
        return self.calls[-1]

    def turn(self) -> None:
        """Run the calls of the loop's next turn."""
        soon, self.soon[:] = list(self.soon), []
        for call in soon:
            call()

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


class Tags:
    """The tags of messages by offset, the same in every queue."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}

    def between(self, topic: str, queue: int, first: int, end: int) -> frozenset[int] | None:
        codes = [self.codes.get(offset) for offset in range(first, end)]
        return None if None in codes else frozenset(code for code in codes if code is not None)


TAGS = Tags()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(clock: Clock) -> PullRequestHoldService:
    return PullRequestHoldService(clock.time, clock.call_at, StepScheduler(clock.time, clock.soon.append), TAGS.between)


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


def test_finished_pulls_do_not_pile_up(service: PullRequestHoldService) -> None:
    log: list[tuple[str, Wake]] = []
    for number in range(20 * STALE_ENTRIES_MIN):
        service.hold("t", 0, number, 600.0, noted(log, "x"))
        service.wake("t", 0, number + 1)
    assert len(log) == 20 * STALE_ENTRIES_MIN
    assert len(service._deadlines) <= 2 * STALE_ENTRIES_MIN
    assert service.by_queue == {}


# ---- many at a time


def slow(clock: Clock, log: list[tuple[str, Wake]], name: str) -> Callable[[Wake], None]:
    """Return a callback that takes a third of a slice."""

    def call(wake: Wake) -> None:
        clock.now += SLICE_S / 3
        log.append((name, wake))

    return call


def test_pulls_that_one_message_wakes_are_given_back_in_slices(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []
    for number in range(10):
        service.hold("t", 0, 0, 10.0, slow(clock, log, str(number)))
    service.wake("t", 0, 1)
    assert len(log) == 3
    assert len(service) == 7, "those that wait for their turn still count"
    clock.turn()
    assert len(log) == 6
    clock.turn()
    clock.turn()
    assert log == [(str(number), Wake.ARRIVED) for number in range(10)]
    assert clock.soon == []


def test_a_pull_of_another_queue_does_not_wait_for_all_of_a_large_one(
    service: PullRequestHoldService, clock: Clock
) -> None:
    log: list[tuple[str, Wake]] = []
    for _ in range(1_000):
        service.hold("large", 0, 0, 10.0, slow(clock, log, "large"))
    service.hold("small", 0, 0, 10.0, slow(clock, log, "small"))
    service.wake("large", 0, 1)
    service.wake("small", 0, 1)
    clock.turn()
    clock.turn()
    assert ("small", Wake.ARRIVED) in log
    assert len(log) < 12


def test_pulls_of_connections_that_hold_many_are_woken_last(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []
    for _ in range(1_000):
        service.hold("t", 0, 0, 10.0, slow(clock, log, "greedy"), of_many=True)
    service.hold("t", 0, 0, 10.0, slow(clock, log, "modest"))
    service.wake("t", 0, 1)
    assert log[0] == ("modest", Wake.ARRIVED)
    assert len(log) == 3


def test_a_pull_that_waits_for_its_turn_may_be_cancelled(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []
    held = [service.hold("t", 0, 0, 10.0, slow(clock, log, str(number))) for number in range(6)]
    service.wake("t", 0, 1)
    for each in held:
        each.cancel()
    clock.turn()
    assert len(log) == 3
    assert len(service) == 0


def test_a_message_that_arrives_while_pulls_are_given_back_wakes_those_that_are_held_again(
    service: PullRequestHoldService, clock: Clock
) -> None:
    log: list[tuple[str, Wake]] = []

    def again(wake: Wake) -> None:
        slow(clock, log, "again")(wake)
        service.hold("t", 0, 1, 10.0, slow(clock, log, "once more"))

    for _ in range(4):
        service.hold("t", 0, 0, 10.0, again)
    service.wake("t", 0, 1)
    service.wake("t", 0, 2)
    for _ in range(4):
        clock.turn()
    assert [name for name, _ in log] == ["again"] * 4 + ["once more"] * 4
    assert service.by_queue == {}


def test_pulls_whose_time_is_over_at_once_are_given_back_in_slices(
    service: PullRequestHoldService, clock: Clock
) -> None:
    log: list[tuple[str, Wake]] = []
    for number in range(6):
        service.hold("t", 0, 0, 1.0, slow(clock, log, str(number)))
    service.hold("t", 0, 0, 1.5, noted(log, "later"))
    clock.move_to(1.0)
    assert len(log) == 3
    clock.turn()
    clock.turn()
    assert log == [(str(number), Wake.EXPIRED) for number in range(6)]
    clock.move_to(1.5)
    assert log[-1] == ("later", Wake.EXPIRED)


def test_a_callback_that_raises_delays_no_other(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []

    def fails(wake: Wake) -> None:
        raise ZeroDivisionError

    service.hold("t", 0, 0, 10.0, fails)
    service.hold("u", 0, 0, 10.0, noted(log, "u"))
    with pytest.raises(ZeroDivisionError):
        service.wake_queues([("t", 0, 1), ("u", 0, 1)])
    clock.turn()
    assert log == [("u", Wake.ARRIVED)]
    service.hold("t", 0, 1, 10.0, noted(log, "t"))
    service.wake("t", 0, 2)
    assert log[-1] == ("t", Wake.ARRIVED)


# ---- tags


RED, BLUE = 11, 22


@pytest.fixture
def colours() -> Iterator[None]:
    """Tag the first message red and the second blue; the third has no known tag."""
    TAGS.codes = {0: RED, 1: BLUE}
    yield
    TAGS.codes = {}


@pytest.mark.usefixtures("colours")
def test_a_message_with_another_tag_wakes_no_pull(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []
    for name, tags in (("red", {RED}), ("blue", {BLUE}), ("both", {RED, BLUE}), ("all", None)):
        service.hold("t", 0, 0, 10.0, noted(log, name), tags=None if tags is None else frozenset(tags))
    service.wake("t", 0, 1)
    assert sorted(name for name, _ in log) == ["all", "both", "red"]
    service.wake("t", 0, 2)
    assert log[-1] == ("blue", Wake.ARRIVED)


@pytest.mark.usefixtures("colours")
def test_a_message_with_an_unknown_tag_wakes_all(service: PullRequestHoldService) -> None:
    log: list[tuple[str, Wake]] = []
    service.hold("t", 0, 0, 10.0, noted(log, "green"), tags=frozenset({33}))
    service.wake("t", 0, 2)
    assert log == []
    service.wake("t", 0, 3)
    assert log == [("green", Wake.ARRIVED)]


@pytest.mark.usefixtures("colours")
def test_a_group_learns_a_second_later_of_skipped_messages(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []
    service.hold("t", 0, 0, 600.0, noted(log, "group"), tags=frozenset({BLUE}), grouped=True)
    service.hold("t", 0, 0, 600.0, noted(log, "plain"), tags=frozenset({BLUE}))
    service.wake("t", 0, 1)
    clock.move_to(PASSED_OVER_S)
    assert log == [("group", Wake.EXPIRED)]
    clock.move_to(LOOK_AGAIN_S)
    assert log[1:] == [("plain", Wake.ARRIVED)]


@pytest.mark.usefixtures("colours")
def test_pulls_that_went_leave_no_timer(service: PullRequestHoldService, clock: Clock) -> None:
    log: list[tuple[str, Wake]] = []
    held = service.hold("t", 0, 0, 600.0, noted(log, "plain"), tags=frozenset({BLUE}))
    service.wake("t", 0, 1)
    assert len(clock.pending) == 2
    held.cancel()
    assert len(clock.pending) == 1, "the nearest deadline's"


def test_a_topic_created_again_wakes_pulls_from_its_first_message_on(service: PullRequestHoldService) -> None:
    log: list[tuple[str, Wake]] = []
    service.hold("t", 0, 100, 600.0, noted(log, "before"))
    service.hold("t", 0, 0, 600.0, noted(log, "anew"))
    service.wake("t", 0, 1)
    assert log == [("anew", Wake.ARRIVED)]
