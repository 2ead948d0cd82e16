"""Reads that may wait for the disk: no more at a time than there are threads."""

from __future__ import annotations

from collections.abc import Callable

from flintmq.broker.server.cold_reads import ColdReads


def start(begun: list[str], name: str, *, takes: bool = True) -> Callable[[], bool]:
    def begin() -> bool:
        begun.append(name)
        return takes

    return begin


def test_as_many_begin_as_there_are_threads_and_each_that_is_over_lets_the_next_begin() -> None:
    reads = ColdReads(2)
    begun: list[str] = []
    for name in "abcd":
        reads.when_free(start(begun, name))
    assert (begun, len(reads)) == (["a", "b"], 2)
    reads.over()
    assert begun == ["a", "b", "c"]
    reads.over()
    reads.over()
    reads.over()
    assert (begun, len(reads)) == (["a", "b", "c", "d"], 0)


def test_who_needs_its_thread_no_more_takes_none() -> None:
    reads = ColdReads(1)
    begun: list[str] = []
    for name in "ab":
        reads.when_free(start(begun, name, takes=False))
    reads.when_free(start(begun, "c"))
    reads.when_free(start(begun, "d"))
    assert begun == ["a", "b", "c"]


def test_one_that_begins_another_does_not_overtake_who_waits() -> None:
    reads = ColdReads(1)
    begun: list[str] = []

    def begin() -> bool:
        begun.append("a")
        reads.when_free(start(begun, "c"))
        return False

    reads.when_free(start(begun, "first"))
    reads.when_free(begin)
    reads.when_free(start(begun, "b"))
    reads.over()
    assert begun == ["first", "a", "b"]
