"""The checkpoint: RocketMQ's times, FlintMQ's mark, and which of them recovery trusts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flintmq.broker.store.tables.checkpoint import Mark, StoreCheckpoint
from flintmq.protocol.storage.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES
from tests.store_tools import UnsyncedFiles, append, open_store, plain, put

NOW_MS = int(time.time() * 1000)


def load(path: Path) -> StoreCheckpoint:
    checkpoint = StoreCheckpoint(UnsyncedFiles(), path)
    checkpoint.load()
    return checkpoint


def write(path: Path) -> StoreCheckpoint:
    """Write a checkpoint with a mark."""
    checkpoint = load(path)
    checkpoint.create()
    checkpoint.reset(flushed_offset=1000, dispatched_offset=900, physic_ms=NOW_MS, logics_ms=NOW_MS - 5, index_ms=0)
    checkpoint.close()
    return checkpoint


def times_of(path: Path) -> tuple[int, ...]:
    fields: tuple[int, ...] = CHECKPOINT.unpack(path.read_bytes())
    return fields


def test_a_mark_and_the_times_come_back(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write(path)
    assert path.stat().st_size == CHECKPOINT_FILE_BYTES
    assert times_of(path) == (NOW_MS, NOW_MS - 5, 0, 0, 0)
    checkpoint = load(path)
    assert checkpoint.mark == Mark(1000, 900)
    assert (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) == (NOW_MS, NOW_MS - 5)


def test_no_file_and_zeros_are_no_mark_and_reading_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert load(path).mark is None
    assert not path.exists()
    for content in (b"", bytes(10), bytes(CHECKPOINT_FILE_BYTES)):
        path.write_bytes(content)
        checkpoint = load(path)
        assert (checkpoint.mark, checkpoint.physic_msg_timestamp) == (None, 0)


def test_times_of_rocketmq_are_taken_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(CHECKPOINT.pack(NOW_MS, NOW_MS - 1, NOW_MS - 2, 77, 88).ljust(CHECKPOINT_FILE_BYTES, b"\0"))
    checkpoint = load(path)
    assert checkpoint.mark is None
    assert (checkpoint.physic_msg_timestamp, checkpoint.index_msg_timestamp) == (NOW_MS, NOW_MS - 2)
    checkpoint.create()
    checkpoint.flushed(500, NOW_MS + 10)
    checkpoint.dispatched(500, 400, NOW_MS + 5, 0)
    checkpoint.close()
    assert times_of(path) == (NOW_MS + 10, NOW_MS + 5, NOW_MS - 2, 77, 88)
    assert load(path).mark == Mark(500, 400)


@pytest.mark.parametrize(
    "physic", [-1, NOW_MS * 1000, -(2**63), 2**63 - 1], ids=["negative", "microseconds", "least", "greatest"]
)
def test_an_invalid_time_invalidates_the_checkpoint(tmp_path: Path, physic: int) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(CHECKPOINT.pack(physic, NOW_MS, NOW_MS, 77, 88).ljust(CHECKPOINT_FILE_BYTES, b"\0"))
    checkpoint = load(path)
    assert (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp) == (
        0,
        0,
        0,
    )


def test_flushes_and_syncs_move_the_mark(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    path = store.path / "checkpoint"
    assert load(path).mark == Mark(0, 0)
    sent = put(store, "orders", 0, plain(3))
    end = store.write_offset
    assert load(path).mark == Mark(end, 0)
    store.sync_derived()
    assert load(path).mark == Mark(end, end)
    assert times_of(path)[:3] == (sent[-1].store_ms, sent[-1].store_ms, 0)
    append(store, "orders", 0, plain(300))
    assert load(path).mark == Mark(end, end)
    store.close()
    assert load(path).mark == Mark(store.write_offset, store.write_offset)
    assert times_of(path)[2] != 0
