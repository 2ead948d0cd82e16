"""Steps on the event loop: a slice of each turn for all of them, in the order in which they came."""

from __future__ import annotations

from collections.abc import Callable

from flintmq.broker.services.turns import SLICE_S, Turns


class FakeLoop:
    """A loop whose turns are run by hand, and whose clock stands still between them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[Callable[[], None]] = []
        self.done: list[str] = []
        self.turns = Turns(lambda: self.now, self.calls.append)

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


def test_what_does_not_fit_goes_on_in_the_next_turn() -> None:
    loop = FakeLoop()
    for name in "abcd":
        loop.turns.add(loop.step(name, SLICE_S * 0.6))
    loop.turn()
    assert (loop.done, len(loop.turns)) == (["a", "b"], 2)
    loop.turn()
    assert loop.done == ["a", "b", "c", "d"]
    loop.turn()
    assert loop.calls == []


def test_a_step_that_follows_another_waits_behind_the_others() -> None:
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
