"""Memory of readers: what was decompressed does not stay."""

from __future__ import annotations

import tracemalloc

import pytest

from flintmq.client import Consumer, Message, Producer
from tests.conftest import RunningBroker

MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize("body_bytes", [MEBIBYTE // 2, 3 * MEBIBYTE])
def test_a_list_of_messages_does_not_keep_decompressed_bodies(
    shared_broker: RunningBroker, topic: str, body_bytes: int
) -> None:
    with Producer(shared_broker.address) as producer, Consumer(shared_broker.address) as consumer:
        for _ in range(20):
            producer.send(Message(topic, bytes(body_bytes)), queue=0)
        messages = list(consumer.iter(topic, until="latest"))
        assert len(messages) == 20
        tracemalloc.start()
        try:
            for message in messages:
                assert message.body == message.body == bytes(body_bytes)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 2 * MEBIBYTE
