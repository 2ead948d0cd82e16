"""The quickstart's consumer group: two members share the flights, and what fails in a listener is tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from flintmq.client import PushConsumer, TryLater
from lib.reporting import rate_of, report

GROUP = "quickstart"
MEMBERS = 2
RETRY_LEVEL = 1
"""Tried again after 1 s; left to itself a group begins with 10 s."""
SECONDS_MAX = 120


class GroupFailed(Exception):
    """The group did not come to its end."""


class Member:
    """One member's listener: every flight goes to ``add``, but those with ``key`` fail the first time."""

    def __init__(self, key: str, add: Callable[[bytes], object], lock: threading.Lock) -> None:
        self.count = 0
        self.failed = 0
        self.tried_again = 0
        self._key = key
        self._add = add
        self._lock = lock

    def __call__(self, batch: Any) -> None:
        """Take a batch of messages."""
        late = []
        with self._lock:
            for message in batch:
                if not message.reconsume_times and self._key in message.keys:
                    late.append(message)
                    continue
                self.count += 1
                self.tried_again += message.reconsume_times
                self._add(message.body)
            self.failed += len(late)
        if late:
            raise TryLater(RETRY_LEVEL, late)


def consume_as_group(address: str, topic: str, key: str, wanted: int, add: Callable[[bytes], object]) -> int:
    """Have ``wanted`` messages of the topic consumed by a group; how many of them were tried again.

    ``add`` gets the body of each message that was handled. Raises ``GroupFailed`` where they do not all come.
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
    tried_again = sum(member.tried_again for member in members)
    report("retried", f"{tried_again} flights of {key}, which failed the first time, after 1 s")
    return tried_again


def _wait(members: list[Member], consumers: list[PushConsumer], wanted: int, started: float) -> float:
    """Seconds until all was handled, but for what was to be tried again."""
    seconds = 0.0
    while sum(member.count for member in members) < wanted:
        now = time.perf_counter() - started
        if not seconds and sum(member.count + member.failed for member in members) >= wanted:
            seconds = now
        if now > SECONDS_MAX:
            health = [consumer.health() for consumer in consumers]
            raise GroupFailed(f"after {SECONDS_MAX} s the group had not consumed everything: {health}")
        for consumer in consumers:
            consumer.wait(0.005)  # raises where it cannot go on
    return seconds or time.perf_counter() - started
