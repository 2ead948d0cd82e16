"""A bucket that is away: who asks for the first offset of a queue waits for it once, and not for each queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.broker.archive import reads
from flintmq.broker.archive.reads import ArchivedReads
from flintmq.broker.store.errors import InArchive
from flintmq.protocol.storage.archive.objects import Objects, ObjectStoreUnavailable
from tests.archive_tools import make_archive, orders, placed


class _Away(Objects):
    """Objects of which no request is answered, until ``is_back``."""

    is_back = False
    attempts = 0

    def get(self, name: str) -> bytes:
        self.attempts += 1
        if not self.is_back:
            raise ObjectStoreUnavailable(f"cannot get {name}")
        return super().get(name)


def test_after_a_failure_nobody_waits_until_it_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_archive(Objects(tmp_path), placed(orders(20)))
    now = 1_000.0
    monkeypatch.setattr("flintmq.broker.archive.reads.time.monotonic", lambda: now)
    away = _Away(tmp_path)
    archived = ArchivedReads(away, lambda: None)

    def first(queue_id: int) -> int | None:
        return archived.threads.submit(archived.first_offset, "orders", queue_id, 0, hot=True).result()

    with pytest.raises(InArchive):
        archived.first_offset("orders", 0, 0, hot=True)
    assert [first(queue_id) for queue_id in range(4)] == [None] * 4
    assert archived.first_offset("orders", 0, 0, hot=True) is None
    assert away.attempts == 1
    away.is_back = True
    now += reads.FAILED_S
    assert [first(queue_id) for queue_id in range(3)] == [0, 0, None]
    assert archived.known_first("orders", 1, 0) == 0
    assert archived.known_first("orders", 1, 1) is None
    archived.close()
