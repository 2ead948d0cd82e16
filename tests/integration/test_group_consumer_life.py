"""A GroupConsumer's queues move with open deliveries, it ends with open deliveries, and it is forked."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from flintmq.client import Admin, Delivery, DeliveryLost, ForkedClient, GroupConsumer, InvalidArgument, ListenerTimeout
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory
from tests.delivery_tools import FIRST, acknowledge, bodies, committed, fill, one_of_each_queue, receive, topics_of
from tests.group_tools import WAIT_SECONDS, until


class TestMembers:
    def test_a_queue_moves_after_its_open_deliveries_are_settled(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        fill(address, topic, 40, queues=2)
        with clients.GroupConsumer(address, topic, topic, **FIRST) as first:
            held = one_of_each_queue(receive(first, 40))
            assert len(held) == 2
            with clients.GroupConsumer(address, topic, topic, **FIRST) as second:
                until(lambda: first.health().giving_up == 1, "the request to give a queue up")
                assert topic not in topics_of(second)
                for delivery in held:
                    delivery.ack()
                until(lambda: topic in topics_of(second), "the move")
                assert second.receive(timeout=0) == []

    def test_a_queue_that_comes_back_before_it_was_given_up_continues(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        """Long tasks, and a member that comes and goes meanwhile: the tasks' queues must not stand still."""
        fill(address, topic, 400, queues=2)
        with clients.GroupConsumer(address, topic, topic, prefetch_messages=20, max_open=5, **FIRST) as first:
            long_tasks: dict[int, Delivery] = {}
            while len(long_tasks) < 2:
                (delivery,) = receive(first, 1)
                long_tasks.setdefault(delivery.message.queue, delivery)
                if long_tasks[delivery.message.queue] is not delivery:
                    delivery.ack()
            with clients.GroupConsumer(address, topic, topic, **FIRST):
                until(lambda: first.health().giving_up == 1, "the request to give a queue up")
            until(lambda: first.health().giving_up == 0, "the return of the queue")
            acknowledge(first, 398 - first.health().consumed)
            for delivery in long_tasks.values():
                delivery.ack()
        with Admin(address) as admin:
            assert sum(queue.lag for queue in admin.group(topic).queues) == 0

    def test_a_delivery_of_a_queue_that_was_taken_is_lost(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 2)
        with clients.GroupConsumer(address, topic, topic, max_open=2, **FIRST) as consumer:
            first, second = receive(consumer, 2)
            with Admin(address) as admin:
                admin.reset_offsets(topic, topic, {0: 0}, force=True)
            again = receive(consumer, 2)
            for delivery in (first, second):
                for settle in (delivery.ack, delivery.retry, delivery.dead):
                    with pytest.raises(DeliveryLost, match=f"offset . of queue 0 of topic {topic} .* was taken"):
                        settle()
            for delivery in again:
                delivery.ack()
        assert committed(address, topic) == 2


class TestEnd:
    def test_close_waits_for_open_deliveries(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 5)
        consumer = clients.GroupConsumer(address, topic, topic, max_open=3, **FIRST).start()
        held = receive(consumer, 3)
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(consumer.close)
            until(lambda: consumer.health().giving_up > 0, "the end")
            held[1].ack()
            held[0].retry(1)
            assert not closing.done()
            held[2].ack()
            closing.result(WAIT_SECONDS)
        assert committed(address, topic) == 3
        consumer.close()

    def test_close_reports_open_deliveries_and_others_get_them(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        fill(address, topic, 5)
        consumer = clients.GroupConsumer(address, topic, topic, **FIRST).start()
        held = receive(consumer, 5)
        held[0].ack()
        with pytest.raises(ListenerTimeout, match=r"group \S+ had 4 open deliveries 0.1 s after close\(\)"):
            consumer.close(timeout=0.1)
        assert [delivery.lost for delivery in held] == [False, True, True, True, True]
        assert repr(held[0]).startswith("<Delivery settled ")
        with pytest.raises(DeliveryLost, match="its consumer was closed before"):
            held[1].ack()
        assert committed(address, topic) == 1
        with clients.GroupConsumer(address, topic, topic, **FIRST) as other:
            again = receive(other, 4)
            assert bodies(again) == [b"1", b"2", b"3", b"4"]
            for delivery in again:
                delivery.ack()

    def test_an_exception_in_the_block_does_not_wait_for_deliveries(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        fill(address, topic, 2)
        with contextlib.suppress(ZeroDivisionError), clients.GroupConsumer(address, topic, topic, **FIRST) as consumer:
            receive(consumer, 1)[0].ack()
            receive(consumer, 1)
            1 // 0  # noqa: B018 - raises
        assert committed(address, topic) == 1
        with Admin(address) as admin:
            assert not admin.group(topic).members

    def test_a_broker_that_is_killed_costs_no_delivery(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()
        fill(running.address, "orders", 20, queues=4)
        with clients.GroupConsumer(running.address, "g", "orders", **FIRST) as consumer:
            held = receive(consumer, 20)
            running.kill()
            for delivery in held[:10]:
                delivery.ack()
            held[10].retry(1, "while it was away")
            again = broker("--listen", running.address, store=running.store)
            for delivery in held[11:]:
                delivery.ack()
            (retried,) = receive(consumer, 1)
            assert retried.message.retry_reason == "while it was away"
            retried.ack()
        with Admin(again.address) as admin:
            assert sum(queue.lag for queue in admin.group("g").queues) == 0

    def test_a_consumer_that_was_not_started_says_so(self, clients: Clients, address: str, topic: str) -> None:
        consumer = clients.GroupConsumer(address, topic, topic)
        with pytest.raises(InvalidArgument, match="was not started"):
            consumer.receive()
        consumer.close()


def test_a_fork_does_not_take_deliveries_along(address: str, topic: str) -> None:
    fill(address, topic, 1)
    with GroupConsumer(address, topic, topic, **FIRST) as consumer:
        (delivery,) = receive(consumer, 1)
        child = os.fork()
        if not child:
            refused = 0
            for call in (delivery.ack, delivery.retry, delivery.dead, consumer.receive, consumer.commit):
                try:
                    call()
                except ForkedClient:
                    refused += 1
            consumer.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        delivery.ack()
    assert committed(address, topic) == 1
