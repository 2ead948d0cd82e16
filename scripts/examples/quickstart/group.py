"""The quickstart's consumer group: two members share the flights; those that fail in a listener are redelivered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from flintmq.client import PushConsumer, TryLater

from ...lib.step_report import rate_of, report

GROUP = "quickstart"
MEMBERS = 2
RETRY_LEVEL = 1
"""Delay level of the redelivery: 1 s. By default, a group begins with 10 s."""
SECONDS_MAX = 120


class GroupFailed(Exception):
    """Error: the group did not consume everything in time."""


class Member:
    """Listener of one member: passes every flight to ``add``; those with ``key`` fail at the first delivery."""

    def __init__(self, key: str, add: Callable[[bytes], object], lock: threading.Lock) -> None:
        self.count = 0
        self.failed = 0
        self.retried = 0
        self._key = key
        self._add = add
        self._lock = lock

    def __call__(self, batch: Any) -> None:
        """Handle a batch of messages."""
        failing = []
        with self._lock:
            for message in batch:
                if not message.reconsume_times and self._key in message.keys:
                    failing.append(message)
                    continue
                self.count += 1
                self.retried += message.reconsume_times
                self._add(message.body)
            self.failed += len(failing)
        if failing:
            raise TryLater(RETRY_LEVEL, failing)


def consume_as_group(address: str, topic: str, key: str, wanted: int, add: Callable[[bytes], object]) -> int:
    """Have a group consume ``wanted`` messages of the topic; return the number of redeliveries.

    ``add`` is called with the body of each handled message. Raises ``GroupFailed`` if messages are missing.
    """
    lock = threading.Lock()
    members = [Member(key, add, lock) for _ in range(MEMBERS)]
    consumers = [
        PushConsumer(address, GROUP, topic, member, start="first", batch=1000, workers=1) for member in members
    ]
    started = time.perf_counter()
    for consumer in consumers:
        consumer.start()
    try:
        seconds = _wait(members, consumers, wanted, started)
    finally:
        for consumer in consumers:
            consumer.close()
    shares = " and ".join(f"{member.count:,}" for member in members)
    report("shared", f"{wanted:,} flights by a group of {MEMBERS}: {shares}", rate_of(wanted, seconds))
    retried = sum(member.retried for member in members)
    report("retried", f"{retried} flights of {key}, which failed at first, after 1 s")
    return retried


def _wait(members: list[Member], consumers: list[PushConsumer], wanted: int, started: float) -> float:
    """Wait until all messages are handled; return the seconds until only redeliveries were missing."""
    seconds = 0.0
    while sum(member.count for member in members) < wanted:
        now = time.perf_counter() - started
        if not seconds and sum(member.count + member.failed for member in members) >= wanted:
            seconds = now
        if now > SECONDS_MAX:
            health = [consumer.health() for consumer in consumers]
            raise GroupFailed(f"after {SECONDS_MAX} s the group had not consumed everything: {health}")
        for consumer in consumers:
            consumer.wait(0.005)  # raises if it cannot continue
    return seconds or time.perf_counter() - started
