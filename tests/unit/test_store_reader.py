"""The store source: its files, where it stops, errors for files that do not fit together, and bodies that look
like records or cannot be read. What it returns of any sound or damaged log is a property."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import random
import re
import shutil
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import CompressionUnavailable
from flintmq.client.arrow import decoder
from flintmq.client.arrow.decoder import Decoder
from flintmq.client.arrow.store_reader.find_log import check_topics, find_log
from flintmq.client.arrow.store_reader.options import StoreReadOptions
from flintmq.client.arrow.store_reader.partition_reader import PartitionReader
from flintmq.client.arrow.store_reader.plan import plan
from flintmq.client.core.compression import Compressor
from flintmq.client.spark.errors import DataLoss, InvalidOption
from flintmq.client.spark.store.options import STORE_OPTIONS, store_options
from flintmq.protocol.storage.layout import RECORD, RECORD_HEAD_BYTES, SysFlag
from flintmq.protocol.storage.reader import log_reader
from flintmq.protocol.storage.reader.errors import AmbiguousBoundary, CorruptLog
from flintmq.protocol.storage.reader.files import LocalFiles
from flintmq.protocol.storage.reader.log_reader import LogRange, ReadableLog, find_end, next_record
from flintmq.protocol.storage.record import Record
from tests.store_reader_tools import COLUMNS, MadeLog, forge, make_log, plan_of, read_offsets, read_rows
from tests.store_tools import Message, append, kill, open_store, overwrite, plain, put

FILE_BYTES = 4096


def records(count: int, *, topic: bytes = b"orders", size: int = 300) -> list[Record]:
    return [Record(topic, b"%08d" % n + bytes(size), queue_offset=n, store_timestamp=1000 + n) for n in range(count)]


@pytest.fixture
def log(tmp_path: Path) -> MadeLog:
    """Return a log of several files at ``tmp_path / "store"``."""
    made = make_log(records(40), FILE_BYTES, first_start=FILE_BYTES)
    made.write(tmp_path / "store")
    return made


@pytest.fixture
def store(tmp_path: Path, log: MadeLog) -> Path:
    return tmp_path / "store"


# ---- location of the store ----


def test_the_store_its_commitlog_folder_and_their_uris_are_the_same(store: Path, log: MadeLog) -> None:
    expected = [record.physical_offset for record in log.records]
    spaced = store.rename(store.with_name("a store"))
    uri = f"file://{spaced}".replace(" ", "%20")
    for path in (f"{spaced}", f"{spaced}/commitlog", uri, f"file:{spaced}/commitlog/"):
        assert read_offsets(path) == expected, path


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nothing-here", "it does not exist"),
        ("store/commitlog/00000000000000004096", "it is a file"),
        ("elsewhere", "contains orders.txt"),
        ("s3a://bucket/store", "on the driver and on every executor"),
        ("file://other-host/store", "on the driver"),
    ],
)
def test_a_folder_without_a_store_is_refused_with_its_kind(
    tmp_path: Path, store: Path, path: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "orders.txt").touch()
    with pytest.raises(InvalidOption, match=re.escape(said)):
        find_log(path)


def test_an_empty_store_has_no_rows(tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    assert read_offsets(tmp_path / "store") == []


# ---- files that do not fit ----


def test_a_missing_file_is_named(store: Path, log: MadeLog) -> None:
    missing = sorted(log.files)[1]
    os.unlink(store / "commitlog" / f"{missing:020d}")
    with pytest.raises(CorruptLog, match=f"{missing:020d}, byte 0 .physical offset {missing:,}.: the file is missing"):
        find_log(str(store))
    there = [record.physical_offset for record in log.records]
    kept = [place for place in there if not missing <= place < missing + FILE_BYTES]
    assert read_offsets(store, fail_on_corruption=False) == kept


def test_a_file_that_was_cut_short_is_named(store: Path, log: MadeLog) -> None:
    cut = sorted(log.files)[1]
    os.truncate(store / "commitlog" / f"{cut:020d}", 1000)
    with pytest.raises(CorruptLog, match=f"{cut:020d}, byte 1,000 .*cut short") as caught:
        find_log(str(store))
    assert (caught.value.position, caught.value.physical_offset) == (1000, cut + 1000)
    offsets = read_offsets(store, fail_on_corruption=False)
    assert set(offsets) < {record.physical_offset for record in log.records}
    assert cut + 2 * 400 not in offsets
    assert max(offsets) == log.records[-1].physical_offset


def test_a_file_under_another_name_is_named(store: Path, log: MadeLog) -> None:
    last = max(log.files)
    (store / "commitlog" / f"{last:020d}").rename(store / "commitlog" / f"{last + FILE_BYTES:020d}")
    with pytest.raises(CorruptLog, match="missing"):
        find_log(str(store))
    shutil.copy(store / "commitlog" / f"{last - FILE_BYTES:020d}", store / "commitlog" / f"{last:020d}")
    with pytest.raises(CorruptLog, match="its first record claims offset"):
        read_offsets(store)


def test_a_first_file_under_another_name_is_named(store: Path, log: MadeLog) -> None:
    for start in sorted(log.files):
        (store / "commitlog" / f"{start:020d}").rename(store / "commitlog" / f"{start - FILE_BYTES:020d}")
    with pytest.raises(CorruptLog, match="renamed"):
        read_offsets(store)


def test_a_file_that_reaches_into_the_next_is_named(store: Path, log: MadeLog) -> None:
    second = sorted(log.files)[1]
    with (store / "commitlog" / f"{second:020d}").open("ab") as file:
        file.write(bytes(100))
    with pytest.raises(CorruptLog, match="reaches beyond"):
        find_log(str(store))


def test_compressed_files_beside_the_log_are_pointed_out(
    store: Path, log: MadeLog, caplog: pytest.LogCaptureFixture
) -> None:
    (store / "commitlog" / "00000000000000000000.gz").touch()
    with caplog.at_level(logging.WARNING):
        find_log(str(store))
    assert "00000000000000000000.gz is not read" in caplog.text


# ---- end of reading ----


def test_files_that_were_made_ahead_hold_nothing(store: Path, log: MadeLog) -> None:
    for number in (1, 2):
        (store / "commitlog" / f"{max(log.files) + number * FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    assert find_end(find_log(str(store))).end == log.end
    assert read_offsets(store) == [record.physical_offset for record in log.records]


def test_without_a_mark_a_torn_last_record_is_the_end(store: Path, log: MadeLog) -> None:
    start, position = log.place(log.records[-1].physical_offset)
    path = store / "commitlog" / f"{start:020d}"
    whole = path.read_bytes()
    for cut in (100, 250):
        path.write_bytes(whole[: position + cut] + bytes(len(whole) - position - cut))
        assert find_end(find_log(str(store))).end == log.records[-1].physical_offset
    assert read_offsets(store) == [record.physical_offset for record in log.records[:-1]]


def test_without_a_mark_a_hole_before_the_last_record_is_damage(store: Path, log: MadeLog) -> None:
    start, position = log.place(log.records[-3].physical_offset)
    path = store / "commitlog" / f"{start:020d}"
    content = bytearray(path.read_bytes())
    content[position : position + 88] = bytes(88)
    path.write_bytes(content)
    with pytest.raises(CorruptLog, match="zeros instead of a record") as caught:
        find_end(find_log(str(store)))
    assert caught.value.physical_offset == log.records[-3].physical_offset
    assert read_offsets(store, fail_on_corruption=False) == [
        record.physical_offset for number, record in enumerate(log.records) if number != len(log.records) - 3
    ]


def test_nothing_beyond_the_mark_is_read(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(10))
    append(store, "orders", 0, plain(5, first=10))
    kill(store)
    assert read_offsets(tmp_path / "store") == [each.physical_offset for each in sent]
    alone = tmp_path / "alone"
    shutil.copytree(tmp_path / "store" / "commitlog", alone)
    assert len(read_offsets(alone)) == 15, "files alone have no mark: up to the last sound record"


def test_a_mark_that_rocketmq_overwrote_does_not_count(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, "orders", 0, plain(10))
    store.close()
    assert find_log(str(tmp_path / "store")).flushed_offset is not None
    with (tmp_path / "store" / "checkpoint").open("r+b") as file:
        file.write(struct.pack(">q", 77))
    assert find_log(str(tmp_path / "store")).flushed_offset is None
    assert len(read_offsets(tmp_path / "store")) == 10


def test_a_log_that_ends_before_its_mark_is_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, "orders", 0, plain(10))
    store.close()
    first = tmp_path / "store" / "commitlog" / f"{0:020d}"
    os.truncate(first, 1000)
    with pytest.raises(CorruptLog, match=r"byte 1,000 .* is flushed up to"):
        find_log(str(tmp_path / "store"))
    assert 0 < len(read_offsets(tmp_path / "store", fail_on_corruption=False)) < 10


@pytest.mark.parametrize("stopped", [True, False])
def test_the_queues_of_a_cleanly_stopped_store_give_the_end_of_its_log(tmp_path: Path, stopped: bool) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(10))
    store.close()
    (tmp_path / "store" / "checkpoint").write_bytes(bytes(4096))  # as in RocketMQ's checkpoint: no mark
    if not stopped:
        (tmp_path / "store" / "abort").touch()
    with (tmp_path / "store" / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(sent[8].physical_offset)
        file.write(bytes(4096))
    if stopped:
        with pytest.raises(CorruptLog, match="points at one that ends at"):
            read_offsets(tmp_path / "store")
    found = read_offsets(tmp_path / "store", fail_on_corruption=not stopped)
    assert found == [each.physical_offset for each in sent[:8]]


# ---- options ----


def test_every_option_is_read() -> None:
    given = {
        "path": "/store",
        "SUBSCRIBE": "a, b",
        "startingTimestamp": "1",
        "endingTimestamp": "1970-01-01T00:00:01Z",
        "startingPhysicalOffset": "5",
        "endingPhysicalOffset": "6",
        "partitionBytes": "1000000",
        "includeProperties": "true",
        "includeHeaders": "true",
        "verifyChecksums": "false",
        "failOnCorruption": "FALSE",
    }
    options = store_options(given)
    assert (options.path, options.topics, options.pattern) == ("/store", ("a", "b"), None)
    assert (options.starting_ms, options.ending_ms) == (1, 1000)
    assert (options.starting_physical_offset, options.ending_physical_offset) == (5, 6)
    assert options.partition_bytes == 1_000_000
    assert options.include_properties
    assert options.include_headers
    assert not options.verify_checksums
    assert not options.fail_on_corruption
    names = {name.lower() for name in given} | {"topics", "subscribepattern"}
    assert {option.name.lower() for option in STORE_OPTIONS} == names


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "'path' is missing"),
        ({"path": "x", "topic": "a"}, "no option 'topic' (did you mean 'topics'?)"),
        ({"path": "x", "topics": "a,b c"}, "'topics' is 'a,b c'"),
        ({"path": "x", "subscribePattern": "("}, "not a regular expression"),
        ({"path": "x", "topics": "a", "subscribe": "a"}, "'topics' and 'subscribe' exclude"),
        ({"path": "x", "startingTimestamp": "yesterday"}, "ISO 8601"),
        ({"path": "x", "startingTimestamp": "2", "endingTimestamp": "1"}, "'startingTimestamp' is after"),
        ({"path": "x", "startingPhysicalOffset": "-1"}, "'startingPhysicalOffset' is '-1'"),
        ({"path": "x", "partitionBytes": "64MB"}, "'partitionBytes' is '64MB'"),
        ({"path": "x", "verifyChecksums": "yes"}, "'verifyChecksums' is 'yes'"),
        ({"paths": '["a", "b"]'}, "reads one store"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(said)):
        store_options(given)


def test_a_topic_that_the_store_does_not_know_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for topic in ("%RETRY%billing", "orders"):
        put(store, topic, 0, [Message(b"x")])
    store.close()
    log = find_log(str(tmp_path / "store"))
    check_topics(["orders"], log)
    said = r"topic 'order' is not in .*did you mean 'orders'\?\); it has orders, %RETRY%billing\."
    with pytest.raises(InvalidOption, match=said):
        check_topics(["order"], log)
    with pytest.raises(InvalidOption, match=r"topic 'orders\.v1' is not in .*; its name has characters .* encode_name"):
        check_topics(["orders.v1"], log)
    shutil.copytree(tmp_path / "store" / "commitlog", tmp_path / "alone")
    check_topics(["order"], find_log(str(tmp_path / "alone")))


# ---- ranges ----


def test_offsets_that_are_not_in_the_log_are_refused(store: Path, log: MadeLog) -> None:
    with pytest.raises(DataLoss, match=f"the log begins at {FILE_BYTES:,}"):
        read_offsets(store, starting_physical_offset=FILE_BYTES - 1)
    for name in ("startingPhysicalOffset", "endingPhysicalOffset"):
        options = store_options({"path": str(store), name: str(log.end + 1)})
        with pytest.raises(InvalidOption, match=f"{name}.*up to {log.end:,}"):
            plan(find_end(find_log(options.path)), options)


def test_a_file_that_goes_after_planning_is_reported_as_loss(store: Path, log: MadeLog) -> None:
    first = find_log(str(store)).files[0]
    first.path.unlink()
    with pytest.raises(DataLoss, match=f"physical offsets {first.start:,} to {first.end:,}"), first.open():
        pass


def test_a_running_store_is_read_as_far_as_it_was_flushed_when_the_read_was_planned(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, "orders", 0, plain(10))
    planned, flushed = find_end(find_log(str(tmp_path / "store"))), store.flushed_offset
    put(store, "orders", 0, plain(10, first=10))
    assert planned.end == flushed < store.flushed_offset
    store.close()
    assert len(read_offsets(tmp_path / "store")) == 20


def test_the_readme_lists_every_option() -> None:
    readme = (Path(__file__).parents[2] / "client" / "spark" / "README.md").read_text()
    section = readme.partition("## Stores\n")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
    assert listed == {option.name: option.meaning for option in STORE_OPTIONS if option.name != "path"}


# ---- quarantine of a broker ----


def test_tombstones_are_no_rows_even_if_the_index_is_read_from_its_bak(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(20))
    store.close()
    for number in (3, 4, 9):
        overwrite(store.path / "commitlog" / f"{0:020d}", sent[number].physical_offset + 95, b"!")
    open_store(store.path).close()
    kept = [each.physical_offset for number, each in enumerate(sent) if number not in (3, 4, 9)]
    assert read_offsets(store.path) == kept
    index = store.path / "flintmq" / "quarantine" / "index.json"
    index.write_bytes(b"\0" * 40)
    assert read_offsets(store.path) == kept
    index.with_name("index.json.bak").write_bytes(b"{}")
    with pytest.raises(CorruptLog, match=r"index\.json.* cannot be read"):
        read_offsets(store.path)


LONG_FILE_BYTES = 64 * 1024


def overwrite_record(store: Path, log: MadeLog, physical_offset: int, blob: bytes) -> None:
    start, position = log.place(physical_offset)
    overwrite(store / "commitlog" / f"{start:020d}", position, blob)


def offsets_of(log: MadeLog) -> list[int]:
    return [record.physical_offset for record in log.records]


# ---- partitions ----


def test_small_files_share_a_partition_and_large_ones_are_cut(store: Path, log: MadeLog) -> None:
    assert [len(stretches) for stretches in plan_of(store)] == [len(log.files)]
    cut = plan_of(store, partition_bytes=1000)
    assert all(sum(each.end - each.begin for each in stretches) <= 1000 + 500 for stretches in cut)
    flat = [each for stretches in cut for each in stretches]
    assert {each.begin for each in flat} <= set(offsets_of(log))
    for one, following in itertools.pairwise(flat):
        assert one.end == following.begin


def test_a_log_is_planned_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning takes a few reads for each partition if the store's checkpoint or last file says where the log ends."""
    store = make_log(records(400), LONG_FILE_BYTES).write(tmp_path)
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
    partitions = plan(known, StoreReadOptions("", partition_bytes=LONG_FILE_BYTES // 4))
    assert len(partitions) == 4
    assert read < LONG_FILE_BYTES / 2


# ---- boundaries ----


def feigning(tmp_path: Path) -> MadeLog:
    """Return a log with a body of 20,000 bytes in its middle that contains records with their own correct offsets."""
    first = records(30)
    body_at = sum(len(record.encode()) for record in first) + RECORD_HEAD_BYTES
    body = forge(body_at, 150)
    log = make_log([*first, Record(b"orders", body, queue_offset=30), *records(60)], LONG_FILE_BYTES)
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
        with pytest.raises(AmbiguousBoundary, match=f'partitionBytes", "{LONG_FILE_BYTES}"'):
            read_rows(tmp_path, partition_bytes=partition_bytes)
    assert inside, "no cut fell into the body"
    assert read_offsets(tmp_path, partition_bytes=LONG_FILE_BYTES) == offsets


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
    reader = PartitionReader([LogRange(file, file.start, file.end - 1)], Decoder(COLUMNS), StoreReadOptions(str(store)))
    with pytest.raises(CorruptLog, match="records end here"):
        list(reader.batches())


# ---- damage ----


def test_damage_in_a_topic_that_is_not_read_costs_nothing(tmp_path: Path) -> None:
    log = make_log(
        [record for n in range(40) for record in (records(1)[0], Record(b"other", b"%d" % n))], LONG_FILE_BYTES
    )
    store = log.write(tmp_path)
    overwrite_record(store, log, offsets_of(log)[20] + RECORD_HEAD_BYTES, b"\x55")
    assert read_offsets(store, topics=("other",)) == offsets_of(log)[1::2]
    with pytest.raises(CorruptLog, match="checksum"):
        read_rows(store)


def test_random_damage_never_gives_a_row_that_was_not_there(tmp_path: Path) -> None:
    seed = os.environ.get("FLINTMQ_SEED", "1")
    randomness = random.Random(seed)
    log = make_log(records(120, size=100), 8192)
    sound = {record.physical_offset: record.body for record in log.records}
    for _ in range(20):
        store = log.write(tmp_path)
        damaged = set()
        for _ in range(randomness.randrange(1, 6)):
            # Not in properties, topic, times and numbers, because no checksum covers them.
            place = randomness.choice(list(sound))
            at = place + randomness.choice([*range(12), *range(28, 36), *range(84, 88), *range(88, 190)])
            overwrite_record(store, log, at, bytes([randomness.randrange(256)]))
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
    store = make_log(made, LONG_FILE_BYTES).write(tmp_path)
    assert [row["body"] for row in read_rows(store)] == bodies
    (stretches,) = plan_of(store)
    batches = list(PartitionReader(stretches, Decoder(COLUMNS), StoreReadOptions(str(store))).batches())
    assert len(batches) > 5


def test_a_body_that_does_not_decompress_is_damage(tmp_path: Path) -> None:
    broken = Record(b"orders", b"not zlib", sys_flag=SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)
    sound = dataclasses.replace(broken, body=zlib.compress(b"sound"))
    log = make_log([sound, broken, sound], LONG_FILE_BYTES)
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
    store = make_log([Record(b"orders", b"sound"), Record(b"orders", body, sys_flag=flags)], LONG_FILE_BYTES).write(
        tmp_path
    )
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(CompressionUnavailable, match=r"of topic 'orders' cannot be read: .*pip install lz4$"):
        read_rows(store, fail_on_corruption=fail_on_corruption)


def test_few_wanted_records_are_collected_into_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "WINDOW_BYTES", 4096)
    made = [Record(b"rare" if n % 50 == 0 else b"common", b"%d" % n) for n in range(4000)]
    store = make_log(made, LONG_FILE_BYTES).write(tmp_path)
    options = StoreReadOptions(str(store), topics=("rare",))
    (stretches,) = plan_of(store, topics=("rare",))
    (batch,) = PartitionReader(stretches, Decoder(COLUMNS), options).batches()
    assert [int(body.as_py()) for body in batch["body"]] == list(range(0, 4000, 50))


def test_the_search_for_a_record_takes_up_at_the_next_sound_one(store: Path, log: MadeLog) -> None:
    file = find_log(str(store)).files[0]
    places = [place for place in offsets_of(log) if place < file.end]
    overwrite_record(store, log, places[3] + RECORD.at["magic"], b"\x00")
    with file.open() as fd:
        assert next_record(file, fd, places[2] + 1, file.end) == places[4]
        assert next_record(file, fd, places[2] + 1, file.end, chain=3) == places[4]
        assert next_record(file, fd, places[0], file.end, chain=4) == places[4]
        assert next_record(file, fd, places[-1] + 1, file.end) is None
