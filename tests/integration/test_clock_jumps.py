"""A broker whose clock jumps: delayed messages keep their delays, delivery times follow a trusted clock, and store
times never go back.
"""

from __future__ import annotations

import itertools
import os
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Message, Producer, PushConsumer, StoredMessage
from tests.conftest import BrokerFactory, RunningBroker
from tests.processes import free_port

SHIFTED_CLOCK = """
import sys, time
path = sys.argv.pop(1)
time_ns, clock_gettime_ns = time.time_ns, time.clock_gettime_ns

def shifts():
    with open(path) as file:
        return [int(word) * 10**9 for word in file.read().split()]

time.time_ns = lambda: time_ns() + shifts()[0]
time.time = lambda: time.time_ns() / 1e9
time.clock_gettime_ns = lambda clock: clock_gettime_ns(clock) + shifts()[1]
from flintmq.broker.app.daemon import main
main()
"""
"""A broker that reads a file for how many seconds its wall clock is ahead, and how many have passed unseen."""

HOUR = 3600
HOLD_S = 61
"""Longer than a clock that jumped is watched before it is believed."""


class Clock:
    """The time that the broker's process sees."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wall = self._passed = 0
        self.jump(0)

    def jump(self, seconds: int) -> None:
        """Set the wall clock forward or back."""
        self._wall += seconds
        made = self.path.with_suffix(".new")
        made.write_text(f"{self._wall} {self._passed}")
        os.replace(made, self.path)

    def passes(self, seconds: int) -> None:
        """Let time pass."""
        self._passed += seconds
        self.jump(seconds)

    def now(self) -> datetime:
        """Return the time of the wall clock."""
        return datetime.now(UTC) + timedelta(seconds=self._wall)


@dataclass
class Timed:
    """A broker, its clock, and its clients. All messages go to queue 0 of ``topic``."""

    start: Callable[[], RunningBroker]
    clock: Clock
    running: RunningBroker
    producer: Any
    consumer: Any
    topic: str = "orders"
    messages: list[Any] = field(default_factory=list)
    """Messages that came so far."""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def connect(self) -> None:
        """Connect clients to the running broker."""
        self.producer, self.consumer = Producer(self.running.address), Consumer(self.running.address)

    def close(self) -> None:
        """Close the clients."""
        self.producer.close()
        self.consumer.close()

    def restart(self) -> None:
        """Start the broker again after it has ended."""
        self.close()
        self.running = self.start()
        self.connect()

    def send(self, body: str, **how: Any) -> datetime:
        """Send a message; return the store time that the broker reports."""
        stored_at: datetime = self.producer.send(Message(self.topic, body.encode(), **how), queue=0).stored_at
        return stored_at

    def wait_for(self, *bodies: str) -> set[str]:
        """Wait, long enough, until these messages are stored; return the bodies of all messages that are."""
        while not set(bodies) <= {message.body.decode() for message in self.messages}:
            found = self.consumer.pull(self.topic, 0, len(self.messages), wait_ms=20_000).messages
            assert found, f"{bodies} did not come; {[message.body.decode() for message in self.messages]} did"
            self.messages += found
        return {message.body.decode() for message in self.messages}

    def pulse(self, name: str) -> set[str]:
        """Send a message with the shortest delay of each kind; return the other messages once both have arrived.

        By then every message that was due earlier has arrived, too.
        """
        self.send(f"{name}: level", delay_level=1)
        self.send(f"{name}: timed", delay=timedelta(seconds=2))
        self.clock.passes(2)
        return {body for body in self.wait_for(f"{name}: level", f"{name}: timed") if ": " not in body}

    def assert_times_go_on(self, *, once: bool) -> None:
        """Check that store times never decrease; with ``once``, also that no message was delivered twice."""
        times = [message.stored_at for message in self.messages]
        assert times == sorted(times)
        bodies = [message.body for message in self.messages]
        assert not once or len(set(bodies)) == len(bodies)

    def waiting(self) -> tuple[int, int]:
        """Return how many messages wait for a level, and how many for a time."""
        with Admin(self.running.address) as admin:
            found = admin.delays()
        return sum(row.messages for row in found.levels.values()), sum(row.messages for _, row in found.hours)

    def believed(self) -> None:
        """Wait until the broker trusts the clock that was set."""
        self.send(f"noticed: {next(self.numbers)}")
        self.clock.passes(HOLD_S)
        self.send(f"believed: {next(self.numbers)}")


@pytest.fixture
def timed(broker: BrokerFactory, tmp_path: Path) -> Iterator[Timed]:
    clock = Clock(tmp_path / "clock")
    options = "--flush", "sync", "--listen", f"127.0.0.1:{free_port()}"

    def start() -> RunningBroker:
        return broker(*options, store=tmp_path / "store", program=["-c", SHIFTED_CLOCK, str(clock.path)])

    each = Timed(start, clock, start(), None, None)
    each.connect()
    with Admin(each.running.address) as admin:
        admin.create_topic(each.topic, queues=1)
    yield each
    each.close()


def test_a_clock_that_was_an_hour_ahead_for_a_moment_has_changed_nothing(timed: Timed) -> None:
    timed.send("a minute", delay_level=5)
    timed.send("ten minutes", delay=timedelta(minutes=10))
    timed.clock.jump(HOUR)
    timed.send("ahead")
    assert timed.pulse("meanwhile") == {"ahead"}
    timed.clock.jump(-HOUR)
    assert timed.pulse("afterwards") == {"ahead"}
    assert timed.waiting() == (1, 1)
    assert all(abs(message.stored_at.timestamp() - time.time()) < HOUR / 2 for message in timed.messages)
    timed.clock.passes(60)
    timed.wait_for("a minute")
    assert "ten minutes" not in timed.pulse("a minute later")
    timed.clock.passes(540)
    timed.wait_for("ten minutes")
    timed.assert_times_go_on(once=True)


def test_a_clock_that_was_an_hour_ahead_and_believed_keeps_nothing_waiting_when_it_is_right_again(timed: Timed) -> None:
    start = time.time()
    timed.clock.jump(HOUR)
    timed.believed()
    assert timed.send("ahead").timestamp() > start + HOUR
    timed.send("five seconds", delay_level=2)
    timed.send("a timed hour", delay=timedelta(hours=1))
    timed.clock.jump(-HOUR)
    timed.believed()
    timed.wait_for("five seconds")
    assert timed.pulse("afterwards") == {"ahead", "five seconds"}
    timed.send("a minute", delay_level=5)
    timed.send("a timed minute", delay=timedelta(minutes=1))
    timed.send("ten minutes", delay=timedelta(minutes=10))
    assert timed.pulse("before the kill") == {"ahead", "five seconds"}
    timed.running.kill()
    timed.restart()
    assert timed.pulse("after the kill") == {"ahead", "five seconds"}
    assert timed.waiting() == (1, 3)
    timed.clock.passes(60)
    timed.wait_for("a minute", "a timed minute")
    assert "ten minutes" not in timed.pulse("a minute later")
    timed.clock.passes(540)
    timed.wait_for("ten minutes")
    timed.assert_times_go_on(once=False)
    # Meanwhile the store times have advanced at a sixteenth of the pace.
    assert timed.messages[-1].stored_at.timestamp() < start + HOUR + 2 * HOLD_S + 100


def test_delays_continue_while_the_clock_is_set_back(timed: Timed) -> None:
    timed.send("thirty seconds", delay_level=4)
    timed.send("a time", deliver_at=timed.clock.now() + timedelta(seconds=40))
    timed.clock.jump(-HOUR)
    assert timed.pulse("noticed") == set()
    timed.clock.passes(40)
    timed.wait_for("a time", "thirty seconds")
    timed.send("two minutes", delay_level=6)
    timed.send("its time", deliver_at=timed.clock.now() + timedelta(hours=1, minutes=2))
    timed.clock.passes(HOLD_S)
    assert timed.pulse("believed") == {"a time", "thirty seconds"}
    assert timed.waiting() == (1, 1)
    timed.clock.passes(60)
    timed.wait_for("two minutes")
    assert "its time" not in timed.pulse("an hour to go")
    timed.clock.passes(HOUR)
    timed.wait_for("its time")
    timed.assert_times_go_on(once=True)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_broker_started_with_a_clock_one_hour_slow_keeps_its_delays(timed: Timed, end: str) -> None:
    timed.send("ten minutes", delay_level=14)
    timed.send("a time", deliver_at=timed.clock.now() + timedelta(minutes=10))
    assert timed.pulse("before") == set()
    if end == "kill":
        timed.running.kill()
    else:
        timed.running.stop()
    timed.clock.jump(-HOUR)
    timed.restart()
    assert timed.pulse("behind") == set()
    # Messages delivered since the last checkpoint are delivered again after a kill.
    assert timed.waiting() == (1, 1) or end == "kill"
    timed.clock.passes(600)
    timed.wait_for("ten minutes")
    assert "a time" not in timed.pulse("an hour to go")
    timed.clock.passes(HOUR)
    timed.wait_for("a time")
    timed.assert_times_go_on(once=end == "stop")


def test_a_group_continues_after_a_start_with_a_clock_one_hour_slow(timed: Timed) -> None:
    came: queue.SimpleQueue[str] = queue.SimpleQueue()

    def handle(message: StoredMessage) -> None:
        came.put(message.body.decode())

    with PushConsumer(timed.running.address, "workers", timed.topic, handle, start="first"):
        timed.send("before")
        assert came.get(timeout=60) == "before"
        timed.running.stop()
        timed.clock.jump(-HOUR)
        timed.restart()
        timed.send("behind")
        assert came.get(timeout=60) == "behind"
    with PushConsumer(timed.running.address, "workers", timed.topic, handle, start="first"):
        timed.send("all the others were committed")
        assert came.get(timeout=60) == "all the others were committed"
