"""Holes in the CommitLog, damage below the flushed offset: a start contains and reports them."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.protocol.storage.layout import RECORD
from tests.fault.damaged_logs import FILE_BYTES, FIRST, End, both_ends, flip_in_body, three_files, zero_64, zero_head
from tests.store_tools import (
    Sent,
    assert_contained,
    assert_holds,
    open_store,
    overwrite,
    plain,
    put,
    reopen,
    without_dispatched,
)
from tests.tools_runs import findings_however_split


def bad_magic(path: Path, sent: Sent) -> None:
    overwrite(path, sent.physical_offset % FILE_BYTES + 4, b"\xda\xa3\x20\xa8")


def longer(path: Path, sent: Sent) -> None:
    at = sent.physical_offset % FILE_BYTES
    (size,) = struct.unpack_from(">i", path.read_bytes(), at)
    overwrite(path, at, struct.pack(">i", size + 1))


def longer_body(path: Path, sent: Sent) -> None:
    overwrite(path, sent.physical_offset % FILE_BYTES + RECORD.at["body_length"], struct.pack(">i", 101))


def elsewhere(path: Path, sent: Sent) -> None:
    overwrite(path, sent.physical_offset % FILE_BYTES + 28, struct.pack(">q", sent.physical_offset + 1))


damages = pytest.mark.parametrize(
    "damage", [flip_in_body, zero_64, zero_head, bad_magic, longer, longer_body, elsewhere]
)


@both_ends
@damages
@pytest.mark.parametrize("number", [0, 30, 59])
def test_a_hole_in_flushed_records_costs_one_message(
    tmp_path: Path, damage: Callable[[Path, Sent], None], number: int, end: End
) -> None:
    """This includes the last record: it was acknowledged. ``verify`` names its place, and nothing else in the log."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(60))
    end(store)
    log = store.path / "commitlog" / FIRST
    damage(log, sent[number])
    found = [each for each in findings_however_split(store.path) if each.path == log and each.kind != "queue-offset"]
    kind, place = "body-crc" if damage is flip_in_body else "record", sent[number].physical_offset
    assert [(each.kind, each.position, each.physical_offset) for each in found] == [(kind, place, place)]
    assert_contained(store.path, sent, [sent[number]])


@both_ends
@damages
@pytest.mark.parametrize("number", [1, 30])
def test_a_hole_in_undispatched_records_is_found_by_the_missing_offset(
    tmp_path: Path, damage: Callable[[Path, Sent], None], number: int, end: End
) -> None:
    """No unit points to it: the later records reveal which message it was."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(60))
    end(store)
    (store.path / "checkpoint").write_bytes(without_dispatched(store.path / "checkpoint"))
    shutil.rmtree(store.path / "consumequeue")
    damage(store.path / "commitlog" / FIRST, sent[number])
    assert_contained(store.path, sent, [sent[number]])


@both_ends
def test_a_hole_in_an_older_file_is_contained_if_the_start_checks_it(tmp_path: Path, end: End) -> None:
    sent = three_files(tmp_path / "store", end)
    flip_in_body(tmp_path / "store" / "commitlog" / FIRST, sent[2])
    assert_contained(tmp_path / "store", sent, [sent[2]])


@both_ends
@damages
def test_without_a_mark_the_queues_prove_a_hole(tmp_path: Path, damage: Callable[[Path, Sent], None], end: End) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(60))
    end(store)
    (store.path / "checkpoint").unlink()
    damage(store.path / "commitlog" / FIRST, sent[30])
    assert_contained(store.path, sent, [sent[30]])


def test_a_large_hole_is_proved_by_a_unit_far_after_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(200))
    store.close()
    (store.path / "checkpoint").unlink()
    first, last = sent[20].physical_offset, sent[180].physical_offset
    overwrite(store.path / "commitlog" / FIRST, first, bytes(last - first))
    assert_contained(store.path, sent, sent[20:180])


def test_a_log_without_mark_and_queues_ends_at_its_first_bad_record_as_for_rocketmq(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(60))
    store.close()
    for name in ("consumequeue", "index", "flintmq"):
        shutil.rmtree(store.path / name)
    (store.path / "checkpoint").unlink()
    zero_head(store.path / "commitlog" / FIRST, sent[40])
    store, report = reopen(store.path)
    assert report.truncated_bytes > 0
    assert_holds(store, sent[:40])
    store.close()
