"""Delays that a frame's common properties ask for, and the topics that its messages are stored in."""

from __future__ import annotations

import pytest

from flintmq.broker.delivery.routing import DAY_MS, PAST_MS_MAX, Delay, delay_of, route
from flintmq.protocol.errors import DelayIllegal, MessageIllegal
from flintmq.protocol.storage.delivery import SCHEDULE_TOPIC, TIMER_TOPIC
from flintmq.protocol.storage.record import decode_properties

NOW_MS = 1_795_300_000_123


def common(**properties: object) -> str:
    """Return the properties as a frame contains them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def asked(properties: dict[str, object]) -> Delay:
    """Return the delay that these properties ask for."""
    delay = delay_of(common(**properties))
    assert delay is not None
    return delay


@pytest.mark.parametrize("properties", [{}, {"TAGS": "t"}, {"DELAY": 0}, {"DELAY": -1}, {"TIMER_X": 1}, {"x": "DELAY"}])
def test_most_frames_ask_for_no_delay(properties: dict[str, object]) -> None:
    assert delay_of(common(**properties)) is None


@pytest.mark.parametrize(("level", "taken"), [("1", 1), ("18", 18), ("+3", 3), ("19", 18), ("999999999", 18)])
def test_a_level_waits_in_its_queue(level: str, taken: int) -> None:
    to = route(asked({"TAGS": "t", "DELAY": level}), "orders", 3, NOW_MS, 40)
    assert to is not None
    assert (to.config.name, to.config.queues, to.queue) == (SCHEDULE_TOPIC, 18, taken - 1)
    assert decode_properties(to.common) == {"TAGS": "t", "DELAY": str(taken), "REAL_TOPIC": "orders", "REAL_QID": "3"}


@pytest.mark.parametrize(
    ("name", "value", "out_ms"),
    [
        ("TIMER_DELIVER_MS", NOW_MS + 10_000, 1_795_300_010_000),
        (
            "TIMER_DELIVER_MS",
            1_795_300_010_000,
            1_795_300_009_000,
        ),  # the second in which the delay ends, as in RocketMQ
        ("TIMER_DELIVER_MS", 1_795_300_010_001, 1_795_300_010_000),
        ("TIMER_DELAY_MS", 877, 1_795_300_000_000),
        ("TIMER_DELAY_MS", 878, 1_795_300_001_000),
        ("TIMER_DELAY_SEC", 60, 1_795_300_060_000),
        ("TIMER_DELAY_SEC", 40 * 86_400, 1_795_300_000_000 + 40 * DAY_MS),
    ],
)
def test_a_time_waits_in_the_timer_topic_with_the_second_before_it(name: str, value: int, out_ms: int) -> None:
    to = route(asked({name: value, "KEYS": "k"}), "orders", 0, NOW_MS, 40)
    assert to is not None
    assert (to.config.name, to.config.queues, to.queue) == (TIMER_TOPIC, 1, 0)
    assert decode_properties(to.common) == {
        "KEYS": "k",
        name: str(value),
        "REAL_TOPIC": "orders",
        "REAL_QID": "0",
        "TIMER_OUT_MS": str(out_ms),
    }


@pytest.mark.parametrize("past_ms", [0, 1, 1_000, PAST_MS_MAX - 1])
def test_a_time_that_has_just_passed_means_at_once(past_ms: int) -> None:
    assert route(Delay("TIMER_DELIVER_MS", NOW_MS - past_ms, ""), "orders", 0, NOW_MS, 40) is None


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        (
            {"TIMER_DELIVER_MS": NOW_MS - PAST_MS_MAX},
            "UTC, has passed: the broker's clock says .* UTC; pass a time in the future",
        ),
        ({"TIMER_DELIVER_MS": 0}, "the delivery time, 1970-01-01 00:00:00 UTC, has passed"),
        ({"TIMER_DELIVER_MS": NOW_MS + 40 * DAY_MS + 1}, "40.0 days from now, more than delivery.delay_max_days"),
        ({"TIMER_DELAY_SEC": 10**14}, "delivery.delay_max_days"),
        ({"TIMER_DELAY_MS": "soon"}, "TIMER_DELAY_MS must be a non-negative integer, got 'soon'"),
        ({"TIMER_DELAY_MS": "-5"}, "non-negative integer"),
        ({"TIMER_DELAY_MS": "1" * 16}, "non-negative integer"),
        ({"TIMER_DELAY_MS": "٣"}, "non-negative integer"),
        ({"TIMER_DELAY_MS": 1, "TIMER_DELAY_SEC": 1}, "several delays, TIMER_DELAY_MS and TIMER_DELAY_SEC"),
        ({"TIMER_DELAY_MS": 1, "DELAY": 3}, "several delays"),
    ],
)
def test_a_delay_that_cannot_be_is_refused_with_its_reason(properties: dict[str, object], why: str) -> None:
    with pytest.raises(DelayIllegal, match=why):
        route(asked(properties), "orders", 0, NOW_MS, 40)


def test_the_frames_other_properties_are_checked_as_always() -> None:
    delay = asked({"DELAY": 3, "REAL_TOPIC": "other"})
    with pytest.raises(MessageIllegal, match="REAL_TOPIC"):
        route(delay, "orders", 0, NOW_MS, 40)
