"""A read of any log, split in any way, returns the records of a plain scan, each once, in order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.client.arrow.archive import partition_reader
from flintmq.protocol.names import is_system_topic
from flintmq.protocol.storage.layout import RECORD_BYTES_MIN
from flintmq.protocol.storage.reader import log_reader
from flintmq.protocol.storage.reader.scan import find_records
from flintmq.protocol.storage.record import Record
from tests.archive_tools import make_log, plain_walk, read_rows

twenty = settings(max_examples=20)

hosts = st.sampled_from([bytes(8), bytes([127, 0, 0, 1, 0, 0, 1, 2]), bytes(range(20))])
names = [b"orders", b"order", b"orders-2", b"o", b"a-topic-of-17-chr", b"x" * 200, b"SCHEDULE_TOPIC_XXXX"]
one_record = st.builds(
    Record,
    topic=st.sampled_from(names),
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


@pytest.mark.parametrize("window", [2048, 1 << 20])
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
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "WINDOW_BYTES", window)
        patch.setattr(log_reader, "BLOCK_ROWS_MAX", rows)
        patch.setattr(partition_reader, "BATCH_ROWS_MIN", rows // 2)
        patch.setattr(log_reader, "_SCAN_BYTES", 512)
        found = read_rows(log.write(Path(folder)), partition_bytes=partition_bytes)
    expected = [record for record in log.records if not is_system_topic(record.topic.decode())]
    assert [record.physical_offset for record in log.records] == list(plain_walk(log))
    assert [
        (row["physical_offset"], row["topic"].encode(), row["body"], row["queue"], row["queue_offset"]) for row in found
    ] == [(each.physical_offset, each.topic, each.body, each.queue_id, each.queue_offset) for each in expected]


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
