"""Opening a store: its lock, its settings, the files of a new one, and an orderly stop."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.store import MessageStore, SettingMismatch, StoreLocked, StoreSettings
from tests.store_tools import (
    SMALL,
    append,
    assert_holds,
    copy_store,
    dispatch,
    kill,
    make_topic,
    open_store,
    plain,
    put,
    queue_files,
    reopen,
    tree,
)

LOCK_AND_ASK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except BlockingIOError:
    print("locked by another", flush=True)
else:
    print("free", flush=True)
    sys.stdin.read()
"""


def ask_lock(path: Path) -> subprocess.Popen[str]:
    """Start a process that requests the store's lock as Java does, and keeps it if it gets it."""
    return subprocess.Popen(
        [sys.executable, "-c", LOCK_AND_ASK, str(path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_new_store_has_all_files_of_a_store(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "store"
    store, report = reopen(path)
    assert (report.clean, report.rebuilt, report.truncated_bytes) == (True, [], 0)
    assert (path / "lock").stat().st_size == len(b"lock")
    assert (path / "abort").read_text() == str(os.getpid())
    store.close()
    assert (
        sorted(each.name for each in path.iterdir())
        == "checkpoint commitlog config consumequeue flintmq index lock".split()
    )
    assert (path / "lock").read_bytes() == b"lock"
    assert (path / "checkpoint").stat().st_size == 4096


def test_a_second_store_on_the_folder_is_refused_in_this_process(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(3))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "store")
    for path in (tmp_path / "store", link):
        with pytest.raises(StoreLocked, match=str(path)):
            open_store(path)
    with ask_lock(store.path) as other:
        assert said(other) == "locked by another"
    sent += put(store, "orders", 0, plain(3, first=3))
    store.close()
    store = open_store(tmp_path / "store")
    assert_holds(store, sent)
    store.close()


def test_a_store_that_another_process_has_is_refused_and_free_when_that_one_ends(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    store.close()
    before = tree(store.path)
    with ask_lock(store.path) as other:
        assert said(other) == "free"
        with pytest.raises(StoreLocked, match="open in another broker"):
            open_store(tmp_path / "store")
        assert other.stdin is not None
        other.stdin.close()
        assert other.wait() == 0
    assert tree(store.path) == before
    open_store(tmp_path / "store").close()


def test_a_refused_start_lets_the_lock_go(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, "orders", 0, plain(3))
    store.close()
    for _ in range(2):
        with pytest.raises(SettingMismatch):
            open_store(tmp_path / "store", dataclasses.replace(SMALL, commitlog_file_bytes=8 * 1024 * 1024))
    open_store(tmp_path / "store").close()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"commitlog_file_bytes": 8 * 1024 * 1024}, ["commitlog/00000000000000000000", "store.commitlog_file_bytes"]),
        ({"consumequeue_file_bytes": 2000}, ["consumequeue/orders/0/0000", "store.consumequeue_file_bytes=1000"]),
        ({"index_slots": 1000}, ["store/index/", "store.index_slots=500"]),
        ({"index_entries": 300}, ["store/index/", "store.index_entries=200"]),
        # A file of the same size as before:
        (
            {"index_slots": 505, "index_entries": 199},
            ["store/index/", "store.index_slots=500", "store.index_entries=200"],
        ),
    ],
)
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_another_setting_is_refused_naming_file_and_setting_and_nothing_is_changed(
    tmp_path: Path, changes: dict[str, Any], names: list[str], stopped: bool
) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(70))
    (MessageStore.close if stopped else kill)(store)
    before = tree(store.path)
    with pytest.raises(SettingMismatch) as raised:
        open_store(tmp_path / "store", dataclasses.replace(SMALL, **changes))
    for name in names:
        assert name in str(raised.value)
    assert "Nothing was changed" in str(raised.value)
    assert tree(store.path) == before
    store, report = reopen(tmp_path / "store")
    assert report.rebuilt == []
    assert_holds(store, sent)
    store.close()


@pytest.mark.parametrize("changes", [{"consumequeue_file_bytes": 2000}, {"index_slots": 1000}, {"index_entries": 300}])
def test_a_store_whose_sizes_are_not_recorded_is_refused_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    store = open_store(tmp_path / "store")
    put(store, "orders", 0, plain(70))
    put(store, "orders", 1, plain(70))
    store.close()
    shutil.rmtree(store.path / "flintmq")
    (store.path / "checkpoint").unlink()
    before = tree(store.path)
    with pytest.raises(SettingMismatch, match=next(iter(changes))):
        open_store(tmp_path / "store", dataclasses.replace(SMALL, **changes))
    assert tree(store.path) == before


def test_sizes_may_change_while_there_is_nothing_of_that_size(tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    other = StoreSettings(
        commitlog_file_bytes=8 * 1024 * 1024,
        consumequeue_file_bytes=400,
        index_slots=700,
        index_entries=90,
        allocate_step_bytes=1024 * 1024,
    )
    store = open_store(tmp_path / "store", other)
    sent = put(store, "orders", 0, plain(70))
    store.close()
    store, report = reopen(tmp_path / "store", other)
    assert report.rebuilt == []
    assert_holds(store, sent)
    store.close()


def test_a_clean_stop_leaves_nothing_to_do(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(70)) + put(store, "bills", 1, plain(300, first=70))
    store.consumer_offsets.commit("group", "orders", 0, 40)
    store.close()
    assert not (store.path / "abort").exists()
    kept = {"commitlog", "consumequeue", "index"}
    before = {name: digest for name, digest in tree(store.path).items() if name.split("/")[0] in kept}
    for _ in range(2):
        store, report = reopen(tmp_path / "store")
        assert (report.clean, report.rebuilt, report.truncated_bytes, report.messages_recovered) == (True, [], 0, 0)
        assert report.messages_checked == 370
        assert_holds(store, sent)
        assert store.consumer_offsets.committed("group", "orders") == {0: 40}
        store.close()
        assert {name: digest for name, digest in tree(store.path).items() if name.split("/")[0] in kept} == before


def test_a_close_dispatches_the_remaining_records(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    make_topic(store, "orders")
    sent = append(store, "orders", 0, plain(70))
    assert store.reput_offset == 0
    store.close()
    store, report = reopen(tmp_path / "store")
    assert (report.clean, report.messages_recovered) == (True, 0)
    assert_holds(store, sent)
    store.close()


def test_progress_is_reported_in_growing_bytes(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for queue in range(4):
        put(store, "orders", queue, plain(20, size=200_000))
    store.close()
    shutil.rmtree(store.path / "consumequeue")
    told: list[tuple[str, int, int]] = []
    store = MessageStore(store.path, SMALL)
    store.open(lambda stage, done, total: told.append((stage, done, total)))
    store.close()
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages == ["checking the log", "checking queues and index", "dispatching"]
    for stage in stages:
        done = [row[1] for row in told if row[0] == stage]
        assert done == sorted(done)
        assert all(0 <= row[1] <= row[2] for row in told if row[0] == stage)


def test_only_the_newest_part_of_a_flushed_log_is_checked(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = [each for number in range(65) for each in put(store, "orders", 0, plain(1, size=400_000, first=number))]
    store.close()
    per_file = sum(1 for each in sent if each.physical_offset < SMALL.commitlog_file_bytes)
    for verify_bytes, checked in ((0, 0), (1, 65 % per_file), (8 * 1024 * 1024, 65 % per_file + per_file)):
        path = copy_store(store.path, tmp_path / f"store-{verify_bytes}")
        again, report = reopen(path, dataclasses.replace(SMALL, verify_at_start_bytes=verify_bytes))
        assert report.messages_checked == checked, verify_bytes
        assert_holds(again, sent)
        again.close()


def test_the_first_messages_after_an_empty_start_are_there_after_a_kill(tmp_path: Path) -> None:
    for number in range(3):
        store = open_store(tmp_path / "store")
        if number == 1:
            sent = put(store, "orders", 0, plain(1))
        kill(store)
    store = open_store(tmp_path / "store")
    assert_holds(store, sent)
    assert list(queue_files(store.path)) == ["orders/0/00000000000000000000"]
    dispatch(store)
    store.close()
