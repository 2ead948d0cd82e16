"""A topic whose messages were stored at different times, and the rule for readers with a time as a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.client import Consumer, Message, Producer
from tests.conftest import RunningBroker
from tests.group_tools import until

COUNT = 6
MICROSECOND = timedelta(microseconds=1)

Readers: TypeAlias = dict[str, Callable[[datetime], list[int]]]
"""Readers by name: each returns the numbers of the messages on its side of a time."""


class Stored(NamedTuple):
    """A topic whose messages, "0", "1" …, were stored at these times, all different, in queue 0, with the key "k"."""

    broker: RunningBroker
    topic: str
    at: list[datetime]


def store(broker: RunningBroker, topic: str) -> Stored:
    """Fill a topic, and wait until its messages are in the index."""
    at = []
    with Producer(broker.address) as producer, Consumer(broker.address) as consumer:
        for number in range(COUNT):
            at.append(producer.send(Message(topic, b"%d" % number, keys="k"), queue=0).stored_at)
            until(lambda: datetime.now(UTC) > at[-1] + timedelta(milliseconds=2), "the next millisecond")
        until(lambda: len(consumer.query(topic, "k")) == COUNT, "the index")
    return Stored(broker, topic, at)


def numbers(bodies: Iterable[bytes | bytearray | str]) -> list[int]:
    """Return the numbers that are the bodies, in order."""
    return sorted(map(int, bodies))


def shown(moment: datetime) -> str:
    """Return a time as commands and the console take it."""
    return "@" + moment.isoformat(timespec="microseconds")


def check_bounds(found: Stored, examples: int, *, from_: Readers, end: Readers, inclusive: Readers) -> None:
    """Check readers that begin at a time, that end before it, and those that end at it, with times near the messages'.

    Raises ``AssertionError`` for a reader that has a message on the wrong side.
    """

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(number=st.integers(0, COUNT - 1), micros=st.sampled_from([-1001, -1000, -999, -1, 0, 1, 500, 999, 1000]))
    def check(number: int, micros: int) -> None:
        moment = found.at[number] + micros * MICROSECOND
        later = [each for each, at in enumerate(found.at) if at >= moment]
        before = [each for each, at in enumerate(found.at) if at < moment]
        before_or_at = [each for each, at in enumerate(found.at) if at <= moment]
        assert {name: read(moment) for name, read in from_.items()} == dict.fromkeys(from_, later)
        assert {name: read(moment) for name, read in end.items()} == dict.fromkeys(end, before)
        assert {name: read(moment) for name, read in inclusive.items()} == dict.fromkeys(inclusive, before_or_at)

    check()
