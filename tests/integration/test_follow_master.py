"""A follower and masters of every kind: right ones, wrong ones, and masters that lie; their tables, and the promotion.
See also ``test_rocketmq_follow``.

``FLINTMQ_KILL_ROUNDS`` sets the number of kills (default below), ``FLINTMQ_SEED`` makes another run.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import struct
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.migration import follower as module
from flintmq.broker.migration.follower import opened_follower, take_last_tables
from flintmq.broker.migration.ha_connection import (
    HaStreamError,
    HistoryDiffers,
    MasterUnsuitable,
    MigrationError,
    StillServing,
)
from flintmq.broker.store import CorruptFile, FollowsMaster, LogCopyRefused, MessageStore
from flintmq.protocol.display import show_bytes
from flintmq.protocol.errors import FlintError, RemoteProtocolError, ServiceNotAvailable
from flintmq.protocol.storage.record import Record
from tests.fake_master import FakeMaster
from tests.migration_tools import (
    WAIT_S,
    Source,
    follow_to_end,
    follow_until_refused,
    follower_of,
    following,
    log_bytes,
    log_content,
    soon,
)
from tests.processes import free_port
from tests.store_tools import (
    SMALL,
    UnsyncedFiles,
    append,
    assert_holds,
    dispatch,
    kill,
    open_store,
    plain,
    pull_all,
    put,
    reopen,
)
from tests.tools_runs import tool

ROUNDS = int(os.environ.get("FLINTMQ_KILL_ROUNDS", "3"))
OPTIONS = [word for name, size in SMALL.fixed_sizes.items() for word in ("--set", f"{name}={size}")]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers connect again, and take the tables again, at once."""
    monkeypatch.setattr(module, "RECONNECT_S", (0.0,))
    monkeypatch.setattr(module, "TABLES_EVERY_S", 0.05)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source")


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())


# ---- the log ----


@pytest.mark.parametrize("piece_bytes", [1000, 32 * 1024, 8 << 20])
async def test_the_copy_has_every_byte_queue_and_key(
    source: Source, store: MessageStore, tmp_path: Path, piece_bytes: int
) -> None:
    source.put(40, size=300_000)  # three files
    async with FakeMaster(log_bytes(source.store)) as master:
        master.piece_bytes = piece_bytes
        async with follower_of(master, store):
            await soon(lambda: store.flushed_offset == master.log_end)
            master.log += source.put(100)
            await soon(lambda: store.flushed_offset == master.log_end)
            assert log_bytes(store) == log_bytes(source.store)
    assert master.reports[0][0] == 1  # 0 means "only your last file"
    store.followed_master.remove()
    reopened, report = reopen(tmp_path / "store")
    assert (report.truncated_bytes, report.rebuilt) == (0, [])
    assert_holds(reopened, source.sent)
    more = put(reopened, "orders", 0, plain(1, first=5000))
    assert more[0].queue_offset == len(source.sent)


async def test_reports_never_exceed_what_is_flushed_and_reach_the_end(source: Source, store: MessageStore) -> None:
    async with FakeMaster(source.put(200)) as master, follower_of(master, store):
        await soon(lambda: master.reports != [] and master.reports[0][-1] == master.log_end)
        assert master.reports[0] == sorted(master.reports[0])
        assert store.flushed_offset == master.log_end


async def test_an_empty_master_is_followed_from_its_first_message_on(source: Source, store: MessageStore) -> None:
    async with FakeMaster(b"") as master, follower_of(master, store):
        await soon(lambda: master.reports != [])
        master.log += source.put(3)
        await soon(lambda: store.flushed_offset == master.log_end)
        assert log_bytes(store) == bytes(master.log)


async def test_a_log_whose_oldest_files_are_deleted_begins_where_the_masters_does(
    source: Source, store: MessageStore, tmp_path: Path
) -> None:
    source.put(40, size=300_000)
    begin = SMALL.commitlog_file_bytes
    async with FakeMaster(log_bytes(source.store)[begin:], begin) as master:
        await follow_to_end(master, store)
        assert master.reports[0][0] == begin
        assert store.min_physical_offset == begin
        master.log += source.put(10)
        reopened = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
        await follow_to_end(master, reopened)
        assert master.reports[1][0] == store.write_offset
    store.followed_master.remove()
    reopened, report = reopen(tmp_path / "store")
    assert (report.truncated_bytes, report.rebuilt) == (0, [])
    assert_holds(reopened, [each for each in source.sent if each.physical_offset >= begin])


async def test_a_start_before_the_first_byte_came_is_the_start_of_an_empty_log(
    source: Source, store: MessageStore, tmp_path: Path
) -> None:
    source.put(40, size=300_000)
    begin = SMALL.commitlog_file_bytes
    async with FakeMaster(b"", begin) as master:
        async with follower_of(master, store):
            await soon(lambda: master.reports != [])
        master.log += log_bytes(source.store)[begin:]
        reopened = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
        await follow_to_end(master, reopened)
    assert reopened.min_physical_offset == begin


async def test_a_lost_connection_is_continued_where_the_log_ends(source: Source, store: MessageStore) -> None:
    async with FakeMaster(source.put(50)) as master, follower_of(master, store) as said:
        for _ in range(3):
            await soon(lambda: store.flushed_offset == master.log_end)
            end = store.flushed_offset
            master.cut()
            master.log += source.put(50)
            await soon(lambda: store.flushed_offset == master.log_end)
            assert master.reports[-1][0] == end
        assert log_bytes(store) == log_bytes(source.store)
        assert any("next attempt in" in line for line in said)


async def test_a_master_that_is_still_starting_is_asked_again(source: Source, store: MessageStore) -> None:
    async with FakeMaster(source.put(50)) as master:
        master.refusals = [28, 28, 21, 28]  # RocketMQ has no runtime information in its first second
        said = await follow_to_end(master, store)
        assert any("refused request 28 with code 1" in line for line in said)


async def test_files_that_the_master_deleted_are_deleted(source: Source, store: MessageStore) -> None:
    source.put(40, size=300_000)
    file_bytes = SMALL.commitlog_file_bytes
    async with FakeMaster(log_bytes(source.store)) as master, follower_of(master, store):
        await soon(lambda: store.flushed_offset == master.log_end)
        del master.log[:file_bytes]
        master.begin = file_bytes
        await soon(lambda: store.min_physical_offset == file_bytes)


async def test_kills_at_any_moment_lose_and_repeat_nothing(source: Source, tmp_path: Path) -> None:
    path, said = tmp_path / "store", tmp_path / "said"
    seed = int(os.environ.get("FLINTMQ_SEED", "1"))
    print(f"seed {seed}, {ROUNDS} rounds")  # noqa: T201 - what repeats a failure
    draws = random.Random(seed)
    async with FakeMaster(b"") as master:
        for _ in range(ROUNDS):
            begin = master.log_end
            master.log += source.put(draws.randrange(10, 60), size=draws.randrange(1, 100_000))
            kill_at = draws.randrange(begin, master.log_end)
            with following(master.address, path, SMALL.fixed_sizes, said) as running:

                def kill_there(offset: int, data: bytes, pid: int = running.process.pid) -> tuple[int, bytes]:
                    if offset + len(data) > kill_at:  # noqa: B023 - of this round, which ends with the process
                        os.kill(pid, signal.SIGKILL)
                    return offset, data

                master.mangle = kill_there
                await asyncio.to_thread(running.process.wait, WAIT_S)
                assert running.process.returncode == -signal.SIGKILL, running.said
        master.mangle = lambda offset, data: (offset, data)
        with following(master.address, path, SMALL.fixed_sizes, said) as running:
            await soon(lambda: master.reports[-1][-1] == master.log_end)
            assert await asyncio.to_thread(running.stop) == 0
    assert log_content(path) == log_content(source.store.path)
    promoted = MessageStore(path, SMALL, files=UnsyncedFiles())
    promoted.followed_master.remove()
    assert (report := promoted.open()).quarantined == []
    assert report.truncated_bytes == 0
    assert_holds(promoted, source.sent)


async def test_a_full_disk_ends_the_run_with_nothing_of_the_piece_written(
    source: Source, store: MessageStore, tmp_path: Path
) -> None:
    class Full(UnsyncedFiles):
        def allocate(self, fd: int, at: int, size: int) -> None:
            raise OSError(errno.ENOSPC, "no space")

    full = MessageStore(tmp_path / "store", SMALL, files=Full())
    async with FakeMaster(source.put(50)) as master:
        await follow_until_refused(master, full, ServiceNotAvailable, "is full")
        assert (full.write_offset, full.failed) == (0, None)
        await follow_to_end(master, store)
    assert store.ended_clean


# ---- masters that lie ----


async def test_a_master_that_lies_about_the_offset_ends_the_run_with_nothing_written(
    source: Source, store: MessageStore
) -> None:
    async with FakeMaster(source.put(50)) as master:
        master.mangle = lambda offset, data: (offset + 1, data)
        await follow_until_refused(master, store, HaStreamError, "a piece is for offset 2")
        assert len(master.reports) == 3  # tries
    assert store.write_offset == 0


@pytest.mark.parametrize(("at", "text"), [(4, "wrong magic"), (30, "physical offset"), (95, "wrong checksum")])
async def test_damaged_bytes_end_the_run_with_nothing_of_them_written(
    source: Source, store: MessageStore, at: int, text: str
) -> None:
    source.put(50)
    damaged = source.sent[20].physical_offset

    def mangle(offset: int, data: bytes) -> tuple[int, bytes]:
        changed = bytearray(data)
        if offset <= damaged + at < offset + len(data):
            changed[damaged + at - offset] ^= 0xFF
        return offset, bytes(changed)

    async with FakeMaster(log_bytes(source.store)) as master:
        master.piece_bytes = 100
        master.mangle = mangle
        await follow_until_refused(master, store, LogCopyRefused, text)
    assert store.write_offset <= damaged
    assert store.ended_clean


async def test_damage_on_the_way_is_asked_for_again_each_time(source: Source, store: MessageStore) -> None:
    spoilt: list[int] = []

    def mangle(offset: int, data: bytes) -> tuple[int, bytes]:
        if spoilt and data:
            return offset, bytes([spoilt.pop()]) * len(data)
        return offset, data

    async with FakeMaster(source.put(5)) as master, follower_of(master, store):
        master.mangle = mangle
        for _ in range(3):
            await soon(lambda: store.flushed_offset == master.log_end)
            spoilt += [0, 255]  # six times in all, two in a row
            master.log += source.put(5)
        await soon(lambda: store.flushed_offset == master.log_end)
        assert log_bytes(store) == log_bytes(source.store)
    assert len(master.reports) == 7


# ---- masters that cannot be followed ----


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"mappedFileSizeCommitLog": "1073741824"}, MasterUnsuitable, "--set store.commitlog_file_bytes=1073741824"),
        ({"brokerRole": "SLAVE"}, MasterUnsuitable, "is a slave itself"),
        ({"enableControllerMode": "true"}, MasterUnsuitable, "enableControllerMode=true"),
        ({"enableDLegerCommitLog": "true"}, MasterUnsuitable, "enableDLegerCommitLog=true"),
        ({"haListenPort": "many"}, RemoteProtocolError, "answered request 26"),
        ({"haListenPort": "70000"}, RemoteProtocolError, "haListenPort must be from 1 to 65,535, not 70000"),
        ({"haListenPort": "9" * 5_000}, RemoteProtocolError, "answered request 26"),
        ({"mappedFileSizeCommitLog": "0"}, RemoteProtocolError, "mappedFileSizeCommitLog must be from 1"),
    ],
)
async def test_an_unsuitable_master_is_refused_before_anything_is_written(
    source: Source, store: MessageStore, changes: dict[str, str], error: type[Exception], text: str
) -> None:
    async with FakeMaster(source.put(5)) as master:
        master.settings |= changes
        master.tables[21]["topicConfigTable"]["stranger"] = {"topicName": "stranger"}
        await follow_until_refused(master, store, error, text)
        assert master.reports == []
    assert (store.write_offset, store.followed_master.address(), len(store.topics)) == (0, "", 0)


@pytest.mark.parametrize(("begin", "end"), [(100, 5000), (SMALL.commitlog_file_bytes, 5000)])
async def test_a_master_with_an_impossible_log_is_refused_before_anything_is_written(
    store: MessageStore, begin: int, end: int
) -> None:
    async with FakeMaster(bytes(100), begin) as master:
        master.end = end
        await follow_until_refused(master, store, MasterUnsuitable, f"says that its log is from {begin:,} to {end:,}")
    assert list((store.path / "commitlog").iterdir()) == []
    assert store.followed_master.address() == ""


@pytest.mark.parametrize(("begin", "end"), [(0, 2**63), (2**63, 2**64), (2**62 + SMALL.commitlog_file_bytes, 2**63)])
async def test_a_master_with_a_log_beyond_all_numbers_is_refused(store: MessageStore, begin: int, end: int) -> None:
    async with FakeMaster(bytes(100), begin) as master:
        master.end = end
        await follow_until_refused(master, store, RemoteProtocolError, "commitLogM.* must be from .* not")
    assert list((store.path / "commitlog").iterdir()) == []


@pytest.mark.parametrize(
    ("code", "table"),
    [
        (21, {"topicConfigTable": {"bad": {"topicName": "bad", "perm": 2**70}}}),
        (21, {"topicConfigTable": {"bad": {"topicName": "bad", "perm": 16}}}),
        (21, {"topicConfigTable": {"bad": {"topicName": "bad", "perm": -1}}}),
        (21, {"topicConfigTable": {"bad": {"topicName": "bad", "readQueueNums": 2**31 - 1}}}),
        (21, {"topicConfigTable": {"bad": {"topicName": "bad", "writeQueueNums": 65_537}}}),
        (21, {"topicConfigTable": {"bad": {"topicName": "bad", "topicSysFlag": 2**70}}}),
        (43, {"offsetTable": {"bad@group": {"0": 10**20}}}),
        (43, {"offsetTable": {"bad@group": {"0": "100000000000000000000"}}}),
        (43, {"offsetTable": {"bad@group": {"-2": 1}}}),
        (43, {"offsetTable": {"bad@group": {str(2**31): 1}}}),
        (45, {"offsetTable": {"3": 10**20}}),
        (201, {"subscriptionGroupTable": {"bad": {"groupName": "bad", "retryMaxTimes": "2147483648"}}}),
        (201, {"subscriptionGroupTable": {"bad": {"groupName": "bad", "consumeTimeoutMinute": 2**70}}}),
    ],
)
async def test_a_value_out_of_range_in_a_table_ends_the_run_and_is_not_taken(
    source: Source, store: MessageStore, code: int, table: dict[str, Any]
) -> None:
    """Once taken, it would break what reads the table later."""
    async with FakeMaster(source.put(5)) as master:
        master.tables[code] = table
        await follow_until_refused(master, store, FlintError, "must be from")
    assert store.topics.get("bad") is None
    assert not store.groups.has("bad")
    assert store.consumer_offsets.committed("group", "bad") == {}
    assert store.delay_offsets.delivered(3) == 0


async def test_a_table_of_too_many_values_is_refused_before_it_is_read(source: Source, store: MessageStore) -> None:
    async with FakeMaster(source.put(5)) as master:
        master.bodies[21] = b'{"topicConfigTable":{"a":[' + b"{}," * 8_000_000 + b"{}]}}"
        await follow_until_refused(master, store, FlintError, "a table of .* values; the maximum is")


async def test_a_store_with_another_history_is_refused(source: Source, store: MessageStore, tmp_path: Path) -> None:
    store.open()
    append(store, "orders", 0, plain(3))
    dispatch(store)
    store.close()
    before = log_content(tmp_path / "store")
    async with FakeMaster(source.put(50)) as master:
        again = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
        await follow_until_refused(master, again, HistoryDiffers, "is not a copy of the log")
        assert master.reports == []
    assert log_content(tmp_path / "store") == before
    assert again.followed_master.address() == ""


async def test_a_master_that_lost_its_newest_messages_is_refused(
    source: Source, store: MessageStore, tmp_path: Path
) -> None:
    async with FakeMaster(source.put(50)) as master:
        await follow_to_end(master, store)
        del master.log[source.sent[40].physical_offset :]
        again = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
        await follow_until_refused(master, again, HistoryDiffers, "lost its newest messages")


async def test_a_master_that_deleted_what_the_store_lacks_is_refused(
    source: Source, store: MessageStore, tmp_path: Path
) -> None:
    async with FakeMaster(source.put(5)) as master:
        await follow_to_end(master, store)
        source.put(40, size=300_000)
        begin = SMALL.commitlog_file_bytes
        master.log, master.begin = bytearray(log_bytes(source.store)[begin:]), begin
        again = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
        await follow_until_refused(master, again, HistoryDiffers, "has deleted its log below")


async def test_a_table_of_another_shape_ends_the_run(source: Source, store: MessageStore) -> None:
    async with FakeMaster(source.put(5)) as master:
        master.tables[21] = {"topicConfigTable": {"../etc": {"topicName": "../etc"}}}
        await follow_until_refused(master, store, MigrationError, "cannot be a topic")
    assert store.topics.get("../etc") is None


async def test_a_failing_disk_ends_the_run_and_the_next_one_recovers(source: Source, store: MessageStore) -> None:
    class Failing(UnsyncedFiles):
        def sync_data(self, fd: int) -> None:
            if failing.write_offset > first:
                raise OSError(5, "the disk failed")

    failing = MessageStore(store.path, SMALL, files=Failing())
    async with FakeMaster(source.put(5)) as master:
        first = master.log_end
        master.log += source.put(5)
        await follow_until_refused(master, failing, OSError, "the disk failed")
        assert failing.failed is not None
        await follow_to_end(master, store)
    assert not store.ended_clean
    assert log_content(store.path) == log_content(source.store.path)


# ---- topics that were deleted and created again ----


def record(topic: str, queue: int, queue_offset: int, at: int, body: str) -> bytes:
    """Return a record for physical offset ``at``, as a RocketMQ appends it."""
    made = Record(topic.encode(), body.encode(), queue_id=queue, queue_offset=queue_offset, physical_offset=at)
    made.store_timestamp = made.born_timestamp = 1_700_000_000_000 + at
    return made.encode()


def chain(*rows: tuple[str, int, int, str]) -> bytes:
    """Return a log of these records: topic, queue, queue offset, body."""
    log = b""
    for topic, queue, queue_offset, body in rows:
        log += record(topic, queue, queue_offset, len(log), body)
    return log


async def test_a_topic_that_was_created_again_begins_again_after_a_crash_too(
    store: MessageStore, tmp_path: Path
) -> None:
    old = [("orders", 0, offset, f"old {offset}") for offset in range(5)]
    new = [("orders", 0, offset, f"new {offset}") for offset in range(3)]
    async with FakeMaster(chain(*old)) as master:
        await follow_to_end(master, store)
        begin, master.log = master.log_end, bytearray(chain(*old, *new))
        killed = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
        killed.followed_master.is_expected = True
        killed.open()
        killed.log_copy.append(begin, master.log[begin:])
        killed.flush()
        kill(killed)
        again = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
        async with follower_of(master, again):
            await soon(lambda: master.reports[-1] == [master.log_end])
            assert [each.body.decode() for each in pull_all(again, "orders", 0)] == [f"new {n}" for n in range(3)]
    again.followed_master.remove()
    reopened, _ = reopen(tmp_path / "store")
    assert [each.body.decode() for each in pull_all(reopened, "orders", 0)] == [f"new {n}" for n in range(3)]


async def test_a_topic_that_was_created_again_begins_again(store: MessageStore, tmp_path: Path) -> None:
    rows = [("orders", queue, offset, f"old {queue} {offset}") for offset in range(5) for queue in (0, 1)]
    rows += [("kept", 0, offset, f"kept {offset}") for offset in range(3)]
    rows += [("orders", queue, offset, f"new {queue} {offset}") for offset in range(3) for queue in (1, 0)]
    rows += [("kept", 0, 3, "kept 3")]
    async with FakeMaster(chain(*rows)) as master:
        master.piece_bytes = 200
        await follow_to_end(master, store)
    store.followed_master.remove()
    for _ in range(2):
        reopened, _ = reopen(tmp_path / "store")
        for queue in (0, 1):
            bodies = [each.body.decode() for each in pull_all(reopened, "orders", queue)]
            assert bodies == [f"new {queue} {offset}" for offset in range(3)]
        assert [each.body.decode() for each in pull_all(reopened, "kept", 0)] == [
            f"kept {offset}" for offset in range(4)
        ]
        reopened.close()
    rebuilt = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
    rebuilt.open(rebuild=True)
    assert [each.body.decode() for each in pull_all(rebuilt, "orders", 1)] == [f"new 1 {offset}" for offset in range(3)]


# ---- the tables ----


def offsets(group: str, value: int) -> dict[str, object]:
    return {"offsetTable": {f"orders@{group}": {"0": value}}}


async def test_topics_groups_and_progress_are_the_masters(source: Source, store: MessageStore, tmp_path: Path) -> None:
    async with FakeMaster(source.put(50)) as master:
        topic = {"topicName": "orders", "readQueueNums": 7, "writeQueueNums": 7, "perm": 6, "topicSysFlag": 2}
        master.tables[21]["topicConfigTable"]["orders"] = topic
        master.tables[201]["subscriptionGroupTable"]["billing"] = {"groupName": "billing", "retryMaxTimes": 3}
        master.tables[43] = offsets("billing", 20)
        master.tables[45]["offsetTable"]["3"] = 9
        master.timer_check = struct.pack(">7q", 1_700_000_000_000, 5, 40, 40, 0, 1, 2)
        async with follower_of(master, store):
            await soon(lambda: store.consumer_offsets.committed_of("billing", "orders", 0) == 20)
            master.tables[43] = offsets("billing", 30)
            await soon(lambda: store.consumer_offsets.committed_of("billing", "orders", 0) == 30)
            await soon(lambda: (tmp_path / "store/config/timercheck").exists())
    store.followed_master.remove()
    reopened, _ = reopen(tmp_path / "store")
    config = reopened.topics.get("orders")
    assert config is not None
    assert (config.read_queues, config.extra["topicSysFlag"]) == (7, 2)
    assert reopened.groups.retry_times_max("billing") == 3
    assert reopened.consumer_offsets.committed("billing", "orders") == {0: 30}
    assert reopened.delay_offsets.delivered(3) == 9
    timer_check = (tmp_path / "store/config/timercheck").read_bytes()
    assert (len(timer_check), timer_check[:56]) == (4096, master.timer_check)


async def test_progress_waits_for_the_log_that_it_belongs_to(source: Source, store: MessageStore) -> None:
    async with FakeMaster(source.put(50)) as master, follower_of(master, store) as said:
        rest = source.put(10)
        master.end = master.log_end + len(rest)  # it has them, and has not sent them
        master.tables[43] = offsets("billing", 60)
        master.tables[201]["subscriptionGroupTable"]["billing"] = {"groupName": "billing"}
        await soon(lambda: store.groups.has("billing") and store.flushed_offset == master.log_end)
        lines = len(said)
        await soon(lambda: len(said) > lines + 2)  # two more rounds
        assert store.consumer_offsets.committed_of("billing", "orders", 0) is None
        master.log += rest
        await soon(lambda: store.consumer_offsets.committed_of("billing", "orders", 0) == 60)


async def test_the_status_line_names_bytes_and_seconds(source: Source, store: MessageStore) -> None:
    async with FakeMaster(source.put(50)) as master, follower_of(master, store) as said:
        master.end = master.log_end + 5_000_000
        await soon(lambda: any(f"behind {show_bytes(5_000_000)}, " in line for line in said))
        master.end = None
        await soon(lambda: "behind 0 B, 0 s" in said[-1])


# ---- the promotion ----


async def test_a_follower_serves_only_once_it_is_promoted(source: Source, store: MessageStore, tmp_path: Path) -> None:
    async with FakeMaster(source.put(5)) as master:
        await follow_to_end(master, store)
        other = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
        with pytest.raises(FollowsMaster, match=f"follows the RocketMQ master {master.address}"):
            other.open()


async def test_a_master_that_has_or_takes_more_is_not_given_up(
    source: Source, store: MessageStore, tmp_path: Path
) -> None:
    async with FakeMaster(source.put(5)) as master:
        await follow_to_end(master, store)
        stopped = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
        with opened_follower(stopped, lambda *progress: None):
            master.end = master.log_end + 100
            with pytest.raises(StillServing, match="has 100 bytes of log that"):
                await take_last_tables(stopped)
            master.end = None
            with pytest.raises(StillServing, match="still takes messages"):
                await take_last_tables(stopped)
            assert stopped.consumer_offsets.committed_of("billing", "orders", 0) is None
            master.settings["brokerPermission"] = "4"
            master.tables[43] = offsets("billing", 5)
            assert await take_last_tables(stopped)
            assert stopped.consumer_offsets.committed_of("billing", "orders", 0) == 5


async def test_a_master_that_is_gone_is_not_asked(source: Source, store: MessageStore, tmp_path: Path) -> None:
    async with FakeMaster(source.put(5)) as master:
        await follow_to_end(master, store)
    stopped = MessageStore(tmp_path / "store", SMALL, files=UnsyncedFiles())
    with opened_follower(stopped, lambda *progress: None):
        assert not await take_last_tables(stopped)


def test_the_commands_say_what_to_do(tmp_path: Path) -> None:
    store = tmp_path / "store"
    nothing = tool("promote", "--store", store)
    assert (nothing.code, "there is nothing to promote" in nothing.errors) == (2, True), nothing
    assert not store.exists()
    refused = tool("follow-rocketmq", "localhost:many", "--store", store)
    assert (refused.code, "is not the address of a RocketMQ master" in refused.errors) == (2, True), refused
    opened = open_store(store)
    put(opened, "orders", 0, plain(5))
    opened.followed_master.note(f"127.0.0.1:{free_port()}")
    opened.close()
    refused = tool("serve", "--store", store, "--set", "server.listen=127.0.0.1:0", *OPTIONS)
    assert (refused.code, "take the store over with `flintmq-broker promote`" in refused.errors) == (1, True), refused
    refused = tool("rebuild", store)
    assert (refused.code, "follows the RocketMQ master" in refused.errors) == (2, True), refused
    promoted = tool("promote", "--store", store, *OPTIONS)
    assert promoted.code == 0, promoted
    assert "cannot be reached" in promoted.output[0]
    assert "1 topics" in promoted.output[1]
    assert promoted.output[2].endswith(f"flintmq-broker serve --store {store}, with the same settings")
    assert tool("rebuild", store).code == 0


async def test_force_asks_no_master(source: Source, store: MessageStore, tmp_path: Path) -> None:
    async with FakeMaster(source.put(5)) as master:
        await follow_to_end(master, store)
        master.end = master.log_end + 100
        options = ["--store", str(store.path), *OPTIONS]
        refused = await asyncio.to_thread(tool, "promote", *options)
        assert (refused.code, "has 100 bytes of log that" in refused.errors) == (2, True), refused
        forced = await asyncio.to_thread(tool, "promote", "--force", *options)
        assert (forced.code, "was not asked" in forced.output[0]) == (0, True), forced


def test_a_damaged_note_is_never_taken_for_none(store: MessageStore) -> None:
    store.followed_master.note("127.0.0.1:10911")
    (store.own_folder / "following.json").write_bytes(b"{")
    with pytest.raises(CorruptFile, match="Remove it, then run `flintmq-broker follow-rocketmq` again"):
        store.open()
    with pytest.raises(CorruptFile):
        store.followed_master.address()
