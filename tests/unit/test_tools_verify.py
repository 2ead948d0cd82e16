"""``verify`` finds nothing wrong with sound stores of every origin, and never changes one."""

from __future__ import annotations

import dataclasses
import shutil
import struct
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore, StoreLocked, StoreSettings
from flintmq.broker.store.files.file_system import Files
from flintmq.broker.tools.findings import KINDS, Findings
from flintmq.broker.tools.offline import OfflineStore
from flintmq.broker.tools.verify import verify
from flintmq.protocol.errors import ConfigurationError
from flintmq.protocol.storage.layout import CHECKPOINT_MARK_AT, UNIT
from flintmq.protocol.storage.record import Record
from tests.store_tools import (
    MIB,
    SMALL,
    Message,
    UnsyncedFiles,
    append,
    dispatch,
    kill,
    open_store,
    overwrite,
    plain,
    put,
    reopen,
)
from tests.tools_runs import everything, findings, verified
from tests.unit.test_store_golden import copy_sparse, pristine

__all__ = ["pristine"]


def assert_sound(path: Path, *, segment_bytes: int = 1 << 20) -> None:
    """Check that verify finds nothing and changes nothing."""
    before = everything(path)
    result = verified(path, segment_bytes=segment_bytes)
    assert list(result.findings) == []
    assert everything(path) == before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_rocketmqs_own_store_is_sound(pristine: Path, path: Path) -> None:
    copy_sparse(pristine / "store-pristine", path)
    result = verified(path, segment_bytes=1 << 17)
    assert list(result.findings) == []
    assert (result.broker, result.records, result.units) == ("RocketMQ", 552, 552)
    assert result.entries == 1119


def test_rocketmqs_own_store_is_sound_after_flintmq_served_it(pristine: Path, path: Path) -> None:
    copy_sparse(pristine / "store-pristine", path)
    store = MessageStore(path, StoreSettings(), files=UnsyncedFiles())
    store.open()
    put(store, "CompatTopic", 0, plain(100))
    store.close()
    result = verified(path, segment_bytes=1 << 17)
    assert list(result.findings) == []
    assert (result.broker, result.records) == ("FlintMQ", 652)


def test_an_empty_store_is_sound(path: Path) -> None:
    open_store(path).close()
    assert_sound(path)


def test_a_store_whose_log_rolled_with_blanks_is_sound(path: Path) -> None:
    store = open_store(path)
    for number in range(0, 60, 6):
        put(store, "big", number % 4, plain(6, size=300_000 + number, first=number))
    store.close()
    assert len(list((path / "commitlog").iterdir())) > 3
    assert_sound(path)


def test_a_store_with_every_kind_of_property_is_sound(path: Path) -> None:
    store = open_store(path)
    put(
        store,
        "orders",
        0,
        [
            Message(b"", keys=("a", "b", "a"), tags="größe"),
            Message(b"x", properties=(("名", "値"), ("empty?", " "))),
            Message(b"y" * 17, keys=("k" * 3000,)),
        ],
    )
    store.close()
    assert_sound(path)


def test_a_topic_that_was_deleted_and_made_again_is_sound(path: Path) -> None:
    store = open_store(path)
    put(store, "kept", 0, plain(30))
    put(store, "gone", 0, plain(70))
    append(store, "gone", 1, plain(5, first=900))  # not dispatched when the topic is deleted
    store.topics.remove("gone")
    store.delete_topic("gone")
    dispatch(store)
    put(store, "gone", 0, plain(9, first=500))
    put(store, "kept", 1, plain(30, first=100))
    store.close()
    assert_sound(path)
    assert_sound(path, segment_bytes=2000)


def test_a_store_whose_oldest_files_expired_is_sound(path: Path) -> None:
    store = open_store(path)
    for number in range(0, 600, 20):
        put(store, "orders", number % 3, plain(20, first=number, size=40_000))
    put(store, "old", 0, plain(3))
    store.sync_derived()
    assert store.expire(3) > 0
    store.close()
    assert not (path / "commitlog" / f"{0:020d}").exists()
    assert_sound(path)


def test_a_killed_store_is_sound_with_its_pending_work_listed(path: Path) -> None:
    store = open_store(path)
    put(store, "orders", 0, plain(100))
    store.sync_derived()
    put(store, "orders", 0, plain(50, first=100))
    append(store, "orders", 1, plain(20, first=300))
    kill(store)
    assert_sound(path)
    result = verified(path)
    assert not result.clean
    assert any("not in queues and index yet" in note for note in result.findings.notes)


def test_a_torn_last_write_is_a_note_and_no_finding(path: Path) -> None:
    store = open_store(path)
    put(store, "orders", 0, plain(100))
    end = store.write_offset
    kill(store)
    overwrite(path / "commitlog" / f"{0:020d}", end, struct.pack(">i", 500) + b"half a record")
    assert_sound(path)
    (note,) = (note for note in verified(path).findings.notes if "bytes after it" in note)
    assert f"{end:,}" in note


def test_a_cut_that_falls_into_a_body_which_looks_like_a_record_changes_nothing(path: Path) -> None:
    store = open_store(path)
    put(store, "orders", 0, plain(10))
    # The body holds records that name the offsets at which they really are.
    inner_at = store.write_offset + 88
    inner = b""
    while len(inner) < 40_000:
        inner += Record(b"fake", b"z" * 150, physical_offset=inner_at + len(inner), store_timestamp=1).encode()
    (sent,) = put(store, "orders", 1, [Message(inner, keys=("outer",))])
    put(store, "orders", 0, plain(10, first=10))
    store.close()
    assert sent.physical_offset + 88 == inner_at
    for segment_bytes in (600, 5_000, 12_000):
        assert_sound(path, segment_bytes=segment_bytes)
    overwrite(path / "commitlog" / f"{0:020d}", inner_at + 20_000, b"!")
    for segment_bytes in (600, 5_000):
        (finding,) = findings(path, segment_bytes=segment_bytes)
        assert (finding.kind, finding.position) == ("body-crc", sent.physical_offset)


@pytest.mark.parametrize("segment_bytes", [2_000, 1 << 20])
def test_a_topic_that_rocketmq_deleted_and_made_again_is_sound(path: Path, segment_bytes: int) -> None:
    store = open_store(path)
    put(store, "kept", 0, plain(20))
    put(store, "orders", 0, plain(40))
    put(store, "orders", 1, plain(7, first=100))
    # RocketMQ forgets the offsets of a deleted topic: the new topic counts from 0 again and has only its own queues.
    store.append_offsets.advance("orders", 0, 0)
    sent = put(store, "orders", 0, plain(15, first=500))
    store.close()
    shutil.rmtree(path / "flintmq")
    overwrite(path / "checkpoint", CHECKPOINT_MARK_AT, bytes(24))
    shutil.rmtree(path / "consumequeue" / "orders" / "1")
    log = (path / "commitlog" / f"{0:020d}").read_bytes()
    units = b"".join(
        UNIT.pack(each.physical_offset, *struct.unpack_from(">i", log, each.physical_offset), 0) for each in sent
    )
    queue = path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    overwrite(queue, 0, units.ljust(SMALL.consumequeue_file_bytes, b"\0"))
    result = verify(path, lambda done, total: None, index_slots=SMALL.index_slots, segment_bytes=segment_bytes)
    assert list(result.findings) == []
    assert any("deleted and created again" in note for note in result.findings.notes)
    overwrite(queue, 20 * 3, UNIT.pack(7, 100, 0))
    result = verify(path, lambda done, total: None, index_slots=SMALL.index_slots, segment_bytes=segment_bytes)
    assert {(finding.kind, finding.position) for finding in result.findings} >= {("unit-wrong", 60)}


def test_a_store_that_a_broker_has_open_is_refused(path: Path) -> None:
    store = open_store(path)
    with pytest.raises(StoreLocked, match="Stop it first"):
        verified(path)
    store.close()
    assert_sound(path)


def test_no_broker_starts_while_a_store_is_verified(path: Path) -> None:
    open_store(path).close()
    with OfflineStore(path, Findings()), pytest.raises(StoreLocked):
        open_store(path)
    open_store(path).close()


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a store"):
        verified(tmp_path)


def test_the_sizes_of_a_store_without_flintmqs_notes_are_found_from_its_files(path: Path) -> None:
    store = open_store(path)
    put(store, "orders", 0, plain(300))
    store.close()
    shutil.rmtree(path / "flintmq")
    with pytest.raises(ConfigurationError, match="--index-slots"):
        verified(path)
    with OfflineStore(path, Findings(), index_slots=SMALL.index_slots) as offline:
        assert dataclasses.replace(SMALL, commitlog_file_bytes=4 * MIB) == dataclasses.replace(
            offline.settings, allocate_step_bytes=SMALL.allocate_step_bytes
        )
    with pytest.raises(ConfigurationError, match="does not fit"):
        OfflineStore(path, Findings(), index_slots=SMALL.index_slots + 1)


def test_a_tool_that_reads_can_neither_write_nor_make_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    open_store(tmp_path / "store").close()
    with OfflineStore(tmp_path / "store", Findings()) as offline:
        files: Files = offline.files
        fd = files.open(path)
        with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument"):
            files.resize(fd, 1)
        with pytest.raises(AssertionError):
            files.write(fd, b"x", 0)
        with pytest.raises(AssertionError):
            files.open(tmp_path / "new", create=True)
        view = files.map(fd, 4096)
        view[:1] = b"x"
        view.close()
        files.close(fd)
    assert path.read_bytes() == bytes(4096)


def test_every_kind_of_finding_has_an_effect_and_a_remedy() -> None:
    for kind in KINDS.values():
        assert kind.title
        assert len(kind.why) > 10
        assert kind.remedy


def test_a_reopened_store_stays_sound(path: Path) -> None:
    for number in range(3):
        store, report = reopen(path)
        assert report.rebuilt == []
        put(store, "orders", number, plain(150, first=1000 * number, tags="a"))
        store.close()
        assert_sound(path)
