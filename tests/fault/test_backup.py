"""A backup holds what was on disk when it began, whatever is written meanwhile, and a restore returns exactly that."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.store import CorruptLog, MessageStore
from flintmq.broker.tools.backup import BackupError, Made, Manifest, backup, restore
from flintmq.protocol.checked_json import CHECKSUM_KEY
from flintmq.protocol.storage.layout import CHECKPOINT
from flintmq.protocol.store_files import MANIFEST, PROGRESS
from tests.store_tools import (
    MIB,
    SMALL,
    Message,
    Sent,
    append,
    assert_holds,
    dispatch,
    kill,
    open_store,
    plain,
    put,
    tree,
)
from tests.tools_runs import findings

END = Callable[[MessageStore], None]
both_ends = pytest.mark.parametrize("end", [MessageStore.close, kill], ids=["stopped", "killed"])
FIRST, SECOND, THIRD = (f"{number * SMALL.commitlog_file_bytes:020d}" for number in range(3))


class Interrupted(Exception):
    """Stops a run in the middle."""


def quiet(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


def interrupting(after: int) -> Callable[[str, int, int], None]:
    """Return a progress function that stops the run at its n-th step."""
    left = [after]

    def progress(stage: str, done: int, total: int) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Interrupted

    return progress


def some(count: int, first: int = 0) -> list[Message]:
    return plain(count, size=300_000, first=first, tags="eu")


def filled(path: Path, count: int = 30) -> tuple[MessageStore, list[Sent]]:
    """Return an open store whose log has three files, and its messages."""
    store = open_store(path)
    sent = [each for number in range(count) for each in put(store, "orders", number % 3, some(1, number))]
    store.sync_derived()
    return store, sent


def assert_restores(folder: Path, target: Path, sent: list[Sent]) -> MessageStore:
    """Check that the backup becomes a sound store that holds exactly these messages and continues; return it
    stopped."""
    restore(folder, target, quiet)
    store = open_store(target)
    assert_holds(store, sent)
    store.close()
    assert findings(target) == []
    store = open_store(target)
    more = put(store, "orders", 0, some(2, 9_000))
    assert_holds(store, sorted([*sent, *more], key=lambda each: each.physical_offset))
    store.close()
    return store


def written(folder: Path) -> dict[str, int]:
    """Return the time of the last write to each file of the log."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "commitlog").iterdir()}


@both_ends
def test_a_stopped_store_is_restored_unchanged(tmp_path: Path, end: END) -> None:
    store, sent = filled(tmp_path / "store")
    end(store)
    before = tree(tmp_path / "store")
    made = backup(tmp_path / "store", tmp_path / "backup", quiet)
    assert tree(tmp_path / "store") == before
    assert not made.manifest.running
    assert [each.path for each in made.manifest.log] == [FIRST, SECOND, THIRD]
    assert_restores(tmp_path / "backup", tmp_path / "restored", sent)


def test_a_backup_includes_messages_after_the_mark_that_survived_a_crash(tmp_path: Path) -> None:
    store, sent = filled(tmp_path / "store")
    sent += append(store, "orders", 0, some(3, 500))  # written, never flushed; the process dies, the page cache stays
    kill(store)
    backup(tmp_path / "store", tmp_path / "backup", quiet)
    assert_restores(tmp_path / "backup", tmp_path / "restored", sent)


def test_a_backup_of_a_running_broker_holds_exactly_the_messages_flushed_at_its_begin(tmp_path: Path) -> None:
    store, sent = filled(tmp_path / "store")
    late = append(store, "orders", 0, some(2, 700))
    made = backup(tmp_path / "store", tmp_path / "backup", quiet)
    assert made.manifest.running
    assert made.manifest.log_end == late[0].physical_offset
    dispatch(store)
    assert_holds(store, [*sent, *late])
    store.close()
    assert_restores(tmp_path / "backup", tmp_path / "restored", sent)


def test_a_second_backup_copies_only_new_data(tmp_path: Path) -> None:
    store, sent = filled(tmp_path / "store")
    folder = tmp_path / "backup"
    first = backup(store.path, folder, quiet)
    times = written(folder)
    sent += put(store, "orders", 1, some(20, 100))
    second = backup(store.path, folder, quiet)
    assert {name: written(folder)[name] for name in (FIRST, SECOND)} == {name: times[name] for name in (FIRST, SECOND)}
    assert second.kept_bytes == first.manifest.log_end
    assert second.copied_bytes < second.manifest.log_end - first.manifest.log_end + 100_000
    assert sorted(path.name for path in folder.iterdir()) == [MANIFEST, "commitlog", second.manifest.tables_folder]
    third = backup(store.path, folder, quiet)
    assert third.copied_bytes < 100_000
    store.close()
    assert_restores(folder, tmp_path / "restored", sent)


def all_steps(store: Path, folder: Path) -> int:
    """Return how many progress steps a complete run reports."""
    said: list[int] = []
    backup(store, folder, lambda stage, done, total: said.append(done))
    return len(said)


def test_an_interrupted_backup_is_incomplete_and_the_next_run_continues_it(tmp_path: Path) -> None:
    store, sent = filled(tmp_path / "store")
    store.close()
    steps = all_steps(store.path, tmp_path / "whole")
    assert steps >= 4
    for step in range(1, steps + 1):
        folder = tmp_path / f"backup-{step}"
        with pytest.raises(Interrupted):
            backup(store.path, folder, interrupting(step))
        with pytest.raises(BackupError, match="incomplete backup"):
            restore(folder, tmp_path / "restored", quiet)
        assert not (tmp_path / "restored").exists()
        whole = {row["path"] for row in json.loads((folder / PROGRESS).read_text())}
        assert len(whole) >= min(step - 2, 2)
        times = written(folder)
        backup(store.path, folder, quiet)
        full = whole & {FIRST, SECOND}
        assert {name: written(folder)[name] for name in full} == {name: times[name] for name in full}
        restore(folder, tmp_path / "restored", quiet)
        restored = open_store(tmp_path / "restored")
        assert_holds(restored, sent, keys=False)
        restored.close()
        shutil.rmtree(tmp_path / "restored")


def test_an_earlier_backup_stays_valid_if_the_next_is_interrupted(tmp_path: Path) -> None:
    store, sent = filled(tmp_path / "store")
    folder = tmp_path / "backup"
    backup(store.path, folder, quiet)
    later = [*sent, *put(store, "orders", 1, some(20, 100))]
    store.close()
    interrupted = 0
    for step in range(1, 5):
        try:
            backup(store.path, folder, interrupting(step))
        except Interrupted:
            interrupted += 1
        else:
            break
        restore(folder, tmp_path / f"restored-{step}", quiet)
        restored = open_store(tmp_path / f"restored-{step}")
        assert_holds(restored, sent)
        restored.close()
    assert interrupted >= 2
    backup(store.path, folder, quiet)
    assert_restores(folder, tmp_path / "restored", later)


def test_a_backup_includes_files_that_retention_deletes_during_the_copy(tmp_path: Path) -> None:
    store, sent = filled(tmp_path / "store")
    taken: list[int] = []

    def expire_once(stage: str, done: int, total: int) -> None:
        if not taken:
            taken.append(store.expire(1))

    made = backup(store.path, tmp_path / "backup", expire_once)
    assert taken == [SMALL.commitlog_file_bytes]
    assert not (store.path / "commitlog" / FIRST).exists()
    assert made.manifest.log_begin == 0
    assert_restores(tmp_path / "backup", tmp_path / "restored", sent)
    made = backup(store.path, tmp_path / "backup", quiet)  # and the next backup is without it
    assert [each.path for each in made.manifest.log] == [SECOND, THIRD]
    assert sorted(written(tmp_path / "backup")) == [SECOND, THIRD]
    store.close()
    kept = [each for each in sent if each.physical_offset >= SMALL.commitlog_file_bytes]
    assert_restores(tmp_path / "backup", tmp_path / "restored-later", kept)


def test_queue_offsets_continue_if_retention_deleted_all_messages_of_a_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    gone = put(store, "rare", 0, some(3))
    put(store, "orders", 0, some(20, 10))
    store.sync_derived()
    assert store.expire(1)
    backup(store.path, tmp_path / "backup", quiet)
    store.close()
    restore(tmp_path / "backup", tmp_path / "restored", quiet)
    store = open_store(tmp_path / "restored")
    assert store.append_offsets.next_offset("rare", 0) == len(gone)
    store.close()


def test_committed_offsets_ahead_of_the_log_are_moved_back(tmp_path: Path) -> None:
    store, _ = filled(tmp_path / "store")
    late = append(store, "orders", 0, some(2, 700))  # seen by a consumer under async flush, but not flushed
    store.consumer_offsets.commit("g", "orders", 0, late[-1].queue_offset + 1)
    store.consumer_offsets.persist()
    backup(store.path, tmp_path / "backup", quiet)
    kill(store)
    restore(tmp_path / "backup", tmp_path / "restored", quiet)
    store = open_store(tmp_path / "restored")
    assert store.consumer_offsets.committed_of("g", "orders", 0) == late[0].queue_offset
    store.close()


def test_tables_keep_their_permissions(tmp_path: Path) -> None:
    store, _ = filled(tmp_path / "store")
    store.close()
    secret = store.path / "flintmq" / "secret.json"
    secret.write_text("{}")
    secret.chmod(0o600)
    made = backup(store.path, tmp_path / "backup", quiet)
    restore(tmp_path / "backup", tmp_path / "restored", quiet)
    for folder in (tmp_path / "backup" / made.manifest.tables_folder, tmp_path / "restored"):
        assert (folder / "flintmq" / "secret.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", [f"commitlog/{FIRST}", "config/topics.json", "flintmq/more.json"])
def test_a_store_with_a_link_is_not_backed_up(tmp_path: Path, name: str) -> None:
    store, _ = filled(tmp_path / "store")
    store.close()
    path = store.path / name
    secret = tmp_path / "secret"
    secret.write_bytes(path.read_bytes() if path.exists() else b"{}")
    path.unlink(missing_ok=True)
    path.symlink_to(secret)
    with pytest.raises(OSError, match="it is a link, where a file belongs"):
        backup(store.path, tmp_path / "backup", quiet)
    assert not (tmp_path / "backup" / MANIFEST).exists()


def test_nothing_is_written_through_a_link_in_a_backup(tmp_path: Path) -> None:
    store, _ = filled(tmp_path / "store")
    backup(store.path, tmp_path / "backup", quiet)
    append(store, "orders", 0, some(2, 700))
    store.close()
    copied, elsewhere = tmp_path / "backup" / "commitlog" / THIRD, tmp_path / "elsewhere"
    before = copied.read_bytes()
    copied.rename(elsewhere)
    copied.symlink_to(elsewhere)
    with pytest.raises(OSError, match="it is a link, where a file belongs"):
        backup(store.path, tmp_path / "backup", quiet)
    assert elsewhere.read_bytes() == before


# Damage.


@pytest.fixture
def made(tmp_path: Path) -> Made:
    store, _ = filled(tmp_path / "store")
    store.close()
    return backup(store.path, tmp_path / "backup", quiet)


@pytest.mark.parametrize("kind", ["log", "last", "table"])
@pytest.mark.parametrize("how", ["changed", "cut", "missing"])
def test_a_damaged_backup_is_not_restored_and_the_file_is_named(
    tmp_path: Path, made: Made, kind: str, how: str
) -> None:
    path = {
        "log": tmp_path / "backup" / "commitlog" / FIRST,
        "last": tmp_path / "backup" / "commitlog" / THIRD,
        "table": tmp_path / "backup" / made.manifest.tables_folder / made.manifest.tables[0].path,
    }[kind]
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content if how == "changed" else content[:-1])
    with pytest.raises(BackupError) as raised:
        restore(tmp_path / "backup", tmp_path / "restored", quiet)
    assert str(path) in str(raised.value)
    assert "damaged" in str(raised.value)
    if how == "changed":
        with pytest.raises(CorruptLog, match="is missing"):
            open_store(tmp_path / "restored")
    else:
        assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"format": 2}', b'{"format": 1, "tables": [], "log": [{"path": "/etc/x"}]}']
)
def test_a_damaged_manifest_is_reported(tmp_path: Path, made: Made, content: bytes) -> None:
    (tmp_path / "backup" / MANIFEST).write_bytes(content)
    with pytest.raises(BackupError, match=MANIFEST):
        restore(tmp_path / "backup", tmp_path / "restored", quiet)


def test_a_manifest_path_cannot_leave_the_store(tmp_path: Path, made: Made) -> None:
    path = tmp_path / "backup" / MANIFEST
    table = json.loads(path.read_text().replace("config/topics.json", "../topics.json", 1))
    path.write_text(json.dumps({name: value for name, value in table.items() if name != CHECKSUM_KEY}))
    with pytest.raises(BackupError, match="is not a file of a backup"):
        Manifest.load(tmp_path / "backup")


def test_a_broker_refuses_to_start_on_a_half_restored_store(tmp_path: Path, made: Made) -> None:
    said: list[int] = []
    restore(tmp_path / "backup", tmp_path / "whole", lambda stage, done, total: said.append(done))
    for step in range(1, len(said) + 1):
        target = tmp_path / f"restored-{step}"
        with pytest.raises(Interrupted):
            restore(tmp_path / "backup", target, interrupting(step))
        with pytest.raises(CorruptLog, match="is missing"):
            open_store(target)
        with pytest.raises(BackupError, match="is not empty"):
            restore(tmp_path / "backup", target, quiet)


# Refusals.


def test_folders_without_a_store_without_a_backup_or_not_empty_are_refused(tmp_path: Path, made: Made) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BackupError, match="not a store"):
        backup(empty, tmp_path / "other", quiet)
    with pytest.raises(BackupError, match="is inside the store"):
        backup(tmp_path / "store", tmp_path / "store" / "backup", quiet)
    with pytest.raises(BackupError, match="neither empty nor a backup"):
        backup(tmp_path / "store", tmp_path / "backup" / "commitlog", quiet)
    with pytest.raises(BackupError, match="is not a backup"):
        restore(empty, tmp_path / "restored", quiet)
    with pytest.raises(BackupError, match="is not empty"):
        restore(tmp_path / "backup", tmp_path / "store", quiet)
    restore(tmp_path / "backup", empty, quiet)


def test_the_backup_of_another_store_stays_unchanged(tmp_path: Path, made: Made) -> None:
    other = open_store(tmp_path / "other")
    put(other, "bills", 0, some(30, 5_000))
    other.close()
    before = tree(tmp_path / "backup", ignore=(PROGRESS,))
    with pytest.raises(BackupError, match="another store"):
        backup(tmp_path / "other", tmp_path / "backup", quiet)
    shutil.rmtree(tmp_path / "backup" / "tables-2")
    assert tree(tmp_path / "backup", ignore=(PROGRESS,)) == before


def test_a_store_last_used_by_rocketmq_is_refused_until_flintmq_opened_it(tmp_path: Path) -> None:
    store, sent = filled(tmp_path / "store")
    store.close()
    blob = bytearray((store.path / "checkpoint").read_bytes())
    blob[: CHECKPOINT.size] = bytes(CHECKPOINT.size)
    (store.path / "checkpoint").write_bytes(blob)
    with pytest.raises(BackupError, match="RocketMQ"):
        backup(store.path, tmp_path / "backup", quiet)
    open_store(store.path).close()
    backup(store.path, tmp_path / "backup", quiet)
    assert_restores(tmp_path / "backup", tmp_path / "restored", sent)


def test_a_log_with_a_missing_file_is_refused(tmp_path: Path) -> None:
    store, _ = filled(tmp_path / "store")
    store.close()
    (store.path / "commitlog" / SECOND).unlink()
    with pytest.raises(BackupError, match="is incomplete"):
        backup(store.path, tmp_path / "backup", quiet)


@both_ends
@pytest.mark.parametrize("gone", [[FIRST], [THIRD], [FIRST, SECOND, THIRD]], ids=["first", "last", "all"])
def test_a_backup_of_a_log_with_a_missing_file_keeps_the_files_in_the_backup(
    tmp_path: Path, gone: list[str], end: END
) -> None:
    """The backup is then the only place that still has the file."""
    path, folder = tmp_path / "store", tmp_path / "backup"
    store, sent = filled(path)
    end(store)
    backup(path, folder, quiet)
    before = written(folder)
    for name in gone:
        (path / "commitlog" / name).unlink()
    for target in (folder, tmp_path / "another"):
        with pytest.raises(BackupError, match=r"incomplete between 0 and [\d,]+: a file is"):
            backup(path, target, quiet)
    assert written(folder) == before
    assert_restores(folder, tmp_path / "restored", sent)


def test_an_empty_store_can_be_backed_up(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", dataclasses.replace(SMALL, commitlog_file_bytes=8 * MIB))
    store.close()
    backup(store.path, tmp_path / "backup", quiet)
    restore(tmp_path / "backup", tmp_path / "restored", quiet)
    store = open_store(tmp_path / "restored")
    sent = put(store, "orders", 0, some(3))
    assert_holds(store, sent)
    store.close()
