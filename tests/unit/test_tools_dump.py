"""``dump`` shows the contents of the log, and only those that were requested."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.tools.dump import Wanted, record_row, records
from flintmq.broker.tools.findings import Findings
from flintmq.broker.tools.offline import OfflineStore, find_end
from flintmq.broker.tools.stat import as_json, as_plain, print_tables, store_stat
from flintmq.protocol.storage.layout import RECORD_HEAD_BYTES, SysFlag
from flintmq.protocol.storage.record import Record
from tests.store_tools import Message, Sent, copy_store, open_store, overwrite, plain, put
from tests.unit.test_store_golden import copy_sparse, pristine

__all__ = ["pristine"]

Filled = tuple[Path, list[Sent]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    path = tmp_path_factory.mktemp("source") / "store"
    store = open_store(path)
    sent = []
    for number in range(0, 200, 5):
        sent += put(store, ("orders", "bills")[number % 2], number // 5 % 3, plain(5, first=number, size=60_000))
    sent += put(store, "orders", 0, [Message(b"again", keys=("key-7", "other"), tags="t")])
    store.close()
    return path, sent


def dumped(path: Path, **wanted: Any) -> tuple[list[dict[str, Any]], Findings]:
    findings = Findings()
    with OfflineStore(path, findings) as store:
        rows = [record_row(record) for record in records(store, find_end(store).offset, Wanted(**wanted))]
    return rows, findings


def offsets(path: Path, **wanted: Any) -> list[int]:
    rows, findings = dumped(path, **wanted)
    assert findings.total == 0
    return [row["physical_offset"] for row in rows]


def of(sent: list[Sent], take: Callable[[Sent], bool]) -> list[int]:
    return [each.physical_offset for each in sent if take(each)]


def test_every_record_comes_in_the_order_of_the_log(source: Filled) -> None:
    path, sent = source
    assert offsets(path) == [each.physical_offset for each in sent]


def test_a_row_has_the_names_that_a_message_has_on_the_command_line(source: Filled) -> None:
    path, sent = source
    rows, _ = dumped(path, from_offset=sent[-1].physical_offset)
    (row,) = rows
    expected = {
        "topic": "orders",
        "queue": 0,
        "queue_offset": sent[-1].queue_offset,
        "physical_offset": sent[-1].physical_offset,
        "keys": ["key-7", "other"],
        "tag": "t",
        "body": "again",
        "body_bytes": 5,
        "properties": {},
        "reconsume_times": 0,
        "sharding_key": None,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["stored_at"].endswith("Z")
    assert len(row["message_id"]) == 32
    json.dumps(row)


@pytest.mark.parametrize(
    ("wanted", "take"),
    [
        ({"topic": "bills"}, lambda each: each.topic == "bills"),
        ({"topic": "nothing"}, lambda each: False),
        ({"queue": 2}, lambda each: each.queue == 2),
        ({"topic": "orders", "queue": 1}, lambda each: (each.topic, each.queue) == ("orders", 1)),
        ({"key": "key-7"}, lambda each: "key-7" in each.message.keys),
        ({"key": "key-7", "topic": "bills"}, lambda each: each.topic == "bills" and "key-7" in each.message.keys),
        ({"key": "other", "queue": 0}, lambda each: "other" in each.message.keys),
        ({"key": "no such key"}, lambda each: False),
        ({"from_offset": 4_500_000}, lambda each: each.physical_offset >= 4_500_000),
        ({"to_offset": 4_500_000}, lambda each: each.physical_offset < 4_500_000),
        (
            {"from_offset": 1_000_000, "to_offset": 6_000_000, "key": "key-40"},
            lambda each: "key-40" in each.message.keys,
        ),
    ],
)
def test_filters_keep_matching_records(source: Filled, wanted: dict[str, Any], take: Callable[[Sent], bool]) -> None:
    path, sent = source
    assert offsets(path, **wanted) == of(sent, take)


def test_times_are_those_of_storing_both_ends_included(source: Filled) -> None:
    path, sent = source
    begin, end = sent[60].store_ms, sent[120].store_ms
    assert offsets(path, since_ms=begin, until_ms=end) == of(sent, lambda each: begin <= each.store_ms <= end)
    assert offsets(path, since_ms=sent[-1].store_ms + 1) == []


@pytest.mark.parametrize("harm", ["entry", "gone"])
def test_a_key_is_found_without_a_sound_index_too(source: Filled, tmp_path: Path, harm: str) -> None:
    path = copy_store(source[0], tmp_path / "store")
    for file in (path / "index").iterdir():
        if harm == "gone":
            file.unlink()
        else:
            overwrite(file, 40 + 4 * 500 + 20 + 16, b"\xff")
    rows, findings = dumped(path, key="key-7")
    assert [row["physical_offset"] for row in rows] == of(source[1], lambda each: "key-7" in each.message.keys)
    assert any("whole log is searched" in note for note in findings.notes)


def test_damaged_records_are_left_out_and_named(source: Filled, tmp_path: Path) -> None:
    path, sent = copy_store(source[0], tmp_path / "store"), source[1]
    log = path / "commitlog" / f"{0:020d}"
    overwrite(log, sent[10].physical_offset + RECORD_HEAD_BYTES + 7, b"!")
    overwrite(log, sent[20].physical_offset + 4, b"!!")
    rows, findings = dumped(path)
    left_out = {sent[10].physical_offset, sent[20].physical_offset}
    assert [row["physical_offset"] for row in rows] == of(sent, lambda each: each.physical_offset not in left_out)
    assert {(each.kind, each.physical_offset) for each in findings} == {
        ("body-crc", sent[10].physical_offset),
        ("record", sent[20].physical_offset),
    }


def test_rocketmqs_own_records_are_shown_unpacked(pristine: Path, tmp_path: Path) -> None:
    path = copy_sparse(pristine / "store-pristine", tmp_path / "store")
    rows, findings = dumped(path)
    assert findings.total == 0
    assert len(rows) == 552
    compressed = [row for row in rows if row["sys_flag"] & SysFlag.COMPRESSED]
    assert compressed
    assert all("body_compression" not in row for row in compressed)
    assert all(("body" in row) != ("body_base64" in row) for row in rows)


def test_a_body_that_cannot_be_unpacked_is_shown_as_it_is_stored() -> None:
    packed = zlib.compress(b"x" * 100)
    row = record_row(Record(b"t", packed, sys_flag=SysFlag.COMPRESSED))
    assert row["body"] == "x" * 100
    row = record_row(Record(b"t", b"\xff\xfe", sys_flag=SysFlag.COMPRESSED))
    assert (row["body_compression"], base64.b64decode(row["body_base64"])) == ("zlib", b"\xff\xfe")


def test_figures_by_queue_match_the_sent_messages(source: Filled) -> None:
    path, sent = source
    with OfflineStore(path, Findings()) as store:
        stat = store_stat(store, find_end(store).offset)
    assert (stat.broker, stat.stopped_in_order) == ("FlintMQ", True)
    for queue in stat.queues:
        messages = [each for each in sent if (each.topic, each.queue) == (queue.topic, queue.queue)]
        assert (queue.min_offset, queue.max_offset, queue.messages) == (0, len(messages), len(messages))
        assert queue.bytes > sum(len(each.message.body) for each in messages)
    assert sum(queue.messages for queue in stat.queues) == len(sent)
    assert sum(queue.bytes for queue in stat.queues) <= stat.log_end
    assert sum(file.entries for file in stat.index) == len(sent) + 1
    assert {each.files: each.count for each in stat.files}["commitlog"] == len(list((path / "commitlog").iterdir()))


@pytest.mark.parametrize(("columns", "shows_times"), [(40, False), (80, True), (200, True)])
def test_tables_fit_the_terminal(
    source: Filled, columns: int, shows_times: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with OfflineStore(source[0], Findings()) as store:
        stat = store_stat(store, find_end(store).offset)
    print_tables(stat)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("orders") for line in lines)
    assert any("last stored" in line for line in lines) == shows_times


def test_json_and_plain_lines_say_the_same(source: Filled) -> None:
    with OfflineStore(source[0], Findings()) as store:
        stat = store_stat(store, find_end(store).offset)
    rows = [json.loads(line) for line in as_json(stat)]
    lines = [line.split("\t") for line in as_plain(stat)]
    assert [row["kind"] for row in rows] == [line[0] for line in lines]
    for row, line in zip(rows[1:], lines[1:], strict=True):
        assert ["" if value is None else str(value) for value in row.values()] == line
