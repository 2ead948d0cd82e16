"""``verify`` names file, place and kind of any damage in a store, and changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.protocol.storage.layout import (
    CHECKPOINT,
    CHECKPOINT_MARK_AT,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    RECORD,
    RECORD_HEAD_BYTES,
    UNIT,
    UNIT_BYTES,
)
from tests.store_tools import MIB, SMALL, Sent, copy_store, open_store, overwrite, plain, put
from tests.tools_runs import findings, findings_however_split

LOG_BYTES = 4 * MIB
ENTRIES_AT = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * SMALL.index_slots
Filled = tuple[Path, list[Sent]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Return two CommitLog files, four queues of several files each, and some index files; stopped cleanly."""
    path = tmp_path_factory.mktemp("source") / "store"
    store = open_store(path)
    sent: list[Sent] = []
    for number in range(0, 320, 8):
        sent += put(store, "orders", number // 8 % 3, plain(8, first=number, tags="eu", size=18_000))
        sent += put(store, "bills", 0, plain(4, first=1000 + number))
    store.close()
    assert len(list((path / "commitlog").iterdir())) == 2
    assert findings(path) == []
    return path, sent


@pytest.fixture
def store(source: Filled, tmp_path: Path) -> Path:
    return copy_store(source[0], tmp_path / "store")


def places(store: Path) -> set[tuple[str, str, int]]:
    """Return (kind, file in the store, byte) of each finding."""
    return {(each.kind, str(each.path.relative_to(store)), each.position) for each in findings_however_split(store)}


def log_file(sent: Sent) -> str:
    return f"commitlog/{sent.physical_offset // LOG_BYTES * LOG_BYTES:020d}"


def in_log(sent: Sent) -> int:
    return sent.physical_offset % LOG_BYTES


def flip(path: Path, at: int, mask: int = 0x01) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ mask]))


def unit_place(sent: Sent, queue_offset: int | None = None) -> tuple[str, int]:
    at = (sent.queue_offset if queue_offset is None else queue_offset) * UNIT_BYTES
    start = at // SMALL.consumequeue_file_bytes * SMALL.consumequeue_file_bytes
    return f"consumequeue/{sent.topic}/{sent.queue}/{start:020d}", at - start


def index_names(store: Path) -> list[str]:
    return [f"index/{path.name}" for path in sorted((store / "index").iterdir())]


# ---- the log


def test_a_record_with_a_wrong_queue_offset_is_found(store: Path, source: Filled) -> None:
    sent = source[1][30]
    flip(store / log_file(sent), in_log(sent) + RECORD.at["queue_offset"] + 7, 0x40)
    result = places(store)
    assert ("queue-offset", log_file(sent), in_log(sent)) in result
    assert ("unit-stray", *unit_place(sent)) in result
    assert not {kind for kind, _, _ in result} & {"record", "body-crc", "index-wrong"}


def test_a_record_of_another_queue_is_found(store: Path, source: Filled) -> None:
    sent = source[1][30]
    flip(store / log_file(sent), in_log(sent) + RECORD.at["queue_id"] + 3, 0x08)
    result = places(store)
    assert ("unit-stray", *unit_place(sent)) in result
    other = f"consumequeue/{sent.topic}/{sent.queue ^ 8}"
    assert any(kind == "unit-missing" and path.startswith(other) for kind, path, _ in result)


def test_a_store_time_that_goes_back_is_found(store: Path, source: Filled) -> None:
    sent = source[1][100]
    overwrite(store / log_file(sent), in_log(sent) + RECORD.at["store_timestamp"], (10**12).to_bytes(8, "big"))
    result = places(store)
    assert ("store-time", log_file(sent), in_log(sent)) in result
    assert {kind for kind, _, _ in result} <= {"store-time", "index-wrong", "index-header"}


def test_broken_properties_are_found(store: Path, source: Filled) -> None:
    sent = source[1][100]
    blob = (store / log_file(sent)).read_bytes()
    at = blob.index(b"KEYS\x01", in_log(sent))
    overwrite(store / log_file(sent), at + 4, b"=")
    assert ("properties", log_file(sent), in_log(sent)) in places(store)


@pytest.mark.parametrize("pages", [1, 3, 40])
def test_zeroed_pages_are_found_and_the_lost_messages_are_named(store: Path, source: Filled, pages: int) -> None:
    sent = source[1][150]
    begin = in_log(sent) // 4096 * 4096
    overwrite(store / log_file(sent), begin, bytes(4096 * pages))
    result = findings_however_split(store)
    gone = [
        each
        for each in source[1]
        if log_file(each) == log_file(sent) and begin - 18_200 < in_log(each) < begin + 4096 * pages
    ]
    assert {"record", "unit-stray"} & {each.kind for each in result}
    strays = {each.physical_offset for each in result if each.kind == "unit-stray"}
    assert strays <= {each.physical_offset for each in gone} | {-1}
    damaged = [each for each in result if each.kind in ("record", "body-crc", "properties")]
    assert all(begin - 20_000 <= each.position < begin + 4096 * pages for each in damaged)


def test_a_truncated_log_file_is_found(store: Path) -> None:
    path = store / "commitlog" / f"{LOG_BYTES:020d}"
    with path.open("r+b") as file:
        file.truncate(MIB)
    result = places(store)
    assert ("file-size", f"commitlog/{path.name}", MIB) in result
    assert {kind for kind, _, _ in result} >= {"file-size", "unit-stray"}


def test_a_missing_log_file_is_found(store: Path) -> None:
    (store / "commitlog" / f"{0:020d}").unlink()
    assert ("missing-file", f"commitlog/{0:020d}", -1) in places(store)


def test_a_missing_last_log_file_is_found(store: Path) -> None:
    (store / "commitlog" / f"{LOG_BYTES:020d}").unlink()
    assert ("missing-file", f"commitlog/{LOG_BYTES:020d}", -1) in places(store)


def test_a_file_of_another_log_is_found(store: Path, source: Filled) -> None:
    shutil.copy(store / "commitlog" / f"{0:020d}", store / "commitlog" / f"{LOG_BYTES:020d}")
    result = findings_however_split(store)
    record = [each for each in result if each.kind == "record"]
    assert record[0].path.name == f"{LOG_BYTES:020d}"
    assert record[0].position == 0
    assert "the physical offset of another place" in record[0].text


@pytest.mark.parametrize("name", ["commitlog/notes.txt", "commitlog/123", "index/tmp", "consumequeue/orders/0/x"])
def test_an_unexpected_file_is_found(store: Path, name: str) -> None:
    (store / name).write_text("x")
    assert places(store) == {("foreign-file", name, -1)}


def test_a_log_file_name_that_is_no_multiple_of_the_size_is_found(store: Path) -> None:
    (store / "commitlog" / f"{LOG_BYTES:020d}").rename(store / "commitlog" / f"{LOG_BYTES + 1:020d}")
    assert ("foreign-file", f"commitlog/{LOG_BYTES + 1:020d}", -1) in places(store)


def test_bytes_after_the_end_of_the_log_are_found(store: Path) -> None:
    path = store / "commitlog" / f"{LOG_BYTES:020d}"
    overwrite(path, LOG_BYTES - 100, b"x")
    assert places(store) == {("behind-end", f"commitlog/{path.name}", LOG_BYTES - 100)}


# ---- queues


@pytest.mark.parametrize("field", ["physical_offset", "size", "tags_code"])
def test_a_changed_unit_is_found(store: Path, source: Filled, field: str) -> None:
    sent = source[1][120]
    name, at = unit_place(sent)
    flip(store / name, at + UNIT.at[field] + (7 if field != "size" else 3))
    result = places(store)
    assert ("unit-wrong", name, at) in result
    assert {kind for kind, _, _ in result} <= {"unit-wrong", "unit-order"}


def test_a_surplus_unit_is_found(store: Path, source: Filled) -> None:
    last = max((each for each in source[1] if each.topic == "bills"), key=lambda each: each.queue_offset)
    name, at = unit_place(last, last.queue_offset + 1)
    assert (store / name).exists()
    overwrite(store / name, at, UNIT.pack(last.physical_offset + 8, 100, 0))
    assert ("unit-stray", name, at) in places(store)


# ---- the index


@pytest.mark.parametrize("number", [1, 2, 77, 198])
@pytest.mark.parametrize("field", ["key_hash", "physical_offset", "seconds", "previous"])
def test_a_changed_entry_is_found(store: Path, field: str, number: int) -> None:
    name = index_names(store)[1]
    at = ENTRIES_AT + INDEX_ENTRY_BYTES * number
    flip(store / name, at + INDEX_ENTRY.at[field] + (3 if field != "physical_offset" else 7))
    result = places(store)
    if field == "seconds" and number == 1:
        assert result == set()  # never read: RocketMQ and FlintMQ write it differently
        return
    kind = "index-chain" if field == "previous" else "index-wrong"
    assert (kind, name, at) in result
    assert {path for _, path, _ in result} == {name}


@pytest.mark.parametrize("field", list(INDEX_HEADER.at))
def test_a_changed_header_is_found(store: Path, field: str) -> None:
    name = index_names(store)[1]
    at = INDEX_HEADER.at[field]
    width = next(each.width for each in INDEX_HEADER.fields if each.name == field)
    flip(store / name, at + width - 2)
    assert ("index-header", name, at) in places(store)


def test_zeroed_entries_are_the_only_findings(store: Path) -> None:
    name = index_names(store)[0]
    overwrite(store / name, ENTRIES_AT + 20 * 50, bytes(20 * 40))
    result = findings_however_split(store)
    wrong = [each for each in result if each.kind == "index-wrong"]
    assert [each.position for each in wrong] == [ENTRIES_AT + 20 * number for number in range(50, 90)]
    assert {each.kind for each in result} <= {"index-wrong", "index-chain"}


def test_a_log_without_an_index_is_at_most_one_finding_a_chunk(store: Path) -> None:
    shutil.rmtree(store / "index")
    result = findings_however_split(store)
    assert {each.kind for each in result} == {"index-missing"}
    assert len(result) < 20


# ---- the small files


def test_a_changed_mark_in_the_checkpoint_is_found(store: Path) -> None:
    flip(store / "checkpoint", CHECKPOINT_MARK_AT + 9)
    assert ("checkpoint", "checkpoint", CHECKPOINT_MARK_AT) in places(store)


def test_an_impossible_time_in_the_checkpoint_is_found(store: Path) -> None:
    flip(store / "checkpoint", CHECKPOINT.at["physic_msg_timestamp"] + 1)
    assert ("checkpoint", "checkpoint", CHECKPOINT.at["physic_msg_timestamp"]) in places(store)


def test_a_committed_offset_past_the_end_of_its_queue_is_found(store: Path) -> None:
    (store / "config" / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {"orders@readers": {"0": 5, "1": 999_999}}})
    )
    (finding,) = findings_however_split(store)
    assert finding.kind == "consumer-offset"
    assert "999,999" in finding.text


Damage = Callable[[Path, list[Sent]], None]


def test_many_kinds_of_damage_at_once_are_all_found(store: Path, source: Filled) -> None:
    body, unit = source[1][10], source[1][200]
    flip(store / log_file(body), in_log(body) + RECORD_HEAD_BYTES)
    name, at = unit_place(unit)
    flip(store / name, at + UNIT.at["tags_code"] + 7)
    index = index_names(store)[0]
    flip(store / index, ENTRIES_AT + 20 * 5 + 3)
    (store / "index" / "notes").write_text("x")
    result = places(store)
    assert {
        ("body-crc", log_file(body), in_log(body)),
        ("unit-wrong", name, at),
        ("index-wrong", index, ENTRIES_AT + 20 * 5),
        ("foreign-file", "index/notes", -1),
    } <= result
