"""A follower takes a master's tables, never ahead of the log, until it is promoted. See also
``test_rocketmq_follow``."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from flintmq.broker.migration import follower as module
from flintmq.broker.migration.follower import opened_follower, take_last_tables
from flintmq.broker.migration.ha_connection import StillServing
from flintmq.broker.store import CorruptFile, FollowsMaster, MessageStore
from flintmq.protocol.display import show_bytes
from tests.fake_master import FakeMaster
from tests.migration_tools import Source, follow_to_end, follower_of, soon
from tests.processes import free_port
from tests.store_tools import SMALL, UnsyncedFiles, open_store, plain, put, reopen
from tests.tools_runs import tool

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
