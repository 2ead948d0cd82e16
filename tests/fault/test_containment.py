"""Damage of every shape in the middle of a log: the messages that it hits are lost and reported, and no others."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgpack
import numpy as np
import pytest
from click.testing import CliRunner

from flintmq.broker.store import MessageStore, StoreSettings
from flintmq.broker.tools.commands import repair
from flintmq.broker.tools.dump import Wanted, records
from flintmq.broker.tools.findings import Findings
from flintmq.broker.tools.log_end import find_end
from flintmq.broker.tools.offline import OfflineStore
from flintmq.protocol.commands import GET_BROKER_RUNTIME_INFO, UPDATE_AND_CREATE_TOPIC
from flintmq.protocol.errors import MessageDamaged
from flintmq.protocol.storage.layout import MAGIC_BLANK, RECORD
from flintmq.protocol.storage.record import Record
from tests.conftest import BrokerFactory, ConnectionFactory
from tests.store_tools import (
    SMALL,
    Message,
    Sent,
    append,
    assert_contained,
    assert_holds,
    assert_only_these_are_left,
    kill,
    lost_of,
    make_topic,
    open_store,
    overwrite,
    plain,
    put,
    reopen,
    restore,
    save,
    without_dispatched,
)
from tests.tools_runs import verified

FILE_BYTES = SMALL.commitlog_file_bytes
FIRST, SECOND, THIRD = (f"{number * FILE_BYTES:020d}" for number in range(3))
PAGE_BYTES = 4096
CHECKSUMMED = dataclasses.replace(SMALL, record_checksum=True)


def undispatched(path: Path) -> None:
    """Remove the derived files, so that only the log says which messages there are."""
    shutil.rmtree(path / "consumequeue")
    (path / "checkpoint").write_bytes(without_dispatched(path / "checkpoint"))


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Flip one bit in a log's first file."""
    log = path / "commitlog" / FIRST
    overwrite(log, at, bytes([log.read_bytes()[at] ^ 1 << bit]))


def two_topics(path: Path, *, size: int = 100, frames: int = 60, settings: StoreSettings = SMALL) -> list[Sent]:
    """Return a stopped store with interleaved messages of two topics and three queues."""
    store = open_store(path, settings)
    source, sent = random.Random(1), []
    for number in range(frames):
        topic, queue = source.choice([("orders", 0), ("orders", 1), ("bills", 0)])
        count = source.randrange(1, 6)
        sent += put(store, topic, queue, plain(count, size=source.randrange(8, 2 * size), first=10 * number))
    store.close()
    return sent


def hit_by(sent: Sequence[Sent], begin: int, end: int, log_end: int) -> list[Sent]:
    """Return the messages whose records have a byte in ``[begin, end)``."""
    behind = [each.physical_offset for each in sent[1:]] + [log_end]
    return [each for each, stop in zip(sent, behind, strict=True) if each.physical_offset < end and stop > begin]


# Shapes of damage.


@pytest.mark.parametrize("known", ["by queues", "by the log alone"])
@pytest.mark.parametrize("content", ["zeros", "ones", "random"])
@pytest.mark.parametrize("settings", [SMALL, CHECKSUMMED], ids=["plain", "checksummed"])
def test_a_lost_page_costs_the_messages_on_it(
    tmp_path: Path, known: str, content: str, settings: StoreSettings
) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    page = {"zeros": bytes(PAGE_BYTES), "ones": b"\xff" * PAGE_BYTES, "random": random.Random(4).randbytes(PAGE_BYTES)}
    begin = sent[30].physical_offset + 92
    overwrite(path / "commitlog" / FIRST, begin, page[content])
    if known == "by the log alone":
        undispatched(path)
    assert_contained(path, sent, hit_by(sent, begin, begin + PAGE_BYTES, 1 << 40), settings=settings)


def test_zeros_across_the_end_of_a_record_cost_that_record_too(tmp_path: Path) -> None:
    """No checksum covers its properties, but properties never end in zeros."""
    path = tmp_path / "store"
    sent = two_topics(path)
    overwrite(path / "commitlog" / FIRST, sent[30].physical_offset - 3, bytes(PAGE_BYTES))
    assert_contained(
        path, sent, hit_by(sent, sent[29].physical_offset, sent[30].physical_offset + PAGE_BYTES - 3, 1 << 40)
    )


def test_each_of_many_holes_is_contained_separately(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path)
    lost = [sent[number] for number in (0, 1, 7, 20, 22, 23, len(sent) - 1)]
    for each in lost:
        flip(path, each.physical_offset + 95)
    assert_contained(path, sent, lost)


@pytest.mark.parametrize("settings", [SMALL, CHECKSUMMED], ids=["plain", "checksummed"])
def test_consecutive_holes_at_the_logs_beginning_keep_the_store_times_in_order(
    tmp_path: Path, settings: StoreSettings
) -> None:
    """No sound record comes before the first hole or directly after it; searches by time use its tombstone."""
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    newest_ms = sent[-1].store_ms
    lost = sent[:3]
    for each in lost:
        flip(path, each.physical_offset + 95)
    assert_contained(path, sent, lost, settings=settings)
    holes = json.loads((path / "flintmq" / "quarantine" / "index.json").read_text())["holes"]
    assert [hole["storeTimestamp"] for hole in holes] == [sent[3].store_ms]
    assert sent[3].store_ms < newest_ms
    assert verified(path).findings.total == 0


def test_consecutive_lost_messages_of_all_sizes_are_named(tmp_path: Path) -> None:
    """They are known only by the gap after them; the last one's bytes have no room for the tombstones of all."""
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(2))
    lost = put(store, "orders", 0, plain(3, size=500, first=2)) + put(store, "orders", 0, [Message(b"x")])
    sent += lost + put(store, "orders", 0, plain(3, first=5))
    store.close()
    for each in lost:
        flip(path, each.physical_offset + RECORD.size)
    undispatched(path)
    assert_contained(path, sent, lost)


def test_a_file_of_zeros_costs_its_messages(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, size=200_000, frames=30)
    assert (path / "commitlog" / THIRD).exists()
    (path / "commitlog" / SECOND).write_bytes(bytes(FILE_BYTES))
    assert_contained(path, sent, [each for each in sent if FILE_BYTES <= each.physical_offset < 2 * FILE_BYTES])


def test_a_damaged_blank_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, size=200_000, frames=30)
    last = [each for each in sent if each.physical_offset < FILE_BYTES][-1]
    (size,) = struct.unpack_from(">i", (path / "commitlog" / FIRST).read_bytes(), last.physical_offset)
    overwrite(path / "commitlog" / FIRST, last.physical_offset + size, b"\x11" * 8)
    assert_contained(path, sent, [])


@pytest.mark.parametrize("known", ["by queues", "by the log alone"])
def test_a_record_that_became_a_blank_hides_no_later_record(tmp_path: Path, known: str) -> None:
    """A blank fills its file to the end; one with another length is damage."""
    path = tmp_path / "store"
    sent = two_topics(path)
    overwrite(path / "commitlog" / FIRST, sent[9].physical_offset + 4, MAGIC_BLANK.to_bytes(4, "big", signed=True))
    if known == "by the log alone":
        undispatched(path)
    assert_contained(path, sent, [sent[9]])


def all_queues(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")


def the_queue(path: Path) -> None:
    shutil.rmtree(path / "consumequeue" / "orders" / "0")


def its_unit(path: Path) -> None:
    overwrite(path / "consumequeue" / "orders" / "0" / FIRST, 20 * 5, bytes(20))


@pytest.mark.parametrize("damage", [all_queues, the_queue, its_unit])
@pytest.mark.parametrize("settings", [SMALL, CHECKSUMMED], ids=["plain", "checksummed"])
def test_lost_messages_are_named_even_if_their_queues_are_lost_too(
    tmp_path: Path, damage: Callable[[Path], None], settings: StoreSettings
) -> None:
    """The checkpoint says that everything was dispatched, but the units that say what are missing or wrong."""
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    lost = next(each for each in sent if (each.topic, each.queue, each.queue_offset) == ("orders", 0, 5))
    flip(path, lost.physical_offset + 95)
    damage(path)
    assert_contained(path, sent, [lost], settings=settings)
    assert verified(path).findings.total == 0


def test_a_message_of_a_large_hole_is_named_although_its_own_unit_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path)
    first, last = (
        next(each for each in sent if (each.topic, each.queue, each.queue_offset) == ("orders", 0, queue_offset))
        for queue_offset in (4, 6)
    )
    begin, end = first.physical_offset, last.physical_offset + 120
    overwrite(path / "commitlog" / FIRST, begin, bytes(end - begin))
    overwrite(path / "consumequeue" / "orders" / "0" / FIRST, 20 * 5, bytes(20))
    assert_contained(path, sent, hit_by(sent, begin, end, sent[-1].physical_offset + 1000))
    assert verified(path).findings.total == 0


def test_sound_messages_without_units_stay_if_units_of_other_queues_follow(tmp_path: Path) -> None:
    """Two consecutive messages are damaged, and the queue of both is lost: by the units of other queues alone, the hole
    would end after the sound messages that follow."""
    path = tmp_path / "store"
    sent = two_topics(path)
    queues = [(each.topic, each.queue) for each in sent]
    begin = next(number for number in range(len(sent)) if queues[number : number + 4] == [("orders", 0)] * 4)
    lost = sent[begin : begin + 2]
    for each in lost:
        overwrite(path / "commitlog" / FIRST, each.physical_offset, bytes(20))
    the_queue(path)
    assert_contained(path, sent, lost)


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_costs_only_the_messages_it_hits(tmp_path: Path, seed: int) -> None:
    """Zeros and random bytes anywhere that a checksum covers, in a log of three files."""
    source = random.Random(seed)
    path = tmp_path / "store"
    sent = two_topics(path, size=150_000, frames=40)
    lost: list[Sent] = []
    for _ in range(source.randrange(1, 5)):
        victim = source.choice(sent)
        begin = victim.physical_offset + source.choice([0, 2, 30, 95])
        blob = source.choice([bytes(64), source.randbytes(30), bytes(300_000)])
        begin_file, end_file = begin // FILE_BYTES * FILE_BYTES, begin // FILE_BYTES * FILE_BYTES + FILE_BYTES
        blob = blob[: end_file - begin]
        overwrite(path / "commitlog" / f"{begin_file:020d}", begin - begin_file, blob)
        same_file = [each for each in sent if each.physical_offset // FILE_BYTES * FILE_BYTES == begin_file]
        lost += hit_by(same_file, begin, begin + len(blob), end_file)
    if source.random() < 0.5:
        (path / "abort").touch()
    assert_contained(path, sent, [each for each in sent if each in lost])


# Every bit of a record's head.

UNCHECKED = {
    "queue_id",
    "flag",
    "queue_offset",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
}
"""Fields that no checksum covers without ``__CRC32#``."""


def test_a_checksum_over_the_whole_record_detects_every_changed_byte(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path, CHECKSUMMED)
    sent = put(store, "orders", 0, plain(3, size=10))
    store.close()
    saved = save(path)
    others = [sent[0], sent[2]]
    for at in range(sent[1].physical_offset, sent[2].physical_offset):
        restore(path, saved)
        flip(path, at, at % 8)
        store, report = reopen(path, CHECKSUMMED)
        assert lost_of(report) == {("orders", 0, 1)}, at
        assert_only_these_are_left(store, others, [sent[1]])
        kill(store)
        assert reopen_is_quiet(path)


def reopen_is_quiet(path: Path) -> bool:
    store, report = reopen(path, CHECKSUMMED)
    kill(store)
    return not report.quarantined and not report.rebuilt


@pytest.mark.parametrize("field", list(RECORD.at))
def test_a_flipped_bit_anywhere_in_a_head_leaves_the_other_messages(tmp_path: Path, field: str) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(3))
    sent += put(store, "bills", 0, plain(2))
    store.close()
    saved = save(path)
    width = next(each.width for each in RECORD.fields if each.name == field)
    for bit in range(8 * width):
        restore(path, saved)
        flip(path, sent[1].physical_offset + RECORD.at[field] + bit // 8, bit % 8)
        store, report = reopen(path)
        others = [each for each in sent if each is not sent[1]]
        if field in UNCHECKED and not report.quarantined:
            records = {record.physical_offset for record in pull_around(store, others)}
            assert records >= {each.physical_offset for each in others}, (field, bit)
        else:
            assert lost_of(report) == {("orders", 0, 1)}, (field, bit)
            assert_only_these_are_left(store, others, [sent[1]])
        kill(store)


def pull_around(store: MessageStore, sent: Sequence[Sent]) -> list[Record]:
    from tests.store_tools import matches, pull_all

    records = [record for queue in {(each.topic, each.queue) for each in sent} for record in pull_all(store, *queue)]
    by_offset = {record.physical_offset: record for record in records}
    assert all(matches(by_offset[each.physical_offset], each) for each in sent)
    return records


def test_a_hole_with_unknown_messages_is_filled_with_a_record_of_no_queue(tmp_path: Path) -> None:
    """The hole was the last message, which only the log knew."""
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(5))
    store.close()
    shutil.rmtree(path / "flintmq")
    undispatched(path)
    flip(path, sent[4].physical_offset + 100)
    store, report = reopen(path)
    assert [each.lost for each in report.quarantined] == [()]
    assert_holds(store, sent[:4])
    sent[4:] = put(store, "orders", 0, plain(2, first=50))
    kill(store)
    for _ in range(2):
        store, report = reopen(path)
        assert (report.quarantined, report.rebuilt) == ([], [])
        assert_holds(store, sent)
        store.close()
    assert verified(path).findings.total == 0


# Bodies that hold records.


def forged(queue_offset: int, physical_offset: int, topic: bytes = b"orders", body: bytes = b"forged") -> bytes:
    """Return a record that a client sent inside a body, hoping that recovery takes it for a real one."""
    return Record(
        topic=topic,
        body=body,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=1 << 42,
        properties=b"KEYS\x01forged\x02",
    ).encode()


def hostile(begin: int, head_bytes: int, count: int, topic: bytes, queue_offset: int) -> bytes:
    """Return a body with a chain of records that are valid at their places. ``begin``: begin of its own record."""
    body = bytearray(b"x" * 40)
    for number in range(count):
        body += forged(queue_offset + number, begin + head_bytes + len(body), topic)
    return bytes(body)


@pytest.mark.parametrize("known", ["by queues", "by the log alone"])
@pytest.mark.parametrize("damage", ["length", "head", "magic"])
@pytest.mark.parametrize("topic", [b"orders", b"bills", b"other"])
def test_records_forged_in_a_body_are_not_found(tmp_path: Path, known: str, damage: str, topic: bytes) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(5)) + put(store, "bills", 0, plain(3))
    begin = store.write_offset
    sent += put(store, "orders", 0, [Message(hostile(begin, RECORD.size, 6, topic, 5))])
    sent += put(store, "orders", 0, plain(5, first=5)) + put(store, "bills", 0, plain(4, first=3))
    store.close()
    damages = {"length": (0, b"\x7f"), "head": (0, bytes(60)), "magic": (0, bytes(8))}
    at, blob = damages[damage]
    overwrite(path / "commitlog" / FIRST, begin + at, blob)
    if known == "by the log alone":
        undispatched(path)
    assert_contained(path, sent, [sent[8]])


@pytest.mark.parametrize("known", ["by queues", "by the log alone"])
def test_a_forged_record_that_ends_where_its_message_ends_is_not_found(tmp_path: Path, known: str) -> None:
    """The log continues after it, but the forged record claims to be a later message."""
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "bills", 0, plain(3))
    begin = store.write_offset
    inner = forged(3, begin + RECORD.size, b"bills", b"\0")
    tail = bytes([6]) + b"orders" + bytes(2)  # the broker appends this to the body: topic and no properties
    head = bytearray(inner[: RECORD.size])
    head[0:4] = struct.pack(">i", RECORD.size + 1 + len(tail))
    head[8:12] = struct.pack(">i", zlib.crc32(b"\0") & 0x7FFFFFFF)
    sent += put(store, "orders", 0, [Message(bytes(head) + b"\0")])
    assert store.write_offset == begin + 2 * RECORD.size + 1 + len(tail)
    sent += put(store, "orders", 0, plain(4, first=1)) + put(store, "bills", 0, plain(4, first=3))
    store.close()
    overwrite(path / "commitlog" / FIRST, begin, b"\x7f")
    if known == "by the log alone":
        undispatched(path)
    assert_contained(path, sent, [sent[3]])


# Restored files, and losses in the quarantine itself.


def test_a_restored_file_brings_its_messages_back(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path)
    whole = (path / "commitlog" / FIRST).read_bytes()
    flip(path, sent[9].physical_offset + 95)
    store, report = reopen(path)
    assert len(report.quarantined) == 1
    store.close()
    (path / "commitlog" / FIRST).write_bytes(whole)
    store, report = reopen(path)
    assert report.quarantined == []
    assert not store.quarantine
    assert_holds(store, sent)
    store.close()
    assert list((path / "flintmq" / "quarantine").glob("*.bin"))


@pytest.mark.parametrize("cut", [-10, 10], ids=["in front of what was lost before", "in the middle of its tombstone"])
@pytest.mark.parametrize("settings", [SMALL, CHECKSUMMED], ids=["plain", "checksummed"])
def test_a_file_truncated_before_an_old_hole_loses_only_the_messages_cut_off(
    tmp_path: Path, cut: int, settings: StoreSettings
) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    flip(path, sent[40].physical_offset + 95)
    store = open_store(path, settings)
    store.close()
    with (path / "commitlog" / FIRST).open("r+b") as file:
        file.truncate(sent[40].physical_offset + cut)
    lost = sent[39:] if cut < 0 else sent[40:]
    store, _ = reopen(path, settings)
    assert_only_these_are_left(store, sent[: -len(lost)], lost)
    assert store.quarantine.lost_messages == len(lost)
    kill(store)


def test_the_bytes_of_a_second_damage_are_kept_beside_those_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path)
    flip(path, sent[9].physical_offset + 95)
    kill(open_store(path))
    before = save(path / "flintmq" / "quarantine")
    flip(path, sent[9].physical_offset + 5)
    store, report = reopen(path)
    assert len(report.quarantined) == 1
    assert_only_these_are_left(store, [each for each in sent if each is not sent[9]], [sent[9]])
    assert store.quarantine.lost_messages == 1
    kill(store)
    after = save(path / "flintmq" / "quarantine")
    assert {name: after[name] for name in before if name.endswith(".bin")} == {
        name: blob for name, blob in before.items() if name.endswith(".bin")
    }
    assert len(json.loads(after["index.json"])["holes"]) == 2


def test_a_message_appended_after_a_hole_at_the_end_gets_the_next_queue_offset(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(5))
    store.close()
    flip(path, sent[4].physical_offset + 100)
    store = open_store(path)
    (new,) = append(store, "orders", 0, plain(1, first=100))
    assert new.queue_offset == 5
    store.close()


def test_a_reader_of_the_files_gets_no_tombstones(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, settings=CHECKSUMMED)
    lost = [sent[9], sent[10]]
    for each in lost:
        flip(path, each.physical_offset + 95)
    open_store(path, CHECKSUMMED).close()
    kept = [each.physical_offset for each in sent if each not in lost]
    store = OfflineStore(path, Findings(), index_slots=SMALL.index_slots)
    with store:
        assert [each.physical_offset for each in records(store, find_end(store).offset, Wanted())] == kept
    assert verified(path).findings.total == 0


def test_lost_scheduled_messages_are_not_parked_or_delivered(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    make_topic(store, "SCHEDULE_TOPIC_XXXX", 18)
    sent = put(store, "SCHEDULE_TOPIC_XXXX", 0, plain(5))
    store.close()
    flip(path, sent[2].physical_offset + 95)
    store = open_store(path)
    queue = store.queues.get("SCHEDULE_TOPIC_XXXX", 0)
    assert queue is not None
    units = [queue.unit(number, hot=False) for number in range(5)]
    chosen = np.array([(at, size, number) for number, (at, size, _) in enumerate(units)], np.int64).reshape(-1)
    waiting = store.rewriter.read(chosen, hot=False)
    assert (waiting.count, waiting.unsound) == (4, 0)
    assert store.log_reads.stored_ms(*units[2][:2]) == sent[1].store_ms
    store.close()


def broken_index(folder: Path) -> None:
    (folder / "index.json").write_bytes(bytes(100))


def broken_index_and_bak(folder: Path) -> None:
    broken_index(folder)
    (folder / "index.json.bak").write_text('{"holes": [{"physicalOffset": 1}]}')


def no_index(folder: Path) -> None:
    for path in folder.glob("index.json*"):
        path.unlink()


@pytest.mark.parametrize("damage", [broken_index, broken_index_and_bak, no_index])
@pytest.mark.parametrize("settings", [SMALL, CHECKSUMMED], ids=["plain", "checksummed"])
def test_a_lost_index_of_the_quarantine_is_rebuilt(
    tmp_path: Path, damage: Callable[[Path], None], settings: StoreSettings
) -> None:
    """Without it, consumers would see tombstones as messages."""
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    lost = [sent[3], *sent[20:31]]
    overwrite(
        path / "commitlog" / FIRST, sent[20].physical_offset, bytes(sent[31].physical_offset - sent[20].physical_offset)
    )
    flip(path, sent[3].physical_offset + 95)
    open_store(path, settings).close()
    folder = path / "flintmq" / "quarantine"
    holes = json.loads((folder / "index.json").read_text())["holes"]
    damage(folder)
    for number in range(2):
        store, report = reopen(path, settings)
        assert (
            number == 0 or report.quarantined == [] == report.rebuilt
        )  # the .bak may be from before the hole was filled
        assert_only_these_are_left(store, [each for each in sent if each not in lost], lost)
        assert store.quarantine.lost_messages == len(lost)
        store.close()
    again = json.loads((folder / "index.json").read_text())["holes"]
    same = ("physicalOffset", "bytes", "file", "storeTimestamp", "endsFile", "checksum", "filled", "lost")
    assert [[each[name] for name in same] for each in again] == [[each[name] for name in same] for each in holes]


def test_retention_deletes_the_kept_bytes_of_a_hole_with_the_log_around_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, size=200_000, frames=30)
    in_first = [each for each in sent if each.physical_offset < FILE_BYTES]
    flip(path, in_first[3].physical_offset + 95)
    behind = next(each for each in sent if each.physical_offset > FILE_BYTES)
    overwrite(path / "commitlog" / SECOND, behind.physical_offset - FILE_BYTES + 95, b"!")
    store = open_store(path)
    assert len(store.quarantine.ranges) == 2
    assert store.expire(1) == FILE_BYTES
    store.close()
    store = open_store(path)
    (hole,) = store.quarantine.ranges
    assert hole.physical_offset == behind.physical_offset
    assert [each.name for each in (path / "flintmq" / "quarantine").glob("*.bin")] == [hole.file]
    store.close()


# Damage that no start has checked.


def test_a_pull_returns_the_messages_before_damage_and_then_names_it(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    """The damage is in a file that no start checked; no consumer passes it without an error."""
    running = broker(settings={"store.verify_at_start_bytes": 0})
    connection = connect(running)
    connection.call(UPDATE_AND_CREATE_TOPIC, {"topic": "orders", "queues": 1}).raise_for_error()
    connection.produce("orders", *(b"%08d" % number for number in range(20)), queue=0).raise_for_error()
    at = struct.unpack_from(">i", (running.store / "commitlog" / FIRST).read_bytes(), 0)[0] * 7
    connection.close()
    assert running.stop() == 0
    overwrite(running.store / "commitlog" / FIRST, at, bytes(60))
    again = broker(store=running.store, settings={"store.verify_at_start_bytes": 0})
    connection = connect(again)
    answer = connection.pull("orders", 0, 0).raise_for_error()
    assert (answer.fields["count"], answer.fields["next_offset"]) == (7, 7)
    with pytest.raises(
        MessageDamaged, match=r"message 7 of queue 0 of 'orders' is damaged.*repair --apply.*offset 8"
    ) as raised:
        connection.pull("orders", 0, 7).raise_for_error()
    assert raised.value.queue_offset == 7
    assert connection.pull("orders", 0, 8).raise_for_error().fields["count"] == 12
    connection.close()
    assert again.stop() == 0
    repaired = CliRunner().invoke(repair, [str(running.store), "--apply"])
    assert repaired.exit_code == 0, repaired.output
    third = broker(store=running.store)
    assert any(line.startswith("damage: 1 hole of the log") for line in third.output)
    connection = connect(third)
    answer = connection.pull("orders", 0, 0).raise_for_error()
    assert (answer.fields["count"], answer.fields["next_offset"]) == (19, 20)
    assert (answer.fields["lost"], answer.fields["lost_from"]) == (1, 7)
    assert connection.pull("orders", 0, 0, tags="other").fields["lost"] == 1  # whichever it chooses
    assert "lost" not in connection.pull("orders", 0, 8).fields
    info = msgpack.unpackb(connection.call(GET_BROKER_RUNTIME_INFO, {}).body)
    assert (info["quarantined_holes"], info["lost_messages"]) == (1, 1)
