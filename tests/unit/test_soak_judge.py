"""The soak of consumer groups detects the failures that it looks for."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

COUNTS = {"a": 3}


@pytest.fixture(scope="module")
def judge() -> Any:
    scripts = str(Path(__file__).resolve().parents[2] / "scripts")
    sys.path.insert(0, scripts)
    try:
        return importlib.import_module("soak.groups.judge")
    finally:
        sys.path.remove(scripts)


def lines(judge: Any, *calls: tuple[int, int, bool]) -> list[Any]:
    """Return (start, number of the message, whether it was handled) for each call; a call lasts one tick."""
    return [judge.Handled(begun, begun + 1, "a", number, done) for begun, number, done in calls]


def problems(judge: Any, *members: list[Any], orderly: bool = True) -> list[str]:
    named = {f"m{number}": member for number, member in enumerate(members)}
    found: list[str] = judge.check_group(COUNTS, named, orderly=orderly).problems
    return found


def test_failures_and_redeliveries_from_an_earlier_message_are_in_order(judge: Any) -> None:
    killed = lines(judge, (10, 0, True), (20, 1, False), (30, 1, True), (40, 2, True))
    after = lines(judge, (50, 1, True), (60, 2, True))

    verdict = judge.check_group(COUNTS, {"killed": killed, "after": after}, orderly=True)

    assert (verdict.problems, verdict.twice, verdict.failed, verdict.at_once) == ([], 2, 1, 0)


def test_a_member_that_gets_a_queue_back_continues_after_another_one(judge: Any) -> None:
    assert not problems(judge, lines(judge, (10, 0, True), (50, 2, True)), lines(judge, (30, 1, True)))


def test_a_message_never_handled_is_missing_even_without_order(judge: Any) -> None:
    (problem,) = problems(judge, lines(judge, (10, 0, True), (20, 2, True), (30, 1, False)), orderly=False)
    assert "1 of 3 never handled: [1]" in problem


def test_a_message_before_its_time_is_found(judge: Any) -> None:
    found = problems(judge, lines(judge, (10, 0, True), (20, 2, True), (30, 1, True)))
    assert "began a 2 before 1 was done" in found[0]


def test_a_message_that_overtakes_a_failed_one_is_found(judge: Any) -> None:
    found = problems(judge, lines(judge, (10, 0, True), (20, 1, False), (30, 2, True), (40, 1, True)))
    assert "began a 2 before 1 was done" in found[0]


def test_a_member_that_skips_unhandled_messages_is_found(judge: Any) -> None:
    found = problems(judge, lines(judge, (10, 0, True), (20, 1, True), (30, 0, True), (40, 2, True)))
    assert "skipped messages of a" in found[0]


def test_two_members_at_once_are_counted(judge: Any) -> None:
    one, other = judge.Handled(10, 30, "a", 0, True), judge.Handled(20, 40, "a", 0, True)
    assert judge.check_group({"a": 1}, {"one": [one], "other": [other]}, orderly=True).at_once == 1


def test_a_message_that_was_never_sent_is_found(judge: Any) -> None:
    assert (
        "no producer sent" in problems(judge, lines(judge, (1, 0, True), (3, 1, True), (5, 2, True), (7, 3, True)))[0]
    )


def test_gaps_orders_queues_and_duplicates_of_sent_messages_are_found(judge: Any) -> None:
    def sent(*rows: tuple[int, int, int]) -> list[Any]:
        return [judge.Sent("a", *row) for row in rows]

    assert judge.check_sent(sent((0, 1, 5), (1, 1, 6)), 2) == []
    assert "not acknowledged exactly once" in judge.check_sent(sent((0, 1, 5), (2, 1, 6)), 2)[0]
    assert "several queues" in judge.check_sent(sent((0, 1, 5), (1, 2, 6)), 2)[0]
    assert "is at offset 6" in judge.check_sent(sent((0, 1, 6), (1, 1, 5)), 2)[0]
    assert "3 are stored" in judge.check_sent(sent((0, 1, 5), (1, 1, 6)), 3)[0]
