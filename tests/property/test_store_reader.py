"""A read of any log, split, limited or damaged in any way, returns the records of a plain scan, each once, in order."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flintmq.client.arrow.decoder import Decoder
from flintmq.client.arrow.store_reader import partition_reader
from flintmq.client.arrow.store_reader.options import StoreReadOptions
from flintmq.client.arrow.store_reader.partition_reader import PartitionReader
from flintmq.protocol.names import is_system_topic
from flintmq.protocol.storage.layout import RECORD, RECORD_BYTES_MIN, RECORD_HEAD_BYTES
from flintmq.protocol.storage.reader import log_reader
from flintmq.protocol.storage.reader.errors import CorruptLog
from flintmq.protocol.storage.reader.scan import find_records
from flintmq.protocol.storage.record import Record
from tests.store_reader_tools import COLUMNS, MadeLog, make_log, plain_walk, plan_of, read_offsets, read_rows

twenty = settings(max_examples=20)

hosts = st.sampled_from([bytes(8), bytes([127, 0, 0, 1, 0, 0, 1, 2]), bytes(range(20))])
names = ["orders", "order", "orders-2", "o", "a-topic-of-17-chr", "x" * 127, "x" * 126 + "y", "x" * 200]
names += ["%RETRY%group", "TBW102", "SCHEDULE_TOPIC_XXXX"]
one_record = st.builds(
    Record,
    topic=st.sampled_from(names).map(str.encode),
    body=st.binary(max_size=40) | st.integers(200, 900).map(bytes),
    properties=st.sampled_from([b"", b"TAGS\x01eu\x02", b"KEYS\x01a b\x02UNIQ_KEY\x01" + b"7" * 32 + b"\x02"]),
    queue_id=st.integers(0, 3),
    queue_offset=st.integers(0, 2**40),
    store_timestamp=st.integers(0, 2**41),
    born_host=hosts,
    store_host=hosts,
)
runs = st.tuples(one_record, st.integers(1, 40)).map(lambda pair: [pair[0]] * pair[1])
logs = st.lists(runs, max_size=8).map(lambda lists: [record for some in lists for record in some])


@contextmanager
def written(log: MadeLog, window: int, rows: int) -> Iterator[Path]:
    """Yield a store with this log, of which so many bytes and rows are looked at in one go."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "WINDOW_BYTES", window)
        patch.setattr(log_reader, "BLOCK_ROWS_MAX", rows)
        patch.setattr(partition_reader, "BATCH_ROWS_MIN", rows // 2)
        patch.setattr(log_reader, "_SCAN_BYTES", 512)
        yield log.write(Path(folder))


@pytest.mark.parametrize("window", [512, 1 << 20])
@given(
    records=logs,
    file_bytes=st.integers(1500, 20_000),
    first_file=st.integers(0, 3),
    partition_bytes=st.integers(300, 30_000),
    rows=st.integers(1, 30),
)
@twenty
def test_every_split_returns_each_record_once(
    window: int, records: list[Record], file_bytes: int, first_file: int, partition_bytes: int, rows: int
) -> None:
    log = make_log(records, file_bytes, first_start=first_file * file_bytes)
    with written(log, window, rows) as store:
        found = read_rows(store, partition_bytes=partition_bytes)
    expected = [record for record in log.records if not is_system_topic(record.topic.decode())]
    assert [record.physical_offset for record in log.records] == list(plain_walk(log))
    assert [
        (row["physical_offset"], row["topic"].encode(), row["body"], row["queue"], row["queue_offset"]) for row in found
    ] == [(each.physical_offset, each.topic, each.body, each.queue_id, each.queue_offset) for each in expected]


ends = st.tuples(st.integers(0, 200), st.integers(0, 200)).map(sorted)


@given(
    records=st.lists(runs, min_size=4, max_size=8).map(lambda lists: [record for some in lists for record in some]),
    topics=st.none() | st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True).map(tuple),
    pattern=st.sampled_from([None, r"orders(-\d)?", ".*"]),
    times=ends,
    places=ends,
    partition_bytes=st.sampled_from([300, 2000, 30_000]),
)
@twenty
def test_a_read_returns_what_its_topics_times_and_half_open_places_name(
    records: list[Record],
    topics: tuple[str, ...] | None,
    pattern: str | None,
    times: list[int],
    places: list[int],
    partition_bytes: int,
) -> None:
    log = make_log([replace(each, store_timestamp=at) for at, each in enumerate(records)], 4096, first_start=4096)
    starts = [*(record.physical_offset for record in log.records), log.end]
    first, last = (starts[place % len(starts)] for place in places)
    chosen = None if pattern is None else re.compile(pattern)

    def offsets(wanted: Callable[[Record], object]) -> list[int]:
        return [record.physical_offset for record in log.records if wanted(record)]

    def usual(record: Record) -> bool:
        return not is_system_topic(record.topic.decode())

    with written(log, 2048, 10) as store:
        read = partial(read_offsets, store, partition_bytes=partition_bytes)
        assert read(starting_ms=times[0], ending_ms=times[1]) == offsets(
            lambda record: usual(record) and times[0] <= record.store_timestamp < times[1]
        )
        assert read(starting_physical_offset=first, ending_physical_offset=last) == offsets(
            lambda record: usual(record) and first <= record.physical_offset < last
        )
        assert read(topics=topics) == offsets(
            lambda record: usual(record) if topics is None else record.topic.decode() in topics
        )
        assert read(pattern=chosen, starting_ms=times[0]) == offsets(
            lambda record: (
                usual(record)
                and (chosen is None or chosen.fullmatch(record.topic.decode()))
                and times[0] <= record.store_timestamp
            )
        )


DAMAGE: dict[str, tuple[int, bytes, str]] = {
    "zeros": (0, bytes(120), "zeros instead of a record"),
    "magic": (RECORD.at["magic"], b"\xff", "not a record"),
    "size": (RECORD.at["total_size"], b"\x00\x00\x01\x00", "its parts|does not fit"),
    "a size beyond the file": (RECORD.at["total_size"], b"\x7f\x00\x00\x00", "left in the file"),
    "physical offset": (RECORD.at["physical_offset"] + 7, b"\xee", "claims offset"),
    "body length": (RECORD.at["body_length"] + 3, b"\x01", "does not fit|add up"),
    "body": (RECORD_HEAD_BYTES + 20, b"\x55", "checksum"),
}
"""Position in a record of 400 bytes, the bytes written there, and what a read says."""


@given(
    damage=st.dictionaries(st.integers(0, 98), st.sampled_from(sorted(DAMAGE)), min_size=1, max_size=6),
    partition_bytes=st.sampled_from([2000, 30_000]),
    window=st.sampled_from([2048, 1 << 20]),
)
@example(damage={0: "zeros", 1: "body"}, partition_bytes=5000, window=1 << 20)
@twenty
def test_damage_fails_a_read_by_its_place_or_costs_the_damaged_records_alone(
    damage: dict[int, str], partition_bytes: int, window: int
) -> None:
    made = [Record(b"orders", b"%08d" % number + bytes(300), queue_offset=number) for number in range(100)]
    log = make_log(made, 8192)
    places = [record.physical_offset for record in log.records]
    for number, kind in damage.items():
        start, position = log.place(places[number])
        at, blob, _ = DAMAGE[kind]
        log.files[start][position + at : position + at + len(blob)] = blob
    with written(log, window, 30) as store:
        with pytest.raises(CorruptLog) as caught:
            read_rows(store, partition_bytes=partition_bytes)
        found = read_offsets(store, partition_bytes=partition_bytes, fail_on_corruption=False)
        options = StoreReadOptions(str(store), fail_on_corruption=False)
        (stretches,) = plan_of(store, fail_on_corruption=False)
        reader = PartitionReader(stretches, Decoder(COLUMNS), options)
        assert sum(batch.num_rows for batch in reader.batches()) == len(found)
    error = caught.value
    start, position = log.place(error.physical_offset)
    assert (error.path.name, error.position) == (f"{start:020d}", position)
    assert re.search(DAMAGE[damage[places.index(error.physical_offset)]][2], str(error))
    assert 'option("failOnCorruption", "false")' in str(error)
    assert found == [place for number, place in enumerate(places) if number not in damage]
    ends = {each: following for each, following in itertools.pairwise(places) if each // 8192 == following // 8192}
    size = len(log.records[0].encode())
    assert reader.skipped_bytes == sum(
        size if kind == "body" else ends.get(places[number], places[number] // 8192 * 8192 + 8192) - places[number]
        for number, kind in damage.items()
    )


@given(blob=st.binary(max_size=64), records=st.lists(runs, max_size=4), cut=st.integers(0, 400))
@twenty
def test_records_are_found_by_their_sizes(blob: bytes, records: list[list[Record]], cut: int) -> None:
    whole = b"".join(record.encode() for some in records for record in some) + blob
    whole = whole[: max(0, len(whole) - cut)]
    starts, sizes = find_records(whole)
    expected, at = [], 0
    while at + RECORD_BYTES_MIN <= len(whole):
        size = int.from_bytes(whole[at : at + 4], "big", signed=True)
        if size < RECORD_BYTES_MIN or at + size > len(whole) or whole[at + 4 : at + 8] == b"\xcb\xd4\x31\x94":
            break
        expected.append((at, size))
        at += size
    assert list(zip(starts.tolist(), sizes.tolist(), strict=True)) == expected
