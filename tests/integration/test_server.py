"""Service of connections: the order of responses, held pulls, topics created on demand, and many clients at once."""

from __future__ import annotations

import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.protocol import commands
from flintmq.protocol.commands import PHYSICAL_OFFSET_STRUCT, PRODUCE, PULL
from flintmq.protocol.errors import (
    PULL_NOT_FOUND,
    SUCCESS,
    InvalidParameter,
    MessageIllegal,
    OffsetOutOfRange,
    TopicNotExist,
)
from flintmq.protocol.frames import ONE_WAY, REQUEST, encode_frame
from flintmq.protocol.storage.record import Record, decode_record, encode_host, offset_id, unique_key
from tests.conftest import rows

Broker = Any
Connect = Callable[..., Any]
Factory = Callable[..., Broker]

MEMORY_FOLDER = Path("/dev/shm")


def records(answer: Any) -> list[Record]:
    count = answer.fields["count"]
    sizes = struct.unpack_from(f">{count}I", answer.body)
    found, at = [], 4 * count
    for size in sizes:
        found.append(decode_record(answer.body[at : at + size]))
        at += size
    assert at == len(answer.body)
    return found


def all_bodies(connection: Any, topic: str, queue: int) -> list[bytes]:
    bodies: list[bytes] = []
    while True:
        answer = connection.pull(topic, queue, len(bodies), max_count=10_000)
        if answer.code == PULL_NOT_FOUND:
            return bodies
        bodies += [record.body for record in records(answer.raise_for_error())]


def wait_for_messages(connection: Any, topic: str, queue: int, count: int) -> None:
    """Wait until a queue shows ``count`` messages, because dispatch runs after an acknowledgement."""
    answer = connection.pull(topic, queue, count - 1, wait_ms=10_000, max_count=1)
    assert answer.code == SUCCESS


# ---- produced messages come back ----


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_messages_come_back_as_they_were_sent(broker: Factory, connect: Connect, flush: str) -> None:
    connection = connect(broker("--flush", flush))
    fields = {
        "topic": "orders",
        "queue": 1,
        "count": 2,
        "common": "source\x01web\x02",
        "born_ms": 1_700_000_000_000,
        "unique_prefix": "7F0000010000AABBCCDD",
        "unique_first": 2**48 - 1,
    }
    body = rows([b"one", {"KEYS": "k1 k2", "TAGS": "eu"}], [b"two", {"TAGS": "us"}, 0, 7])
    produced = connection.call(PRODUCE, fields, body).raise_for_error()
    assert produced.fields["queue"] == 1
    assert produced.fields["queue_offset"] == 0
    physical_offsets = [offset for (offset,) in PHYSICAL_OFFSET_STRUCT.iter_unpack(produced.body)]
    wait_for_messages(connection, "orders", 1, 2)
    first, second = records(connection.pull("orders", 1))
    assert (first.body, second.body) == (b"one", b"two")
    assert first.property_map() == {
        "KEYS": "k1 k2",
        "TAGS": "eu",
        "source": "web",
        "UNIQ_KEY": "7F0000010000AABBCCDDFFFFFFFFFFFF",
    }
    assert second.property_map()["UNIQ_KEY"] == unique_key("7F0000010000AABBCCDD", 2**48)
    assert second.flag == 7
    assert [first.physical_offset, second.physical_offset] == physical_offsets
    assert first.born_timestamp == 1_700_000_000_000
    assert first.store_timestamp == produced.fields["store_ms"]
    local = connection.sock.getsockname()
    assert first.born_host == encode_host(local[0], local[1])
    tagged = connection.pull("orders", 1, tags="us || nowhere")
    assert [record.body for record in records(tagged)] == [b"two"]
    for key in ("k1", "k2", first.property_map()["UNIQ_KEY"]):
        found = connection.call(commands.QUERY_BY_KEY, {"topic": "orders", "key": key}).raise_for_error()
        assert [record.body for record in records(found)] == [b"one"]
    for message_id in (offset_id(first.store_host, first.physical_offset), first.property_map()["UNIQ_KEY"]):
        viewed = connection.call(commands.VIEW_MESSAGE_BY_ID, {"id": message_id, "topic": "orders"}).raise_for_error()
        assert [record.body for record in records(viewed)] == [b"one"]


def test_the_broker_goes_round_the_queues(shared_broker: Broker, connect: Connect, topic: str) -> None:
    connection = connect(shared_broker)
    queues = [connection.produce(topic, b"x").fields["queue"] for _ in range(8)]
    assert queues == [0, 1, 2, 3, 0, 1, 2, 3]


def test_offsets_and_times_of_a_queue(shared_broker: Broker, connect: Connect, topic: str) -> None:
    connection = connect(shared_broker)
    first = connection.produce(topic, b"1", b"2", queue=0).fields["store_ms"]
    wait_for_messages(connection, topic, 0, 2)
    queue = {"topic": topic, "queue": 0}
    assert connection.call(commands.GET_MIN_OFFSET, queue).fields["offset"] == 0
    assert connection.call(commands.GET_MAX_OFFSET, queue).fields["offset"] == 2
    assert connection.call(commands.GET_EARLIEST_MSG_STORETIME, queue).fields["timestamp_ms"] == first
    assert (
        connection.call(commands.GET_EARLIEST_MSG_STORETIME, {**queue, "queue": 3}).fields.get("timestamp_ms", -1) == -1
    )
    for timestamp_ms, offset in ((0, 0), (first, 0), (first + 1, 2)):
        asked = connection.call(commands.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp_ms": timestamp_ms})
        assert asked.fields["offset"] == offset
    stats = connection.call(commands.GET_TOPIC_STATS_INFO, {"topic": topic})
    entries = list(commands.QUEUE_STATS_STRUCT.iter_unpack(stats.body))
    assert entries == [(0, 0, 2, first), (1, 0, 0, -1), (2, 0, 0, -1), (3, 0, 0, -1)]


def test_runtime_info_has_the_specified_fields(broker: Factory, connect: Connect) -> None:
    running = broker()
    connection = connect(running)
    connection.produce("orders", b"x" * 10)
    info = connection.runtime_info()
    assert info.keys() == commands.RUNTIME_INFO.keys()
    assert info["pid"] == running.process.pid
    assert info["produced_messages"] == 1
    assert info["store_path"] == str(running.store)
    assert info["flushed_offset"] == info["write_offset"] > 0


# ---- the order of responses ----


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_produce_answers_come_in_the_order_of_their_requests(broker: Factory, connect: Connect, flush: str) -> None:
    connection = connect(broker("--flush", flush))
    expected: list[tuple[int, int]] = []
    blob = b""
    for number in range(600):
        fields: dict[str, Any] = {"topic": "orders", "count": 1, "queue": 0}
        body, code = rows([b"%d" % number, {}]), SUCCESS
        match number % 6:
            case 1:
                fields["flush"] = "sync"
            case 2:
                body, code = b"", MessageIllegal.code
            case 3:
                fields["flush"] = "async"
            case 4:
                fields["topic"] = f"made-on-the-way-{number}"
            case 5:
                fields["topic"], code = "not/a/topic", InvalidParameter.code
        blob += encode_frame(REQUEST, PRODUCE.code, 1000 + number, fields, body)
        expected.append((1000 + number, code))
    sender = threading.Thread(target=connection.send_bytes, args=(blob,))
    sender.start()
    answers = [connection.receive() for _ in expected]
    sender.join()
    assert [(answer.request_id, answer.code) for answer in answers] == expected
    in_order = [b"%d" % number for number in range(600) if number % 6 in (0, 1, 3)]
    wait_for_messages(connection, "orders", 0, len(in_order))
    assert all_bodies(connection, "orders", 0) == in_order


def test_a_one_way_frame_keeps_its_place(shared_broker: Broker, connect: Connect, topic: str) -> None:
    connection = connect(shared_broker)
    for number in range(50):
        kind = ONE_WAY if number % 2 else REQUEST
        connection.send(PRODUCE, {"topic": topic, "count": 1, "queue": 0}, rows([b"%d" % number, {}]), kind=kind)
    assert [connection.receive().fields["queue_offset"] for _ in range(25)] == list(range(0, 50, 2))


def test_a_pull_that_waits_holds_up_nothing(shared_broker: Broker, connect: Connect, topic: str) -> None:
    connection = connect(shared_broker)
    connection.produce(topic, b"first", queue=0)
    wait_for_messages(connection, topic, 0, 1)
    waiting = connection.send(PULL, {"topic": topic, "queue": 0, "offset": 1, "wait_ms": 20_000})
    assert connection.receive_for(connection.send(PULL, {"topic": topic, "queue": 0, "offset": 0})).code == SUCCESS
    produced = connection.send(PRODUCE, {"topic": topic, "count": 1, "queue": 0}, rows([b"second", {}]))
    answers = {answer.request_id: answer for answer in (connection.receive(), connection.receive())}
    assert answers[produced].code == SUCCESS
    assert [record.body for record in records(answers[waiting])] == [b"second"]


# ---- held pulls ----


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_held_pull_gets_a_message_of_another_connection(broker: Factory, connect: Connect, flush: str) -> None:
    running = broker("--flush", flush)
    consumer, producer = connect(running), connect(running)
    producer.produce("orders", b"0", queue=2)
    for number in range(1, 100):
        consumer.send(PULL, {"topic": "orders", "queue": 2, "offset": number, "wait_ms": 20_000})
        producer.produce("orders", b"%d" % number, queue=2)
        assert [record.body for record in records(consumer.receive())] == [b"%d" % number]


def test_a_waiting_pull_is_answered_empty_at_its_deadline(shared_broker: Broker, connect: Connect, topic: str) -> None:
    connection = connect(shared_broker)
    connection.produce(topic, b"x", queue=0)
    wait_for_messages(connection, topic, 0, 1)
    began = time.monotonic()
    answer = connection.pull(topic, 0, 1, wait_ms=200)
    assert time.monotonic() - began >= 0.19
    assert answer.code == PULL_NOT_FOUND
    assert (answer.fields["next_offset"], answer.fields["max_offset"], answer.body) == (1, 1, b"")


def test_a_filtered_pull_waits_for_its_tag(shared_broker: Broker, connect: Connect, topic: str) -> None:
    running = shared_broker
    consumer, producer = connect(running), connect(running)
    producer.produce(topic, b"x", queue=0)
    consumer.send(PULL, {"topic": topic, "queue": 0, "offset": 1, "wait_ms": 20_000, "tags": "eu"})
    for tag in ("us", "us", "eu"):
        producer.call(PRODUCE, {"topic": topic, "queue": 0, "count": 1}, rows([tag.encode(), {"TAGS": tag}]))
        wait_for_messages(producer, topic, 0, 2)
    answer = consumer.receive()
    assert [record.body for record in records(answer)] == [b"eu"]
    assert answer.fields["next_offset"] == 4


def test_a_filtered_pull_that_finds_nothing_moves_on_until_its_deadline(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    running = shared_broker
    consumer, producer = connect(running), connect(running)
    producer.produce(topic, b"x", queue=0)
    consumer.send(PULL, {"topic": topic, "queue": 0, "offset": 0, "wait_ms": 400, "tags": "eu"})
    producer.call(PRODUCE, {"topic": topic, "queue": 0, "count": 1}, rows([b"us", {"TAGS": "us"}]))
    answer = consumer.receive()
    assert answer.code == PULL_NOT_FOUND
    assert answer.fields["next_offset"] == answer.fields["max_offset"] == 2


def test_a_waiting_pull_learns_that_its_topic_went(shared_broker: Broker, connect: Connect, topic: str) -> None:
    running = shared_broker
    consumer, admin = connect(running), connect(running)
    admin.produce(topic, b"x", queue=0)
    consumer.send(PULL, {"topic": topic, "queue": 0, "offset": 1, "wait_ms": 20_000})
    consumer.send(commands.GET_ALL_TOPIC_CONFIG)
    assert consumer.receive().code == SUCCESS
    assert admin.call(commands.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == SUCCESS
    assert consumer.receive().code == TopicNotExist.code


def test_a_client_that_goes_takes_its_waiting_pulls_along(shared_broker: Broker, connect: Connect, topic: str) -> None:
    running = shared_broker
    consumer, other = connect(running), connect(running)
    other.produce(topic, b"x", queue=0)
    for _ in range(10):
        consumer.send(PULL, {"topic": topic, "queue": 0, "offset": 1, "wait_ms": 600_000})

    def held() -> int:
        return int(other.runtime_info()["held_pulls"])

    while held() != 10:
        pass
    consumer.close()
    while held() != 0:
        pass


# ---- topics ----


def test_many_that_make_the_same_topic_at_once_all_succeed(broker: Factory, connect: Connect) -> None:
    running = broker()
    connections = [connect(running) for _ in range(16)]
    for connection in connections:
        for topic in ("a", "b", "c"):
            connection.send(PRODUCE, {"topic": topic, "count": 1, "queue": 0}, rows([b"x", {}]))
    for connection in connections:
        assert [connection.receive().code for _ in range(3)] == [SUCCESS] * 3
    for topic in ("a", "b", "c"):
        wait_for_messages(connections[0], topic, 0, 16)
    listed = msgpack.unpackb(connections[0].call(commands.GET_ALL_TOPIC_CONFIG).body)
    assert sorted(row["topic"] for row in listed if not row["system"]) == ["a", "b", "c"]
    assert {row["write_queues"] for row in listed if not row["system"]} == {4}


def test_a_topic_is_on_disk_before_its_first_acknowledgement(broker: Factory, connect: Connect) -> None:
    running = broker("--flush", "async")
    connect(running).produce("orders", b"x").raise_for_error()
    running.kill()
    again = connect(broker(store=running.store))
    assert again.call(commands.GET_TOPIC_STATS_INFO, {"topic": "orders"}).code == SUCCESS


def test_a_topic_created_again_continues_after_the_deleted_one(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    connection = connect(shared_broker)
    connection.produce(topic, b"1", b"2", queue=0)
    assert connection.call(commands.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == SUCCESS
    assert connection.pull(topic).code == TopicNotExist.code
    assert connection.produce(topic, b"3", queue=0).fields["queue_offset"] == 2
    wait_for_messages(connection, topic, 0, 3)
    assert connection.pull(topic, 0, 0).code == OffsetOutOfRange.code
    assert [record.body for record in records(connection.pull(topic, 0, 2))] == [b"3"]


# ---- many clients, and much data, at once ----


def test_clients_at_once_do_not_disturb_each_other(broker: Factory, connect: Connect) -> None:
    running = broker("--flush", "sync")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            connection = connect(running)
            for count in range(100):
                answer = connection.produce("orders", b"%d-%d" % (number, count), queue=number % 4)
                answer.raise_for_error()
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    connection = connect(running)
    for queue in range(4):
        wait_for_messages(connection, "orders", queue, 400)
        bodies = all_bodies(connection, "orders", queue)
        for number in range(queue, 16, 4):
            assert [body for body in bodies if body.startswith(b"%d-" % number)] == [
                b"%d-%d" % (number, count) for count in range(100)
            ]


def test_a_pipelining_client_that_reads_late_gets_every_answer(broker: Factory, connect: Connect) -> None:
    running = broker(
        settings={"net.connection:WRITE_BUFFER_BYTES_MAX": 10_000, "limits.connection_in_flight_bytes_max": 20_000}
    )
    connection = connect(running)
    frames = [
        encode_frame(REQUEST, PRODUCE.code, number, {"topic": "orders", "count": 1, "queue": 0}, rows([bytes(500), {}]))
        for number in range(5000)
    ]
    sender = threading.Thread(target=connection.send_bytes, args=(b"".join(frames),))
    sender.start()
    assert [connection.receive().request_id for _ in range(5000)] == list(range(5000))
    sender.join()
    info = connection.runtime_info()
    assert info["in_flight_bytes"] == 0


def test_large_frames_and_large_answers_pass(broker: Factory, connect: Connect, topic: str) -> None:
    connection = connect(broker("--flush", "async"))  # alone: a response is smaller beside other active connections
    sent = [bytes([number]) * 400_000 for number in range(20)]
    for pair in zip(sent[::2], sent[1::2], strict=True):
        connection.produce(topic, *pair, queue=0).raise_for_error()
    wait_for_messages(connection, topic, 0, 20)
    answer = connection.pull(topic, 0, 0, max_count=100, max_bytes=2**31 - 1)
    assert [record.body for record in records(answer)] == sent
    assert len(records(connection.pull(topic, 0, 0, max_bytes=1))) == 1


def test_a_client_that_closed_its_side_still_gets_its_answers(broker: Factory, connect: Connect) -> None:
    connection = connect(broker("--flush", "sync"))
    sent = [connection.send(PRODUCE, {"topic": "orders", "count": 1}, rows([b"x", {}])) for _ in range(20)]
    connection.sock.shutdown(1)
    assert [connection.receive().request_id for _ in range(20)] == sent
    assert connection.is_closed()


def columns(count: int, number: int) -> bytes:
    keys = [f"k-{number}-{message}" for message in range(count)]
    body: bytes = msgpack.packb([b"%d" % number] * count) + msgpack.packb(keys)
    return body


def test_acknowledged_messages_are_visible_to_an_immediate_pull(broker: Factory, connect: Connect, topic: str) -> None:
    """Dispatch runs after acknowledgements, by whole frames under load; no client may notice the delay."""
    running = broker("--flush", "async", settings={"store.commitlog_file_bytes": 64 * 1024 * 1024})
    producer, consumer = connect(running), connect(running)
    frames, count = 40, 5000
    for number in range(frames):
        fields = {"topic": topic, "queue": 0, "count": count, "layout": 1}
        producer.send(PRODUCE, fields, columns(count, number))
    for number in range(frames):
        producer.receive().raise_for_error()
        acknowledged = (number + 1) * count
        asked = consumer.call(commands.GET_MAX_OFFSET, {"topic": topic, "queue": 0})
        assert asked.fields["offset"] >= acknowledged
        assert consumer.pull(topic, 0, acknowledged - 1, max_count=1).fields["count"] == 1
        found = consumer.call(commands.QUERY_BY_KEY, {"topic": topic, "key": f"k-{number}-{count - 1}"})
        assert found.fields["count"] == 1


@pytest.mark.skipif(not MEMORY_FOLDER.is_dir(), reason="no file system in memory here")
def test_reads_that_must_wait_for_the_disk_hold_up_nothing(broker: Factory, connect: Connect, topic: str) -> None:
    """A file system in memory cannot report its page cache, so every read of it runs in a reader thread."""
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as folder:
        running = broker(store=Path(folder) / "store")
        connection = connect(running)
        connection.produce(topic, *[b"%d" % number for number in range(100)], queue=0).raise_for_error()
        pulls = [
            connection.send(PULL, {"topic": topic, "queue": 0, "offset": offset, "max_count": 1})
            for offset in range(100)
        ]
        listed = connection.send(commands.GET_ALL_TOPIC_CONFIG)
        produced = connection.send(PRODUCE, {"topic": topic, "count": 1, "queue": 1}, rows([b"x", {}]))
        waiting = connection.send(PULL, {"topic": topic, "queue": 0, "offset": 100, "wait_ms": 200})
        answers = {}
        for _ in range(103):
            answer = connection.receive().raise_for_error()
            answers[answer.request_id] = answer
        assert [records(answers[pull])[0].body for pull in pulls] == [b"%d" % number for number in range(100)]
        assert answers.keys() == {*pulls, listed, produced, waiting}
        assert answers[waiting].code == PULL_NOT_FOUND
        first = records(answers[pulls[0]])[0]
        message_id = offset_id(first.store_host, first.physical_offset)
        viewed = connection.call(commands.VIEW_MESSAGE_BY_ID, {"id": message_id}).raise_for_error()
        assert records(viewed)[0].body == b"0"
        assert running.stop() == 0
