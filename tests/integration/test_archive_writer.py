"""The log is copied into a folder and into a real bucket, goes on after a kill, and stops where it must not go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from flintmq.broker.archive import uploader
from flintmq.broker.archive.lineage import Writer
from flintmq.broker.archive.merge import MERGED
from flintmq.broker.store import MessageStore
from flintmq.client import Message, Producer
from flintmq.protocol.storage.archive.fragment import decode_index
from flintmq.protocol.storage.archive.keys import key_hash, positions_of
from flintmq.protocol.storage.archive.objects import Objects
from flintmq.protocol.storage.archive.tables import ArchivedTable, decode_table, parse_table_object, table_object
from tests.conftest import BrokerFactory
from tests.group_tools import until
from tests.object_server import FaultyStore, ObjectServer
from tests.store_tools import SERVED, copy_store, dispatch, make_topic, open_store, plain, put
from tests.store_tools import Message as Stored
from tests.written_archive import STORE_ID, WrittenArchive, archive, archiving, has_all, newest


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """An open store with a few messages."""
    store = open_store(tmp_path / "store")
    make_topic(store, "orders")
    put(store, "orders", 0, plain(50))
    yield store
    store.close()


@pytest.fixture(params=["folder", "bucket"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """A folder, and a bucket of a real S3 server."""
    if request.param == "folder":
        return Objects(tmp_path / "archive")
    server: ObjectServer = request.getfixturevalue("object_server")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return Objects(server.bucket() + "/history", deadline_s=10.0)


def test_a_log_of_several_files_arrives_whole(store: MessageStore, objects: Objects) -> None:
    for round_ in range(12):
        put(store, "orders", round_ % 4, [Stored(bytes(9_000), (f"k{round_}",)) for _ in range(100)])
    assert len(store.commitlog.queue.files) > 2
    archive(store, objects)
    held = WrittenArchive(objects)
    held.assert_is(store)
    assert not held.orphans()
    put(store, "orders", 0, plain(10))
    archive(store, objects, compression="none")
    WrittenArchive(objects).assert_is(store)


def test_only_what_is_flushed_and_confirmed_goes_up(store: MessageStore, objects: Objects) -> None:
    store.flush()
    middle = store.write_offset
    put(store, "orders", 0, plain(50))
    store.flush()
    store.confirmed_offset = middle
    with archiving(store, objects) as service:
        until(lambda: service.archived_offset == middle, "the confirmed part")
        store.confirmed_offset = store.write_offset
        until(lambda: has_all(store, service), "the rest")
    assert [entry.end for entry in newest(objects).entries] == [middle, store.write_offset]


def test_a_broker_archives_while_it_serves_and_goes_on_after_a_kill(broker: BrokerFactory, tmp_path: Path) -> None:
    objects = Objects(tmp_path / "archive")
    settings = {"archive.url": objects.url, "archive.interval_ms": 100}
    running = broker(settings=settings)
    sent = 0
    for _ in range(3):
        with Producer(running.address) as producer:
            producer.send_many([Message("orders", b"%d" % number, keys="k") for number in range(500)])
            sent += 500
            until(partial(_has_records, objects, sent), "the archive")
            producer.send_many([Message("orders", b"last")])
            sent += 1
        running.kill()
        running = broker(store=running.store, settings=settings)
    until(partial(_has_records, objects, sent), "the archive")
    running.stop()
    store = open_store(running.store, SERVED)
    WrittenArchive(objects).assert_is(store)
    store.close()


def _has_records(objects: Objects, count: int) -> bool:
    return any(objects.list("manifest")) and newest(objects).totals()[3] == count


def test_another_store_stops_before_it_writes_anything(store: MessageStore, objects: Objects) -> None:
    archive(store, objects)
    before = _content(objects)
    other = Writer("another", "", 0, "w", 1 << 22)
    with archiving(store, objects, writer=other) as service:
        until(lambda: service.state == "stopped", "the refusal")
        assert "the archive of another store" in service.reason
    assert _content(objects) == before


def _content(objects: Objects) -> dict[str, bytes]:
    return {each.name: objects.get(each.name) for each in objects.list()}


def test_a_store_that_is_behind_its_archive_stops(store: MessageStore, objects: Objects, tmp_path: Path) -> None:
    store.flush()
    copy_store(store.path, tmp_path / "older")
    put(store, "orders", 0, plain(50))
    archive(store, objects)
    before = _content(objects)
    older = open_store(tmp_path / "older")
    with archiving(older, objects) as service:
        until(lambda: service.state == "stopped", "the refusal")
        assert "the log of this store ends at" in service.reason
    # The same for one that has gone on: it is as long, and has other records.
    put(older, "orders", 0, plain(90, tags="other"))
    older.flush()
    with archiving(older, objects) as service:
        until(lambda: service.state == "stopped", "the refusal")
        assert "has other records than this store" in service.reason
    older.close()
    assert _content(objects) == before


def test_of_two_writers_one_stops_and_nothing_is_overwritten(store: MessageStore, objects: Objects) -> None:
    store.flush()
    with archiving(store, objects) as first:
        until(lambda: has_all(store, first), "the first writer")
        with archiving(store, objects) as second:
            until(lambda: has_all(store, second), "the second writer")
            put(store, "orders", 0, plain(50))
            store.flush()
            until(lambda: "stopped" in (first.state, second.state), "the loser")
            loser = first if first.state == "stopped" else second
            winner = second if loser is first else first
            assert "was written by another process" in loser.reason
            put(store, "orders", 0, plain(50))
            store.flush()
            until(lambda: has_all(store, winner), "the winner")
    WrittenArchive(objects).assert_is(store)


def test_a_later_primary_is_not_overtaken_by_an_earlier_one(store: MessageStore, objects: Objects) -> None:
    archive(store, objects, writer=Writer(STORE_ID, "set", 7, "b", 1 << 22))
    put(store, "orders", 0, plain(50))
    store.flush()
    with archiving(store, objects, writer=Writer(STORE_ID, "set", 6, "a", 1 << 22)) as service:
        until(lambda: service.state == "stopped", "the refusal")
        assert "epoch 7" in service.reason
    archive(store, objects, writer=Writer(STORE_ID, "set", 8, "a", 1 << 22))
    WrittenArchive(objects).assert_is(store)


@pytest.mark.parametrize("fault", ["lost", "503", "cut"])
def test_whatever_answer_goes_wrong_the_archive_is_whole(
    store: MessageStore, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    url = object_server.bucket()
    proxy = FaultyStore(object_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    objects = Objects(url, deadline_s=10.0)
    for position in range(12):
        proxy.faults.extend(["ok"] * position + [fault])
        put(store, "orders", 0, plain(3))
        archive(store, objects)
        proxy.faults.clear()
    held = WrittenArchive(objects)
    held.assert_is(store)
    assert not held.orphans()
    proxy.close()


def test_what_retention_deleted_before_it_was_archived_is_a_named_gap(store: MessageStore, objects: Objects) -> None:
    archive(store, objects)
    end = store.write_offset
    while len(store.commitlog.queue.files) < 4:
        put(store, "orders", 0, plain(8, size=60_000))
    store.flush()
    dispatch(store)
    store.sync_derived()
    assert store.expire(2)
    archive(store, objects)
    manifest = newest(objects)
    (gap,) = manifest.gaps
    assert (gap.start, gap.end) == (end, store.min_physical_offset)
    assert "retention" in gap.reason
    assert manifest.end == store.write_offset


def test_tables_are_there_as_they_were_at_a_position_of_the_log(
    store: MessageStore, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "TABLES_S", 0.05)
    store.flush()
    store.consumer_offsets.commit("billing", "orders", 0, 7)
    with archiving(store, objects) as service:
        until(lambda: "config/consumerOffset.json" in tables_in(objects), "the tables")
        until(lambda: has_all(store, service), "the archive")
        held = tables_in(objects)
        assert json.loads(held["topics"].content)["topics"].keys() == {"orders"}
        offsets = held["config/consumerOffset.json"]
        assert json.loads(offsets.content)["offsetTable"] == {"orders@billing": {"0": 7}}
        assert offsets.start == store.write_offset
        # Only what has changed is written again, at its new place.
        before = {each.name for each in objects.list("tables")}
        put(store, "orders", 0, plain(5))
        store.consumer_offsets.commit("billing", "orders", 0, 9)
        until(lambda: tables_in(objects)["config/consumerOffset.json"].start == store.write_offset, "the offsets")
        added = {each.name for each in objects.list("tables")} - before
        assert added == {table_object(store.write_offset, "config/consumerOffset.json")}


def tables_in(objects: Objects) -> dict[str, ArchivedTable]:
    """Return the newest of each table."""
    tables = [decode_table(objects.get(each.name), each.name) for each in objects.list("tables")]
    assert all(parse_table_object(table_object(table.start, table.name)) for table in tables)
    return {table.name: table for table in sorted(tables, key=lambda table: table.start)}


@pytest.mark.parametrize("objects", ["folder"], indirect=True)
def test_small_fragments_become_one_that_has_the_same(store: MessageStore, objects: Objects) -> None:
    with archiving(store, objects) as service:
        for number in range(MERGED):
            put(store, "orders", number % 4, [Stored(b"%d" % number, (f"k{number}", "same"))])
            store.flush()
            until(lambda: has_all(store, service), "a fragment")
        until(lambda: service.counts.merged_bytes > 0, "the merged fragment")
    held = WrittenArchive(objects)
    held.assert_is(store)
    assert len(held.entries) <= 2
    assert len(held.orphans()) == 2 * MERGED  # for those who read by an older version
    index = decode_index(objects.get(held.entries[0].name.idx), "x")
    assert len(positions_of(key_hash("orders", "same"), index.keys)) >= MERGED - 1
    archive(store, objects)
    WrittenArchive(objects).assert_is(store)


def test_a_bucket_that_is_away_is_tried_again_until_it_is_back(
    store: MessageStore, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    url = object_server.bucket()
    proxy = FaultyStore(object_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    store.flush()
    objects = Objects(url, deadline_s=1.0)
    proxy.faults.extend(["503"] * 1_000)
    with archiving(store, objects) as service:
        until(lambda: service.state == "unavailable" and service.counts.failures > 3, "the outage")
        assert "503" in service.reason
        assert service.backlog() == store.write_offset
        assert service.archived_offset == 0
        proxy.faults.clear()
        until(lambda: has_all(store, service), "the archive")
        assert (service.state, service.reason) == ("running", "")
        proxy.faults.extend(["lost"] * 1_000)
        put(store, "orders", 0, plain(5))
        store.flush()
        until(lambda: service.state == "unavailable", "the second outage")
        proxy.faults.clear()
        until(lambda: has_all(store, service), "the archive")
    WrittenArchive(objects).assert_is(store)
    proxy.close()


class _Lying(Objects):
    """A store that overwrites what was to be created only, and says that all is well."""

    def create(self, name: str, content: bytes | bytearray) -> None:
        self.put(name, content)


def test_a_store_that_ignores_conditions_is_not_written_unless_there_is_one_writer(
    store: MessageStore, tmp_path: Path
) -> None:
    store.flush()
    with archiving(store, _Lying(tmp_path / "archive")) as service:
        until(lambda: service.state == "stopped", "the refusal")
        assert "If-None-Match" in service.reason
    assert not [each.name for each in Objects(tmp_path / "archive").list()]
    archive(store, _Lying(tmp_path / "archive"), single_writer=True)
    WrittenArchive(Objects(tmp_path / "archive")).assert_is(store)
