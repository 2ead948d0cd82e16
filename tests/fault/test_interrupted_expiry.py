"""A process that dies while retention deletes files: the next one opens a complete store, and no deleted message comes
back."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore
from tests.fault.dying_files import Died, DyingFiles
from tests.store_tools import SMALL, Sent, assert_holds, copy_store, kill, open_store, plain, pull_all, put, reopen


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sent]]:
    """Return a store of four files, with one queue whose messages are all in the first."""
    store = open_store(tmp_path_factory.mktemp("filled") / "store")
    sent = put(store, "bills", 0, plain(5))
    for number in itertools.count():
        if len(store.commitlog.queue.files) == 4:
            break
        sent += put(store, "orders", number % 2, plain(20, size=30_000, first=20 * number))
    store.close()
    return store.path, sent


def test_a_store_is_complete_wherever_its_expiry_was_interrupted(
    filled: tuple[Path, list[Sent]], tmp_path: Path
) -> None:
    source, sent = filled
    starts = set()
    for lives in itertools.count():
        path = copy_store(source, tmp_path / f"store-{lives}")
        files = DyingFiles(1 << 30)
        store = MessageStore(path, SMALL, files=files)
        store.open()
        files.lives = lives
        with contextlib.suppress(Died):
            store.expire(3)
        died = files.dead
        files.lives = 1 << 30
        kill(store)
        store, report = reopen(path)
        assert report.rebuilt == []
        starts.add(store.min_physical_offset)
        left = [each for each in sent if each.physical_offset >= store.min_physical_offset]
        assert_holds(store, left)
        if not any(each.topic == "bills" for each in left):
            assert list(pull_all(store, "bills", 0)) == []
        assert put(store, "bills", 0, plain(1))[0].queue_offset == 5
        store.close()
        if not died:
            break
    assert starts == {number * SMALL.commitlog_file_bytes for number in range(4)}


def test_a_state_damaged_right_after_an_expiry_reports_no_missing_file(
    filled: tuple[Path, list[Sent]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, sent = filled
    path = copy_store(source, tmp_path / "store")
    store = open_store(path)
    store.expire(2)
    kill(store)
    (path / "flintmq" / "state.json").write_bytes(b"{")
    store, _ = reopen(path)
    assert "state.json.bak instead" in caplog.text
    assert store.min_physical_offset == 2 * SMALL.commitlog_file_bytes
    assert_holds(store, [each for each in sent if each.physical_offset >= store.min_physical_offset])
    store.close()
