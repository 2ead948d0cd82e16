"""A broker with few descriptors: connections do not use those that the store needs, and its files share them."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.protocol.errors import SystemBusy
from tests.integration.test_short_sends import create, enter, frame
from tests.overload_tools import soon

Broker = Any
Connect = Callable[..., Any]

DESCRIPTORS = 128
TOPICS = 24
QUEUES = 4
UNITS_A_FILE = 2


def with_descriptors(count: int) -> tuple[str, str]:
    """Return the Python arguments that start a broker with so many descriptors, and with checkpoints at once."""
    return (
        "-c",
        "import resource, runpy; from flintmq.broker.background import services; services.CHECKPOINT_S = 0.1; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({count}, {count})); "
        "runpy.run_module('flintmq.broker.app.daemon', run_name='__main__', alter_sys=True)",
    )


LIMITED = with_descriptors(DESCRIPTORS)
SETTINGS = {"store.consumequeue_file_bytes": 20 * UNITS_A_FILE}


def places() -> list[tuple[str, int]]:
    return [(f"topic-{number}", queue) for number in range(TOPICS) for queue in range(QUEUES)]


@pytest.fixture
def limited(broker: Callable[..., Broker]) -> Broker:
    return broker(settings=SETTINGS, program=LIMITED)


def test_queues_with_more_files_than_descriptors_are_written_read_and_found_again_after_a_kill(
    broker: Callable[..., Broker], connect: Connect, limited: Broker
) -> None:
    peer = connect(limited)
    for round_number in range(UNITS_A_FILE + 1):
        for topic, queue in places():
            peer.produce(topic, b"%d" % round_number, queue=queue).raise_for_error()
    wanted = dict.fromkeys(places(), UNITS_A_FILE + 1)
    assert len(places()) * 2 > DESCRIPTORS
    assert {place: peer.pull(place[0], queue=place[1]).fields["count"] for place in places()} == wanted
    assert len(os.listdir(f"/proc/{limited.process.pid}/fd")) < DESCRIPTORS * 3 // 4
    limited.process.kill()
    limited.process.wait()
    again = connect(broker(store=limited.store, settings=SETTINGS, program=LIMITED))
    assert {place: again.pull(place[0], queue=place[1]).fields["count"] for place in places()} == wanted


def test_a_limit_that_hardly_touches_the_default_is_no_news(broker: Callable[..., Broker]) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 16_000:
        pytest.skip(f"no more than {hard} descriptors are allowed here")
    program = with_descriptors(16_000)
    assert "connections can be open" not in broker(program=program).log
    asked_for = broker(program=program, settings={"limits.connections_max": 19_999})
    assert "limits.connections_max is 19999" in asked_for.log


def test_connections_leave_the_descriptors_alone_that_the_store_needs(connect: Connect, limited: Broker) -> None:
    assert "at most 64 connections can be open, although limits.connections_max is 20000" in limited.log
    first = connect(limited)
    connections = [connect(limited, hello=False) for _ in range(DESCRIPTORS)]
    refused = connections[-1].receive()
    assert refused.code == SystemBusy.code
    assert "the other descriptors are reserved for the store" in refused.fields["message"]
    for topic, queue in places():
        first.produce(topic, b"x", queue=queue).raise_for_error()
        assert first.pull(topic, queue=queue).fields["count"] == 1
    for connection in connections:
        connection.close()
    soon(lambda: len(os.listdir(f"/proc/{limited.process.pid}/fd")) < DESCRIPTORS // 2)
    assert connect(limited).produce("topic-0", b"y").code == 0


def test_connections_with_short_sends_leave_their_second_descriptors_to_new_clients(
    broker: Callable[..., Broker], connect: Connect
) -> None:
    running = broker(program=with_descriptors(256))
    possible = re.search(r"at most (\d+) connections can be open", running.log)
    assert possible is not None
    files = len(os.listdir(f"/proc/{running.process.pid}/fd"))
    senders = [connect(running) for _ in range(30)]
    create(senders[0])
    for number, sender in enumerate(senders):
        enter(sender, f"{number:020X}")
    others = [connect(running) for _ in range(int(possible[1]) - files - len(senders) - 4)]
    for number, sender in enumerate(senders):
        sender.send_bytes(frame(1, 1_000, f"{number:020X}"))
        sender.receive_for(1).raise_for_error()
    assert len(others) > len(senders)
