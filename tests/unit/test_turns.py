"""Steps on the event loop: together they get one slice of each turn, in the order of their arrival."""

from __future__ import annotations

from collections.abc import Callable

from flintmq.broker.background.loop_work import SLICE_S, StepScheduler
from flintmq.broker.requests.dispatch import SHARED_S, ContentionTracker


class FakeLoop:
    """A loop whose turns the test runs, and whose clock stands still between them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[Callable[[], None]] = []
        self.done: list[str] = []
        self.turns = StepScheduler(lambda: self.now, self.calls.append)

    def turn(self) -> None:
        calls, self.calls[:] = list(self.calls), []
        for call in calls:
            call()

    def step(self, name: str, seconds: float, *following: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            self.done.append(name)
            self.now += seconds
            for each in following:
                self.turns.add(each)

        return run


def test_short_steps_share_one_turn_in_their_order() -> None:
    loop = FakeLoop()
    for name in "abc":
        loop.turns.add(loop.step(name, SLICE_S / 10))
    assert (loop.done, len(loop.calls)) == ([], 1)
    loop.turn()
    assert (loop.done, loop.calls, len(loop.turns)) == (["a", "b", "c"], [], 0)


def test_steps_that_do_not_fit_continue_in_the_next_turn() -> None:
    loop = FakeLoop()
    for name in "abcd":
        loop.turns.add(loop.step(name, SLICE_S * 0.6))
    loop.turn()
    assert (loop.done, len(loop.turns)) == (["a", "b"], 2)
    loop.turn()
    assert loop.done == ["a", "b", "c", "d"]
    loop.turn()
    assert loop.calls == []


def test_a_following_step_waits_after_the_others() -> None:
    loop = FakeLoop()
    loop.turns.add(loop.step("a1", SLICE_S, loop.step("a2", SLICE_S)))
    loop.turns.add(loop.step("b1", SLICE_S, loop.step("b2", SLICE_S)))
    for _ in range(4):
        loop.turn()
        assert len(loop.calls) <= 1
    assert loop.done == ["a1", "b1", "a2", "b2"]


def test_a_step_is_called_although_one_alone_takes_longer_than_a_slice() -> None:
    loop = FakeLoop()
    loop.turns.add(loop.step("long", SLICE_S * 50))
    loop.turns.add(loop.step("short", 0.0))
    loop.turn()
    assert loop.done == ["long"]
    loop.turn()
    assert loop.done == ["long", "short"]


def test_a_single_client_is_not_contended_and_a_second_one_is_remembered() -> None:
    sharing = ContentionTracker()
    one, other = object(), object()
    for now in (10.0, 10.0 + SHARED_S, 20.0, 30.0):
        sharing.turn(one, now)
        assert not sharing.is_shared(now)
    sharing.turn(other, 30.1)
    sharing.turn(one, 30.11)
    assert sharing.is_shared(30.1 + SHARED_S)
    sharing.turn(one, 31.0)
    assert not sharing.is_shared(31.0)


def test_a_departed_client_is_forgotten() -> None:
    sharing = ContentionTracker()
    sharing.turn(one := object(), 1.0)
    sharing.forget(object())
    assert sharing.last is one
    sharing.forget(one)
    assert sharing.last is None
    sharing.turn(object(), 1.01)
    assert not sharing.is_shared(1.01)
