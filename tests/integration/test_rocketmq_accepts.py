"""Apache RocketMQ itself opens a store that FlintMQ wrote, reads all of it, continues to write, and hands it back.

Optional: skipped without a JDK or Maven, or if Maven cannot fetch RocketMQ's jars, which it keeps in its own cache.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.store import MessageStore, StoreLocked, TopicConfig
from flintmq.protocol.storage.record import encode_host, offset_id
from tests.integration.rocketmq.harness import (
    Message,
    RocketMQ,
    RocketMQRefused,
    Writer,
    class_path,
    find_flint,
    keys_of,
    lost_its_tail,
    read_flint,
)
from tests.integration.rocketmq.writer import SETTINGS, TOPICS, Batches

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

ROUNDS = 160
"""Batches of a whole store: about 3,000 messages in three CommitLog and several index files."""

RocketMQFactory = Callable[..., RocketMQ]
WriterFactory = Callable[..., Writer]
by_position = itemgetter("physical_offset")


@pytest.fixture(scope="module")
def classes() -> str:
    return class_path()


@pytest.fixture
def rocketmq(classes: str, tmp_path: Path) -> Iterator[RocketMQFactory]:
    """Return a function ``rocketmq(store, driver="StoreDriver", **settings)`` that opens a store in RocketMQ."""
    started: list[RocketMQ] = []

    def start(store: Path, driver: str = "StoreDriver", **settings: Any) -> RocketMQ:
        started.append(RocketMQ(classes, tmp_path / f"rocketmq-{len(started)}", driver, store, settings))
        started[-1].wait_opened()
        return started[-1]

    yield start
    for running in started:
        running.kill()


@pytest.fixture
def writer(classes: str) -> Iterator[WriterFactory]:
    """Return a function ``writer(store, *options)`` that starts a process writing to a FlintMQ store; see
    ``writer.py``.
    """
    started: list[Writer] = []

    def start(store: Path, *options: object) -> Writer:
        started.append(Writer(store, *options))
        return started[-1]

    yield start
    for each in started:
        each.close()


def open_flint(path: Path) -> MessageStore:
    store = MessageStore(path, SETTINGS)
    store.open()
    return store


def log_digest(store: Path, end: int) -> str:
    """Return a digest of the CommitLog's bytes below ``end``."""
    digest = hashlib.sha256()
    for path in sorted((store / "commitlog").iterdir()):
        blob = path.read_bytes()
        assert len(blob) == SETTINGS.commitlog_file_bytes
        digest.update(blob[: max(end - int(path.name), 0)])
    return digest.hexdigest()


def assert_same(read: Iterable[Message], expected: Iterable[Message]) -> None:
    """Check that both have the same messages with the same contents, in any order; report the first that differs."""
    read, expected = sorted(read, key=by_position), sorted(expected, key=by_position)
    for found, wanted in zip(read, expected, strict=False):
        assert found == wanted
    assert len(read) == len(expected)


def assert_dense(queues: Iterable[dict[str, Any]], messages: Iterable[Message]) -> None:
    """Check that every queue is reported from 0 to its number of messages, and each offset was read once."""
    offsets = defaultdict(list)
    for message in messages:
        offsets[message["topic"], message["queue"]].append(message["queue_offset"])
    for queue in queues:
        read = offsets.pop((queue["topic"], queue["queue"]), [])
        assert (queue["min"], queue["max"], read) == (0, len(read), list(range(len(read)))), queue
    assert not offsets


def assert_found(found: dict[Any, set[int]], expected: dict[Any, set[int]]) -> None:
    """Check that each key finds its messages; RocketMQ's index may add others with the same hash."""
    missing = {key: offsets - found[key] for key, offsets in expected.items() if offsets - found[key]}
    assert not missing, f"{len(missing)} of {len(expected)} keys are not found, such as {list(missing.items())[:5]}"


def as_stored(message: Message) -> Message:
    """Return a message pulled by RocketMQ's client without the queue's ends, which the client adds as properties."""
    properties = {
        name: value for name, value in message["properties"].items() if name not in ("MIN_OFFSET", "MAX_OFFSET")
    }
    return {**message, "properties": properties}


def errors_logged(running: RocketMQ) -> list[str]:
    return [line for line in running.log.splitlines() if " ERROR " in line]


def test_rocketmq_reads_every_message_of_a_store_that_was_closed(
    writer: WriterFactory, rocketmq: RocketMQFactory, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    written = writer(store, "--rounds", ROUNDS)
    written.finish()
    messages = written.acknowledged
    assert len(list((store / "commitlog").iterdir())) >= 3
    assert len(list((store / "index").iterdir())) >= 2
    before = log_digest(store, written.end)

    running = rocketmq(store)
    assert running.opened == {"min": 0, "max": written.end}
    ends, read = running.read()
    assert_same(read, messages)
    assert_dense(ends["queues"], read)
    assert_found(running.find(keys_of(messages)), keys_of(messages))
    for topic in TOPICS:
        tags = Counter(message["properties"].get("TAGS") for message in messages if message["topic"] == topic)
        for tag, count in tags.items():
            if tag is not None:
                assert running.call("count_tag", topic=topic, tag=tag)["count"] == count
    running.close()
    assert errors_logged(running) == []

    assert log_digest(store, written.end) == before
    flint = MessageStore(store, SETTINGS)
    report = flint.open()
    assert (report.clean, report.truncated_bytes, report.rebuilt) == (True, 0, [])
    assert flint.write_offset == written.end
    assert_same(read_flint(flint), messages)
    assert find_flint(flint, keys_of(messages)) == keys_of(messages)
    flint.close()


@pytest.mark.parametrize("aged", [False, True], ids=["all new", "half of it an hour old"])
def test_rocketmq_has_all_that_was_acknowledged_before_a_kill(
    writer: WriterFactory, rocketmq: RocketMQFactory, tmp_path: Path, aged: bool
) -> None:
    """RocketMQ's own recovery goes by store times: of a log whose beginning is old it reads only the end again."""
    store = tmp_path / "store"
    kill_at = random.Random(os.environ.get("FLINTMQ_SEED", "1")).randrange(1_000, 4_000)
    killed = writer(store, "--aged-rounds", ROUNDS // 2 if aged else 0)
    killed.read_until(kill_at)
    killed.kill()
    assert killed.end == -1, "it was not killed, it ended"
    assert (store / "abort").exists()

    running = rocketmq(store)
    ends, read = running.read()
    assert_dense(ends["queues"], read)
    written = {message["physical_offset"] for message in killed.acknowledged}
    assert_same([message for message in read if message["physical_offset"] in written], killed.acknowledged)
    if not aged:
        assert_found(running.find(keys_of(read)), keys_of(read))
    running.close()
    assert errors_logged(running) == []

    last = max(read, key=by_position)
    if last["physical_offset"] not in written and lost_its_tail(store, last["physical_offset"]):
        read.remove(last)
    flint = open_flint(store)
    assert_same(read_flint(flint), read)
    assert find_flint(flint, keys_of(read)) == keys_of(read)
    flint.close()


def zeros(log: bytearray, at: int) -> None:
    log[at : at + 4096] = bytes(4096)


def a_bit(log: bytearray, at: int) -> None:
    log[at + 30] ^= 1  # of its physical offset


def the_end_of_the_file(log: bytearray, at: int) -> None:
    log[at:] = bytes(len(log) - at)


@pytest.mark.parametrize("damage", [zeros, a_bit, the_end_of_the_file])
def test_rocketmq_reads_past_contained_damage(
    writer: WriterFactory, rocketmq: RocketMQFactory, tmp_path: Path, damage: Callable[[bytearray, int], None]
) -> None:
    store = tmp_path / "store"
    written = writer(store, "--rounds", ROUNDS)
    written.finish()
    messages = sorted(written.acknowledged, key=by_position)
    log = store / "commitlog" / f"{0:020d}"
    first_file = [each for each in messages if each["physical_offset"] < SETTINGS.commitlog_file_bytes]
    victim = next(
        each for each in first_file[len(first_file) // 2 :] if each["body_sha1"] != hashlib.sha1(b"").hexdigest()
    )
    content = bytearray(log.read_bytes())
    damage(content, victim["physical_offset"])
    log.write_bytes(content)

    flint = MessageStore(store, SETTINGS)
    report = flint.open()
    assert len(report.quarantined) == 1
    places = {
        (each.topic, each.queue, each.first + number)
        for each in report.quarantined[0].lost
        for number in range(each.messages)
    }
    kept = [each for each in messages if (each["topic"], each["queue"], each["queue_offset"]) not in places]
    assert len(kept) == len(messages) - len(places) < len(messages)
    assert_same(read_flint(flint), kept)
    flint.close()

    running = rocketmq(store)
    assert running.opened == {"min": 0, "max": written.end}
    ends, read = running.read()
    assert_dense(ends["queues"], read)
    assert_same([each for each in read if (each["topic"], each["queue"], each["queue_offset"]) not in places], kept)
    assert_found(running.find(keys_of(kept)), keys_of(kept))
    kept += append_with(running, 40, 0)
    running.close()
    assert errors_logged(running) == []

    flint = open_flint(store)
    assert_same(read_flint(flint), kept)
    assert find_flint(flint, keys_of(kept)) == keys_of(kept)
    flint.close()


def append_with(running: RocketMQ, count: int, first: int) -> list[Message]:
    """Append messages through RocketMQ to all queues of all topics in turn; return them as RocketMQ reads them back."""
    queues = [(topic, queue) for topic, count in TOPICS.items() for queue in range(count)]
    appended = []
    for number in range(first, first + count):
        topic, queue = queues[number % len(queues)]
        properties = {"KEYS": f"java-{number} ключ-{number}", "TAGS": "日本", "UNIQ_KEY": f"{number:032X}"}
        body = "из Java " * (number % 90)
        appended.append(running.call("append", topic=topic, queue=queue, body=body, properties=properties))
    running.wait_dispatched()
    return appended


@pytest.mark.long(seconds=15)
def test_each_broker_continues_after_the_other_stopped(
    writer: WriterFactory, rocketmq: RocketMQFactory, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    first = writer(store, "--rounds", 60)
    first.finish()
    messages = list(first.acknowledged)

    running = rocketmq(store)
    messages += append_with(running, 300, 0)
    running.close()

    second = writer(store, "--rounds", 60, "--seed", 2)
    second.finish()
    assert second.opened["clean"]
    assert second.opened["truncated_bytes"] == 0
    messages += second.acknowledged

    running = rocketmq(store)
    messages += append_with(running, 300, 300)
    ends, read = running.read()
    assert_same(read, messages)
    assert_dense(ends["queues"], read)
    running.kill()

    third = writer(store, "--rounds", 60, "--seed", 3)
    third.finish()
    assert not third.opened["clean"]
    messages += third.acknowledged
    flint = open_flint(store)
    assert_same(read_flint(flint), messages)
    assert find_flint(flint, keys_of(messages)) == keys_of(messages)
    flint.close()

    running = rocketmq(store)
    ends, read = running.read()
    assert_same(read, messages)
    assert_dense(ends["queues"], read)
    assert_found(running.find(keys_of(messages)), keys_of(messages))
    running.close()


def test_while_rocketmq_has_the_store_flintmq_refuses_it_and_changes_nothing(
    writer: WriterFactory, rocketmq: RocketMQFactory, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    written = writer(store, "--rounds", 5)
    written.finish()
    running = rocketmq(store)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with pytest.raises(StoreLocked, match="is open in another broker"):
        MessageStore(store, SETTINGS).open()
    after = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert {path.name for path in before if before[path] != after.get(path)} <= {"checkpoint"}
    assert after.keys() == before.keys()
    messages = written.acknowledged + append_with(running, 20, 0)
    _, read = running.read()
    assert_same(read, messages)
    running.close()


def test_while_flintmq_writes_rocketmq_refuses_the_store_and_nothing_is_lost(
    writer: WriterFactory, rocketmq: RocketMQFactory, tmp_path: Path
) -> None:
    """RocketMQ recovers a store before it asks for the lock: it deletes index files and empty CommitLog files."""
    store = tmp_path / "store"
    writing = writer(store)
    writing.read_until(500)
    with pytest.raises(RocketMQRefused, match="MQ already started"):
        rocketmq(store)
    writing.read_until(len(writing.acknowledged) + 2_000)
    writing.kill()
    assert_flintmq_has(store, writing.acknowledged)


@pytest.mark.long(seconds=15)
def test_messages_written_after_rocketmq_refused_the_store_survive_a_stop(
    rocketmq: RocketMQFactory, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    flint = open_flint(store)
    for name, queues in TOPICS.items():
        flint.topics.put(TopicConfig(name, queues, queues))
    batches = Batches(flint, seed=0)
    messages: list[Message] = []

    def write() -> None:
        end_offset, written = batches.append_next()
        assert flint.flush() == end_offset
        flint.dispatch(end_offset)
        flint.commitlog.prepare_ahead()
        messages.extend(map(asdict, written))

    while not flint.commitlog.ahead.prepared:
        write()
    flint.sync_derived()
    with pytest.raises(RocketMQRefused, match="MQ already started"):
        rocketmq(store)
    end = len(flint.commitlog.queue.files) + 2
    while len(flint.commitlog.queue.files) < end:
        write()
    flint.close()
    assert_flintmq_has(store, messages)


def assert_flintmq_has(store: Path, messages: list[Message]) -> None:
    """Check that FlintMQ finds all of these messages, by offset and by key."""
    flint = open_flint(store)
    read = read_flint(flint)
    there = {message["physical_offset"] for message in messages}
    assert_same([message for message in read if message["physical_offset"] in there], messages)
    assert find_flint(flint, keys_of(read)) == keys_of(read)
    flint.close()


@pytest.mark.long(seconds=15)
def test_a_whole_rocketmq_serves_its_own_clients_from_the_store(
    writer: WriterFactory, rocketmq: RocketMQFactory, tmp_path: Path
) -> None:
    """Name server, broker and Java clients: topics, committed offsets, pulls, tags, keys and both forms of ids."""
    store = tmp_path / "store"
    written = writer(store, "--rounds", 60)
    written.finish()
    messages = written.acknowledged
    flint = open_flint(store)
    flint.consumer_offsets.commit("billing", "orders", 2, 7)
    flint.close()

    running = rocketmq(store, driver="BrokerDriver")
    assert running.call("committed", group="billing", topic="orders", queue=2)["offset"] == 7
    host, _, port = running.opened["address"].rpartition(":")
    for topic, queues in TOPICS.items():
        expected = [message for message in messages if message["topic"] == topic]
        ends, read = running.read(topic=topic, tags="*")
        assert ends["queues"] == queues
        assert_same(map(as_stored, read), expected)
        _, tagged = running.read(topic=topic, tags="日本 || eu")
        assert_same(
            map(as_stored, tagged),
            [message for message in expected if message["properties"].get("TAGS") in ("日本", "eu")],
        )
    for message in [message for message in messages if "KEYS" in message["properties"]][::97]:
        found = running.call("find", topic=message["topic"], key=message["properties"]["KEYS"].split(" ")[-1])
        assert message in [as_stored(each) for each in found["found"]]
    made_by_broker = [message for message in messages if message["properties"].get("UNIQ_KEY", "").startswith("7F0000")]
    for message in made_by_broker[::97]:
        in_log = offset_id(encode_host(host, int(port)), message["physical_offset"])
        for message_id in (message["properties"]["UNIQ_KEY"], in_log):
            assert as_stored(running.call("view", topic=message["topic"], id=message_id)) == message
    sent = [
        running.call("send", topic="orders", tags="us", keys=f"sent-{number}", body=f"sent {number}")
        for number in range(10)
    ]
    assert {each["status"] for each in sent} == {"SEND_OK"}
    running.call("commit", group="billing", topic="orders", queue=2, offset=11)
    running.close()

    flint = MessageStore(store, SETTINGS)
    assert flint.open().clean
    assert flint.consumer_offsets.committed("billing", "orders")[2] == 11
    read = [message for message in read_flint(flint) if message["topic"] in TOPICS]
    assert len(read) == len(messages) + len(sent)
    for number, each in enumerate(sent):
        offsets = find_flint(flint, [("orders", f"sent-{number}"), ("orders", each["unique_key"])])
        [[by_key], [by_id]] = offsets.values()
        assert by_key == by_id
    flint.close()
