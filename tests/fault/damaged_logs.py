"""Stores with a log of several files, and ways to damage them."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore, StoreSettings
from tests.store_tools import SMALL, Sent, kill, open_store, overwrite, plain, put, without_dispatched

FILE_BYTES = SMALL.commitlog_file_bytes
FIRST, SECOND, THIRD = (f"{number * FILE_BYTES:020d}" for number in range(3))
End = Callable[[MessageStore], None]
CHECKSUMMED = dataclasses.replace(SMALL, record_checksum=True)
both_settings = pytest.mark.parametrize("settings", [SMALL, CHECKSUMMED], ids=["plain", "checksummed"])
both_ends = pytest.mark.parametrize("end", [MessageStore.close, kill], ids=["stopped", "killed"])


def three_files(path: Path, end: End) -> list[Sent]:
    """Return a store whose log has three files."""
    store = open_store(path)
    sent = [
        each for number in range(24) for each in put(store, "orders", number % 4, plain(1, size=400_000, first=number))
    ]
    assert sorted(each.name for each in (path / "commitlog").iterdir()) == [FIRST, SECOND, THIRD]
    end(store)
    return sent


def flip_in_body(path: Path, sent: Sent) -> None:
    """Flip one bit of a message's body."""
    at = sent.physical_offset % FILE_BYTES + 100
    held = path.read_bytes()[at]
    overwrite(path, at, bytes([held ^ 1]))


def zero_64(path: Path, sent: Sent) -> None:
    overwrite(path, sent.physical_offset % FILE_BYTES + 30, bytes(64))


def zero_head(path: Path, sent: Sent) -> None:
    overwrite(path, sent.physical_offset % FILE_BYTES, bytes(64))


def undispatched(path: Path) -> None:
    """Remove the derived files, so that only the log says which messages there are."""
    shutil.rmtree(path / "consumequeue")
    (path / "checkpoint").write_bytes(without_dispatched(path / "checkpoint"))


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Flip one bit in a log's first file."""
    log = path / "commitlog" / FIRST
    overwrite(log, at, bytes([log.read_bytes()[at] ^ 1 << bit]))


def two_topics(path: Path, *, size: int = 100, frames: int = 60, settings: StoreSettings = SMALL) -> list[Sent]:
    """Return a stopped store with interleaved messages of two topics and three queues."""
    store = open_store(path, settings)
    source, sent = random.Random(1), []
    for number in range(frames):
        topic, queue = source.choice([("orders", 0), ("orders", 1), ("bills", 0)])
        count = source.randrange(1, 6)
        sent += put(store, topic, queue, plain(count, size=source.randrange(8, 2 * size), first=10 * number))
    store.close()
    return sent
