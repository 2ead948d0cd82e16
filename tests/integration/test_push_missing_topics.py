"""Push consumers of topics that do not exist yet or no longer exist."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Message, Producer, TopicNotExist
from tests.client_drivers import Clients
from tests.conftest import RunningBroker
from tests.group_tools import Seen, until

FAST: dict[str, Any] = {"start": "first", "session_timeout": 1.0, "commit_interval": 0.05}


def wait_for_answers(consumer: Any, count: int) -> None:
    """Wait until the client has heard from the broker so many times."""
    for _ in range(count):
        longest = [0.0]

        def heard_again(longest: list[float] = longest) -> bool:
            seconds = consumer.health().heard_seconds
            if seconds < longest[0]:
                return True
            longest[0] = seconds
            return False

        until(heard_again, "an answer")


def warnings_of(caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    said = f"no readable topic {topic}:"
    return [record.getMessage() for record in caplog.records if said in record.getMessage()]


def test_a_topic_that_is_not_there_is_named_once_until_it_is_made(
    clients: Clients, shared_broker: RunningBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    address = shared_broker.address
    caplog.set_level(logging.INFO)
    with (
        Producer(address) as producer,
        clients.PushConsumer(address, topic, [topic, f"{topic}-2"], seen, **FAST) as consumer,
        Admin(address) as admin,
    ):
        assert isinstance(consumer.health().trouble, TopicNotExist)
        assert f"topics {topic}, {topic}-2" in str(consumer.health().trouble)
        wait_for_answers(consumer, 3)
        assert len(warnings_of(caplog, topic)) == len(warnings_of(caplog, f"{topic}-2")) == 1
        admin.create_topic(topic)
        producer.send(Message(topic, b"there"))
        seen.wait(1)
        until(lambda: f"topic {topic}-2:" in str(consumer.health().trouble), "the other one being named")
        admin.create_topic(f"{topic}-2")
        until(lambda: consumer.health().trouble is None, "the end of the trouble")
        assert f"topic {topic}-2 exists now" in caplog.text


def test_a_topic_that_is_deleted_underneath_is_let_go_of_and_taken_again(
    clients: Clients, shared_broker: RunningBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    address, other = shared_broker.address, f"{topic}-other"
    caplog.set_level(logging.INFO)
    with Producer(address) as producer, Admin(address) as admin, Consumer(address) as reader:
        for name in (topic, other):
            admin.create_topic(name, queues=1)
            producer.send(Message(name, b"first"))
        # A long interval, so that there is an offset to be committed for the deleted topic.
        options = {**FAST, "commit_interval": 3600.0}
        with clients.PushConsumer(address, topic, [topic, other], seen, **options) as consumer:
            seen.wait(2)
            until(lambda: consumer.health().pending_messages == 0, "both being done")
            admin.delete_topic(topic)
            until(lambda: topic not in dict(consumer.health().queues), "letting go of the topic")
            until(lambda: isinstance(consumer.health().trouble, TopicNotExist), "the trouble")
            wait_for_answers(consumer, 3)
            assert len(warnings_of(caplog, topic)) == 1
            assert len([line for line in caplog.text.splitlines() if "was not committed" in line]) == 0
            producer.send(Message(other, b"meanwhile"))
            seen.wait(3)
            until(lambda: consumer.health().pending_messages == 0, "it being done")
            consumer.commit()
            assert reader.committed(topic, other) == {0: 2}
            admin.create_topic(topic, queues=1)
            producer.send(Message(topic, b"again"))
            seen.wait(4)
            until(lambda: consumer.health().trouble is None, "the end of the trouble")
            assert consumer.health().commit_trouble is None
    assert sorted(seen.bodies) == [b"again", b"first", b"first", b"meanwhile"]
