"""The quarantine: restored files, second damage, and losses in the quarantine itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flintmq.broker.store import StoreSettings
from flintmq.broker.tools.dump import Wanted, records
from flintmq.broker.tools.findings import Findings
from flintmq.broker.tools.offline import OfflineStore, find_end
from tests.fault.damaged_logs import CHECKSUMMED, FILE_BYTES, FIRST, SECOND, both_settings, flip, two_topics
from tests.store_tools import (
    SMALL,
    Message,
    append,
    assert_holds,
    assert_only_these_are_left,
    kill,
    make_topic,
    open_store,
    overwrite,
    plain,
    put,
    reopen,
    save,
)
from tests.tools_runs import verified


def no_index(folder: Path) -> None:
    for path in folder.glob("index.json*"):
        path.unlink()


@pytest.mark.parametrize("lost_index", [False, True])
def test_a_restored_file_brings_its_messages_back(tmp_path: Path, lost_index: bool) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, [Message(bytes(range(100)))])  # without properties, like a tombstone
    store.close()
    sent += two_topics(path)
    whole = (path / "commitlog" / FIRST).read_bytes()
    flip(path, sent[0].physical_offset + 95)
    store, report = reopen(path)
    assert len(report.quarantined) == 1
    store.close()
    (path / "commitlog" / FIRST).write_bytes(whole)
    if lost_index:  # what was kept of the hole must not be taken for the message that is there again
        no_index(path / "flintmq" / "quarantine")
    store, report = reopen(path)
    assert report.quarantined == []
    assert not store.quarantine
    assert_holds(store, sent)
    store.close()
    assert list((path / "flintmq" / "quarantine").glob("*.bin"))


@pytest.mark.parametrize("cut", [-10, 10], ids=["in front of what was lost before", "in the middle of its tombstone"])
@both_settings
def test_a_file_truncated_before_an_old_hole_loses_only_the_messages_cut_off(
    tmp_path: Path, cut: int, settings: StoreSettings
) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    flip(path, sent[40].physical_offset + 95)
    store = open_store(path, settings)
    store.close()
    with (path / "commitlog" / FIRST).open("r+b") as file:
        file.truncate(sent[40].physical_offset + cut)
    lost = sent[39:] if cut < 0 else sent[40:]
    store, _ = reopen(path, settings)
    assert_only_these_are_left(store, sent[: -len(lost)], lost)
    assert store.quarantine.lost_messages == len(lost)
    kill(store)


def test_the_bytes_of_a_second_damage_are_kept_beside_those_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path)
    flip(path, sent[9].physical_offset + 95)
    kill(open_store(path))
    before = save(path / "flintmq" / "quarantine")
    flip(path, sent[9].physical_offset + 5)
    store, report = reopen(path)
    assert len(report.quarantined) == 1
    assert_only_these_are_left(store, [each for each in sent if each is not sent[9]], [sent[9]])
    assert store.quarantine.lost_messages == 1
    kill(store)
    after = save(path / "flintmq" / "quarantine")
    assert {name: after[name] for name in before if name.endswith(".bin")} == {
        name: blob for name, blob in before.items() if name.endswith(".bin")
    }
    assert len(json.loads(after["index.json"])["holes"]) == 2


def test_a_message_appended_after_a_hole_at_the_end_gets_the_next_queue_offset(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(5))
    store.close()
    flip(path, sent[4].physical_offset + 100)
    store = open_store(path)
    (new,) = append(store, "orders", 0, plain(1, first=100))
    assert new.queue_offset == 5
    store.close()


def test_a_reader_of_the_files_gets_no_tombstones(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, settings=CHECKSUMMED)
    lost = [sent[9], sent[10]]
    for each in lost:
        flip(path, each.physical_offset + 95)
    open_store(path, CHECKSUMMED).close()
    kept = [each.physical_offset for each in sent if each not in lost]
    store = OfflineStore(path, Findings(), index_slots=SMALL.index_slots)
    with store:
        assert [each.physical_offset for each in records(store, find_end(store).offset, Wanted())] == kept
    assert verified(path).findings.total == 0


def test_lost_scheduled_messages_are_not_parked_or_delivered(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    make_topic(store, "SCHEDULE_TOPIC_XXXX", 18)
    sent = put(store, "SCHEDULE_TOPIC_XXXX", 0, plain(5))
    store.close()
    flip(path, sent[2].physical_offset + 95)
    store = open_store(path)
    queue = store.queues.get("SCHEDULE_TOPIC_XXXX", 0)
    assert queue is not None
    units = [queue.unit(number, hot=False) for number in range(5)]
    chosen = np.array([(at, size, number) for number, (at, size, _) in enumerate(units)], np.int64).reshape(-1)
    waiting = store.rewriter.read(chosen, hot=False)
    assert (waiting.count, waiting.unsound) == (4, 0)
    assert store.log_reads.stored_ms(*units[2][:2]) == sent[1].store_ms
    store.close()


def broken_index(folder: Path) -> None:
    (folder / "index.json").write_bytes(bytes(100))


def broken_index_and_bak(folder: Path) -> None:
    broken_index(folder)
    (folder / "index.json.bak").write_text('{"holes": [{"physicalOffset": 1}]}')


@pytest.mark.parametrize("damage", [broken_index, broken_index_and_bak, no_index])
@both_settings
def test_a_lost_index_of_the_quarantine_is_rebuilt(
    tmp_path: Path, damage: Callable[[Path], None], settings: StoreSettings
) -> None:
    """Without it, consumers would see tombstones as messages."""
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    lost = [sent[3], *sent[20:31]]
    overwrite(
        path / "commitlog" / FIRST, sent[20].physical_offset, bytes(sent[31].physical_offset - sent[20].physical_offset)
    )
    flip(path, sent[3].physical_offset + 95)
    open_store(path, settings).close()
    folder = path / "flintmq" / "quarantine"
    holes = json.loads((folder / "index.json").read_text())["holes"]
    damage(folder)
    for number in range(2):
        store, report = reopen(path, settings)
        assert (
            number == 0 or report.quarantined == [] == report.rebuilt
        )  # the .bak may be from before the hole was filled
        assert_only_these_are_left(store, [each for each in sent if each not in lost], lost)
        assert store.quarantine.lost_messages == len(lost)
        store.close()
    again = json.loads((folder / "index.json").read_text())["holes"]
    same = ("physicalOffset", "bytes", "file", "storeTimestamp", "endsFile", "checksum", "filled", "lost")
    assert [[each[name] for name in same] for each in again] == [[each[name] for name in same] for each in holes]


@pytest.mark.parametrize("end", [24, 40], ids=["among the first tombstones", "after the first tombstones"])
@pytest.mark.parametrize("damage", [broken_index, broken_index_and_bak, no_index])
@both_settings
def test_a_lost_index_is_rebuilt_although_later_damage_hit_tombstones(
    tmp_path: Path, damage: Callable[[Path], None], settings: StoreSettings, end: int
) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, settings=settings)
    places = [each.physical_offset for each in sent]
    for first, behind in ((20, 31), (22, end)):
        overwrite(path / "commitlog" / FIRST, places[first], bytes(places[behind] - places[first]))
        open_store(path, settings).close()
    lost = sent[20 : max(31, end)]
    folder = path / "flintmq" / "quarantine"
    assert len(json.loads((folder / "index.json").read_text())["holes"]) == 2
    damage(folder)
    for _ in range(2):
        store, _ = reopen(path, settings)
        assert_only_these_are_left(store, [each for each in sent if each not in lost], lost)
        assert store.quarantine.lost_messages == len(lost)
        store.close()


def test_retention_deletes_the_kept_bytes_of_a_hole_with_the_log_around_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = two_topics(path, size=200_000, frames=30)
    in_first = [each for each in sent if each.physical_offset < FILE_BYTES]
    flip(path, in_first[3].physical_offset + 95)
    behind = next(each for each in sent if each.physical_offset > FILE_BYTES)
    overwrite(path / "commitlog" / SECOND, behind.physical_offset - FILE_BYTES + 95, b"!")
    store = open_store(path)
    assert len(store.quarantine.ranges) == 2
    assert store.expire(1) == FILE_BYTES
    store.close()
    store = open_store(path)
    (hole,) = store.quarantine.ranges
    assert hole.physical_offset == behind.physical_offset
    assert [each.name for each in (path / "flintmq" / "quarantine").glob("*.bin")] == [hole.file]
    store.close()
