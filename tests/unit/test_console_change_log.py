"""The list of changes that the console keeps, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.client.console.sampler import CHANGES_MAX, NAMED_MAX, ChangeLog
from flintmq.client.operator.condition import Condition
from flintmq.protocol.commands import Setting


def broker(**figures: Any) -> Condition:
    """Return what a broker says of itself."""
    return Condition({"uptime_seconds": 100.0, "quarantined_holes": 0, "lost_messages": 0, "pid": 7} | figures)


def texts(log: ChangeLog) -> list[str]:
    """Return the texts of the changes, the oldest first."""
    return [f"{change.name} {change.text}".strip() for change in log.changes]


def settings(**values: int) -> list[Setting]:
    """Return settings that all were 1 at the broker's start."""
    return [Setting(name, value, 1, True, "") for name, value in values.items()]


def test_the_first_look_shows_no_change() -> None:
    log = ChangeLog()
    log.saw_broker(broker(uptime_seconds=98.0, quarantined_holes=2, lost_messages=5))
    log.saw_settings(settings(a=2))
    assert texts(log) == []
    assert log.differing == ["a"]


def test_new_damage_is_a_change_and_repaired_damage_is_none() -> None:
    log = ChangeLog()
    log.saw_broker(broker())
    log.saw_broker(broker(quarantined_holes=2, lost_messages=5))
    log.saw_broker(broker())
    assert texts(log) == ["got 2 damaged ranges with 5 lost messages"]


@pytest.mark.parametrize("after", [{"uptime_seconds": 1.0}, {"uptime_seconds": 99.5, "pid": 8}])
def test_a_restart_shows_in_the_time_since_the_start_or_in_the_process(after: dict[str, float]) -> None:
    log = ChangeLog()
    log.saw_broker(broker())
    started = log.started
    log.saw_broker(broker(**after))
    assert texts(log) == ["The broker was started again"]
    assert log.started is not None
    assert started is not None
    assert log.started > started


def test_a_broker_that_withholds_its_figures_shows_no_change() -> None:
    log = ChangeLog()
    log.saw_broker(Condition({"name": "broker"}))
    assert log.since is None


def test_many_objects_at_once_are_one_change() -> None:
    log = ChangeLog()
    log.saw_settings([])
    log.saw_settings(settings(**{f"s{number}": 1 for number in range(NAMED_MAX + 2)}))
    assert texts(log) == ["7 settings were created: s0, s1, s2, s3, s4 and 2 more"]


def test_a_change_has_the_value_before_and_after() -> None:
    log = ChangeLog()
    log.saw_settings(settings(a=1, b=1))
    log.saw_settings(settings(a=1, b=3))
    assert texts(log) == ["b was changed: 1 → 3"]


def test_only_the_newest_changes_are_kept() -> None:
    log = ChangeLog()
    for value in range(CHANGES_MAX + 10):
        log.saw_settings(settings(a=value))
    assert len(log.changes) == CHANGES_MAX
    assert texts(log)[-1] == f"a was changed: {CHANGES_MAX + 8} → {CHANGES_MAX + 9}"
