"""CommitLog files that are missing, renamed, or of a wrong size: a start refuses them by name, or loses only what they
lack."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

from flintmq.broker.store import CorruptLog, MessageStore, SettingMismatch
from tests.fault.damaged_logs import FILE_BYTES, FIRST, SECOND, THIRD, End, both_ends, three_files
from tests.store_tools import (
    assert_contained,
    assert_holds,
    kill,
    lost_of,
    open_store,
    overwrite,
    plain,
    put,
    reopen,
    tree,
)


def assert_refused(path: Path, error: type[Exception], *names: str) -> None:
    """Check that the start is refused at every try, that the message has all of ``names``, and that no byte changes."""
    before = tree(path)
    for _ in range(2):
        with pytest.raises(error) as raised:
            open_store(path)
        for name in names:
            assert name in str(raised.value), raised.value
        assert tree(path) == before


@both_ends
@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
def test_a_missing_file_is_refused_by_name(tmp_path: Path, name: str, end: End) -> None:
    three_files(tmp_path / "store", end)
    (tmp_path / "store" / "commitlog" / name).unlink()
    assert_refused(tmp_path / "store", CorruptLog, name, "missing", "Restore it from a backup", "othing was changed")


@both_ends
def test_a_log_without_any_file_is_refused(tmp_path: Path, end: End) -> None:
    three_files(tmp_path / "store", end)
    shutil.rmtree(tmp_path / "store" / "commitlog")
    assert_refused(tmp_path / "store", CorruptLog, FIRST, "missing")


@both_ends
@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
def test_a_file_that_is_too_long_is_refused_with_name_and_setting(tmp_path: Path, name: str, end: End) -> None:
    three_files(tmp_path / "store", end)
    with (tmp_path / "store" / "commitlog" / name).open("r+b") as file:
        file.truncate(FILE_BYTES + 4096)
    assert_refused(
        tmp_path / "store", SettingMismatch, name, f"{FILE_BYTES + 4096:,} bytes", "store.commitlog_file_bytes"
    )


@both_ends
@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
@pytest.mark.parametrize("size", [0, 1, 1_000_000, FILE_BYTES - 1])
def test_a_truncated_file_loses_only_the_messages_at_its_end(tmp_path: Path, name: str, size: int, end: End) -> None:
    sent = three_files(tmp_path / "store", end)
    with (tmp_path / "store" / "commitlog" / name).open("r+b") as file:
        file.truncate(size)
    lost = [each for each in sent if each.physical_offset // FILE_BYTES == int(name) // FILE_BYTES]
    lost = [each for each in lost if each.physical_offset % FILE_BYTES + 400_000 > size]
    assert_contained(tmp_path / "store", sent, lost, exact=False)
    assert (tmp_path / "store" / "commitlog" / name).stat().st_size == FILE_BYTES


def test_a_short_file_of_a_store_without_a_recorded_file_size_is_refused(tmp_path: Path) -> None:
    """The store may have been created with another setting."""
    three_files(tmp_path / "store", MessageStore.close)
    shutil.rmtree(tmp_path / "store" / "flintmq")
    with (tmp_path / "store" / "commitlog" / SECOND).open("r+b") as file:
        file.truncate(FILE_BYTES - 4096)
    assert_refused(tmp_path / "store", SettingMismatch, SECOND, "store.commitlog_file_bytes")


def test_an_empty_file_after_the_log_is_removed(tmp_path: Path) -> None:
    sent = three_files(tmp_path / "store", MessageStore.close)
    extra = tmp_path / "store" / "commitlog" / f"{3 * FILE_BYTES:020d}"
    extra.write_bytes(b"")
    store = open_store(tmp_path / "store")
    assert_holds(store, sent)
    assert not extra.exists()
    store.close()


@both_ends
def test_swapped_files_are_refused_with_both_offsets(tmp_path: Path, end: End) -> None:
    three_files(tmp_path / "store", end)
    folder = tmp_path / "store" / "commitlog"
    (folder / FIRST).rename(folder / "aside")
    (folder / SECOND).rename(folder / FIRST)
    (folder / "aside").rename(folder / SECOND)
    assert_refused(tmp_path / "store", CorruptLog, FIRST, f"{FILE_BYTES:,}", "another log or was renamed")


@both_ends
@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
def test_a_renamed_file_is_refused(tmp_path: Path, name: str, end: End) -> None:
    three_files(tmp_path / "store", end)
    folder = tmp_path / "store" / "commitlog"
    (folder / name).rename(folder / f"{9 * FILE_BYTES:020d}")
    assert_refused(tmp_path / "store", CorruptLog, name if name != FIRST else f"{9 * FILE_BYTES:020d}", "is missing")


@both_ends
@pytest.mark.parametrize("offset", [1, 4096, FILE_BYTES // 2])
def test_a_file_name_that_is_no_multiple_of_the_size_is_refused(tmp_path: Path, offset: int, end: End) -> None:
    three_files(tmp_path / "store", end)
    folder = tmp_path / "store" / "commitlog"
    shutil.copy(folder / THIRD, folder / f"{3 * FILE_BYTES + offset:020d}")
    assert_refused(tmp_path / "store", CorruptLog, f"{3 * FILE_BYTES + offset:020d}", "not a multiple")


@both_ends
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_file_of_another_store_is_refused_at_any_place(tmp_path: Path, number: int, end: End) -> None:
    """Even after the log's end, where recovery would cut it off: the user may need its data."""
    three_files(tmp_path / "store", end)
    three_files(tmp_path / "other", MessageStore.close)
    target = tmp_path / "store" / "commitlog" / f"{number * FILE_BYTES:020d}"
    foreign = SECOND if number == 0 else FIRST
    shutil.copy(tmp_path / "other" / "commitlog" / foreign, target)
    assert_refused(tmp_path / "store", CorruptLog, target.name, "belongs to another log")


def test_a_hole_unknown_to_an_old_checkpoint_costs_no_file(tmp_path: Path) -> None:
    """The checkpoint came from a backup: recovery must not call the files after the hole foreign, and a user who
    follows the advice loses nothing of them."""
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(3))
    store.sync_derived()
    old = (path / "checkpoint").read_bytes()
    sent += [each for number in range(30) for each in put(store, "orders", 0, plain(1, size=300_000, first=3 + number))]
    store.close()
    (path / "checkpoint").write_bytes(old)
    overwrite(path / "commitlog" / FIRST, sent[5].physical_offset + 200, b"damage")
    with pytest.raises(CorruptLog, match=r"checkpoint is too old to show that it.*Move the checkpoint away"):
        open_store(path)
    (path / "checkpoint").unlink()
    store, report = reopen(path)
    assert lost_of(report) == {("orders", 0, 5)}
    assert_holds(store, [*sent[:5], *sent[6:]])
    store.close()


def test_records_after_the_end_of_a_closed_log_are_refused(tmp_path: Path) -> None:
    """The file would fit if this log had grown as the other did."""
    path = tmp_path / "store"
    three_files(tmp_path / "other", MessageStore.close)
    store = open_store(path)
    put(store, "orders", 0, plain(3))
    store.close()
    shutil.copy(tmp_path / "other" / "commitlog" / SECOND, path / "commitlog" / SECOND)
    assert_refused(path, CorruptLog, SECOND, "does not belong to this log")


@both_ends
@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
@pytest.mark.parametrize(
    "head", [bytes(100), b"\xff" * 100, random.Random(3).randbytes(100)], ids=["zeros", "ones", "random"]
)
def test_a_file_without_a_record_at_its_beginning_loses_its_first_message(
    tmp_path: Path, name: str, head: bytes, end: End
) -> None:
    sent = three_files(tmp_path / "store", end)
    overwrite(tmp_path / "store" / "commitlog" / name, 0, head)
    assert_contained(tmp_path / "store", sent, [each for each in sent if each.physical_offset == int(name)])


@both_ends
def test_a_first_record_with_a_wrong_offset_does_not_make_its_file_foreign(tmp_path: Path, end: End) -> None:
    sent = three_files(tmp_path / "store", end)
    overwrite(tmp_path / "store" / "commitlog" / SECOND, 28, struct.pack(">q", 77))
    assert_contained(tmp_path / "store", sent, [each for each in sent if each.physical_offset == FILE_BYTES])


@both_ends
def test_a_missing_last_file_is_noticed_even_without_a_checkpoint(tmp_path: Path, end: End) -> None:
    three_files(tmp_path / "store", end)
    (tmp_path / "store" / "checkpoint").unlink()
    (tmp_path / "store" / "commitlog" / THIRD).unlink()
    assert_refused(
        tmp_path / "store", CorruptLog, f"{2 * FILE_BYTES:,}", "at least one file is missing", "consumequeue/orders/"
    )


def test_other_files_beside_the_log_stay_unchanged(tmp_path: Path) -> None:
    sent = three_files(tmp_path / "store", MessageStore.close)
    others = {
        "abort.bak": b"1",
        "commitlog/notes.txt": b"mine",
        "compaction/x": b"y",
        "config/consumerFilter.json": b"{}",
        "config/subscriptionGroup.json": b"{}",
        "config/timercheck": bytes(56),
        "consumequeue/%LMQ%device/0/00000000000000000000": b"light",
        "consumequeue/orders/notes": b"mine",
        "consumequeue_ext/a/0/00000000000000000000": b"ext",
        "index/notes": b"mine",
        "timerlog/00000000000000000000": b"log",
        "timermetrics": b"{}",
        "timerwheel": b"wheel",
    }
    for name, content in others.items():
        (tmp_path / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / name).write_bytes(content)
    for end in (kill, MessageStore.close):
        store, report = reopen(tmp_path / "store")
        assert report.rebuilt == []
        assert_holds(store, sent)
        end(store)
        for name, content in others.items():
            assert (tmp_path / "store" / name).read_bytes() == content
