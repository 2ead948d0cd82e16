"""A pool of workers that share a topic: each of them gets jobs from a bulk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from flintmq.client import Message, Producer, Receipt
from tests.group_tools import Seen, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.client_drivers import Clients
    from tests.conftest import RunningBroker

MEMBERS = 4


def by_bulk(producer: Producer, topic: str) -> Sequence[Receipt]:
    return producer.send_bulk(topic, [b"job %d" % number for number in range(23)])


def by_many(producer: Producer, topic: str) -> Sequence[Receipt]:
    return producer.send_many([Message(topic, b"job %d" % number) for number in range(1000)])


@pytest.mark.parametrize(("send", "jobs"), [(by_bulk, 23), (by_many, 1000)])
def test_every_member_gets_its_share(
    clients: Clients,
    shared_broker: RunningBroker,
    topic: str,
    send: Callable[[Producer, str], Sequence[Receipt]],
    jobs: int,
) -> None:
    address = shared_broker.address
    handled = [Seen() for _ in range(MEMBERS)]
    with ExitStack() as members:
        with clients.Admin(address) as admin:
            admin.create_topic(topic, queues=MEMBERS)
        consumers = [
            members.enter_context(clients.PushConsumer(address, topic, topic, seen, start="first")) for seen in handled
        ]
        until(lambda: [len(consumer.health().queues) for consumer in consumers] == [1] * MEMBERS, "one queue each")
        with clients.Producer(address) as producer:
            send(producer, topic)
        until(lambda: sum(len(seen.bodies) for seen in handled) == jobs, "all jobs done")
    assert min(len(seen.bodies) for seen in handled) >= jobs // MEMBERS * 4 // 5
