"""Decisions of retention: by age, by hour, and by disk use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.background.services import CleanCommitLogService, Disk, Policy
from flintmq.broker.config import RetentionSection
from flintmq.broker.store import MessageStore
from flintmq.broker.store.retention import HOUR_MS, OldFile
from flintmq.protocol.errors import ServiceNotAvailable
from tests.store_tools import SMALL, append, open_store, plain, put

GIB = 1 << 30
ROOMY = Disk(used_bytes=10 * GIB, free_bytes=90 * GIB)
AT_4 = time.mktime((2026, 3, 5, 4, 30, 0, 0, 0, -1))
AT_12 = time.mktime((2026, 3, 5, 12, 30, 0, 0, 0, -1))


def old_file(age_hours: float, now: float, kept_for: str = "") -> OldFile:
    return OldFile(Path("00"), GIB, GIB, int(now * 1000 - age_hours * HOUR_MS), kept_for)


def full(percent: int, free_gib: int = 1) -> Disk:
    """Return a disk with this use and this free space."""
    return Disk(used_bytes=percent * free_gib * GIB // (100 - percent), free_bytes=free_gib * GIB)


@pytest.mark.parametrize(
    ("age_hours", "now", "disk", "goes"),
    [
        (73, AT_4, ROOMY, True),
        (71, AT_4, ROOMY, False),
        (73, AT_12, ROOMY, False),
        (73, AT_12, full(76), True),
        (73, AT_12, full(74), False),
        (73, AT_12, full(76, free_gib=9), False),
        (1, AT_12, full(86), True),
        (1, AT_12, full(84), False),
        (1, AT_12, full(95, free_gib=9), False),
    ],
)
def test_a_file_goes_when_it_is_old_at_its_hour_or_when_the_disk_wants_room(
    age_hours: float, now: float, disk: Disk, goes: bool
) -> None:
    policy = Policy(RetentionSection())
    assert policy.verdict(old_file(age_hours, now), now, disk, first=True).goes is goes


def test_only_one_young_file_goes_at_a_time() -> None:
    policy = Policy(RetentionSection())
    assert not policy.verdict(old_file(1, AT_12), AT_12, full(99), first=False).goes


@pytest.mark.parametrize(
    ("age_hours", "disk", "in_hours"),
    [
        (71, ROOMY, 15.5),  # old enough at 13:30, and deleted at 4:00
        (73, ROOMY, 15.5),
        (50, ROOMY, 39.5),  # old enough at 10:30 tomorrow, and deleted at 4:00 on the day after
        (71, full(76), 1),
        (73, full(76), 0),
        (1, full(86), 0),
    ],
)
def test_the_time_at_which_a_file_goes_is_known_before(age_hours: float, disk: Disk, in_hours: float) -> None:
    policy = Policy(RetentionSection())
    file = old_file(age_hours, AT_12)
    at = policy.goes_at(file, AT_12, disk)
    assert at is not None
    assert at == pytest.approx(AT_12 + in_hours * 3600, abs=1)
    assert policy.verdict(file, at + 1, disk, first=True).goes
    assert in_hours == 0 or not policy.verdict(file, at - 2, disk, first=True).goes


def test_a_file_that_is_due_goes_now() -> None:
    assert Policy(RetentionSection()).goes_at(old_file(73, AT_4), AT_4, ROOMY) == AT_4


def test_it_is_unknown_when_a_file_goes_that_its_messages_keep() -> None:
    policy = Policy(RetentionSection())
    assert policy.goes_at(old_file(999, AT_4, "a message"), AT_4, full(99)) is None
    assert policy.goes_at(replace(old_file(1, AT_4, "unreadable"), newest_ms=None), AT_4, full(99)) is None


@pytest.mark.parametrize("disk", [ROOMY, full(99)])
def test_scheduled_messages_always_stay(disk: Disk) -> None:
    verdict = Policy(RetentionSection()).verdict(old_file(999, AT_4, "a message"), AT_4, disk, first=True)
    assert (verdict.goes, verdict.reason) == (False, "kept: it contains a message")


@pytest.mark.parametrize(("percent", "free_gib", "refuses"), [(91, 1, True), (89, 1, False), (99, 9, False)])
def test_messages_are_refused_while_the_disk_is_nearly_full(percent: int, free_gib: int, refuses: bool) -> None:
    assert Policy(RetentionSection()).refuses(full(percent, free_gib)) is refuses


def test_the_needed_bytes_are_those_that_make_space() -> None:
    disk = full(95)
    needed = disk.needed_bytes(90, 8 * GIB)
    after = Disk(disk.used_bytes - needed, disk.free_bytes + needed)
    assert not after.tight(90, 8 * GIB)
    assert Disk(after.used_bytes + 2, after.free_bytes - 2).tight(90, 8 * GIB)


def test_the_disk_is_looked_at_as_it_is(tmp_path: Path) -> None:
    disk = Disk.of(tmp_path)
    assert disk.free_bytes > 0
    assert 0 < disk.used_percent < 100


class World:
    """A store and a retention service, with a disk and a clock that the test sets."""

    def __init__(self, store: MessageStore, **settings: Any) -> None:
        self.store = store
        self.disk = ROOMY
        self.now = time.time()
        self.died: list[object] = []
        self.service = CleanCommitLogService(
            store,
            RetentionSection(**settings),
            self._post,
            self._fatal,
            clock=lambda: self.now,
            disk=lambda path: self.disk,
        )

    def _post(self, *call: Any) -> None:
        self.died.append(call)

    def _fatal(self, name: str, error: BaseException) -> None:
        self.died.append(error)

    def turn(self) -> None:
        """Run the service until it has nothing more to do."""
        for _ in range(100):
            if not self.service.do_once():
                return
        raise AssertionError("it never ends")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "store")
    number = 0
    while len(store.commitlog.queue.files) < 14:
        put(store, "orders", 0, plain(8, size=60_000, first=8 * number))
        number += 1
    yield store
    store.close()


EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))


def test_all_old_files_go_but_the_last(store: MessageStore) -> None:
    world = World(store, delete_when=EVERY_HOUR, file_reserved_hours=1)
    world.turn()
    assert len(store.commitlog.queue.files) == 14
    world.now += 3601 + 60
    world.turn()
    assert len(store.commitlog.queue.files) == 1
    assert store.min_physical_offset == 13 * SMALL.commitlog_file_bytes


def test_the_next_file_is_noted_and_is_the_one_that_goes(store: MessageStore) -> None:
    world = World(store, delete_when=EVERY_HOUR, file_reserved_hours=1)
    world.turn()
    ahead = store.expiry.next
    assert ahead is not None
    assert ahead.file == store.commitlog.queue.files[0].path.name
    assert world.now + 3590 < ahead.at_ms / 1000 <= world.now + 3600
    assert ahead.reason.endswith("of 1 h old")
    world.service.change(RetentionSection(delete_when=EVERY_HOUR, file_reserved_hours=2))
    world.turn()
    assert store.expiry.next is not None
    assert store.expiry.next.at_ms == ahead.at_ms + HOUR_MS
    world.now += 7200 + 60
    world.turn()
    assert len(store.commitlog.queue.files) == 1
    assert store.expiry.next is None


def test_a_member_of_a_replica_set_that_follows_expects_no_deletion(store: MessageStore) -> None:
    world = World(store)
    world.turn()
    assert store.expiry.next is not None
    world.service.follow(0)
    world.turn()
    assert store.expiry.next is None


def test_at_another_hour_nothing_goes(store: MessageStore) -> None:
    hour = time.localtime(time.time() + 7200).tm_hour
    world = World(store, delete_when=f"{(hour + 5) % 24:02}", file_reserved_hours=1)
    world.now += 7200
    world.turn()
    assert len(store.commitlog.queue.files) == 14


def test_a_full_disk_takes_young_files_one_by_one_until_it_is_enough(store: MessageStore) -> None:
    world = World(store, file_reserved_hours=1000)
    world.disk = full(86)
    assert world.service.do_once()
    assert len(store.commitlog.queue.files) == 13
    world.disk = full(80)
    assert not world.service.do_once()
    assert len(store.commitlog.queue.files) == 13


def test_messages_are_refused_with_a_remedy_and_accepted_again_automatically(store: MessageStore) -> None:
    world = World(store)
    world.disk = full(92)
    while len(store.commitlog.queue.files) > 1:
        world.service.do_once()
    with pytest.raises(ServiceNotAvailable, match=r"retention\.disk_refuse_percent is 90") as caught:
        append(store, "orders", 0, plain(1))
    assert str(store.path) in str(caught.value)
    fields = caught.value.fields()
    assert fields["free_bytes"] == world.disk.free_bytes
    assert fields["needed_bytes"] == world.disk.needed_bytes(90, 8 * GIB)
    assert fields["retry_after_ms"] > 0
    before = store.write_offset
    world.disk = ROOMY
    world.turn()
    append(store, "orders", 0, plain(1))
    assert store.write_offset > before


def test_a_store_that_failed_is_left_alone(store: MessageStore) -> None:
    world = World(store, delete_when=EVERY_HOUR, file_reserved_hours=0)
    store.failed = RuntimeError("the disk went")
    world.now += 3600
    assert not world.service.do_once()
    assert len(store.commitlog.queue.files) == 14
    store.failed = None


def test_a_file_stays_until_it_is_archived(store: MessageStore) -> None:
    archived = 0
    store.expiry.archived_to = lambda: archived
    world = World(store, delete_when=EVERY_HOUR, file_reserved_hours=1)
    world.now += 3601 + 60
    world.turn()
    assert len(store.commitlog.queue.files) == 14
    assert store.expiry.next is not None
    assert "not archived yet" in store.expiry.next.reason
    archived = 3 * SMALL.commitlog_file_bytes - 1
    world.turn()
    assert store.min_physical_offset == 2 * SMALL.commitlog_file_bytes


def test_a_full_disk_refuses_messages_rather_than_lose_what_is_not_archived_unless_a_gap_is_allowed(
    store: MessageStore,
) -> None:
    store.expiry.archived_to = lambda: 0
    world = World(store, file_reserved_hours=1000)
    world.disk = full(92)
    world.turn()
    assert len(store.commitlog.queue.files) == 14
    with pytest.raises(ServiceNotAvailable, match=r"not archived yet .*archive\.on_full"):
        append(store, "orders", 0, plain(1))
    store.expiry.may_leave_gap = True
    assert world.service.do_once()
    assert len(store.commitlog.queue.files) == 13
