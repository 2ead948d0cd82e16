"""PushConsumer against a real broker: every message once without failures, and again after a failure."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from flintmq.client import GiveUp, Message, StoredMessage, Subscription, TryLater
from flintmq.client.groups.push.options import Start
from tests.client_drivers import Clients
from tests.group_tools import Seen, numbered, until

FAST: dict[str, Any] = {"delay_level": 1, "suspend": 0.05}


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
