"""The tables that a primary sends, which a follower takes whole or not at all; a member's files on a full disk."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.replication.core.messages import Welcome
from flintmq.broker.replication.member.links import AcceptedLinks, TableSender
from flintmq.broker.replication.member.replica_member import write_when_room
from flintmq.broker.replication.member.tables import TopicsTable
from flintmq.broker.store import MessageStore
from flintmq.protocol.commands import Command, ReplicateTableRequest
from flintmq.protocol.errors import ReplicationRefused
from tests.store_tools import make_topic, open_store, plain, put


def store_with_topic(path: Path, topic: str) -> MessageStore:
    """Return an open store with a topic that has messages."""
    store = open_store(path)
    put(store, topic, 0, plain(3))
    return store


def test_a_topic_whose_deletion_is_not_on_disk_is_not_deleted_on_a_follower(tmp_path: Path) -> None:
    primary, follower = (store_with_topic(tmp_path / name, "gone") for name in ("primary", "follower"))
    primary.topics.remove("gone")
    TopicsTable(follower).write(TopicsTable(primary).read())
    assert follower.topics.get("gone") is not None
    for store in (primary, follower):
        store.close()


def test_a_deletion_takes_the_messages_of_a_follower_with_it(tmp_path: Path) -> None:
    primary, follower = (store_with_topic(tmp_path / name, "gone") for name in ("primary", "follower"))
    table = TopicsTable(primary)
    primary.topics.remove("gone")
    before = table.version()
    primary.delete_topic("gone")
    assert table.version() != before
    TopicsTable(follower).write(table.read())
    assert follower.topics.get("gone") is None
    assert follower.state.deleted == primary.state.deleted
    for store in (primary, follower):
        store.close()


def test_a_topic_that_is_created_again_is_sent(tmp_path: Path) -> None:
    primary = store_with_topic(tmp_path / "primary", "back")
    primary.topics.remove("back")
    primary.delete_topic("back")
    config = make_topic(primary, "back", queues=2)
    follower = open_store(tmp_path / "follower")
    TopicsTable(follower).write(TopicsTable(primary).read())
    assert follower.topics.get("back") == config
    for store in (primary, follower):
        store.close()


class Follower:
    """The other end of a follower's connection. ``sent``: numbers of the changes that it was sent."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[int] = asyncio.Queue()

    def welcome(self, answer: Any, body: bytes) -> None:
        pass

    def refuse(self, error: ReplicationRefused) -> None:
        raise error

    def tell(self, command: Command, request: ReplicateTableRequest, body: bytes | bytearray = b"") -> None:
        self.sent.put_nowait(request.version)

    def unsent_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


TIMEOUT_S = 60.0


async def test_a_follower_may_join_once_it_has_every_confirmed_change_of_the_tables(tmp_path: Path) -> None:
    store = store_with_topic(tmp_path / "primary", "orders")
    links, follower = AcceptedLinks(lambda begin, end: bytearray()), Follower()
    number = links.add(follower, "b")
    links.send(number, Welcome(1, 0, False, ()))
    link = links.get(number)
    assert link is not None
    sender = TableSender([TopicsTable(store)], links, 1, frozenset, asyncio.get_running_loop())
    assert not sender.is_equipped("b")
    first = await follower.sent.get()
    assert not sender.is_equipped("b")
    sender.reported(link, first)

    confirmed = asyncio.Event()
    make_topic(store, "bills")
    sender.when_saved(confirmed.set)  # no other member is in sync: it is confirmed at once
    await confirmed.wait()
    assert not sender.is_equipped("b")
    sender.reported(link, await follower.sent.get())
    assert sender.is_equipped("b")
    await sender.stop()
    store.close()


@pytest.mark.parametrize("turns", range(6))
async def test_the_sender_stops_in_any_turn_after_a_change(tmp_path: Path, turns: int) -> None:
    store = store_with_topic(tmp_path / "primary", "orders")
    links = AcceptedLinks(lambda begin, end: bytearray())
    sender = TableSender([TopicsTable(store)], links, 1, frozenset, asyncio.get_running_loop())
    confirmed = asyncio.Event()
    sender.when_saved(confirmed.set)
    await confirmed.wait()
    sender.when_saved(lambda: None)
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(TIMEOUT_S):
        await sender.stop()
    store.close()


# ---- A member's small files on a full disk


class FullDisk:
    """A disk that refuses some writes with an error number."""

    def __init__(self, *refusals: int) -> None:
        self._refusals = list(refusals)
        self.written = 0

    def write(self) -> None:
        if self._refusals:
            raise OSError(self._refusals.pop(), "refused")
        self.written += 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_follower_writes_as_soon_as_there_is_room(number: int) -> None:
    disk = FullDisk(number, number)
    await write_when_room(disk.write, lambda: True, pause_s=0)
    assert disk.written == 1


@pytest.mark.parametrize(("number", "waits"), [(errno.EIO, True), (errno.ENOSPC, False)])
async def test_another_error_and_a_member_that_must_not_wait_fail_at_once(number: int, waits: bool) -> None:
    disk = FullDisk(number)
    with pytest.raises(OSError, match="refused") as raised:
        await write_when_room(disk.write, lambda: waits, pause_s=0)
    assert raised.value.errno == number
    assert disk.written == 0
