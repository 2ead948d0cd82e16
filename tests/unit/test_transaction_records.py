"""Records of transactions equal those that Apache RocketMQ 5.3.3 wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flintmq.broker.delivery.transactions.records import (
    Half,
    checked_again,
    committed,
    ended_notes,
    ended_offsets,
    is_committed,
    parked,
)
from flintmq.broker.delivery.transactions.service import History
from flintmq.protocol.storage.delivery import HALF_TOPIC, OP_HALF_TOPIC
from flintmq.protocol.storage.record import Record, decode_record, encode_properties
from tests.store_tools import unpack_rocketmq
from tests.unit.test_store_golden import copy_sparse, serve

REAL_TOPIC = "CompatTopic"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_rocketmq(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def records(pristine: Path) -> list[Record]:
    return list(log_of(pristine / "store-pristine"))


def log_of(store: Path) -> Iterator[Record]:
    with (store / "commitlog" / f"{0:020d}").open("rb") as file:
        log = file.read(1 << 20)
    at = 0
    while int.from_bytes(log[at : at + 4], "big"):
        yield decode_record(log, at)
        at += int.from_bytes(log[at : at + 4], "big")


def of_topic(records: list[Record], topic: str) -> list[Record]:
    return [record for record in records if record.topic == topic.encode()]


def test_a_commit_is_the_record_that_rocketmq_makes_of_the_half(records: list[Record]) -> None:
    halves = {record.physical_offset: record for record in of_topic(records, HALF_TOPIC)}
    commits = [record for record in records if is_committed(record)]
    assert (len(halves), len(commits)) == (34, 17)
    for commit in commits:
        record = halves[commit.prepared_transaction_offset]
        half = Half.of(record)
        assert half is not None
        made = committed(half, record)
        # The store gives each record its place and time.
        placed = replace(
            made,
            queue_offset=commit.queue_offset,
            physical_offset=commit.physical_offset,
            store_timestamp=commit.store_timestamp,
            store_host=commit.store_host,
        )
        assert placed.encode() == commit.encode()


def test_a_half_message_has_all_its_fields(records: list[Record]) -> None:
    for record in of_topic(records, HALF_TOPIC):
        half = Half.of(record)
        assert half is not None
        properties = record.property_map()
        assert half.transaction_id == properties["UNIQ_KEY"] == properties["__transactionId__"]
        assert (half.group, half.topic, half.check_times) == ("CompatTxProducer", REAL_TOPIC, 0)
        assert (half.queue, half.queue_offset) == (int(properties["REAL_QID"]), record.queue_offset)
    assert Half.of(of_topic(records, REAL_TOPIC)[0]) is None


def test_a_note_is_rocketmqs(records: list[Record]) -> None:
    (note,) = of_topic(records, OP_HALF_TOPIC)
    assert list(ended_offsets(note)) == list(range(34))
    (made,) = ended_notes(range(34), note.born_timestamp, note.born_host)
    assert (made.body, made.topic, made.queue_id, made.sys_flag) == (note.body, note.topic, 0, 0)
    assert made.property_map()["TAGS"] == note.property_map()["TAGS"] == "d"


def test_long_notes_are_several() -> None:
    offsets = range(10_000, 12_000)
    notes = ended_notes(offsets, 1, bytes(8))
    assert len(notes) == 3
    assert max(len(note.body) for note in notes) <= 4096
    assert [offset for note in notes for offset in ended_offsets(note)] == list(offsets)
    assert ended_notes([], 1, bytes(8)) == []


@pytest.mark.parametrize(
    ("body", "offsets"),
    [(b"5", [5]), (b"5,7,", [5, 7]), (b" 5 ,x,-1,\xff,", [5]), (b"", []), (b"9" * 30 + b",1,", [1])],
)
def test_notes_of_older_releases_and_damaged_notes_are_read(body: bytes, offsets: list[int]) -> None:
    assert list(ended_offsets(Record(b"op", body))) == offsets


def test_a_rewritten_record_keeps_everything_except_a_stale_checksum() -> None:
    properties = encode_properties(
        {"A": "1", "TRANSACTION_CHECK_TIMES": "3", "REAL_TOPIC": "t", "REAL_QID": "2", "__CRC32#": "0123456789"}
    )
    record = Record(HALF_TOPIC.encode(), b"body", properties, queue_offset=5, flag=3, reconsume_times=1)
    half = Half.of(record)
    assert half is not None
    assert half.check_times == 3
    assert half.transaction_id == "0000000000000000" + "0" * 16  # its offset id, since it has no unique key
    kept = {"A": "1", "REAL_TOPIC": "t", "REAL_QID": "2"}
    assert checked_again(record, 4).property_map() == kept | {"TRANSACTION_CHECK_TIMES": "4"}
    for made in (parked(record), committed(half, record)):
        assert made.property_map() == kept | {"TRANSACTION_CHECK_TIMES": "3"}
        assert (made.body, made.flag, made.reconsume_times) == (b"body", 3, 1)


@pytest.mark.parametrize(
    "properties", [{}, {"REAL_TOPIC": "t"}, {"REAL_TOPIC": "t", "REAL_QID": "x"}, {"REAL_TOPIC": "t", "REAL_QID": "-1"}]
)
def test_a_half_message_without_a_destination_is_invalid(properties: dict[str, str]) -> None:
    assert Half.of(Record(HALF_TOPIC.encode(), b"", encode_properties(properties))) is None


def test_rocketmqs_store_has_nothing_open(pristine: Path, tmp_path: Path) -> None:
    store, _ = serve(copy_sparse(pristine / "store-pristine", tmp_path / "store"))
    found = History(store).read_at_start()
    assert (found.halves, found.next_half_offset, found.next_note_offset) == ([], 34, 1)
    store.close()


def test_a_rocketmq_that_was_killed_before_its_note_has_committed_once(
    pristine: Path, records: list[Record], tmp_path: Path
) -> None:
    """The log ends before the note; recovery knows by the committed message that the transaction was committed."""
    path = copy_sparse(pristine / "store-pristine", tmp_path / "store")
    (note,) = of_topic(records, OP_HALF_TOPIC)
    log = path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.truncate(note.physical_offset)
        file.truncate(1 << 30)
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    (path / "abort").touch()
    store, _ = serve(path)
    found = History(store).read_at_start()
    sent = [json.loads(line) for line in (pristine / "expected.jsonl").read_text().splitlines()]
    done = {record.queue_offset: record.property_map()["KEYS"] for record in of_topic(records, HALF_TOPIC)}
    assert len(found.halves) == 34
    assert {done[offset] for offset in found.committed} == {one["keys"] for one in sent if one["kind"] == "tx-commit"}
    store.close()
