"""Connections that take bytes and never answer, while new ones work: every call succeeds within its own time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

import flintmq.client
from flintmq.client import Consumer, Message, Outcome, Producer, aio
from tests.client_drivers import Clients
from tests.conftest import RunningBroker
from tests.dumb_proxy import DumbProxy, dumb_proxy

SECONDS = 2.0
"""Time of each call: half of it passes until the client takes another connection."""


@pytest.fixture(params=[False, True], ids=["nothing-arrives", "requests-arrive"])
def proxy(request: pytest.FixtureRequest, shared_broker: RunningBroker) -> Iterator[DumbProxy]:
    """A proxy in front of the shared broker; its dumb connections lose everything, or the responses alone."""
    with dumb_proxy(shared_broker, carries_requests=request.param) as proxy:
        yield proxy


def stored(running: RunningBroker, topic: str) -> list[bytes]:
    with Consumer(running.address) as consumer:
        return sorted(message.body for message in consumer.iter(topic, until="latest"))


SENDS: dict[str, Callable[[Any, str], object]] = {
    "send": lambda producer, topic: producer.send(Message(topic, b"x")),
    "send-pinned": lambda producer, topic: producer.send(Message(topic, b"x"), queue=1),
    "send-many": lambda producer, topic: producer.send_many([Message(topic, b"x"), Message(topic, b"x")]),
    "send-bulk": lambda producer, topic: producer.send_bulk(topic, [b"x"] * 40),
    "send-async": lambda producer, topic: producer.send_async(Message(topic, b"x")).result(60),
}


class TestProducers:
    @pytest.mark.parametrize("kind", SENDS)
    def test_a_send_is_stored_once(
        self, clients: Clients, proxy: DumbProxy, shared_broker: RunningBroker, topic: str, kind: str
    ) -> None:
        with clients.Producer(proxy.address, delivery_timeout=SECONDS) as producer:
            SENDS[kind](producer, topic)
            count = len(stored(shared_broker, topic))
            proxy.turn_dumb()
            SENDS[kind](producer, topic)
        assert stored(shared_broker, topic) == [b"x"] * 2 * count

    def test_the_time_of_the_call_counts_not_that_of_the_producer(
        self, clients: Clients, proxy: DumbProxy, topic: str
    ) -> None:
        with clients.Producer(proxy.address, delivery_timeout=300) as producer:
            producer.send(Message(topic, b"x"))
            proxy.turn_dumb()
            producer.send(Message(topic, b"x"), timeout=SECONDS)
            proxy.turn_dumb()
            producer.send_many([Message(topic, b"x")], timeout=SECONDS)

    @pytest.mark.parametrize("producers", [flintmq.client.TransactionProducer, aio.TransactionProducer])
    async def test_a_transaction_ends(
        self, producers: Any, proxy: DumbProxy, shared_broker: RunningBroker, topic: str
    ) -> None:
        async def result(returned: Any) -> Any:
            return await returned if producers is aio.TransactionProducer else returned

        producer = producers(proxy.address, f"g-{topic}", lambda message: Outcome.UNKNOWN, delivery_timeout=SECONDS)
        try:
            half = await result(producer.send_half(Message(topic, b"x")))
            await result(half.commit())
            half = await result(producer.send_half(Message(topic, b"x")))
            proxy.turn_dumb()
            await result(half.commit())
        finally:
            await result(producer.close())
        assert stored(shared_broker, topic) == [b"x"] * 2


READS: dict[str, Callable[[Any, str, str], object]] = {
    "pull": lambda consumer, topic, message_id: consumer.pull(topic, 0, 0).messages[0],
    "held-pull": lambda consumer, topic, message_id: consumer.pull(topic, 0, 1, wait_ms=100),
    "iter": lambda consumer, topic, message_id: next(iter(consumer.iter(topic, until="latest"))),
    "browse": lambda consumer, topic, message_id: consumer.browse(topic, count=1).rows[0],
    "query": lambda consumer, topic, message_id: next(iter(consumer.query_iter(topic, key="k"))),
    "message": lambda consumer, topic, message_id: consumer.message(message_id),
    "stats": lambda consumer, topic, message_id: consumer.topic_stats(topic),
    "commit": lambda consumer, topic, message_id: consumer.commit(f"g-{topic}", topic, {0: 1}),
}


class TestReaders:
    @pytest.mark.parametrize("kind", READS)
    def test_a_read_returns(
        self, clients: Clients, proxy: DumbProxy, shared_broker: RunningBroker, topic: str, kind: str
    ) -> None:
        with Producer(shared_broker.address) as producer:
            message_id = producer.send(Message(topic, b"x", keys=["k"]), queue=0).message_id
        with clients.Consumer(proxy.address, timeout=SECONDS) as consumer:
            READS[kind](consumer, topic, message_id)
            proxy.turn_dumb()
            READS[kind](consumer, topic, message_id)

    def test_all_idle_connections_may_be_dumb(self, proxy: DumbProxy, shared_broker: RunningBroker, topic: str) -> None:
        with Producer(shared_broker.address) as producer:
            producer.send(Message(topic, b"x"), queue=0)
        with Consumer(proxy.address, timeout=SECONDS) as consumer:
            iterations = [consumer.iter(topic) for _ in range(8)]
            for messages in iterations:  # each holds a connection of its own
                next(messages)
            for messages in iterations:
                messages.close()
            proxy.turn_dumb()
            assert consumer.pull(topic, 0, 0).bodies() == [b"x"]

    def test_an_iteration_that_follows_continues(
        self, clients: Clients, proxy: DumbProxy, shared_broker: RunningBroker, topic: str
    ) -> None:
        with Producer(shared_broker.address) as producer, clients.Consumer(proxy.address, timeout=SECONDS) as consumer:
            producer.send(Message(topic, b"0"))
            messages = consumer.iter(topic)
            assert [message.body for message in islice(messages, 1)] == [b"0"]
            proxy.turn_dumb()
            producer.send(Message(topic, b"1"))
            assert [message.body for message in islice(messages, 1)] == [b"1"]

    def test_an_admin_call_returns(self, clients: Clients, proxy: DumbProxy, topic: str) -> None:
        with clients.Admin(proxy.address, timeout=SECONDS) as admin:
            admin.create_topic(topic, queues=1)
            proxy.turn_dumb()
            assert topic in admin.topics()
            proxy.turn_dumb()
            admin.create_topic(topic, queues=2)
            proxy.turn_dumb()
            assert admin.topics(timeout=SECONDS)[topic].queues == 2

    def test_a_stream_of_arrow_batches_continues(
        self, proxy: DumbProxy, shared_broker: RunningBroker, topic: str
    ) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        with Producer(shared_broker.address) as producer, Consumer(proxy.address, timeout=SECONDS) as consumer:
            producer.send_bulk(topic, [b"x"] * 30)
            batches = iter(pyarrow.RecordBatchReader.from_stream(consumer.arrow(topic, batch_rows=1)))
            count = next(batches).num_rows
            proxy.turn_dumb()
            assert count + sum(batch.num_rows for batch in batches) == 30


class TestGroups:
    @pytest.mark.parametrize("mode", ["clustering", "broadcasting", "work"])
    def test_messages_go_on_arriving(
        self, clients: Clients, proxy: DumbProxy, shared_broker: RunningBroker, topic: str, mode: str
    ) -> None:
        arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        options: dict[str, Any] = {"start": "first", "timeout": SECONDS}
        with Producer(shared_broker.address) as producer:
            producer.send(Message(topic, b"0"))
            if mode == "work":
                with clients.GroupConsumer(
                    proxy.address, f"g-{topic}", topic, mode="work", lease=1.0, **options
                ) as receiver:
                    for body in (b"0", b"1"):
                        found = receiver.receive(timeout=60)
                        assert [delivery.message.body for delivery in found] == [body]
                        found[0].ack()
                        receiver.commit()
                        proxy.turn_dumb()
                        producer.send(Message(topic, b"1"))
                return
            options["mode"] = mode
            with clients.PushConsumer(
                proxy.address, f"g-{topic}", topic, lambda message: arrived.put(message.body), **options
            ) as consumer:
                assert arrived.get(timeout=60) == b"0"
                proxy.turn_dumb()
                producer.send(Message(topic, b"1"))
                assert arrived.get(timeout=60) == b"1"
                proxy.turn_dumb()
                consumer.commit(SECONDS)
                assert consumer.health().alive

    def test_deliveries_are_settled_and_committed_in_time(
        self, clients: Clients, proxy: DumbProxy, shared_broker: RunningBroker, topic: str
    ) -> None:
        with Producer(shared_broker.address) as producer:
            producer.send(Message(topic, b"0"), queue=0)
        group = f"g-{topic}"
        with clients.GroupConsumer(
            proxy.address, group, topic, start="first", timeout=SECONDS, auto_commit=False
        ) as consumer:
            (delivery,) = consumer.receive()
            proxy.turn_dumb()
            delivery.ack()
            consumer.commit()
            with Consumer(shared_broker.address) as other:
                assert other.committed(group, topic)[0] == 1
