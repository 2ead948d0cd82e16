"""Records that the broker itself makes: appended completely or not at all, with consecutive offsets, over several
files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.protocol.errors import MessageIllegal
from flintmq.protocol.storage.layout import PROPERTIES_BYTES_MAX, SysFlag
from flintmq.protocol.storage.record import Record, encode_properties
from tests.store_tools import BORN_HOST, HOST, SMALL, dispatch, make_topic, open_store, plain, pull_all, put

COMMITTED = SysFlag.TRANSACTION_COMMIT


def test_own_records_follow_the_producers_in_their_queues_unchanged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "orders", 0, plain(3))
    records = [
        Record(
            topic=b"orders",
            body=b"again %d" % n,
            properties=encode_properties({"KEYS": f"k{n}"}),
            queue_id=n % 2,
            sys_flag=COMMITTED,
            born_timestamp=77,
            born_host=BORN_HOST,
            reconsume_times=n,
            flag=9,
            prepared_transaction_offset=123,
        )
        for n in range(4)
    ]
    end_offset = store.append_records(records)
    put(store, "orders", 0, plain(1))
    assert end_offset < store.write_offset
    assert [(r.queue_id, r.queue_offset) for r in records] == [(0, 3), (1, 0), (0, 4), (1, 1)]
    assert [r.queue_offset for r in pull_all(store, "orders", 0)] == [0, 1, 2, 3, 4, 5]
    stored = list(pull_all(store, "orders", 1))
    assert [record.body for record in stored] == [b"again 1", b"again 3"]
    first = stored[0]
    assert (first.sys_flag, first.born_timestamp, first.born_host, first.store_host) == (COMMITTED, 77, BORN_HOST, HOST)
    assert (first.reconsume_times, first.flag, first.prepared_transaction_offset) == (1, 9, 123)
    assert first.store_timestamp == records[1].store_timestamp > 0
    store.close()


def test_they_roll_into_the_next_file_and_survive_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    make_topic(store, "orders")
    size = SMALL.commitlog_file_bytes // 5
    for _ in range(3):
        store.append_records([Record(topic=b"orders", body=bytes([n]) * size) for n in range(4)])
    dispatch(store)
    store.close()
    store = open_store(tmp_path)
    bodies = [record.body for record in pull_all(store, "orders", 0)]
    assert bodies == [bytes([n]) * size for n in range(4)] * 3
    assert len(store.commitlog.queue.files) >= 3
    store.close()


@pytest.mark.parametrize(
    "record",
    [
        Record(topic=b"orders", body=b"", properties=b"x" * (PROPERTIES_BYTES_MAX + 1)),
        Record(topic=b"orders", body=bytes(SMALL.commitlog_file_bytes)),
    ],
)
def test_one_unstorable_record_refuses_all(tmp_path: Path, record: Record) -> None:
    store = open_store(tmp_path)
    make_topic(store, "orders")
    before = store.write_offset
    with pytest.raises(MessageIllegal, match="topic orders cannot be stored again"):
        store.append_records([Record(topic=b"orders", body=b"good"), record])
    assert store.write_offset == before
    store.append_records([Record(topic=b"orders", body=b"good")])
    dispatch(store)
    assert [r.queue_offset for r in pull_all(store, "orders", 0)] == [0]
    store.close()
