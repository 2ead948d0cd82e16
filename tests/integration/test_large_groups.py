"""Groups of hundreds of members: they settle, and no other client waits for them."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator

import msgpack
import pytest

from flintmq.client import Admin
from flintmq.protocol.commands import GET_MAX_OFFSET, HEART_BEAT
from tests.conftest import BrokerFactory, ConnectionFactory, RawConnection, RunningBroker
from tests.group_tools import RawMember

MEMBERS = 300
ON_A_CONNECTION = 100
QUEUES = 64


@pytest.fixture
def running(broker: BrokerFactory) -> RunningBroker:
    found = broker()
    with Admin(found.address) as admin:
        admin.create_topic("wide", queues=QUEUES)
    return found


@pytest.fixture
def members(running: RunningBroker, connect: ConnectionFactory) -> Iterator[list[RawMember]]:
    connections: list[RawConnection] = [connect(running) for _ in range(MEMBERS // ON_A_CONNECTION)]
    found = [
        RawMember(connections[number % len(connections)], "g", f"m-{number}", session_timeout_ms=300_000)
        for number in range(MEMBERS)
    ]
    for member in found:
        member.beat("wide").raise_for_error()
    yield found
    for member in found:
        member.leave()


def held(members: list[RawMember]) -> dict[tuple[str, int], str]:
    return {queue: member.name for member in members for queue in member.rows}


def test_every_queue_is_with_its_member_after_a_few_heartbeats(
    running: RunningBroker, members: list[RawMember]
) -> None:
    with Admin(running.address) as admin:
        for _ in range(10):  # a round takes longer than a large group waits for late members
            for member in members:
                member.beat("wide").raise_for_error()
            if admin.group("g").state == "stable":
                break
        status = admin.group("g")
    assert status.state == "stable"
    owners = [queue.member for queue in status.queues if queue.topic == "wide"]
    assert len(owners) == len(set(owners)) == QUEUES
    for member in members:
        member.beat("wide").raise_for_error()
    assert {queue: name for queue, name in held(members).items() if queue[0] == "wide"} == {
        (queue.topic, queue.queue): queue.member for queue in status.queues if queue.topic == "wide"
    }


@pytest.mark.parametrize("what", ["filters", "queues"])
def test_long_heartbeats_of_many_members_are_decoded_between_the_requests_of_others(
    running: RunningBroker, connect: ConnectionFactory, what: str
) -> None:
    """All of them arrive in one turn of the broker's loop, and another request after them."""
    members = [RawMember(connect(running), f"g-{number}", "m") for number in range(16)]
    topics = [f"t-{each}" for each in range(30)]
    for member in members:  # so that the long heartbeats change nothing that has to be saved
        member.beat(*topics).raise_for_error()
    if what == "filters":
        condition = " OR ".join(["aaaa = bbbb"] * 150)
        body = msgpack.packb([[[topic, "", f"{condition} OR a = '{topic}'"] for topic in topics], []])
    else:
        body = msgpack.packb([[], [["wide", 0]] * 12_000])
    other = connect(running)
    running.process.send_signal(signal.SIGSTOP)
    for member in members:
        fields = {"group": member.group, "member": member.name, "epoch": 0 if what == "filters" else member.epoch}
        member.connection.send(HEART_BEAT, fields, body)
    asked = other.send(GET_MAX_OFFSET, {"topic": "wide", "queue": 0})
    running.process.send_signal(signal.SIGCONT)
    other.receive_for(asked).raise_for_error()
    answered, _, _ = select.select([member.connection.sock for member in members], [], [], 0)
    assert len(answered) < len(members) // 2
    for member in members:
        member.connection.receive().raise_for_error()
