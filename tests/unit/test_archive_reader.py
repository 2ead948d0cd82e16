"""Reading an archive: its fragments, records by position and key, what is left out of a read, and no damaged byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flintmq.client.arrow import DataLoss, InvalidOption, read_store
from flintmq.client.polars import scan_store
from flintmq.protocol.storage.archive.errors import CorruptObject
from flintmq.protocol.storage.archive.fragment import Compression, LogFrame, QueueUnits, decode_index, encode_index
from flintmq.protocol.storage.archive.manifest import LATEST, ArchiveGap
from flintmq.protocol.storage.archive.objects import Objects
from flintmq.protocol.storage.archive.reader import ArchiveReader, FragmentMoved, NoArchive
from flintmq.protocol.storage.archive.verify import VerifiedArchive, verify
from flintmq.protocol.storage.reader.errors import CorruptLog
from tests.archive_tools import MadeArchive, keys_of, make_archive, orders, placed, publish

SHAPES: dict[str, dict[str, Any]] = {
    "entries": {},
    "groups": {"per_group": 3},
    "merged keys": {"merged": 4, "per_group": 3},
    "uncompressed": {"compression": "none"},
}


@pytest.fixture(params=SHAPES)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> MadeArchive:
    """An archive of twelve fragments in a folder, with a hole in the log after every 25th record."""
    records = placed(orders(120), start=1_000, hole_after=25)
    return make_archive(Objects(tmp_path / "archive"), records, **SHAPES[request.param])


class _Counting(Objects):
    """Objects that count the requests."""

    def __init__(self, url: Path) -> None:
        super().__init__(url)
        self.asked: list[str] = []

    def get(self, name: str) -> bytes:
        self.asked.append(name)
        return super().get(name)

    def range(self, name: str, begin: int, end: int) -> bytes:
        self.asked.append(name)
        return super().range(name, begin, end)


def test_the_newest_manifest_takes_two_requests(made: MadeArchive, tmp_path: Path) -> None:
    objects = _Counting(tmp_path / "archive")
    with ArchiveReader(objects) as reader:
        assert reader.manifest == made.manifest
        assert reader.manifest is reader.manifest
    assert objects.asked == [LATEST, "manifest/00000000000000000003.mft"]


def test_a_folder_without_a_manifest_is_no_archive(tmp_path: Path) -> None:
    with ArchiveReader(Objects(tmp_path)) as reader, pytest.raises(NoArchive, match="it has no manifest"):
        reader.refresh()


def test_every_record_is_found_at_its_position_and_nothing_elsewhere(made: MadeArchive) -> None:
    with ArchiveReader(made.objects) as reader:
        for record in made.records:
            assert reader.record_at(record.physical_offset) == record.encode()
        hole = made.records[24]
        assert reader.record_at(hole.physical_offset + len(hole.encode())) is None
        assert reader.record_at(999) is None
        assert reader.record_at(made.manifest.end) is None
        with pytest.raises(CorruptObject, match=r"log/.*no record begins"):
            reader.record_at(made.records[3].physical_offset + 1)


def test_every_key_finds_its_records_newest_first(made: MadeArchive) -> None:
    keys = {(record.topic.decode(), key) for record in made.records for key in keys_of(record)}
    with ArchiveReader(made.objects) as reader:
        for topic, key in sorted(keys):
            wanted = [each for each in made.records if each.topic.decode() == topic and key in keys_of(each)]
            assert list(reader.find_key(topic, key)) == [each.encode() for each in reversed(wanted)]
        assert list(reader.find_key("orders", "k1")) == []  # of the other topic
        assert list(reader.find_key("orders", "nobody's")) == []
        assert list(reader.find_key("no such topic", "k1")) == []


def test_a_time_range_skips_fragments_and_runs(made: MadeArchive, tmp_path: Path) -> None:
    objects = _Counting(tmp_path / "archive")
    times = [record.store_timestamp for record in made.records]
    since, until = times[95], times[105]
    with ArchiveReader(objects) as reader:
        entries = [entry for entry, _ in reader.entries(since_ms=since, until_ms=until)]
        assert [(entry.first_ms, entry.last_ms) for entry in entries] == [
            (times[at], times[at + 9]) for at in (90, 100)
        ]
        objects.asked.clear()
        found = list(reader.find_key("orders", "shared-6", since_ms=since, until_ms=until))
    assert found == [made.records[96].encode()]
    within = {name for entry in entries for name in (entry.name.log, entry.name.idx)}
    assert {name for name in objects.asked if name.startswith("log/")} <= within
    assert made.manifest.runs == [] or made.manifest.runs[0].name not in objects.asked


def test_fragments_are_chosen_by_topic_and_range(tmp_path: Path) -> None:
    records = placed([*orders(40, topics=(b"orders",)), *orders(40, topics=(b"rare", b"orders"))])
    made = make_archive(Objects(tmp_path), records, per_group=5)
    with ArchiveReader(made.objects) as reader:
        chosen = [entry.start for entry, _ in reader.entries(topics="rare".__eq__)]
        assert chosen == [cut[0].physical_offset for cut in made.cuts[4:]]
        begin, end = made.cuts[2][5].physical_offset, made.cuts[4][0].physical_offset
        assert [entry.start for entry, _ in reader.entries(begin, end)] == [
            cut[0].physical_offset for cut in made.cuts[2:4]
        ]


# ---- as Arrow batches


def test_read_store_returns_the_messages_of_a_topic_in_the_logs_order(made: MadeArchive, tmp_path: Path) -> None:
    table = read_store(tmp_path / "archive", "orders", columns=("physical_offset", "body", "queue_offset")).table()
    wanted = [record for record in made.records if record.topic == b"orders"]
    assert table["physical_offset"].to_pylist() == [record.physical_offset for record in wanted]
    assert table["body"].to_pylist() == [record.body for record in wanted]
    assert table["queue_offset"].to_pylist() == [record.queue_offset for record in wanted]


def test_scan_store_filters_by_time(made: MadeArchive, tmp_path: Path) -> None:
    frame = scan_store(f"file://{tmp_path}/archive", "payments")
    middle = made.records[60].store_timestamp
    counted = frame.filter(pl.col("stored_at") >= pl.lit(middle).cast(pl.Datetime("ms", "UTC"))).select(pl.len())
    assert counted.collect().item() == 30


def test_an_unknown_topic_is_refused_with_the_one_that_was_meant(made: MadeArchive, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"no message of topic 'order' .*did you mean 'orders'\?"):
        read_store(tmp_path / "archive", "order")


def test_a_gap_within_a_read_is_named(tmp_path: Path) -> None:
    records = placed(orders(40))
    missing = records[10:20]
    gap = ArchiveGap(missing[0].physical_offset, records[20].physical_offset, "the disk was full")
    make_archive(Objects(tmp_path), [*records[:10], *records[20:]], gaps=[gap])
    with pytest.raises(CorruptLog, match=r"the archive lacks the log up to .*: the disk was full"):
        read_store(tmp_path, "orders").table()
    stream = read_store(tmp_path, "orders", on_loss="report", columns=("physical_offset",))
    assert stream.table()["physical_offset"].to_pylist() == [
        record.physical_offset for record in [*records[:10], *records[20:]] if record.topic == b"orders"
    ]


def test_a_start_before_the_archive_is_refused(made: MadeArchive, tmp_path: Path) -> None:
    from flintmq.client.arrow.store_reader.archived import plan_archive
    from flintmq.client.arrow.store_reader.options import StoreReadOptions

    with ArchiveReader(made.objects) as reader, pytest.raises(DataLoss, match="begins at 1,000"):
        plan_archive(reader, StoreReadOptions(str(tmp_path), starting_physical_offset=5))


# ---- damage


def _all_that_is_read(url: Path, made: MadeArchive) -> dict[str, Any]:
    """Return all that a reader gives: rows of a scan, and records by key; the error's object where it fails."""
    found: dict[str, Any] = {}

    def note(what: str, read: Callable[[], Any]) -> None:
        try:
            found[what] = read()
        except CorruptObject as error:
            found[what] = error

    note("scan", lambda: read_store(url, "orders", columns=("physical_offset", "body")).table().to_pylist())
    for number in (4, 84):
        with ArchiveReader(Objects(url)) as reader:
            note(f"key {number}", lambda: list(reader.find_key("orders", f"k{number}")))  # noqa: B023 - called at once
    return found


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_flipped_bit_anywhere_is_named_and_never_served(tmp_path: Path, compression: Compression) -> None:
    made = make_archive(
        Objects(tmp_path),
        placed(orders(120, size=30), start=1_000, hole_after=25),
        per_group=3,
        merged=4,
        compression=compression,
    )
    sound = _all_that_is_read(tmp_path, made)
    assert not any(isinstance(value, CorruptObject) for value in sound.values())
    names = [each.name for each in made.objects.list() if not each.name.startswith("manifest/00000000000000000001")]
    kinds = {name.rpartition(".")[2]: name for name in reversed(names)}
    assert set(kinds) == {"json", "log", "idx", "mft", "run", LATEST}
    named = set()
    for name in {*kinds.values(), made.manifest.groups[0].name}:
        path = tmp_path / name
        content = path.read_bytes()
        for at in sorted({*range(0, len(content), max(1, len(content) // 12)), len(content) - 1}):
            path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
            for what, value in _all_that_is_read(tmp_path, made).items():
                if isinstance(value, CorruptObject):
                    assert value.name == name
                    named.add(name)
                else:
                    assert value == sound[what]
        path.write_bytes(content)
    assert {name.rpartition(".")[2] for name in named} >= {"log", "idx", "mft", "run"}


@pytest.mark.parametrize("change", ["missing", "cut short", "empty"])
def test_an_object_that_is_missing_or_cut_short_is_named_and_the_rest_is_read(
    made: MadeArchive, tmp_path: Path, change: str
) -> None:
    damaged = made.cuts[3]
    lost = {record.physical_offset for record in damaged}
    with ArchiveReader(made.objects) as reader:
        entry = reader.entry_at(damaged[0].physical_offset)
    assert entry is not None
    for name in (entry.name.log, entry.name.idx):
        path = tmp_path / "archive" / name
        content = path.read_bytes()
        if change == "missing":
            path.unlink()
        else:
            path.write_bytes(content[:-1] if change == "cut short" else b"")
        with pytest.raises(CorruptObject) as raised:
            read_store(tmp_path / "archive", "orders").table()
        if name.endswith("idx") and change == "cut short":
            path.write_bytes(content)  # a scan does not need its end, where the keys are
            continue
        assert raised.value.name == name
        stream = read_store(tmp_path / "archive", "orders", columns=("physical_offset",), on_loss="report")
        assert stream.table()["physical_offset"].to_pylist() == [
            record.physical_offset
            for record in made.records
            if record.topic == b"orders" and record.physical_offset not in lost
        ]
        assert [type(error) for error in stream.losses] == [CorruptObject]
        path.write_bytes(content)


def test_a_fragment_that_its_writer_replaced_is_not_called_damaged(tmp_path: Path) -> None:
    made = make_archive(Objects(tmp_path), placed(orders(40)))
    with ArchiveReader(made.objects) as reader:
        entry = reader.entry_at(made.cuts[-1][0].physical_offset)
        assert entry is not None
        other = entry._replace(rand="f" * 16)
        for one, two in ((entry.name.log, other.name.log), (entry.name.idx, other.name.idx)):
            made.objects.create(two, made.objects.get(one))
            made.objects.delete(one)
        entries = [other if each == entry else each for each in made.manifest.entries]
        publish(made.objects, made.manifest.next(entries=entries))
        with pytest.raises(FragmentMoved, match="was replaced or dropped"):
            reader.record_at(made.cuts[-1][0].physical_offset)
        assert reader.record_at(made.cuts[-1][0].physical_offset) is not None


def test_a_damaged_copy_of_the_newest_version_is_done_without(made: MadeArchive, tmp_path: Path) -> None:
    (tmp_path / "archive" / LATEST).write_bytes(b"damaged")
    with ArchiveReader(made.objects) as reader:
        assert reader.manifest == made.manifest


def test_objects_match_the_digests_of_their_entries(made: MadeArchive) -> None:
    with ArchiveReader(made.objects) as reader:
        for entry, _ in reader.entries():
            assert hashlib.sha256(made.objects.get(entry.name.log)).digest() == entry.log_sha256
            assert hashlib.sha256(made.objects.get(entry.name.idx)).digest() == entry.idx_sha256


def test_verify_finds_units_that_do_not_fit_the_records(tmp_path: Path) -> None:
    made = make_archive(Objects(tmp_path), placed(orders(20)), per_fragment=20)
    entry = made.manifest.entries[0]
    name = entry.name.idx
    index = decode_index(made.objects.get(name), name)
    queues = [
        QueueUnits(
            index.head.topics[run["topic"]],
            int(run["queue_id"]),
            int(run["first"]),
            bytes(index.units_of(row)).replace(b"\x00\x00\x01", b"\x00\x00\x02")
            if row == 1
            else bytes(index.units_of(row)),
            0,
            0,
        )
        for row, run in enumerate(index.queues)
    ]
    frames = [LogFrame(*frame) for frame in index.frames.tolist()]
    idx = encode_index(entry.start, entry.end, "zstd", frames, queues, index.keys, entry.records, [])
    made.objects.put(name, idx)
    digest = hashlib.sha256(idx).digest()
    publish(made.objects, made.manifest.next(entries=[entry._replace(idx_sha256=digest, idx_bytes=len(idx))]))
    with ArchiveReader(made.objects) as reader:
        flaws = list(verify(reader, VerifiedArchive()))
    assert [flaw.name for flaw in flaws] == [name]
    assert "where no such record begins" in flaws[0].reason


def test_verify_names_a_part_of_the_log_that_is_neither_archived_nor_a_gap(tmp_path: Path) -> None:
    records = placed(orders(40))
    made = make_archive(Objects(tmp_path), records)
    publish(made.objects, made.manifest.next(entries=[made.manifest.entries[0], *made.manifest.entries[2:]]))
    with ArchiveReader(made.objects) as reader:
        flaws = list(verify(reader, VerifiedArchive()))
    assert [flaw.reason for flaw in flaws] == [
        f"it has neither fragment nor gap for physical offsets {records[10].physical_offset:,} to "
        f"{records[20].physical_offset:,}"
    ]
