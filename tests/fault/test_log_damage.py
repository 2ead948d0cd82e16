"""Damage of the CommitLog: a start contains and reports damage of flushed records, and cuts off a torn tail for
good."""

from __future__ import annotations

import dataclasses
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.store import CorruptLog, MessageStore, SettingMismatch
from flintmq.protocol.storage.layout import UNIT_BYTES
from flintmq.protocol.storage.record import Record
from tests.store_tools import (
    SMALL,
    Message,
    Sent,
    append,
    assert_contained,
    assert_holds,
    dispatch,
    find,
    kill,
    lost_of,
    open_store,
    overwrite,
    plain,
    pull_all,
    put,
    reopen,
    restore,
    save,
    tree,
    without_dispatched,
)

FILE_BYTES = SMALL.commitlog_file_bytes
FIRST, SECOND, THIRD = (f"{number * FILE_BYTES:020d}" for number in range(3))
END = Callable[[MessageStore], None]
both_ends = pytest.mark.parametrize("end", [MessageStore.close, kill], ids=["stopped", "killed"])


def three_files(path: Path, end: END) -> list[Sent]:
    """Return a store whose log has three files."""
    store = open_store(path)
    sent = [
        each for number in range(24) for each in put(store, "orders", number % 4, plain(1, size=400_000, first=number))
    ]
    assert sorted(each.name for each in (path / "commitlog").iterdir()) == [FIRST, SECOND, THIRD]
    end(store)
    return sent


def assert_refused(path: Path, error: type[Exception], *names: str) -> None:
    """Check that the start is refused at every try, that the message has all of ``names``, and that no byte changes."""
    before = tree(path)
    for _ in range(2):
        with pytest.raises(error) as raised:
            open_store(path)
        for name in names:
            assert name in str(raised.value), raised.value
        assert tree(path) == before


# A file with the wrong size, name or content.


@both_ends
@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
def test_a_missing_file_is_refused_by_name(tmp_path: Path, name: str, end: END) -> None:
    three_files(tmp_path / "store", end)
    (tmp_path / "store" / "commitlog" / name).unlink()
    assert_refused(tmp_path / "store", CorruptLog, name, "missing", "Restore it from a backup", "othing was changed")


@both_ends
def test_a_log_without_any_file_is_refused(tmp_path: Path, end: END) -> None:
    three_files(tmp_path / "store", end)
    shutil.rmtree(tmp_path / "store" / "commitlog")
    assert_refused(tmp_path / "store", CorruptLog, FIRST, "missing")


@both_ends
@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
def test_a_file_that_is_too_long_is_refused_with_name_and_setting(tmp_path: Path, name: str, end: END) -> None:
    three_files(tmp_path / "store", end)
    with (tmp_path / "store" / "commitlog" / name).open("r+b") as file:
        file.truncate(FILE_BYTES + 4096)
    assert_refused(
        tmp_path / "store", SettingMismatch, name, f"{FILE_BYTES + 4096:,} bytes", "store.commitlog_file_bytes"
    )


@both_ends
@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
@pytest.mark.parametrize("size", [0, 1, 1_000_000, FILE_BYTES - 1])
def test_a_truncated_file_loses_only_the_messages_at_its_end(tmp_path: Path, name: str, size: int, end: END) -> None:
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
def test_swapped_files_are_refused_with_both_offsets(tmp_path: Path, end: END) -> None:
    three_files(tmp_path / "store", end)
    folder = tmp_path / "store" / "commitlog"
    (folder / FIRST).rename(folder / "aside")
    (folder / SECOND).rename(folder / FIRST)
    (folder / "aside").rename(folder / SECOND)
    assert_refused(tmp_path / "store", CorruptLog, FIRST, f"{FILE_BYTES:,}", "another log or was renamed")


@both_ends
@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
def test_a_renamed_file_is_refused(tmp_path: Path, name: str, end: END) -> None:
    three_files(tmp_path / "store", end)
    folder = tmp_path / "store" / "commitlog"
    (folder / name).rename(folder / f"{9 * FILE_BYTES:020d}")
    assert_refused(tmp_path / "store", CorruptLog, name if name != FIRST else f"{9 * FILE_BYTES:020d}", "is missing")


@both_ends
@pytest.mark.parametrize("offset", [1, 4096, FILE_BYTES // 2])
def test_a_file_name_that_is_no_multiple_of_the_size_is_refused(tmp_path: Path, offset: int, end: END) -> None:
    three_files(tmp_path / "store", end)
    folder = tmp_path / "store" / "commitlog"
    shutil.copy(folder / THIRD, folder / f"{3 * FILE_BYTES + offset:020d}")
    assert_refused(tmp_path / "store", CorruptLog, f"{3 * FILE_BYTES + offset:020d}", "not a multiple")


@both_ends
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_file_of_another_store_is_refused_at_any_place(tmp_path: Path, number: int, end: END) -> None:
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
    tmp_path: Path, name: str, head: bytes, end: END
) -> None:
    sent = three_files(tmp_path / "store", end)
    overwrite(tmp_path / "store" / "commitlog" / name, 0, head)
    assert_contained(tmp_path / "store", sent, [each for each in sent if each.physical_offset == int(name)])


@both_ends
def test_a_first_record_with_a_wrong_offset_does_not_make_its_file_foreign(tmp_path: Path, end: END) -> None:
    sent = three_files(tmp_path / "store", end)
    overwrite(tmp_path / "store" / "commitlog" / SECOND, 28, struct.pack(">q", 77))
    assert_contained(tmp_path / "store", sent, [each for each in sent if each.physical_offset == FILE_BYTES])


@both_ends
def test_a_missing_last_file_is_noticed_even_without_a_checkpoint(tmp_path: Path, end: END) -> None:
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


# Holes: damage below the flushed offset.


def flip_in_body(path: Path, sent: Sent) -> None:
    """Flip one bit of a message's body."""
    at = sent.physical_offset % FILE_BYTES + 100
    held = path.read_bytes()[at]
    overwrite(path, at, bytes([held ^ 1]))


def zero_64(path: Path, sent: Sent) -> None:
    overwrite(path, sent.physical_offset % FILE_BYTES + 30, bytes(64))


def zero_head(path: Path, sent: Sent) -> None:
    overwrite(path, sent.physical_offset % FILE_BYTES, bytes(64))


def bad_magic(path: Path, sent: Sent) -> None:
    overwrite(path, sent.physical_offset % FILE_BYTES + 4, b"\xda\xa3\x20\xa8")


def longer(path: Path, sent: Sent) -> None:
    at = sent.physical_offset % FILE_BYTES
    (size,) = struct.unpack_from(">i", path.read_bytes(), at)
    overwrite(path, at, struct.pack(">i", size + 1))


def elsewhere(path: Path, sent: Sent) -> None:
    overwrite(path, sent.physical_offset % FILE_BYTES + 28, struct.pack(">q", sent.physical_offset + 1))


damages = pytest.mark.parametrize("damage", [flip_in_body, zero_64, zero_head, bad_magic, longer, elsewhere])


@both_ends
@damages
@pytest.mark.parametrize("number", [0, 30, 59])
def test_a_hole_in_flushed_records_costs_one_message(
    tmp_path: Path, damage: Callable[[Path, Sent], None], number: int, end: END
) -> None:
    """This includes the last record: it was acknowledged."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(60))
    end(store)
    damage(store.path / "commitlog" / FIRST, sent[number])
    assert_contained(store.path, sent, [sent[number]])


@both_ends
@damages
@pytest.mark.parametrize("number", [1, 30])
def test_a_hole_in_undispatched_records_is_found_by_the_missing_offset(
    tmp_path: Path, damage: Callable[[Path, Sent], None], number: int, end: END
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
def test_a_hole_in_an_older_file_is_contained_if_the_start_checks_it(tmp_path: Path, end: END) -> None:
    sent = three_files(tmp_path / "store", end)
    flip_in_body(tmp_path / "store" / "commitlog" / FIRST, sent[2])
    assert_contained(tmp_path / "store", sent, [sent[2]])


@both_ends
@damages
def test_without_a_mark_the_queues_prove_a_hole(tmp_path: Path, damage: Callable[[Path, Sent], None], end: END) -> None:
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


# The torn tail: records that were written and never flushed.


def end_of(log: Path) -> int:
    """Return the offset after the last byte that is not zero."""
    return len(log.read_bytes().rstrip(b"\0"))


def torn_stores(tmp_path: Path) -> tuple[Path, list[Sent], Sent, int]:
    """Yield killed stores whose last record was never flushed, with its end."""
    store = open_store(tmp_path / "whole")
    sent = put(store, "orders", 0, plain(20)) + put(store, "orders", 1, plain(20, first=20))
    last = append(store, "orders", 0, [Message(b"the last one", keys=("last",), tags="eu")])[0]
    end = store.write_offset
    kill(store)
    return store.path, sent, last, end


def test_a_complete_last_record_is_kept(tmp_path: Path) -> None:
    path, sent, last, end = torn_stores(tmp_path)
    store, report = reopen(path)
    assert (report.truncated_bytes, store.write_offset, store.flushed_offset) == (0, end, end)
    assert_holds(store, [*sent, last])
    store.close()


@pytest.mark.parametrize("kind", ["zeros", "ones", "random"])
def test_a_record_torn_at_any_byte_is_cut_zeroed_and_stays_away(tmp_path: Path, kind: str) -> None:
    path, sent, last, end = torn_stores(tmp_path)
    log = (path / "commitlog" / FIRST).read_bytes()
    saved = save(path)
    source = random.Random(11)
    begin = last.physical_offset
    for at in range(begin, end, 1 if kind == "zeros" else 5):
        rest = end - at
        tail = {"zeros": bytes(rest), "ones": b"\xff" * rest, "random": source.randbytes(rest)}[kind]
        if (kind != "zeros" and at >= end - 37) or log[at:end] == tail:
            continue  # bytes of the properties that no checksum covers, and not the zeros of a lost page
        restore(path, saved)
        overwrite(path / "commitlog" / FIRST, at, tail)
        store, report = reopen(path)
        assert store.write_offset == store.flushed_offset == begin, at
        assert report.truncated_bytes == len((log[begin:at] + tail).rstrip(b"\0")), at
        assert end_of(path / "commitlog" / FIRST) == begin, at
        assert_holds(store, sent)
        assert find(store, "orders", "last") == []
        if at % 8:
            kill(store)
            continue
        new = put(store, "orders", 0, plain(2, first=50))
        assert [each.queue_offset for each in new] == [20, 21]
        store.close()
        store, report = reopen(path)
        assert (report.clean, report.truncated_bytes, report.rebuilt) == (True, 0, []), at
        assert_holds(store, [*sent[:20], *new])
        store.close()


@pytest.mark.parametrize(
    ("body", "properties"), [(b"", (("k", "v"),)), (bytes(40), ())], ids=["empty body", "body of zeros, no properties"]
)
def test_zeros_of_a_torn_record_are_distinguished_from_its_own_zeros(
    tmp_path: Path, body: bytes, properties: tuple[tuple[str, str], ...]
) -> None:
    """Tears a record at every byte that has zeros itself, and nothing after its topic."""
    store = open_store(tmp_path / "whole")
    sent = put(store, "orders", 0, plain(3))
    last = append(store, "orders", 0, [Message(body, properties=properties)])[0]
    begin, end = last.physical_offset, store.write_offset
    kill(store)
    log = (store.path / "commitlog" / FIRST).read_bytes()
    saved = save(store.path)
    for at in range(begin, end):
        restore(store.path, saved)
        overwrite(store.path / "commitlog" / FIRST, at, bytes(end - at))
        again, _ = reopen(store.path)
        as_it_was = log[at:end] == bytes(end - at)
        assert again.write_offset == (end if as_it_was else begin), at
        assert_holds(again, [*sent, last] if as_it_was else sent)
        kill(again)


def test_a_torn_frame_leaves_only_its_complete_records(tmp_path: Path) -> None:
    store = open_store(tmp_path / "whole")
    sent = put(store, "orders", 0, plain(5))
    frame = append(store, "orders", 1, plain(10, first=5))
    end = store.write_offset
    kill(store)
    saved = save(store.path)
    for number, torn in enumerate(frame):
        restore(store.path, saved)
        log = store.path / "commitlog" / FIRST
        overwrite(log, torn.physical_offset + 50, bytes(end - torn.physical_offset - 50))
        again, _ = reopen(store.path)
        assert again.write_offset == torn.physical_offset
        assert_holds(again, [*sent, *frame[:number]])
        assert put(again, "orders", 1, plain(1))[0].queue_offset == number
        again.close()


def test_no_cut_record_reappears_when_the_log_grows_over_it(tmp_path: Path) -> None:
    """Old records after a torn one are sound and at their right places: only zeros keep them from coming back."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(5))
    ghosts = append(store, "orders", 0, plain(40, first=5))
    kill(store)
    zero_64(store.path / "commitlog" / FIRST, ghosts[0])
    store, report = reopen(store.path)
    assert store.write_offset == ghosts[0].physical_offset
    assert report.truncated_bytes > 40 * 100
    # A message exactly as long as the torn one, so that the first old record would follow it.
    sent += put(store, "orders", 0, plain(1, first=5))
    assert store.write_offset == ghosts[1].physical_offset
    for end in (kill, MessageStore.close, MessageStore.close):
        end(store)
        store, report = reopen(store.path)
        assert (store.write_offset, report.truncated_bytes) == (ghosts[1].physical_offset, 0)
        assert_holds(store, sent)
    store.close()


def test_complete_files_after_the_cut_are_removed_too(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(2, size=400_000))
    lost = append(store, "orders", 0, plain(28, size=400_000, first=2))
    assert len(list((path / "commitlog").iterdir())) == 3
    kill(store)
    flip_in_body(path / "commitlog" / FIRST, lost[3])
    store, report = reopen(path)
    assert store.write_offset == lost[3].physical_offset
    assert report.truncated_bytes > FILE_BYTES
    assert [each.name for each in (path / "commitlog").iterdir()] == [FIRST]
    sent += lost[:3]
    assert_holds(store, sent)
    sent += put(store, "orders", 0, plain(30, size=400_000, first=100))
    assert [each.queue_offset for each in sent] == list(range(35))
    kill(store)
    store, _ = reopen(path)
    assert_holds(store, sent)
    store.close()


def test_zeros_in_place_of_a_lost_blank_end_the_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(10, size=400_000))
    end = store.write_offset
    lost = append(store, "orders", 0, plain(3, size=400_000, first=10))
    assert lost[0].physical_offset == FILE_BYTES
    kill(store)
    overwrite(path / "commitlog" / FIRST, end, bytes(8))
    store, _ = reopen(path)
    assert store.write_offset == end
    assert_holds(store, sent)
    sent += put(store, "orders", 0, plain(3, size=400_000, first=20))
    assert sent[-3].physical_offset == FILE_BYTES
    kill(store)
    store, _ = reopen(path)
    assert_holds(store, sent)
    store.close()


@pytest.mark.parametrize("last", ["end", "blank"])
def test_a_log_that_ends_with_its_file_continues_in_the_next(tmp_path: Path, last: str) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(10, size=400_000))
    if last == "blank":
        lost = append(store, "orders", 0, plain(1, size=400_000, first=10))
        kill(store)
        overwrite(path / "commitlog" / SECOND, 0, bytes(200))
        assert lost[0].physical_offset == FILE_BYTES
        store, _ = reopen(path)
        assert store.write_offset == FILE_BYTES
    sent += put(store, "orders", 0, plain(1, size=400_000, first=11))
    assert sent[-1].physical_offset == FILE_BYTES
    for end in (kill, MessageStore.close):
        end(store)
        store = open_store(path)
        assert_holds(store, sent)
    store.close()


def test_queues_and_index_never_point_past_the_cut(tmp_path: Path) -> None:
    """Under async flush, dispatched records may be torn."""
    settings = dataclasses.replace(SMALL, flush_policy="async")
    store = open_store(tmp_path / "store", settings)
    sent = put(store, "orders", 0, plain(120))
    store.sync_derived()
    lost = append(store, "orders", 0, plain(120, first=120))
    while store.reput_offset < store.write_offset:
        store.dispatch(store.dispatchable_offset)
    store.sync_derived()
    store.consumer_offsets.commit("group", "orders", 0, 240)
    store.consumer_offsets.persist()
    kill(store)
    overwrite(store.path / "commitlog" / FIRST, lost[5].physical_offset + 40, bytes(FILE_BYTES // 2))
    store, report = reopen(store.path, settings)
    assert report.truncated_bytes > 0
    assert store.queue_reads.max_offset("orders", 0) == 125
    assert store.consumer_offsets.committed("group", "orders") == {0: 125}
    assert_holds(store, [*sent, *lost[:5]])
    assert all(find(store, "orders", key) == [] for each in lost[5:] for key in each.message.keys)
    new = put(store, "orders", 0, plain(120, first=1000))
    assert_holds(store, [*sent, *lost[:5], *new])
    for content in (path.read_bytes() for path in (store.path / "consumequeue" / "orders" / "0").iterdir()):
        for unit in range(0, len(content), UNIT_BYTES):
            physical_offset, size = struct.unpack_from(">qi", content, unit)
            assert physical_offset + size <= store.write_offset
    store.close()


def test_a_record_forged_inside_a_torn_body_is_not_taken_for_the_end(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(3))
    begin = store.write_offset
    inner = Record(topic=b"orders", body=b"forged", queue_offset=3, physical_offset=0).encode()
    append(store, "orders", 0, [Message(bytes(200) + inner + bytes(50))])
    kill(store)
    log = store.path / "commitlog" / FIRST
    overwrite(log, begin, bytes(60))
    store, _ = reopen(store.path)
    assert store.write_offset == begin
    assert [record.body for record in pull_all(store, "orders", 0)] == [each.message.body for each in sent]
    assert end_of(log) == begin
    dispatch(store)
    store.close()
