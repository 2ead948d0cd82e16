"""The archive source reads a log's bytes: partitions, bodies that look like records, damage, topics, batches."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import random
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import CompressionUnavailable
from flintmq.client.arrow import decoder
from flintmq.client.arrow.archive.find_log import find_log
from flintmq.client.arrow.archive.options import ArchiveOptions
from flintmq.client.arrow.archive.partition_reader import PartitionReader
from flintmq.client.arrow.archive.plan import plan
from flintmq.client.arrow.decoder import Decoder
from flintmq.client.core.compression import Compressor
from flintmq.protocol.storage.layout import RECORD, RECORD_HEAD_BYTES, SysFlag
from flintmq.protocol.storage.reader import log_reader
from flintmq.protocol.storage.reader.errors import AmbiguousBoundary, CorruptLog
from flintmq.protocol.storage.reader.files import LocalFiles
from flintmq.protocol.storage.reader.log_reader import LogRange, ReadableLog, find_boundary, next_record
from flintmq.protocol.storage.record import Record
from tests.archive_tools import COLUMNS, MadeLog, forge, make_log, plan_of, read_offsets, read_rows
from tests.store_tools import Message, open_store, plain, put

FILE_BYTES = 64 * 1024


def records(count: int, *, topic: bytes = b"orders", size: int = 300) -> list[Record]:
    return [Record(topic, b"%08d" % n + bytes(size), queue_offset=n, store_timestamp=1000 + n) for n in range(count)]


@pytest.fixture
def log(tmp_path: Path) -> MadeLog:
    made = make_log(records(400), FILE_BYTES)
    made.write(tmp_path / "store")
    return made


@pytest.fixture
def store(tmp_path: Path, log: MadeLog) -> Path:
    return tmp_path / "store"


def overwrite(store: Path, log: MadeLog, physical_offset: int, blob: bytes) -> None:
    start, position = log.place(physical_offset)
    with (store / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(position)
        file.write(blob)


def offsets_of(log: MadeLog) -> list[int]:
    return [record.physical_offset for record in log.records]


# ---- partitions ----


def test_small_files_share_a_partition_and_large_ones_are_cut(store: Path, log: MadeLog) -> None:
    assert [len(stretches) for stretches in plan_of(store)] == [3]
    cut = plan_of(store, partition_bytes=10_000)
    assert all(sum(each.end - each.begin for each in stretches) <= 10_000 + 500 for stretches in cut)
    flat = [each for stretches in cut for each in stretches]
    assert {each.begin for each in flat} <= set(offsets_of(log))
    for one, following in itertools.pairwise(flat):
        assert one.end == following.begin


def test_a_log_is_planned_without_reading_it(store: Path, log: MadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning takes a few reads for each partition if the store's checkpoint or last file says where the log ends."""
    read = 0
    plain_read = LocalFiles.read_into

    def counting(self: LocalFiles, handle: int, buffer: memoryview, at: int) -> int:
        nonlocal read
        read += len(buffer)
        return plain_read(self, handle, buffer, at)

    first = find_log(str(store)).files[0]
    known = ReadableLog(dataclasses.replace(find_log(str(store)), files=(first,)), first.end)
    monkeypatch.setattr(LocalFiles, "read_into", counting)
    monkeypatch.setattr(log_reader, "_SCAN_BYTES", 1024)
    partitions = plan(known, ArchiveOptions("", partition_bytes=FILE_BYTES // 4))
    assert len(partitions) == 4
    assert read < FILE_BYTES / 2


# ---- boundaries ----


def test_a_boundary_is_the_next_record(store: Path, log: MadeLog) -> None:
    file = find_log(str(store)).files[0]
    places = [place for place in offsets_of(log) if place < file.end]
    queues = find_log(str(store)).queues()
    with file.open() as fd:
        for wanted in range(0, 3000, 97):
            found = find_boundary(file, fd, wanted, file.end, queues)
            assert found.physical_offset == min(place for place in places if place >= wanted)
            assert not found.certain, "there are no queues"
        assert find_boundary(file, fd, places[-1] + 1, file.end, queues).physical_offset == file.end


def feigning(tmp_path: Path) -> MadeLog:
    """Return a log with a body of 20,000 bytes in its middle that contains records with their own correct offsets."""
    first = records(30)
    body_at = sum(len(record.encode()) for record in first) + RECORD_HEAD_BYTES
    body = forge(body_at, 150)
    log = make_log([*first, Record(b"orders", body, queue_offset=30), *records(60)], FILE_BYTES)
    assert log.records[30].body == body
    log.write(tmp_path)
    return log


def test_records_in_a_body_never_become_rows_in_silence(tmp_path: Path) -> None:
    log = feigning(tmp_path)
    offsets = offsets_of(log)
    inside = False
    for partition_bytes in range(1000, 30_000, 1000):
        begins = [stretches[0].begin for stretches in plan_of(tmp_path, partition_bytes=partition_bytes)]
        if set(begins) <= set(offsets):
            assert read_offsets(tmp_path, partition_bytes=partition_bytes) == offsets
            continue
        inside = True
        with pytest.raises(AmbiguousBoundary, match=f'partitionBytes", "{FILE_BYTES}"'):
            read_rows(tmp_path, partition_bytes=partition_bytes)
    assert inside, "no cut fell into the body"
    assert read_offsets(tmp_path, partition_bytes=FILE_BYTES) == offsets


def test_bytes_before_the_range_are_scanned_if_the_boundary_is_uncertain(tmp_path: Path) -> None:
    log = feigning(tmp_path)
    within = log.records[30].physical_offset + 5000
    for partition_bytes in (1000, 2000, 5000):
        wanted: dict[str, Any] = {"starting_physical_offset": within, "partition_bytes": partition_bytes}
        begins = [stretches[0].begin for stretches in plan_of(tmp_path, **wanted)]
        assert begins[0] == 0, "nothing is skipped on the word of a body"
        with pytest.raises(AmbiguousBoundary):
            read_rows(tmp_path, **wanted)
    assert read_offsets(tmp_path, starting_physical_offset=within) == offsets_of(log)[31:]


def test_queues_distinguish_records_from_forged_ones(tmp_path: Path) -> None:
    """The same with a real store: its queues know where records are, so every cut is right."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(30))
    body_at = store.write_offset + RECORD_HEAD_BYTES
    sent += put(store, "orders", 0, [Message(forge(body_at, 150))])
    sent += put(store, "orders", 0, plain(60, first=31))
    store.close()
    expected = [each.physical_offset for each in sent]
    for partition_bytes in range(1000, 30_000, 1000):
        planned = plan_of(tmp_path / "store", partition_bytes=partition_bytes)
        assert {stretches[0].begin for stretches in planned} <= set(expected)
        assert read_offsets(tmp_path / "store", partition_bytes=partition_bytes) == expected
    behind = read_offsets(tmp_path / "store", partition_bytes=1000, starting_physical_offset=expected[70])
    assert behind == expected[70:]
    first = plan_of(tmp_path / "store", partition_bytes=1000, starting_physical_offset=expected[70])[0][0].begin
    assert expected[60] < first <= expected[70], "what lies before is skipped"


def test_a_range_that_ends_past_its_files_records_is_damage(store: Path, log: MadeLog) -> None:
    file = find_log(str(store)).files[0]
    reader = PartitionReader([LogRange(file, file.start, file.end - 1)], Decoder(COLUMNS), ArchiveOptions(str(store)))
    with pytest.raises(CorruptLog, match="records end here"):
        list(reader.batches())


# ---- damage ----


DAMAGE = {
    "zeros": (0, bytes(120), "zeros instead of a record"),
    "magic": (RECORD.at["magic"], b"\xff", "not a record"),
    "size": (RECORD.at["total_size"], b"\x00\x00\x01\x00", "its parts|does not fit"),
    "a size beyond the file": (RECORD.at["total_size"], b"\x7f\x00\x00\x00", "left in the file"),
    "physical offset": (RECORD.at["physical_offset"] + 7, b"\xee", "claims offset"),
    "body length": (RECORD.at["body_length"] + 3, b"\x01", "does not fit|add up"),
    "body": (RECORD_HEAD_BYTES + 20, b"\x55", "checksum"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("number", [0, 77, 398])
def test_damage_fails_the_read_naming_file_byte_and_offset(store: Path, log: MadeLog, kind: str, number: int) -> None:
    at, blob, said = DAMAGE[kind]
    place = offsets_of(log)[number]
    overwrite(store, log, place + at, blob)
    start, position = log.place(place)
    for partition_bytes in (5000, FILE_BYTES):
        with pytest.raises(CorruptLog, match=said) as caught:
            read_rows(store, partition_bytes=partition_bytes)
        assert (caught.value.path.name, caught.value.position, caught.value.physical_offset) == (
            f"{start:020d}",
            position,
            place,
        )
        assert 'option("failOnCorruption", "false")' in str(caught.value)


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("number", [0, 77, 398])
def test_damage_that_is_passed_over_costs_that_record_alone(
    store: Path, log: MadeLog, kind: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    at, blob, _ = DAMAGE[kind]
    place = offsets_of(log)[number]
    overwrite(store, log, place + at, blob)
    with caplog.at_level(logging.WARNING):
        found = read_offsets(store, fail_on_corruption=False, partition_bytes=5000)
    assert found == [each for each in offsets_of(log) if each != place]
    assert f"physical offset {place:,}" in caplog.text


def test_skipped_bytes_are_counted(store: Path, log: MadeLog) -> None:
    places = offsets_of(log)
    for number in (5, 50, 51):
        overwrite(store, log, places[number] + RECORD_HEAD_BYTES, b"\x55")
    overwrite(store, log, places[70], bytes(places[72] - places[70]))
    options = ArchiveOptions(str(store), fail_on_corruption=False)
    (stretches,) = plan_of(store)
    reader = PartitionReader(stretches, Decoder(COLUMNS), options)
    assert sum(batch.num_rows for batch in reader.batches()) == 395
    size = len(log.records[0].encode())
    assert (reader.skipped, reader.skipped_bytes) == (4, 5 * size)


def test_without_verification_bodies_are_taken_as_they_are(store: Path, log: MadeLog) -> None:
    overwrite(store, log, offsets_of(log)[7] + RECORD_HEAD_BYTES, b"\x55")
    rows = read_rows(store, verify_checksums=False)
    assert len(rows) == 400
    assert rows[7]["body"][:1] == b"\x55"


def test_damage_in_a_topic_that_is_not_read_costs_nothing(tmp_path: Path) -> None:
    log = make_log([record for n in range(40) for record in (records(1)[0], Record(b"other", b"%d" % n))], FILE_BYTES)
    store = log.write(tmp_path)
    overwrite(store, log, offsets_of(log)[20] + RECORD_HEAD_BYTES, b"\x55")
    assert read_offsets(store, topics=("other",)) == offsets_of(log)[1::2]
    with pytest.raises(CorruptLog, match="checksum"):
        read_rows(store)


def test_random_damage_never_gives_a_row_that_was_not_there(tmp_path: Path) -> None:
    seed = os.environ.get("FLINTMQ_SEED", "1")
    randomness = random.Random(seed)
    log = make_log(records(120, size=100), 8192)
    sound = {record.physical_offset: record.body for record in log.records}
    for _ in range(60):
        store = log.write(tmp_path)
        damaged = set()
        for _ in range(randomness.randrange(1, 6)):
            # Not in properties, topic, times and numbers, because no checksum covers them.
            place = randomness.choice(list(sound))
            at = place + randomness.choice([*range(12), *range(28, 36), *range(84, 88), *range(88, 190)])
            overwrite(store, log, at, bytes([randomness.randrange(256)]))
            damaged.add(place)
        rows = read_rows(store, fail_on_corruption=False, partition_bytes=randomness.randrange(500, 9000))
        found = {row["physical_offset"]: row["body"] for row in rows}
        assert len(found) == len(rows), seed
        assert found.items() <= sound.items(), seed
        assert sound.keys() - found.keys() <= damaged, seed


# ---- bodies, topics, batches ----


def test_compressed_bodies_are_decompressed_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lz4")
    monkeypatch.setattr(decoder, "COMPRESSED_BYTES_MAX", 1000)
    bodies = [bytes([n]) * 30_000 for n in range(60)]
    made = []
    for number, body in enumerate(bodies):
        stored, flags = Compressor(100, ("lz4", "zstd", "zlib")[number % 3]).compress(body)
        made.append(Record(b"orders", stored, sys_flag=flags))
    store = make_log(made, FILE_BYTES).write(tmp_path)
    assert [row["body"] for row in read_rows(store)] == bodies
    (stretches,) = plan_of(store)
    batches = list(PartitionReader(stretches, Decoder(COLUMNS), ArchiveOptions(str(store))).batches())
    assert len(batches) > 5


def test_a_body_that_does_not_decompress_is_damage(tmp_path: Path) -> None:
    broken = Record(b"orders", b"not zlib", sys_flag=SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)
    sound = dataclasses.replace(broken, body=zlib.compress(b"sound"))
    log = make_log([sound, broken, sound], FILE_BYTES)
    store = log.write(tmp_path)
    with pytest.raises(CorruptLog, match="does not decompress") as caught:
        read_rows(store)
    assert caught.value.physical_offset == offsets_of(log)[1]
    assert [row["body"] for row in read_rows(store, fail_on_corruption=False)] == [b"sound"] * 2


@pytest.mark.parametrize("fail_on_corruption", [True, False])
def test_a_body_whose_library_is_missing_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fail_on_corruption: bool
) -> None:
    pytest.importorskip("lz4")
    body, flags = Compressor(100, "lz4").compress(b"x" * 1000)
    store = make_log([Record(b"orders", b"sound"), Record(b"orders", body, sys_flag=flags)], FILE_BYTES).write(tmp_path)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(CompressionUnavailable, match=r"of topic 'orders' cannot be read: .*pip install lz4$"):
        read_rows(store, fail_on_corruption=fail_on_corruption)


def test_a_record_longer_than_a_window_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "WINDOW_BYTES", 4096)
    made = [Record(b"orders", bytes([size % 251]) * size) for size in (10, 30_000, 10, 4000, 5000, 9000, 1)]
    store = make_log(made, FILE_BYTES).write(tmp_path)
    for partition_bytes in (2000, 10_000, FILE_BYTES):
        rows = read_rows(store, partition_bytes=partition_bytes)
        assert [row["body"] for row in rows] == [record.body for record in made]


def test_topics_are_distinguished_by_every_byte(tmp_path: Path) -> None:
    names = ["a", "ab", "b", "orders", "orders-1", "orders-2", "orders-11", "x" * 127, "x" * 126 + "y", "x" * 128]
    names += ["%RETRY%group", "TBW102", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"]
    made = [Record(name.encode(), b"1") for name in names for _ in range(3)] + [Record(n.encode(), b"") for n in names]
    store = make_log(made, FILE_BYTES).write(tmp_path)

    def found(**options: Any) -> list[str]:
        return [row["topic"] for row in read_rows(store, **options)]

    for name in names:
        assert found(topics=(name,)) == [name] * 4
    assert set(found()) == set(names[:-3]), "the broker's own only where they are named"
    assert set(found(pattern=re.compile(r"orders(-\d)?"))) == {"orders", "orders-1", "orders-2"}
    assert set(found(pattern=re.compile(".*"))) == set(names[:-3])
    two = ("a", "SCHEDULE_TOPIC_XXXX")
    assert found(topics=two) == [two[0]] * 3 + [two[1]] * 3 + [*two]


def test_few_wanted_records_are_collected_into_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "WINDOW_BYTES", 4096)
    made = [Record(b"rare" if n % 50 == 0 else b"common", b"%d" % n) for n in range(4000)]
    store = make_log(made, FILE_BYTES).write(tmp_path)
    options = ArchiveOptions(str(store), topics=("rare",))
    (stretches,) = plan_of(store, topics=("rare",))
    (batch,) = PartitionReader(stretches, Decoder(COLUMNS), options).batches()
    assert [int(body.as_py()) for body in batch["body"]] == list(range(0, 4000, 50))


def test_the_search_for_a_record_takes_up_at_the_next_sound_one(store: Path, log: MadeLog) -> None:
    file = find_log(str(store)).files[0]
    places = [place for place in offsets_of(log) if place < file.end]
    overwrite(store, log, places[3] + RECORD.at["magic"], b"\x00")
    with file.open() as fd:
        assert next_record(file, fd, places[2] + 1, file.end) == places[4]
        assert next_record(file, fd, places[2] + 1, file.end, chain=3) == places[4]
        assert next_record(file, fd, places[0], file.end, chain=4) == places[4]
        assert next_record(file, fd, places[-1] + 1, file.end) is None
