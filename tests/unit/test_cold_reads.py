"""Reads that may wait for the disk: at most one per reader thread at a time."""

from __future__ import annotations

from collections.abc import Callable

from flintmq.broker.background.loop_work import ColdReads


def start(begun: list[str], name: str, *, takes: bool = True) -> Callable[[], bool]:
    def begin() -> bool:
        begun.append(name)
        return takes

    return begin


def test_one_read_per_thread_begins_and_each_finished_one_lets_the_next_begin() -> None:
    reads = ColdReads(2)
    begun: list[str] = []
    for name in "abcd":
        reads.when_free(start(begun, name))
    assert (begun, len(reads)) == (["a", "b"], 2)
    reads.release()
    assert begun == ["a", "b", "c"]
    reads.release()
    reads.release()
    reads.release()
    assert (begun, len(reads)) == (["a", "b", "c", "d"], 0)


def test_a_read_that_is_no_longer_needed_takes_no_thread() -> None:
    reads = ColdReads(1)
    begun: list[str] = []
    for name in "ab":
        reads.when_free(start(begun, name, takes=False))
    reads.when_free(start(begun, "c"))
    reads.when_free(start(begun, "d"))
    assert begun == ["a", "b", "c"]


def test_a_new_read_does_not_overtake_waiting_ones() -> None:
    reads = ColdReads(1)
    begun: list[str] = []

    def begin() -> bool:
        begun.append("a")
        reads.when_free(start(begun, "c"))
        return False

    reads.when_free(start(begun, "first"))
    reads.when_free(begin)
    reads.when_free(start(begun, "b"))
    reads.release()
    assert begun == ["first", "a", "b"]
