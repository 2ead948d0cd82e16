"""What retention took from the disk is read through the broker, from the archive, without the client's doing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Message, Producer, StoredMessage
from flintmq.protocol.commands import GET_MIN_OFFSET, PULL
from flintmq.protocol.errors import SUCCESS, MessageNotFound, OffsetOutOfRange, ServiceNotAvailable
from flintmq.protocol.remoting import codes
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.group_tools import until
from tests.object_server import FaultyStore, ObjectServer
from tests.remoting_tools import RemotingBroker, decode_records

COUNT = 3_000
QUEUES = 3
KEPT_NONE = {
    "retention.file_reserved_hours": 0,
    "background.services:RETENTION_CHECK_S": 0.05,
    "retention.delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
    "retention.until_archived": True,
    "archive.interval_ms": 100,
}


def body(number: int) -> bytes:
    return f"{number:06d}".encode() * 300


def fill(address: str, count: int = COUNT) -> None:
    with Admin(address) as admin:
        admin.create_topic("orders", queues=QUEUES)
        admin.create_topic("other", queues=1)
    with Producer(address) as producer:
        for first in range(0, count, 100):
            producer.send_many(
                [
                    Message(
                        "orders",
                        body(number),
                        keys=f"k{number}",
                        tags="even" if number % 2 == 0 else "odd",
                        properties={"n": str(number)},
                    )
                    for number in range(first, first + 100)
                ]
            )
            producer.send(Message("other", b"other", keys="k1"))


def first_file_is_gone(address: str) -> bool:
    with Admin(address) as admin:
        return bool(admin.status()["min_physical_offset"] > 0)


@pytest.fixture
def running(broker: BrokerFactory, tmp_path: Path) -> RunningBroker:
    """A broker with its archive in a folder; its first messages are only there."""
    running = broker(settings={**KEPT_NONE, "archive.url": str(tmp_path / "archive")})
    fill(running.address)
    until(lambda: first_file_is_gone(running.address), "retention")
    return running


@pytest.fixture
def consumer(running: RunningBroker) -> Iterator[Consumer]:
    with Consumer(running.address) as consumer:
        yield consumer


def numbers(messages: list[StoredMessage]) -> list[int]:
    return sorted(int(message.body[:6]) for message in messages)


def test_a_topic_is_read_from_its_first_message(consumer: Consumer) -> None:
    assert [stats.min_offset for stats in consumer.topic_stats("orders")] == [0] * QUEUES
    assert consumer.min_offset("orders", 1) == 0
    everything = list(consumer.iter("orders", until="latest"))
    assert numbers(everything) == list(range(COUNT))
    for queue in range(QUEUES):
        offsets = [each.queue_offset for each in everything if each.queue == queue]
        assert offsets == list(range(len(offsets)))
    assert len(list(consumer.iter("other", until="latest"))) == COUNT // 100


def test_tags_and_filters_choose_archived_messages(consumer: Consumer) -> None:
    odd = list(consumer.iter("orders", until="latest", tags="odd"))
    assert numbers(odd) == list(range(1, COUNT, 2))
    some = list(consumer.iter("orders", until="latest", filter="n IN ('17', '2500')"))
    assert numbers(some) == [17, 2500]


def test_limits_of_a_pull_hold_in_the_archive(consumer: Consumer) -> None:
    batch = consumer.pull("orders", 0, 0, 7)
    assert [message.queue_offset for message in batch.messages] == list(range(7))
    assert (batch.next_offset, batch.min_offset) == (7, 0)
    with pytest.raises(OffsetOutOfRange):
        consumer.pull("orders", 0, batch.max_offset + 1)


def test_messages_are_found_by_key_id_and_time(consumer: Consumer) -> None:
    old = consumer.pull("orders", 1, 2, 1).messages[0]
    number = int(old.body[:6])
    assert numbers(list(consumer.query("orders", f"k{number}"))) == [number]
    assert list(consumer.query("orders", "nobody's")) == []
    assert consumer.message(old.message_id, "orders").body == old.body
    assert consumer.message(old.offset_id).body == old.body
    assert [each.queue_offset for each in _pages(consumer)] == list(range(COUNT // 100 - 1, -1, -1))
    middle = consumer.pull("orders", 1, 20, 1).messages[0]
    at = consumer.offset_at("orders", 1, middle.stored_at)
    assert at <= 20
    assert consumer.pull("orders", 1, at, 1).messages[0].stored_at == middle.stored_at
    if at:
        assert consumer.pull("orders", 1, at - 1, 1).messages[0].stored_at < middle.stored_at
    assert consumer.offset_at("orders", 1, old.stored_at - timedelta(days=1)) == 0


def _pages(consumer: Consumer) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    cursor = None
    while True:
        page = consumer.query("other", "k1", max_count=7, cursor=cursor)
        found += page
        cursor = page.cursor
        if cursor is None:
            return found


def test_a_restarted_broker_finds_its_history(broker: BrokerFactory, running: RunningBroker, tmp_path: Path) -> None:
    running.kill()
    again = broker(store=running.store, settings={**KEPT_NONE, "archive.url": str(tmp_path / "archive")})
    with Consumer(again.address) as consumer:
        assert numbers(list(consumer.iter("orders", until="latest"))) == list(range(COUNT))


def test_a_bucket_that_is_away_fails_old_reads_alone(
    broker: BrokerFactory, connect: ConnectionFactory, object_server: ObjectServer
) -> None:
    proxy = FaultyStore(object_server)
    settings = {name: value for name, value in KEPT_NONE.items() if ":" not in name}
    settings["archive.url"] = object_server.bucket() + "/a"
    running = broker(settings=settings, environment=object_server.environment(proxy.port))
    fill(running.address)
    until(lambda: first_file_is_gone(running.address), "retention")
    peer = connect(running)
    assert peer.pull("orders", 0, 0).code == SUCCESS
    proxy.close()
    old = peer.send(PULL, {"topic": "orders", "queue": 0, "offset": 300})
    stored = peer.produce("orders", b"new", queue=0)  # its answer comes before that of the old pull
    new = peer.pull("orders", 0, stored.fields["queue_offset"])
    assert (new.code, new.fields["count"]) == (SUCCESS, 1)
    refused = peer.receive_for(old)
    assert refused.code == ServiceNotAvailable.code
    assert "in the archive only" in refused.fields["message"]
    assert refused.fields["retry_after_ms"] > 0
    # Of a queue that nobody has read yet, the archive's first offset is shown if it is known, or else the disk's.
    assert peer.call(GET_MIN_OFFSET, {"topic": "orders", "queue": 1}).code == SUCCESS


def test_rocketmqs_clients_read_on_in_the_archive(broker: BrokerFactory, tmp_path: Path) -> None:
    remoting = RemotingBroker(broker, {**KEPT_NONE, "archive.url": str(tmp_path / "archive")})
    running = remoting.running
    fill(running.address)
    until(lambda: first_file_is_gone(running.address), "retention")
    with remoting.connect() as remote:
        lowest = remote.call(codes.GET_MIN_OFFSET, {"topic": "orders", "queueId": 0})
        assert lowest.fields["offset"] == "0"
        bodies, offset = [], 0
        while records := remote.pull("orders", 0, offset):
            bodies += [record.body for record in records]
            assert [record.queue_offset for record in records] == list(range(offset, offset + len(records)))
            offset += len(records)
        with Consumer(running.address) as consumer:
            assert bodies == [each.body for each in consumer.iter("orders", until="latest") if each.queue == 0]
        found = remote.call(
            codes.QUERY_MESSAGE,
            {"topic": "other", "key": "k1", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62},
        )
        assert len(decode_records(bytes(found.body))) == COUNT // 100


def test_a_topic_that_is_created_again_has_none_of_its_old_messages(running: RunningBroker, consumer: Consumer) -> None:
    old = consumer.pull("other", 0, 0, 1).messages[0]
    end = consumer.max_offset("other", 0)
    with Admin(running.address) as admin, Producer(running.address) as producer:
        admin.delete_topic("other")
        admin.create_topic("other", queues=1)
        assert consumer.min_offset("other", 0) == end
        assert producer.send(Message("other", b"new")).queue_offset == end
    with pytest.raises(OffsetOutOfRange):
        consumer.pull("other", 0, 0)
    assert [each.body for each in consumer.iter("other", until="latest")] == [b"new"]
    assert list(consumer.query("other", "k1")) == []
    with pytest.raises(MessageNotFound):
        consumer.message(old.offset_id)
