"""Work queues over real connections: leases, renewals, outcomes, restarts, and what excludes what."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    Consumer,
    DeliveryLost,
    GroupConsumer,
    GroupKind,
    GroupRunning,
    ListenerTimeout,
    Message,
    Producer,
    aio,
)
from flintmq.protocol import commands
from flintmq.protocol.commands import RECEIPT_STRUCT
from flintmq.protocol.errors import InvalidParameter, QueueNotExist, ServiceNotAvailable, TopicNotExist
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.delivery_tools import acknowledge, bodies, fill, receive
from tests.group_tools import WAIT_SECONDS, until
from tests.metrics_tools import Scrape

WORK: dict[str, Any] = {"mode": "work", "start": "first"}
SHORT = 0.5
"""A lease that tests wait for, in seconds."""


def worker(broker: RunningBroker, name: str, **options: Any) -> GroupConsumer:
    return GroupConsumer(broker.address, name, name, **{**WORK, **options})


def in_flight(broker: RunningBroker, group: str) -> dict[int, int]:
    """Return the number of leased messages of each queue of the group's topic."""
    with Admin(broker.address) as admin:
        return {row.queue: row.in_flight for row in admin.group(group).queues if row.topic == group}


def test_many_workers_share_one_queue(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 40)
    with worker(shared_broker, topic) as one, worker(shared_broker, topic) as two:
        first, second = receive(one, 20), receive(two, 20)
        assert sorted(bodies(first + second)) == sorted(b"%d" % number for number in range(40))
        assert in_flight(shared_broker, topic) == {0: 40}
        for delivery in reversed(first + second):
            delivery.ack()
        one.commit()
        two.commit()
        assert in_flight(shared_broker, topic) == {0: 0}
        assert one.receive(timeout=0) == []
    with Consumer(shared_broker.address) as plain:
        assert plain.committed(topic, topic) == {0: 40}


def test_a_stuck_worker_delays_its_own_messages_only(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 500)
    with worker(shared_broker, topic) as stuck, worker(shared_broker, topic) as other:
        (held,) = receive(stuck, 1)
        acknowledge(other, 499)
        held.ack()


def test_a_message_comes_again_after_its_lease_and_its_late_outcome_is_told(
    shared_broker: RunningBroker, topic: str
) -> None:
    fill(shared_broker.address, topic, 1)
    with worker(shared_broker, topic, lease=SHORT, auto_renew=False) as slow, worker(shared_broker, topic) as quick:
        (late,) = receive(slow, 1)
        (again,) = receive(quick, 1)
        assert (again.message.body, again.message.reconsume_times) == (b"0", 1)
        with pytest.raises(DeliveryLost, match="its lease was over"):
            late.ack()
        assert (late.lost, late.settled, slow.health().stuck) == (True, False, 1)
        assert repr(late).startswith("<Delivery lost ")
        again.ack()
        quick.commit()
        assert not again.lost
    scrape = Scrape(shared_broker)
    assert scrape("flintmq_expired_leases_total", group=topic) == 1
    assert scrape("flintmq_retried_messages_total", group=topic) == 1


def test_a_lease_is_renewed_while_the_delivery_is_open(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 1)
    with worker(shared_broker, topic, lease=SHORT) as one, worker(shared_broker, topic) as two:
        (delivery,) = receive(one, 1)
        assert two.receive(timeout=3 * SHORT) == []
        delivery.ack()
        one.commit()
    assert in_flight(shared_broker, topic) == {0: 0}


def test_renewal_ends_with_the_listener_timeout(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 1)
    with worker(shared_broker, topic, lease=SHORT, listener_timeout=SHORT) as one, worker(shared_broker, topic) as two:
        (delivery,) = receive(one, 1)
        acknowledge(two, 1)
        with pytest.raises(DeliveryLost):
            delivery.ack()


def test_a_lease_can_be_renewed_by_hand(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 2)
    with worker(shared_broker, topic, lease=SHORT, auto_renew=False) as one, worker(shared_broker, topic) as two:
        longer, shorter = receive(one, 2)
        longer.renew(60)
        shorter.renew(0.001)
        assert bodies(acknowledge(two, 1)) == [shorter.message.body]
        assert two.receive(timeout=2 * SHORT) == []
        longer.ack()
        one.commit()


def test_a_retry_keeps_its_reason_and_frees_its_place(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 2)
    with worker(shared_broker, topic) as consumer:
        late, bad = receive(consumer, 2)
        late.retry(1, "no answer")
        bad.dead("no such account")
        consumer.commit()
        assert in_flight(shared_broker, topic) == {0: 0}
        with Admin(shared_broker.address) as admin:
            assert admin.group(topic).delayed == 1
        (again,) = receive(consumer, 1)
        message = again.message
        assert (message.body, message.topic, message.reconsume_times) == (late.message.body, topic, 1)
        assert (message.retry_reason, message.retry_member) == ("no answer", consumer.member)
        again.ack()
        assert (consumer.health().retried, consumer.health().dead) == (1, 1)
    with Consumer(shared_broker.address) as plain:
        (dead,) = plain.pull(f"%DLQ%{topic}", 0, 0)
        assert (dead.body, dead.retry_reason) == (bad.message.body, "no such account")


def test_the_last_attempt_leads_to_the_dead_letters(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 1)
    with worker(shared_broker, topic, retry_times_max=1) as consumer:
        receive(consumer, 1)[0].retry(1)
        receive(consumer, 1)[0].retry(1)
        consumer.commit()
        assert (consumer.health().retried, consumer.health().dead) == (1, 1)


def test_messages_that_no_receiver_took_go_back_without_an_attempt(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 5)
    with worker(shared_broker, topic, prefetch_messages=4, lease=60) as idle:
        (held,) = receive(idle, 1)
        until(lambda: idle.health().pending_messages == 5, "the messages that are pulled ahead")
        held.ack()
    with worker(shared_broker, topic) as other:
        assert [delivery.message.reconsume_times for delivery in acknowledge(other, 4)] == [0] * 4


def test_leases_and_receipts_outlive_the_broker(broker: BrokerFactory) -> None:
    first = broker()
    fill(first.address, "jobs", 6, queues=2)
    with worker(first, "jobs", lease=30) as consumer:
        deliveries = receive(consumer, 6)
        for delivery in deliveries[:2]:
            delivery.ack()
        consumer.commit()
        before = in_flight(first, "jobs")
        first.kill()
        again = broker("--listen", first.address, store=first.store)
        assert in_flight(again, "jobs") == before
        assert sum(before.values()) == 4
        with worker(again, "jobs") as other:
            assert other.receive(timeout=1) == []
        for delivery in deliveries[2:]:
            delivery.ack()
        consumer.commit()
        assert in_flight(again, "jobs") == {0: 0, 1: 0}
        again.kill()
    last = broker(store=first.store)
    with worker(last, "jobs") as other:
        assert other.receive(timeout=1) == []


def test_a_delayed_retry_outlives_the_broker(broker: BrokerFactory) -> None:
    first = broker()
    fill(first.address, "jobs", 1)
    with worker(first, "jobs") as consumer:
        receive(consumer, 1)[0].retry(2, "later")
        consumer.commit()
        first.kill()
        broker("--listen", first.address, store=first.store)
        (again,) = receive(consumer, 1)
        assert again.message.retry_reason == "later"
        again.ack()


def test_a_group_is_of_one_kind(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 1)
    with worker(shared_broker, topic) as consumer:
        (delivery,) = receive(consumer, 1)
        with pytest.raises(GroupKind, match="is a work group"):
            GroupConsumer(shared_broker.address, topic, topic).start()
        with Admin(shared_broker.address) as admin:
            assert (admin.group(topic).kind, admin.group(topic).members) == ("work", [])
            with pytest.raises(GroupRunning, match="work group"):
                admin.reset_offsets(topic, topic, {0: 0})
            with pytest.raises(GroupRunning, match="work group"):
                admin.delete_group(topic)
        delivery.ack()
    why = r"has live members of FlintMQ's own kind \(.*a group has either those, or consumers of a work queue"
    with GroupConsumer(shared_broker.address, topic, topic), pytest.raises(GroupKind, match=why):
        worker(shared_broker, topic).start()


def test_a_deleted_group_leaves_no_retries(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 2)
    with worker(shared_broker, topic) as consumer:
        for delivery in receive(consumer, 2):
            delivery.retry(1)
        acknowledge(consumer, 1)
        consumer.pause()
        consumer.commit()
    with Admin(shared_broker.address) as admin:
        until(lambda: not admin.group(topic).kind, "the end of the consumer")
        assert f"%RETRY%{topic}+{topic}" in admin.topics()
        admin.delete_group(topic)
        assert f"%RETRY%{topic}+{topic}" not in admin.topics()


def test_a_forced_reset_makes_leases_void(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 3)
    with worker(shared_broker, topic) as consumer:
        old = receive(consumer, 3)
        with Admin(shared_broker.address) as admin:
            admin.reset_offsets(topic, topic, {0: 1}, force=True)
        old[2].ack()
        with pytest.raises(DeliveryLost, match="before its outcome arrived"):
            consumer.commit()
        assert old[2].lost
        assert bodies(acknowledge(consumer, 2)) == [b"1", b"2"]


def test_a_new_group_begins_at_the_end_and_a_later_queue_at_its_first_message(
    shared_broker: RunningBroker, topic: str
) -> None:
    fill(shared_broker.address, topic, 10, queues=2)
    with worker(shared_broker, topic, start="last") as consumer, Producer(shared_broker.address) as producer:
        assert consumer.receive(timeout=0.2) == []
        producer.send(Message(topic, b"new"))
        assert bodies(acknowledge(consumer, 1)) == [b"new"]
        with Admin(shared_broker.address) as admin:
            admin.create_topic(topic, queues=3)
        producer.send(Message(topic, b"newer"), queue=2)
        assert bodies(acknowledge(consumer, 1)) == [b"newer"]


def test_a_topic_that_is_created_later_is_read_from_its_first_message(broker: BrokerFactory) -> None:
    running = broker("--set", "topics.auto_create=false")
    with GroupConsumer(running.address, "g", ["a", "b"], mode="work") as consumer:
        assert isinstance(consumer.health().trouble, TopicNotExist)
        fill(running.address, "a", 3)
        fill(running.address, "b", 3)
        assert sorted(bodies(acknowledge(consumer, 6))) == [b"0", b"0", b"1", b"1", b"2", b"2"]


def test_tags_and_filters_select(shared_broker: RunningBroker, topic: str) -> None:
    with Producer(shared_broker.address) as producer:
        producer.send_many([Message(topic, b"%d" % number, tags=("eu", "us")[number % 2]) for number in range(6)])
    with GroupConsumer(shared_broker.address, topic, {topic: "us"}, **WORK) as consumer:
        found = acknowledge(consumer, 3)
        assert {delivery.message.tags for delivery in found} == {"us"}
        assert consumer.receive(timeout=0.2) == [], "what no consumer wants is passed over"
        consumer.commit()
    with Admin(shared_broker.address) as admin:
        assert sum(row.lag for row in admin.group(topic).queues) == 0


def test_open_deliveries_are_bounded(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 20)
    with worker(shared_broker, topic, max_open=5) as consumer:
        held = receive(consumer, 5)
        assert consumer.receive(5, timeout=0.3) == []
        assert in_flight(shared_broker, topic) == {0: 5}
        for delivery in held:
            delivery.ack()
        acknowledge(consumer, 15)


def test_closing_waits_for_open_deliveries_and_then_gives_them_back(shared_broker: RunningBroker, topic: str) -> None:
    fill(shared_broker.address, topic, 2)
    consumer = worker(shared_broker, topic, lease=3600).start()
    held = receive(consumer, 2)
    with pytest.raises(ListenerTimeout, match="had 2 open deliveries"):
        consumer.close(0.1)
    assert [delivery.lost for delivery in held] == [True, True]
    with pytest.raises(DeliveryLost, match="was closed before"):
        held[0].ack()
    with worker(shared_broker, topic) as other:
        assert [delivery.message.reconsume_times for delivery in acknowledge(other, 2)] == [0, 0]


async def test_tasks_of_a_loop_share_the_work(shared_broker: RunningBroker, topic: str) -> None:
    await asyncio.to_thread(fill, shared_broker.address, topic, 300)
    handled: list[bytes] = []

    async def work(consumer: aio.GroupConsumer) -> None:
        while len(handled) < 300:
            for delivery in await consumer.receive(timeout=0.2):
                handled.append(delivery.message.body)
                delivery.ack()

    async with aio.GroupConsumer(shared_broker.address, topic, topic, **WORK) as consumer:
        async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(work(consumer))
        await consumer.commit()
    assert sorted(handled) == sorted(b"%d" % number for number in range(300))


# ---- the protocol ----


def test_a_bad_request_is_refused(shared_broker: RunningBroker, connect: ConnectionFactory, topic: str) -> None:
    peer = connect(shared_broker)
    peer.produce(topic, b"x", queue=0).raise_for_error()
    fields = {"group": topic, "topic": topic}
    for wrong, error in (
        ({"topic": f"{topic}-missing"}, TopicNotExist),
        ({"queue": 9}, QueueNotExist),
        ({"start": "middle"}, InvalidParameter),
        ({"topic": f"%RETRY%{topic}+{topic}"}, TopicNotExist),
    ):
        assert peer.call(commands.POP_MESSAGE, fields | wrong).code == error.code, wrong
    for command in (commands.ACK_MESSAGE, commands.CHANGE_MESSAGE_INVISIBLETIME, commands.CONSUMER_SEND_MSG_BACK):
        assert peer.call(command, fields | {"count": 2}, bytes(5)).code == InvalidParameter.code


def test_a_void_receipt_is_told_apart(shared_broker: RunningBroker, connect: ConnectionFactory, topic: str) -> None:
    peer = connect(shared_broker)
    for number in range(2):
        peer.produce(topic, b"%d" % number, queue=0).raise_for_error()
    fields = {"group": topic, "topic": topic}
    popped = peer.call(commands.POP_MESSAGE, fields | {"start": "first"}).raise_for_error()
    assert popped.fields["count"] == 2
    pop_ms = popped.fields["pop_ms"]
    receipts = [RECEIPT_STRUCT.pack(0, 0, offset, at) for offset, at in ((0, pop_ms), (1, pop_ms - 1), (7, pop_ms))]
    answer = peer.call(commands.ACK_MESSAGE, fields | {"count": 3}, b"".join(receipts)).raise_for_error()
    assert (answer.fields["done"], bytes(answer.body)) == (1, b"\1\0\0")
    answer = peer.call(commands.CHANGE_MESSAGE_INVISIBLETIME, fields | {"count": 3}, b"".join(receipts))
    assert bytes(answer.raise_for_error().body) == b"\0\0\0"
    sent = fields | {"count": 2, "delay_level": 1}
    answer = peer.call(commands.CONSUMER_SEND_MSG_BACK, sent, receipts[0] + RECEIPT_STRUCT.pack(0, 0, 1, pop_ms))
    assert (answer.raise_for_error().fields["retried"], bytes(answer.body)) == (1, b"\0\1")


def test_a_held_pop_is_answered_in_time(shared_broker: RunningBroker, connect: ConnectionFactory, topic: str) -> None:
    peer = connect(shared_broker)
    peer.produce(topic, b"x", queue=0).raise_for_error()
    began = time.monotonic()
    answer = peer.call(commands.POP_MESSAGE, {"group": topic, "topic": topic, "wait_ms": 300}).raise_for_error()
    assert answer.fields["count"] == 0
    assert time.monotonic() - began >= 0.29  # the loop counts in milliseconds


def test_messages_whose_leases_are_over_are_part_of_every_lag(
    shared_broker: RunningBroker, tmp_path: Path, topic: str
) -> None:
    cli = Cli(tmp_path, shared_broker.address)
    fill(shared_broker.address, topic, 5)
    with worker(shared_broker, topic, lease=SHORT, auto_renew=False) as consumer, Admin(shared_broker.address) as admin:
        receive(consumer, 5)
        until(lambda: any("%RETRY%" in row.topic for row in admin.group(topic).queues), "the end of the leases")
        until(lambda: sum(row.in_flight for row in admin.group(topic).queues) == 0, "the last move")
        assert sum(row.lag for row in admin.group(topic).queues) == 5
        assert sum(row.lag for row in admin.consume_stats(topic)) == 5
        assert sum(row.lag for row in admin.consume_stats(topic, uncommitted=True)) == 5
        assert [each["lag"] for each in cli.run("-o", "json", "group", "list", topic).rows] == [5]
        assert cli.run("check", "--group", topic, "--lag-critical", "1").code == 2
        retries = f"%RETRY%{topic}+{topic}"
        assert Scrape(shared_broker)("flintmq_group_lag_messages", group=topic, topic=retries) == 5


def test_a_consumer_that_never_waits_gets_messages_at_its_next_call(
    shared_broker: RunningBroker, clients: Clients, topic: str
) -> None:
    fill(shared_broker.address, topic, 20)
    found: list[bytes] = []
    with clients.GroupConsumer(shared_broker.address, topic, topic, **WORK) as consumer:
        while len(found) < 20:
            delivered = consumer.receive(5, timeout=0)
            for delivery in delivered:
                found.append(delivery.message.body)
                delivery.ack()
            if not delivered:
                # One call has asked for messages, although it did not wait for them.
                until(lambda: consumer.health().pending_messages > 0, "the answer to the call before")
    assert sorted(found) == sorted(b"%d" % number for number in range(20))


def test_a_retry_that_cannot_be_stored_says_why(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker(settings={"background.services:RETENTION_CHECK_S": 0.02})
    peer = connect(running)
    peer.produce("work", b"x", queue=0).raise_for_error()
    fields = {"group": "work", "topic": "work"}
    pop_ms = peer.call(commands.POP_MESSAGE, fields | {"start": "first"}).raise_for_error().fields["pop_ms"]
    with Admin(running.address) as admin:
        admin.change_settings({"retention.disk_refuse_percent": 1, "retention.headroom_bytes": 2**60})
    until(lambda: peer.produce("work", b"y").code == ServiceNotAvailable.code, "the disk counts as full")
    sent = fields | {"count": 1, "delay_level": 1}
    answer = peer.call(commands.CONSUMER_SEND_MSG_BACK, sent, RECEIPT_STRUCT.pack(0, 0, 0, pop_ms))
    assert (answer.code, "disk" in answer.fields["message"]) == (ServiceNotAvailable.code, True)
