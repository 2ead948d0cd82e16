"""A new log that begins where another broker's log begins, wherever the start died before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flintmq.broker.store import CorruptFile
from flintmq.broker.store.tables.store_state import ReplicaRecord
from tests.fault.dying_files import Died, DyingFiles
from tests.store_tools import Message, assert_holds, copy_store, dispatch, find, kill, open_store, plain, put

RECORD = ReplicaRecord("set-1", "b", ((3, 0), (7, 5_000_000)), False)
LARGE = [Message(bytes([number]) * 400_000, keys=(f"large-{number}",)) for number in range(30)]


def old_store(path: Path) -> Path:
    """Make a store with a log of several files, which is to begin again at the second file."""
    store = open_store(path)
    put(store, "orders", 0, plain(100))
    put(store, "orders", 1, LARGE)
    begin = store.settings.commitlog_file_bytes
    store.delay_offsets.deliver(1, 12)
    store.delay_offsets.persist()
    store.replica.restart.request(begin, RECORD)
    kill(store)
    return path


def assert_is_new(path: Path) -> None:
    store = open_store(path)
    begin = store.settings.commitlog_file_bytes
    assert (store.min_physical_offset, store.write_offset, store.reput_offset) == (begin, begin, begin)
    assert store.replica.state.record == RECORD
    assert store.delay_offsets.delivered(1) == 0
    assert find(store, "orders", "large-7") == []
    assert not (path / "flintmq/restart.json").exists()
    store.close()


def test_the_new_log_takes_over_another_one_from_its_second_file(tmp_path: Path) -> None:
    source = open_store(tmp_path / "source")
    sent = put(source, "orders", 0, plain(10)) + put(source, "orders", 1, LARGE)
    begin = source.settings.commitlog_file_bytes
    path = old_store(tmp_path / "store")
    assert_is_new(path)
    store = open_store(path)
    while store.write_offset < source.write_offset:
        at = store.write_offset
        end = source.log_copy.piece_end(at, at + 1_000_000)
        store.log_copy.append(at, source.log_copy.read(at, end))
    store.flush()
    dispatch(store)
    assert_holds(store, [each for each in sent if each.physical_offset >= begin])
    store.close()
    store = open_store(path)
    assert store.write_offset == source.write_offset
    store.close()
    source.close()


def test_a_restart_may_die_at_every_change(tmp_path: Path) -> None:
    old = old_store(tmp_path / "store")
    deaths = 0
    while True:
        path = copy_store(old, tmp_path / f"{deaths}/store")
        files = DyingFiles(deaths, half=bool(deaths % 2))
        try:
            kill(open_store(path, files=files))
        except Died:
            deaths += 1
        if not files.dead:
            break
        assert_is_new(path)
        shutil.rmtree(path.parent)
    assert deaths > 30


def test_a_log_begins_only_where_a_file_begins(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(ValueError, match="cannot begin at 1,000"):
        store.replica.restart.request(1000, RECORD)
    store.close()


@pytest.mark.parametrize(
    "text", ["", "{", '{"begin": 7, "replica": {}}', '{"begin": 0, "replica": {"epochs": [[2, 1], [1, 5]]}}']
)
def test_a_damaged_request_refuses_the_start_and_changes_nothing(tmp_path: Path, text: str) -> None:
    store = open_store(tmp_path)
    sent = put(store, "orders", 0, plain(5))
    store.close()
    request = tmp_path / "flintmq/restart.json"
    request.write_text(text)
    with pytest.raises(CorruptFile, match=r"restart\.json says where a new log begins"):
        open_store(tmp_path)
    request.unlink()
    store = open_store(tmp_path)
    assert_holds(store, sent)
    store.close()
