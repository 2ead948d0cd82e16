"""A lost store is made again from its archive: its log byte for byte, topics, progress; at its end or at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flintmq.broker.app.daemon import main
from flintmq.broker.store import MessageStore
from flintmq.broker.store.queues import ConsumeQueue
from flintmq.broker.tools.restore_archive import restore_archive
from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.protocol.storage.archive.errors import CorruptObject
from flintmq.protocol.storage.archive.manifest import ArchiveManifest
from flintmq.protocol.storage.archive.objects import Objects
from flintmq.protocol.storage.archive.tables import TABLES, decode_table
from tests.conftest import BrokerFactory
from tests.group_tools import until
from tests.object_server import ObjectServer
from tests.store_tools import Message as Stored
from tests.store_tools import dispatch, make_topic, open_store, put
from tests.written_archive import archive, newest


def quiet(stage: str, done: int, total: int) -> None:
    """Show no progress."""


def log_of(path: Path, end: int) -> dict[str, bytes]:
    """Return the files of a log up to a physical offset."""
    files = sorted((path / "commitlog").iterdir())
    return {file.name: file.read_bytes()[: max(end - int(file.name), 0)] for file in files if int(file.name) < end}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """An open store with several files of log, and two topics."""
    store = open_store(tmp_path / "store")
    for topic in ("orders", "payments"):
        make_topic(store, topic)
    for round_ in range(32):
        topic = ("orders", "payments")[round_ % 2]
        put(store, topic, round_ % 4, [Stored(b"%d" % round_ * 4_000, (f"k{round_}",)) for _ in range(60)])
    yield store
    store.close()


def test_the_restored_log_is_the_old_one_byte_for_byte(store: MessageStore, tmp_path: Path) -> None:
    objects = Objects(tmp_path / "archive")
    for round_ in range(5):
        archive(store, objects)
        put(store, "orders", 0, [Stored(bytes(9_000), (f"late-{round_}",)) for _ in range(50)])
    archive(store, objects)
    end = store.write_offset
    assert len(store.commitlog.queue.files) > 2
    assert len(newest(objects).entries) > 4
    done = restore_archive(objects.url, tmp_path / "again", quiet)
    assert (done.begin, done.end, done.gap, done.continues) == (0, end, None, True)
    assert log_of(tmp_path / "again", end) == log_of(store.path, end)
    again = open_store(tmp_path / "again")
    assert again.write_offset == end
    for topic in ("orders", "payments"):
        assert again.queue_reads.topic_stats(topic, hot=False) == store.queue_reads.topic_stats(topic, hot=False)
    again.close()
    result = CliRunner().invoke(main, ["verify", str(tmp_path / "again")])
    assert result.exit_code == 0, result.output


def test_a_restore_up_to_a_time_ends_before_the_first_later_message(store: MessageStore, tmp_path: Path) -> None:
    objects = Objects(tmp_path / "archive")
    archive(store, objects)
    units = [unit for queue in store.queues for unit in _units(queue)]
    times = {position: store.log_reads.stored_ms(position, size) for position, size in units}
    moments = sorted({moment for moment in times.values() if moment is not None})
    for moment in {moments[1], moments[len(moments) // 2], moments[-1]}:
        end = min(position for position, stored in times.items() if stored is not None and stored >= moment)
        path = tmp_path / f"until-{moment}"
        text = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds")
        result = CliRunner().invoke(main, ["restore", objects.url, str(path), "--until", text])
        assert result.exit_code == 0, result.output
        assert f"physical offsets 0 to {end:,}" in result.output
        assert "does not continue the archive" in result.output
        assert log_of(path, end) == log_of(store.path, end)
        again = open_store(path)
        assert again.write_offset == end
        again.close()


def _units(queue: ConsumeQueue) -> Iterator[tuple[int, int]]:
    for offset in range(queue.max_offset):
        position, size, _ = queue.unit(offset, hot=False)
        yield position, size


def test_nothing_is_restored_from_a_damaged_object(store: MessageStore, tmp_path: Path) -> None:
    objects = Objects(tmp_path / "archive")
    archive(store, objects)
    name = newest(objects).entries[0].name.log
    content = objects.get(name)
    objects.put(name, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptObject, match=name) as damaged:
        restore_archive(objects.url, tmp_path / "again", quiet)
    assert "remove it before you try again" in damaged.value.__notes__[0]
    assert not any((tmp_path / "again" / "commitlog").iterdir())


def test_a_restore_begins_behind_a_gap_and_names_it(store: MessageStore, tmp_path: Path) -> None:
    objects = Objects(tmp_path / "archive")
    archive(store, objects)
    before = store.write_offset
    while len(store.commitlog.queue.files) < 5:
        put(store, "orders", 0, [Stored(bytes(60_000)) for _ in range(8)])
    store.flush()
    dispatch(store)
    store.sync_derived()
    assert store.expire(4)
    archive(store, objects)
    result = CliRunner().invoke(main, ["restore", objects.url, str(tmp_path / "again")])
    assert result.exit_code == 0, result.output
    assert f"the archive lacks: physical offsets {before:,} to {store.min_physical_offset:,}" in result.output
    again = open_store(tmp_path / "again")
    assert (again.min_physical_offset, again.write_offset) == (store.min_physical_offset, store.write_offset)
    assert (
        again.queue_reads.topic_stats("orders", hot=False)[0] == store.queue_reads.topic_stats("orders", hot=False)[0]
    )
    again.close()


def test_a_folder_that_is_not_empty_is_refused(store: MessageStore, tmp_path: Path) -> None:
    objects = Objects(tmp_path / "archive")
    archive(store, objects)
    result = CliRunner().invoke(main, ["restore", objects.url, str(store.path)])
    assert result.exit_code == 2
    assert "is not empty" in result.output


def test_a_broker_whose_folder_is_gone_goes_on_from_its_bucket(
    broker: BrokerFactory, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = object_server.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    url = object_server.bucket() + "/history"
    settings = {"archive.url": url, "archive.interval_ms": 100}
    running = broker(settings=settings, environment=environment)
    with Admin(running.address) as admin, Producer(running.address) as producer:
        admin.create_topic("orders", queues=2)
        admin.create_topic("empty", queues=3)
        producer.send_many([Message("orders", b"%d" % number, keys=f"k{number}") for number in range(500)])
        end = admin.status()["write_offset"]
    objects = Objects(url)
    until(lambda: any(objects.list("manifest")) and _manifest(objects).end == end, "the archive")
    until(lambda: "empty" in _topics(objects), "the tables")
    shutil.rmtree(running.store)  # while it serves
    running.kill()
    result = CliRunner().invoke(main, ["restore", url, str(tmp_path / "again")])
    assert result.exit_code == 0, result.output
    again = broker(store=tmp_path / "again", settings=settings, environment=environment)
    with Admin(again.address) as admin, Consumer(again.address) as consumer, Producer(again.address) as producer:
        assert sorted(int(message.body) for message in consumer.iter("orders", until="latest")) == list(range(500))
        assert [message.body for message in consumer.query("orders", "k77")] == [b"77"]
        assert len(consumer.topic_stats("empty")) == 3
        producer.send(Message("orders", b"500", keys="k500"))
        end = admin.status()["write_offset"]
    until(lambda: _manifest(objects).end == end, "the archive of the restored broker")


def _topics(objects: Objects) -> dict[str, Any]:
    """Return the newest archived table of topics."""
    tables = [decode_table(objects.get(each.name), each.name) for each in objects.list(TABLES) if "topics" in each.name]
    topics: dict[str, Any] = json.loads(tables[-1].content)["topics"] if tables else {}
    return topics


def _manifest(objects: Objects) -> ArchiveManifest:
    return newest(objects)
