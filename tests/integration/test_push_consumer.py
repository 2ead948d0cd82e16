"""PushConsumer against a real broker: every message once without failures, and again after a failure."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    ClientClosed,
    ClientFailed,
    ConnectionFailed,
    FilterIllegal,
    FlintError,
    ForkedClient,
    GiveUp,
    ListenerTimeout,
    MemberNameTaken,
    Message,
    Producer,
    PushConsumer,
    StoredMessage,
    Subscription,
    SubscriptionIllegal,
    TryLater,
)
from flintmq.client.groups.push import requests
from flintmq.client.groups.push.options import Start
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, RunningBroker
from tests.forked import broker_environment
from tests.group_tools import Seen, until

FAST: dict[str, Any] = {"delay_level": 1, "suspend": 0.05}


def numbered(topic: str, count: int, **options: Any) -> list[Message]:
    return [Message(topic, b"%d" % number, **options) for number in range(count)]


@pytest.fixture
def address(shared_broker: RunningBroker) -> str:
    return shared_broker.address


class TestConsuming:
    def test_every_message_is_handled_once_and_committed(self, clients: Clients, address: str, topic: str) -> None:
        seen = Seen()
        with clients.Producer(address) as producer, clients.Admin(address) as admin:
            producer.send_many(numbered(topic, 500))
            with clients.PushConsumer(address, topic, topic, seen, start="first") as consumer:
                producer.send_many(numbered(topic, 500))
                seen.wait(1000)
                health = consumer.health()
                assert (health.alive, health.joined, health.error) == (True, True, None)
                until(lambda: consumer.health().pending_messages == 0)
            assert Counter(seen.bodies) == Counter(2 * [b"%d" % number for number in range(500)])
            assert sum(queue.lag for queue in admin.group(topic).queues) == 0
            assert not admin.group(topic).members

    def test_a_batch_listener_gets_whole_batches_of_one_queue(self, clients: Clients, address: str, topic: str) -> None:
        batches: list[Any] = []
        seen = Seen()

        def listener(batch: Any) -> None:
            batches.append((batch.queue, [m.queue for m in batch], batch.bodies()))
            seen(batch)

        with clients.Producer(address) as producer:
            producer.send_many(numbered(topic, 300))
            with clients.PushConsumer(address, topic, topic, listener, start="first", batch=50):
                seen.wait(300)
        assert all(len(bodies) <= 50 and set(queues) == {queue} for queue, queues, bodies in batches)
        assert sum(len(bodies) for _, _, bodies in batches) == 300

    def test_a_group_begins_at_the_requested_start(self, clients: Clients, address: str, topic: str) -> None:
        with clients.Producer(address) as producer:
            producer.send(Message(topic, b"before"))
            starts: dict[str, Start] = {
                "first": "first",
                "earliest": "earliest",
                "last": "last",
                "latest": "latest",
                "time": datetime.now(UTC) - timedelta(hours=1),
            }
            seen = {name: Seen() for name in starts}
            consumers = [
                clients.PushConsumer(address, f"{topic}-{name}", topic, seen[name], start=start)
                for name, start in starts.items()
            ]
            for consumer in consumers:
                consumer.start()
            producer.send(Message(topic, b"after"))
            for name in starts:
                seen[name].wait(1 if name in ("last", "latest") else 2)
            for consumer in consumers:
                consumer.close()
        assert seen["last"].bodies == seen["latest"].bodies == [b"after"]
        for name in ("first", "earliest", "time"):
            assert sorted(seen[name].bodies) == [b"after", b"before"]

    def test_waiting_ends_with_its_time_or_with_the_consumer(self, clients: Clients, address: str, topic: str) -> None:
        with clients.Producer(address) as producer:
            producer.send(Message(topic, b""))
        with clients.PushConsumer(address, topic, topic, lambda message: None) as consumer:
            assert consumer.wait(0.01) is False
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(consumer.wait, 60)
                consumer.close()
                assert waiting.result(60) is True
            assert consumer.wait() is True

    def test_tags_and_filters_select_and_skipped_messages_count_as_done(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        seen = Seen()
        wanted = {topic: Subscription("eu || us", "size > 5")}
        with clients.Producer(address) as producer, clients.Admin(address) as admin:
            for tag in ("eu", "us", "asia"):
                producer.send_many(
                    [Message(topic, f"{tag}{n}".encode(), tags=tag, properties={"size": str(n)}) for n in range(10)]
                )
            with clients.PushConsumer(address, topic, wanted, seen, start="first") as consumer:
                seen.wait(8)
                consumer.commit()
                until(lambda: sum(queue.lag for queue in admin.group(topic).queues) == 0, "nothing left to do")
        assert sorted(seen.bodies) == sorted(f"{tag}{n}".encode() for tag in ("eu", "us") for n in range(6, 10))

    def test_several_topics_are_one_group(self, clients: Clients, address: str, topic: str) -> None:
        seen = Seen()
        topics = [f"{topic}-{name}" for name in "abc"]
        consumer = clients.PushConsumer(address, topic, topics, seen, start="first")
        with clients.Producer(address) as producer, consumer:
            for name in topics:
                producer.send(Message(name, name.encode()))
            seen.wait(3)
        assert sorted((m.topic, m.body) for m in seen.messages) == [(name, name.encode()) for name in topics]

    def test_broadcasting_gives_every_member_every_message(self, clients: Clients, address: str, topic: str) -> None:
        seen = [Seen(), Seen()]
        consumers = [
            clients.PushConsumer(address, topic, topic, each, start="first", mode="broadcasting") for each in seen
        ]
        with clients.Producer(address) as producer, consumers[0], consumers[1]:
            producer.send_many(numbered(topic, 20))
            for each in seen:
                each.wait(20)
        assert Counter(seen[0].bodies) == Counter(seen[1].bodies) == Counter(b"%d" % n for n in range(20))

    def test_a_paused_topic_is_left_alone_until_it_is_resumed(self, clients: Clients, address: str, topic: str) -> None:
        seen = Seen()
        topics = [f"{topic}-a", f"{topic}-b"]
        with clients.Producer(address) as producer:
            producer.send(Message(topics[0], b"made"))
            producer.send(Message(topics[1], b"made"))
            with clients.PushConsumer(address, topic, topics, seen, start="first") as consumer:
                seen.wait(2)
                consumer.pause(topics[0])
                producer.send_many([Message(topics[0], b"held", tags="x") for _ in range(4)])
                producer.send(Message(topics[1], b"goes on"))
                seen.wait(3)
                assert seen.bodies[2:] == [b"goes on"]
                consumer.resume()
                seen.wait(7)
        assert Counter(seen.bodies) == Counter({b"made": 2, b"held": 4, b"goes on": 1})

    def test_prefetch_stays_within_its_bounds(self, clients: Clients, address: str, topic: str) -> None:
        go_on = threading.Event()
        seen = Seen(lambda _: go_on.wait(30))
        with clients.Producer(address) as producer:
            producer.send_many(numbered(topic, 2000))
            options: dict[str, Any] = {"workers": 2, "prefetch_messages": 100, "start": "first"}
            with clients.PushConsumer(address, topic, topic, seen, **options) as consumer:
                seen.wait(2)
                highest = 0
                for _ in range(50):
                    highest = max(highest, consumer.health().pending_messages)
                go_on.set()
                seen.wait(2000)
        assert highest <= 100
        assert len(seen.messages) == 2000


class TestCommitting:
    def test_without_auto_commit_nothing_is_committed_but_by_hand(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        options: dict[str, Any] = {"start": "first", "auto_commit": False}
        with clients.Producer(address) as producer, clients.Consumer(address) as plain:
            producer.send_many(numbered(topic, 10), queue=0)
            seen = Seen()
            with clients.PushConsumer(address, topic, topic, seen, **options):
                seen.wait(10)
            assert plain.committed(topic, topic)[0] == 0
            with clients.PushConsumer(address, topic, topic, again := Seen(), **options) as consumer:
                again.wait(10)
                until(lambda: consumer.health().pending_messages == 0)
                consumer.commit()
                assert plain.committed(topic, topic)[0] == 10
            producer.send(Message(topic, b"last"), queue=0)
            with clients.PushConsumer(address, topic, topic, third := Seen(), **options):
                third.wait(1)
        assert third.bodies == [b"last"]

    def test_commits_never_overtake_a_running_message(self, clients: Clients, address: str, topic: str) -> None:
        go_on = threading.Event()
        seen = Seen(lambda message: message.body == b"0" and go_on.wait(30))
        with clients.Producer(address) as producer, clients.Consumer(address) as plain:
            producer.send_many(numbered(topic, 8), queue=0)
            with clients.PushConsumer(address, topic, topic, seen, start="first", workers=4) as consumer:
                seen.wait(8)
                consumer.commit()
                assert plain.committed(topic, topic)[0] == 0
                go_on.set()
                until(lambda: consumer.health().pending_messages == 0)
                consumer.commit()
                assert plain.committed(topic, topic)[0] == 8


class TestFailing:
    def test_a_message_is_delivered_again_after_its_listener_raises(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        def fail_once(message: StoredMessage) -> None:
            if message.reconsume_times == 0 and int(message.body) % 2:
                raise ValueError("not today")

        seen = Seen(fail_once)
        with clients.Producer(address) as producer:
            producer.send_many(numbered(topic, 10, keys="k", properties={"p": "q"}))
            with clients.PushConsumer(address, topic, topic, seen, start="first", **FAST) as consumer:
                again = seen.wait(15)[10:]
                assert (consumer.health().failed, consumer.health().retried) == (5, 5)
        assert sorted(int(m.body) for m in again) == [1, 3, 5, 7, 9]
        assert {(m.topic, m.reconsume_times, m.keys, m.properties["p"]) for m in again} == {(topic, 1, ("k",), "q")}

    def test_a_message_that_fails_too_often_becomes_a_dead_letter_and_delays_no_other(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        def fail(message: StoredMessage) -> None:
            if message.body == b"0":
                raise TryLater(1)

        seen = Seen(fail)
        with clients.Producer(address) as producer, clients.Consumer(address) as plain:
            producer.send_many(numbered(topic, 3), queue=0)
            options: dict[str, Any] = {"start": "first", "retry_times_max": 1}
            with clients.PushConsumer(address, topic, topic, seen, **options) as consumer:
                seen.wait(4)
                until(lambda: consumer.health().dead == 1)
            (dead,) = plain.pull(f"%DLQ%{topic}")
        assert Counter(seen.bodies) == Counter({b"0": 2, b"1": 1, b"2": 1})
        assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"0", 2, topic)

    def test_a_listener_that_gives_up_makes_a_dead_letter_at_once(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        def give_up(message: StoredMessage) -> None:
            raise GiveUp

        with clients.Producer(address) as producer, clients.Consumer(address) as plain:
            producer.send(Message(topic, b"poison"))
            with clients.PushConsumer(address, topic, topic, Seen(give_up), start="first") as consumer:
                until(lambda: consumer.health().dead == 1)
            assert plain.pull(f"%DLQ%{topic}").bodies() == [b"poison"]

    def test_of_a_batch_only_those_named_are_tried_again(self, clients: Clients, address: str, topic: str) -> None:
        seen = Seen()

        def listener(batch: Any) -> None:
            seen(batch)
            odd = [message for message in batch if int(message.body) % 2 and not message.reconsume_times]
            if odd:
                raise TryLater(1, odd)

        with clients.Producer(address) as producer:
            producer.send_many(numbered(topic, 10), queue=1)
            with clients.PushConsumer(address, topic, topic, listener, start="first", batch=100):
                seen.wait(15)
        assert Counter(seen.bodies) == Counter(b"%d" % n for n in [*range(10), 1, 3, 5, 7, 9])

    def test_broadcasting_counts_failures_and_continues(self, clients: Clients, address: str, topic: str) -> None:
        seen = Seen(lambda message: int(message.body) and 1 // 0)
        with clients.Producer(address) as producer:
            producer.send_many(numbered(topic, 5), queue=0)
            with clients.PushConsumer(address, topic, topic, seen, start="first", mode="broadcasting") as consumer:
                until(lambda: consumer.health().skipped == 4)
                assert (consumer.health().consumed, consumer.health().retried) == (1, 0)

    def test_a_listener_that_never_returns_is_given_up_and_others_continue(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        forever = threading.Event()
        stuck = Seen(lambda message: message.body == b"stuck" and not message.reconsume_times and forever.wait(60))
        options: dict[str, Any] = {"start": "first", "workers": 1, "listener_timeout": 0.3, **FAST}
        try:
            with clients.Producer(address) as producer:
                producer.send(Message(topic, b"stuck"), queue=0)
                with clients.PushConsumer(address, topic, topic, stuck, **options) as consumer:
                    stuck.wait(1)
                    producer.send_many(numbered(topic, 3), queue=0)
                    until(lambda: Counter(stuck.bodies) == Counter({b"stuck": 2, b"0": 1, b"1": 1, b"2": 1}))
                    assert consumer.health().stuck == 1
        finally:
            forever.set()


class TestOrder:
    def test_orderly_keeps_the_order_of_each_key_over_failures(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        failed: set[bytes] = set()

        def fail_now_and_then(message: StoredMessage) -> None:
            if message.body.endswith(b"7") and message.body not in failed:
                failed.add(message.body)
                raise ValueError("once more")

        seen = Seen(fail_now_and_then)
        keys = "abcdefgh"
        with clients.Producer(address) as producer:
            producer.send_many(
                [Message(topic, f"{key}{n}".encode(), sharding_key=key) for n in range(20) for key in keys]
            )
            with clients.PushConsumer(address, topic, topic, seen, start="first", orderly=True, **FAST):
                seen.wait(160 + 16)
        for key in keys:
            mine = [body.decode() for body in seen.bodies if body.decode()[0] == key]
            once = list(dict.fromkeys(mine))
            assert once == [f"{key}{n}" for n in range(20)]
            assert mine.count(f"{key}7") == mine.count(f"{key}17") == 2

    def test_orderly_puts_a_message_that_always_fails_aside_and_continues(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        seen = Seen(lambda message: message.body == b"1" and 1 // 0)
        options: dict[str, Any] = {"start": "first", "orderly": True, "retry_times_max": 2, "suspend": 0.02}
        with clients.Producer(address) as producer, clients.Consumer(address) as plain:
            producer.send_many(numbered(topic, 4), queue=0)
            with clients.PushConsumer(address, topic, topic, seen, **options) as consumer:
                until(lambda: consumer.health().dead == 1 and b"3" in seen.bodies)
            assert plain.pull(f"%DLQ%{topic}").bodies() == [b"1"]
        assert seen.bodies == [b"0", b"1", b"1", b"1", b"2", b"3"]


class TestMembers:
    def test_queues_are_shared_and_come_back(self, clients: Clients, address: str, topic: str) -> None:
        seen = [Seen(), Seen()]
        with clients.Admin(address) as admin, clients.Producer(address) as producer:
            admin.create_topic(topic, 8)
            first = clients.PushConsumer(address, topic, topic, seen[0], start="first").start()
            second = clients.PushConsumer(address, topic, topic, seen[1], start="first").start()
            until(lambda: len(first.health().queues) == len(second.health().queues) == 4, "an even share")
            for queue in range(8):
                producer.send_many(numbered(topic, 10), queue=queue)
            until(lambda: len(seen[0].messages) + len(seen[1].messages) == 80)
            assert len(seen[0].messages) == len(seen[1].messages) == 40
            second.close()
            until(lambda: len(first.health().queues) == 8)
            first.close()

    def test_a_member_that_is_killed_loses_nothing(self, clients: Clients, address: str, topic: str) -> None:
        script = (
            "import sys, threading\n"
            "from flintmq.client import PushConsumer\n"
            "def listen(message):\n"
            "    print(message.body.decode(), flush=True)\n"
            "    threading.Event().wait()\n"
            "PushConsumer(sys.argv[1], sys.argv[2], sys.argv[2], listen, start='first', session_timeout=1.5).start()\n"
            "threading.Event().wait()\n"
        )
        with clients.Producer(address) as producer:
            producer.send_many(numbered(topic, 40))
            process = subprocess.Popen(
                [sys.executable, "-c", script, address, topic], stdout=subprocess.PIPE, env=broker_environment()
            )
            assert process.stdout is not None
            process.stdout.readline()  # it has received messages
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
            seen = Seen()
            with clients.PushConsumer(address, topic, topic, seen, start="first"):
                seen.wait(40)
        assert Counter(seen.bodies) == Counter(b"%d" % n for n in range(40))

    def test_a_refused_member_gets_the_reason(self, clients: Clients, address: str, topic: str) -> None:
        seen = Seen()
        with clients.PushConsumer(address, topic, topic, seen, member="me"):
            with pytest.raises(MemberNameTaken, match="live member 'me'"):
                clients.PushConsumer(address, topic, topic, seen, member="me").start()
            with pytest.raises(SubscriptionIllegal, match="all members of a group"):
                clients.PushConsumer(address, topic, topic, seen, mode="broadcasting").start()
            with pytest.raises(FilterIllegal):
                clients.PushConsumer(address, f"{topic}-2", {topic: Subscription(filter="a >")}, seen).start()
        with pytest.raises(ConnectionFailed):
            clients.PushConsumer("127.0.0.1:1", topic, topic, seen, timeout=0.5).start()

    def test_the_start_reports_a_broker_that_does_not_answer(self, clients: Clients, topic: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises((FlintError, TimeoutError)) as raised:
                clients.PushConsumer(address, topic, topic, Seen(), timeout=0.3).start()
        assert "did not return within" not in str(raised.value)
        assert "127.0.0.1" in str(raised.value) or "could not join" in str(raised.value)


class TestLife:
    def test_close_waits_for_running_listeners_and_commits(self, clients: Clients, address: str, topic: str) -> None:
        go_on, began = threading.Event(), threading.Event()

        def listener(message: StoredMessage) -> None:
            began.set()
            go_on.wait(30)

        with clients.Producer(address) as producer, clients.Consumer(address) as plain:
            producer.send(Message(topic, b"x"), queue=0)
            consumer = clients.PushConsumer(address, topic, topic, listener, start="first").start()
            began.wait(30)
            timer = threading.Timer(0.2, go_on.set)
            timer.start()
            consumer.close()
            assert go_on.is_set()
            assert plain.committed(topic, topic)[0] == 1
        consumer.close()
        with pytest.raises(ClientClosed):
            consumer.commit()

    def test_a_listener_may_close_its_consumer(self, address: str, topic: str) -> None:
        def listener(message: StoredMessage) -> None:
            consumer.close()

        with Producer(address) as producer, Admin(address) as admin:
            producer.send(Message(topic, b"x"))
            consumer = PushConsumer(address, topic, topic, listener, start="first").start()
            assert consumer.wait(30)
            assert not admin.group(topic).members
            assert sum(queue.lag for queue in admin.group(topic).queues) == 0

    def test_close_does_not_wait_for_a_message_that_was_to_be_tried_again(
        self, clients: Clients, address: str, topic: str
    ) -> None:
        seen = Seen(lambda message: 1 // 0)
        with clients.Producer(address) as producer:
            producer.send(Message(topic, b"x"))
            options: dict[str, Any] = {"start": "first", "orderly": True, "suspend": 3600}
            with clients.PushConsumer(address, topic, topic, seen, **options) as consumer:
                seen.wait(1)
                until(lambda: consumer.health().failed == 1)
            with clients.PushConsumer(address, topic, topic, Seen(seen.messages.append), **options):
                until(lambda: len(seen.messages) == 2)

    def test_close_reports_a_listener_that_does_not_return(self, clients: Clients, address: str, topic: str) -> None:
        go_on, began = threading.Event(), threading.Event()

        def listener(message: StoredMessage) -> None:
            began.set()
            go_on.wait(30)

        with clients.Producer(address) as producer, clients.Admin(address) as admin:
            producer.send(Message(topic, b"x"), queue=0)
            consumer = clients.PushConsumer(address, topic, topic, listener, start="first").start()
            began.wait(30)
            with pytest.raises(ListenerTimeout, match="redelivered to other members"):
                consumer.close(timeout=0.1)
            assert not admin.group(topic).members
            go_on.set()
            seen = Seen()
            with clients.PushConsumer(address, topic, topic, seen, start="first"):
                seen.wait(1)

    def test_a_broker_that_starts_again_is_found_again_and_nothing_is_lost(
        self, clients: Clients, broker: BrokerFactory
    ) -> None:
        running = broker()
        port = running.port
        seen = Seen()
        with clients.Producer(running.address) as producer:
            producer.send_many(numbered("orders", 50))
        with clients.PushConsumer(running.address, "g", "orders", seen, start="first") as consumer:
            seen.wait(50)
            running.kill()
            again = broker("--listen", f"127.0.0.1:{port}", store=running.store)
            with clients.Producer(again.address) as producer:
                producer.send_many([Message("orders", b"after%d" % n) for n in range(50)])
            until(lambda: sum(body.startswith(b"after") for body in seen.bodies) >= 50)
            assert consumer.health().error is None
        assert {body for body in seen.bodies if body.startswith(b"after")} == {b"after%d" % n for n in range(50)}

    def test_an_engine_that_dies_is_never_silent(
        self, clients: Clients, address: str, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: Any) -> None:
            raise ZeroDivisionError("nobody thought of this")

        consumer = clients.PushConsumer(address, topic, topic, Seen(), session_timeout=1).start()
        monkeypatch.setattr(requests, "heart_beat", fail)
        with pytest.raises(ClientFailed, match="nobody thought of this") as failed:
            consumer.wait()
        health = consumer.health()
        assert (health.alive, health.error) == (False, failed.value.cause)
        with pytest.raises(ClientFailed):
            consumer.commit()
        with pytest.raises(ClientFailed):
            consumer.close()

    def test_a_listener_that_ends_its_thread_ends_the_consumer_loudly(self, address: str, topic: str) -> None:
        def listener(message: StoredMessage) -> None:
            raise SystemExit("gone")

        with Producer(address) as producer:
            producer.send(Message(topic, b"x"))
            consumer = PushConsumer(address, topic, topic, listener, start="first").start()
            with pytest.raises(ClientFailed, match="ended its thread with SystemExit"):
                consumer.wait()
            with pytest.raises(ClientFailed):
                consumer.close()


def test_a_new_member_does_not_wait_for_messages_prefetched_by_a_busy_one(
    clients: Clients, address: str, topic: str
) -> None:
    let_go = threading.Event()
    first, second = Seen(lambda message: let_go.wait()), Seen()
    with clients.Admin(address) as admin, clients.Producer(address) as producer:
        admin.create_topic(topic, queues=4)
        for number in range(4):
            producer.send_many(numbered(topic, 50), queue=number)
    options: dict[str, Any] = {"group": topic, "topics": topic, "start": "first", "workers": 1}
    try:
        with clients.PushConsumer(address, listener=first, **options) as busy:
            until(lambda: busy.health().pending_messages == 200, "pulling ahead")
            first.wait(1)
            with clients.PushConsumer(address, listener=second, **options):
                second.wait(50)  # while the busy member still has its first message
                assert len(first.messages) == 1
                let_go.set()
                until(lambda: len({(m.queue, m.body) for m in first.messages + second.messages}) == 200)
        assert len(first.messages) + len(second.messages) == 200
    finally:
        let_go.set()


def test_a_fork_does_not_take_the_consumer_along(address: str, topic: str) -> None:
    with PushConsumer(address, topic, topic, Seen()) as consumer:
        child = os.fork()
        if not child:
            try:
                consumer.pause()
            except ForkedClient:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert consumer.health().alive
