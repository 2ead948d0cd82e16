"""A GroupConsumer settles each message by itself: in any order, from any thread, with both clients."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    ClientClosed,
    ClientFailed,
    Delivery,
    DeliveryLost,
    GroupConsumer,
    InvalidArgument,
    InvalidArgumentType,
    Message,
)
from flintmq.client.groups.push import requests
from tests.client_drivers import Clients
from tests.delivery_tools import FIRST, acknowledge, bodies, committed, fill, receive
from tests.group_tools import WAIT_SECONDS, until


class TestReceive:
    def test_messages_arrive_in_the_order_of_their_queue(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 10)
        with clients.GroupConsumer(address, topic, topic, **FIRST) as consumer:
            found = receive(consumer, 10)
            assert bodies(found) == [b"%d" % number for number in range(10)]
            assert consumer.receive(timeout=0) == []
            assert consumer.receive(5, timeout=0.01) == []
            assert consumer.health().running == 10
            for delivery in found:
                delivery.ack()
            assert consumer.health().running == 0
        assert committed(address, topic) == 10

    def test_iterating_receives_until_the_consumer_is_closed(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 20, queues=4)
        seen = []
        with clients.GroupConsumer(address, topic, topic, **FIRST) as consumer:
            for delivery in consumer:
                seen.append(delivery.message.body)
                delivery.ack()
                if len(seen) == 20:
                    consumer.close()
        assert sorted(seen) == sorted(b"%d" % number for number in range(20))

    def test_a_receiver_that_waits_hears_of_the_end(self, clients: Clients, address: str, topic: str) -> None:
        consumer = clients.GroupConsumer(address, topic, topic).start()
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(consumer.receive), pool.submit(list, consumer)]
            consumer.close()
            with pytest.raises(ClientClosed):
                waiting[0].result(WAIT_SECONDS)
            assert waiting[1].result(WAIT_SECONDS) == []
        with pytest.raises(ClientClosed):
            consumer.receive()

    def test_receive_waits_while_there_are_max_open_deliveries(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        fill(address, topic, 10, queues=4)
        with clients.GroupConsumer(address, topic, topic, max_open=3, **FIRST) as consumer:
            first = receive(consumer, 3)
            until(lambda: consumer.health().pending_messages == 10, "the rest is pulled")
            assert consumer.receive(timeout=0) == []
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(consumer.receive, 10)
                first[1].ack()
                (fourth,) = waiting.result(WAIT_SECONDS)
            for delivery in (first[0], first[2], fourth):
                delivery.ack()
            for _ in range(2):
                for delivery in receive(consumer, 3):
                    delivery.ack()

    def test_a_paused_topic_is_not_received(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 1)
        with clients.GroupConsumer(address, topic, topic, **FIRST) as consumer, clients.Producer(address) as producer:
            receive(consumer, 1)[0].ack()
            consumer.pause(topic)
            producer.send(Message(topic, b"later"), queue=0)
            assert consumer.receive(timeout=0.2) == []
            consumer.resume()
            (delivery,) = receive(consumer, 1)
            delivery.ack()

    def test_many_threads_receive_each_message_once(self, address: str, topic: str) -> None:
        fill(address, topic, 2000, queues=4)
        seen: list[bytes] = []

        def work() -> None:
            for delivery in consumer:
                seen.append(delivery.message.body)
                delivery.ack()
                if len(seen) == 2000:
                    finished.set()

        finished = threading.Event()
        with ThreadPoolExecutor(8) as pool, GroupConsumer(address, topic, topic, max_open=5, **FIRST) as consumer:
            working = [pool.submit(work) for _ in range(8)]
            assert finished.wait(WAIT_SECONDS)
            consumer.close()
            for each in working:
                each.result(WAIT_SECONDS)
        assert sorted(seen) == sorted(b"%d" % number for number in range(2000))


class TestSettling:
    def test_only_the_part_without_holes_is_committed(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 10)
        with clients.GroupConsumer(address, topic, topic, **FIRST) as consumer:
            found = receive(consumer, 10)
            for delivery in reversed(found[1:]):
                delivery.ack()
            consumer.commit()
            health = consumer.health()
            assert (health.running, health.ahead, health.pending_messages) == (1, 9, 1)
            assert committed(address, topic) == 0
            found[0].ack()
            consumer.commit()
            assert committed(address, topic) == 10
            assert consumer.health().ahead == 0

    def test_other_threads_may_settle(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 300, queues=4)
        with clients.GroupConsumer(address, topic, topic, **FIRST) as consumer, ThreadPoolExecutor(8) as pool:
            list(pool.map(Delivery.ack, receive(consumer, 300)))
            consumer.commit()
            assert consumer.health().consumed == 300
            with Admin(address) as admin:
                assert sum(queue.lag for queue in admin.group(topic).queues) == 0

    def test_a_retried_message_comes_again_with_the_reason(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 3)
        with clients.GroupConsumer(address, topic, topic, member=f"{topic}-m", **FIRST) as consumer:
            given, handled, none = receive(consumer, 3)
            given.retry(1, "no such account")
            try:
                raise ValueError("from the exception")
            except ValueError:
                handled.retry(1)
            none.retry(delay_level=1)
            again = {delivery.message.body: delivery for delivery in receive(consumer, 3)}
            reasons = [again[b"%d" % number].message.retry_reason for number in range(3)]
            assert reasons == ["no such account", "ValueError: from the exception", None]
            assert {each.message.retry_member for each in again.values()} >= {f"{topic}-m"}
            assert {each.message.reconsume_times for each in again.values()} == {1}
            assert {each.message.topic for each in again.values()} == {topic}
            for delivery in again.values():
                delivery.ack()
        assert committed(address, topic) == 3

    def test_a_dead_message_is_in_the_dead_letters_with_the_reason(
        self, clients: Clients, address: str, topic: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(address, topic, 1)
        with (
            caplog.at_level(logging.WARNING, "flintmq"),
            clients.GroupConsumer(address, topic, topic, **FIRST) as consumer,
            clients.Consumer(address) as plain,
        ):
            (delivery,) = receive(consumer, 1)
            delivery.dead("broken for ever")
            until(lambda: consumer.health().dead == 1, "the dead letter")
            (dead,) = plain.pull(f"%DLQ%{topic}")
        assert dead.retry_reason == "broken for ever"
        name = f"message {delivery.message.message_id} of topic {topic}, queue 0, offset 0, try 1"
        assert f"group {topic}: the application gave up {name}: broken for ever" in caplog.text

    def test_the_last_retry_makes_a_dead_letter(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 1)
        with clients.GroupConsumer(address, topic, topic, retry_times_max=0, **FIRST) as consumer:
            receive(consumer, 1)[0].retry(1)
            until(lambda: consumer.health().dead == 1, "the dead letter")

    def test_the_first_outcome_counts(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 1)
        with clients.GroupConsumer(address, topic, topic, **FIRST) as consumer:
            (delivery,) = receive(consumer, 1)
            assert not delivery.settled
            assert "open" in repr(delivery)
            delivery.ack()
            assert delivery.settled
            assert "settled" in repr(delivery)
            delivery.ack()
            delivery.retry()
            delivery.dead("no")
            health = consumer.health()
            assert (health.consumed, health.failed, health.dead) == (1, 0, 0)

    def test_invalid_arguments_leave_the_delivery_open(self, clients: Clients, address: str, topic: str) -> None:
        fill(address, topic, 1)
        with clients.GroupConsumer(address, topic, topic, **FIRST) as consumer:
            (delivery,) = receive(consumer, 1)
            with pytest.raises(InvalidArgument, match="delay_level is 19; it must be 0 to 18"):
                delivery.retry(19)
            with pytest.raises(InvalidArgumentType, match="reason must be a str or None, not int"):
                delivery.dead(5)  # type: ignore[arg-type]  # the wrong argument is the test
            for wrong in (0, 1.5):
                with pytest.raises(InvalidArgument, match="max_count"):
                    consumer.receive(wrong)  # type: ignore[arg-type]  # the wrong argument is the test
            with pytest.raises(InvalidArgument, match="timeout is -1"):
                consumer.receive(timeout=-1)
            assert not delivery.settled
            delivery.ack()


class TestWindow:
    def test_a_stuck_message_stops_its_queue_only_at_max_uncommitted(
        self, clients: Clients, address: str, topic: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(address, topic, 500)
        with (
            caplog.at_level(logging.WARNING, "flintmq"),
            clients.GroupConsumer(
                address, topic, topic, max_open=8, prefetch_messages=10, max_uncommitted=200, **FIRST
            ) as consumer,
        ):
            (stuck,) = receive(consumer, 1)
            acknowledge(consumer, 199)
            until(lambda: "max_uncommitted" in caplog.text, "the warning")
            assert consumer.receive(timeout=0.1) == []
            assert consumer.health().ahead == 199
            assert "the message at offset 0 is not settled, and 1" in caplog.text
            stuck.ack()
            acknowledge(consumer, 300)
        assert committed(address, topic) == 500

    def test_what_comes_again_after_a_crash_is_bounded_by_max_uncommitted(
        self, address: str, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(address, topic, 1000)
        crashing = GroupConsumer(address, topic, topic, max_uncommitted=100, session_timeout=1, **FIRST).start()
        (stuck,) = receive(crashing, 1)
        for delivery in receive(crashing, 99):
            delivery.ack()
        crashing.commit()

        def fail(*arguments: Any) -> None:
            raise ZeroDivisionError("the member crashes")

        with monkeypatch.context() as patch:
            patch.setattr(requests, "heart_beat", fail)
            with pytest.raises(ClientFailed, match="the member crashes"):
                crashing.receive(timeout=WAIT_SECONDS)
        with pytest.raises(DeliveryLost, match="its consumer ended") as lost:
            stuck.ack()
        assert isinstance(lost.value.__cause__, ClientFailed)
        with GroupConsumer(address, topic, topic, **FIRST) as consumer:
            again = receive(consumer, 1000)
            assert bodies(again) == [b"%d" % number for number in range(1000)]
            for delivery in again:
                delivery.ack()

    def test_a_delivery_that_is_open_for_too_long_is_redelivered(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        fill(address, topic, 1)
        options = {**FIRST, "delay_level": 1, "listener_timeout": 0.3, "max_open": 1}
        with clients.GroupConsumer(address, topic, topic, **options) as consumer:
            (late,) = receive(consumer, 1)
            (again,) = receive(consumer, 1)
            again.ack()
            with pytest.raises(DeliveryLost, match=r"open for more than 0.3 s \(listener_timeout\)"):
                late.ack()
            assert not late.settled
            assert again.message.retry_reason == "it was not settled within 0.3 s"
            assert consumer.health().stuck == 1
