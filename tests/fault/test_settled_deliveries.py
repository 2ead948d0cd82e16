"""10,000 messages are settled in random order while members are killed and join, and the broker is killed.

In the mode ``work`` all members share two queues. ``FLINTMQ_SEED`` makes another run, the seed is printed.
"""

from __future__ import annotations

import random
import signal
from collections import defaultdict
from itertools import pairwise

import pytest

from flintmq.client import Admin, Producer
from tests.conftest import BrokerFactory
from tests.fault.settling_member import GROUP, LEASE_SECONDS, TOPIC
from tests.fault.settling_run import MESSAGES, SEED, Member, Run
from tests.group_tools import numbered, until

MEMBERS = 3
QUEUES = {"clustering": 8, "work": 2}


@pytest.mark.slow
@pytest.mark.parametrize("mode", QUEUES)
def test_each_message_is_settled_and_never_open_at_two_members(broker: BrokerFactory, mode: str) -> None:
    print(f"seed {SEED}")  # noqa: T201 - printed to repeat a failure
    running = broker()
    with Producer(running.address) as producer, Admin(running.address) as admin:
        admin.create_topic(TOPIC, queues=QUEUES[mode])
        producer.send_many(numbered(TOPIC, MESSAGES))
    run = Run(running.address, random.Random(SEED), mode)
    try:
        for _ in range(MEMBERS):
            run.join()
        run.steps(broker, running)
        until(lambda: run.has_settled(MESSAGES), "the last message")
        with Admin(running.address) as admin:
            until(lambda: not left(admin), "the last commit")
            while run.live:
                assert run.leave(signal.SIGTERM) == 0
            assert not left(admin)
    finally:
        while run.live:
            run.leave(signal.SIGKILL)
    assert_one_member_at_a_time(run.dead)
    if mode == "work":
        assert_leases_last(run.dead)


def left(admin: Admin) -> list[object]:
    """Return the queues whose committed offset is not at their end, and the number of messages to be tried again."""
    group = admin.group(GROUP)
    behind: list[object] = [(row.topic, row.queue, row.lag) for row in group.queues if row.lag]
    return behind + [group.delayed] * bool(group.delayed)


def assert_one_member_at_a_time(members: list[Member]) -> None:
    """Fail if a message was open in two members at the same time, or could not be settled.

    If the broker was killed while it stored a message for a retry, there may be two records of it, which are two
    messages.
    """
    events = [event for member in members for event in member.events]
    retried = {event.body for event in events if event.kind == "retry"}
    open_in: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for number, member in enumerate(members):
        for event, end in member.intervals():
            record = f"{event.body} at {event.physical_offset}" if event.body in retried else event.body
            open_in[record].append((event.at, end, number))
    for record, intervals in open_in.items():
        for (_, end, first), (begin, _, second) in pairwise(sorted(intervals)):
            assert end <= begin, f"message {record} was open in members {first} and {second} at the same time"
    assert not [event for event in events if event.kind == "lost"]


def assert_leases_last(members: list[Member]) -> None:
    """Fail if a message that was open in a killed member came again before its lease could be over."""
    opened: dict[str, list[int]] = defaultdict(list)
    left_open: list[tuple[str, int]] = []
    for member in members:
        for event, end in member.intervals():
            opened[event.body].append(event.at)
            if end == member.killed_at:
                left_open.append((event.body, event.at))
    assert left_open, "the killed members had nothing open"
    for body, at in left_open:
        again = min((each for each in opened[body] if each > at), default=None)
        # A member hands nothing out of whose lease half is over.
        assert again is not None, f"message {body} never came again"
        assert again - at >= LEASE_SECONDS * 1e9 / 2, f"message {body} came again within its lease"
