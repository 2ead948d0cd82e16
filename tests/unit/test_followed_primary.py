"""A member counts a table for the primary that sent it, and for no other, and tells it a position only once; over real
connections."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flintmq.broker.background.flush import Notice
from flintmq.broker.replication.core.messages import Hello, Message, PositionReport, Welcome
from flintmq.broker.replication.member.links import FollowedPrimary, LinkAccess, encode_epochs
from flintmq.broker.replication.member.tables import TableCopy
from flintmq.protocol.commands import (
    HELLO,
    PROTOCOL_VERSION,
    REPLICATE,
    REPLICATE_TABLE,
    REPORT_POSITION,
    HelloAnswer,
    ReplicateAnswer,
    ReplicateTableRequest,
    ReportPositionRequest,
)
from flintmq.protocol.errors import SUCCESS
from flintmq.protocol.fields import decode_fields, encode_fields
from flintmq.protocol.frames import ONE_WAY, RESPONSE, FrameParser, encode_frame

EPOCH = 7


class SlowTable:
    """A table whose disk works only after ``free`` is set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.free, self.begun = threading.Event(), threading.Event()
        self.contents: list[bytes] = []

    def version(self) -> object:
        return len(self.contents)

    def read(self) -> bytes:
        return b""

    def write(self, content: bytes) -> None:
        self.begun.set()
        assert self.free.wait(30)
        self.contents.append(content)


class Primary:
    """A primary that greets one follower, and then sends what a test tells it to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._parser = FrameParser(1 << 20)
        self.tables: asyncio.Queue[int] = asyncio.Queue()
        """Number of the last table, of each report."""
        self.flushed: list[int] = []
        """Position on disk, of each report."""
        self._request_id = 0

    async def serve(self) -> None:
        while data := await self._reader.read(4096):
            view = self._parser.writable()
            view[: len(data)] = data
            self._parser.received(len(data))
            while (frame := self._parser.next_frame()) is not None:
                if frame.code == HELLO.code:
                    limits = HelloAnswer(PROTOCOL_VERSION, "primary", "0", "sync", 1 << 24, 1 << 20, 1 << 19)
                    self.writer.write(encode_frame(RESPONSE, SUCCESS, frame.request_id, encode_fields(limits)))
                elif frame.code == REPLICATE.code:
                    self._request_id = frame.request_id
                elif frame.code == REPORT_POSITION.code:
                    position = decode_fields(ReportPositionRequest, frame.fields)
                    self.flushed.append(position.flushed)
                    self.tables.put_nowait(position.tables)

    def welcome(self) -> None:
        answer = encode_fields(ReplicateAnswer(epoch=EPOCH, begin=0))
        self.writer.write(encode_frame(RESPONSE, SUCCESS, self._request_id, answer, encode_epochs(())))

    def send(self, body: bytes, version: int, *, table: str = "slow", epoch: int = EPOCH, last: bool = True) -> None:
        part = ReplicateTableRequest(epoch=epoch, table=table, version=version, last=last)
        self.writer.write(encode_frame(ONE_WAY, REPLICATE_TABLE.code, version, encode_fields(part), body))


class Member:
    """The member's core, which notes what it hears."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.withdrawn = 0

    def primary_connected(self, number: int) -> None:
        self.heard.put_nowait(("connected", number))

    def primary_lost(self, number: int, refused: bool) -> None:
        self.heard.put_nowait(("lost", number))

    def primary_alive(self, number: int) -> None:
        pass

    def withdraw_notice(self) -> None:
        self.withdrawn += 1

    def primary_said(self, number: int, message: Message, body: memoryview) -> None:
        assert isinstance(message, Welcome)
        self.heard.put_nowait(("welcomed", number))


class Set:
    """A member, the tables that it has, and the primaries that it connects to, one after the other."""

    def __init__(self, address: str, arrived: asyncio.Queue[Primary], user: str) -> None:
        self.table, self.other, self.member = SlowTable("slow"), SlowTable("other"), Member()
        self.other.free.set()
        self.address, self._arrived = address, arrived
        access, loop = LinkAccess("follower", user), asyncio.get_running_loop()
        self.followed = FollowedPrimary(access, TableCopy([self.table, self.other], 1000), self.member, loop)

    async def follow(self, number: int) -> Primary:
        """Connect to the next primary, greet it, report a position and be welcomed."""
        primary = await self.greet(number)
        primary.welcome()
        assert await self.member.heard.get() == ("welcomed", number)
        return primary

    async def greet(self, number: int) -> Primary:
        """Connect to the next primary, greet it and report a position."""
        self.followed.connect(number, self.address)
        primary = await self._arrived.get()
        assert await self.member.heard.get() == ("connected", number)
        self.followed.greet(number, Hello("set", EPOCH, "b", 0, ()), 1 << 20)
        self.followed.report(number, PositionReport(EPOCH, 0, 0, complete=True))
        assert await primary.tables.get() == 0
        return primary


@asynccontextmanager
async def replica_set(user: str = "") -> AsyncIterator[Set]:
    arrived: asyncio.Queue[Primary] = asyncio.Queue()
    serving: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        primary = Primary(reader, writer)
        arrived.put_nowait(primary)
        await primary.serve()
        writer.close()

    async with asyncio.timeout(30), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        followers = Set(f"{host}:{port}", arrived, user)
        try:
            yield followers
        finally:
            followers.table.free.set()
            await followers.followed.stop()
            await asyncio.gather(*filter(None, serving), return_exceptions=True)


async def test_a_table_of_the_primary_before_does_not_count_for_the_next_one() -> None:
    async with replica_set() as members:
        first = await members.follow(1)
        first.send(b"old", 900)
        await asyncio.to_thread(members.table.begun.wait, 30)
        members.followed.close(1)
        second = await members.follow(2)
        second.send(b"new", 1)
        members.table.free.set()
        assert await second.tables.get() == 1
        assert members.table.contents == [b"old", b"new"]


async def test_the_rest_of_a_table_that_a_lost_connection_began_is_not_added_to_the_next_one() -> None:
    async with replica_set() as members:
        members.table.free.set()
        first = await members.follow(1)
        first.send(b"half of", 900, last=False)
        first.send(b"", 901, last=False)
        first.writer.close()
        assert await members.member.heard.get() == ("lost", 1)
        second = await members.follow(2)
        second.send(b"whole", 1)
        assert await second.tables.get() == 1
        assert members.table.contents == [b"whole"]


async def test_only_the_newest_version_of_each_table_waits_for_a_slow_disk() -> None:
    async with replica_set() as members:
        primary = await members.follow(1)
        primary.send(b"1", 1)
        primary.send(b"x", 2, table="other")
        for number in range(3, 50):
            primary.send(b"%d" % number, number)
        primary.send(b"y", 50, table="other")
        primary.send(b"51", 51)
        await asyncio.to_thread(members.table.begun.wait, 30)
        primary.writer.close()
        assert await members.member.heard.get() == ("lost", 1)  # so everything has arrived
        members.table.free.set()
        await members.followed.finish_tables()
        assert (members.table.contents, members.other.contents) == ([b"1", b"51"], [b"y"])


async def test_a_report_counts_only_what_is_on_disk_with_all_before_it() -> None:
    async with replica_set() as members:
        primary = await members.follow(1)
        members.other.free.clear()
        primary.send(b"x", 1, table="other")
        await asyncio.to_thread(members.other.begun.wait, 30)
        primary.send(b"old", 2)
        primary.send(b"y", 3, table="other")
        primary.send(b"new", 4)
        members.table.free.set()
        members.other.free.set()
        # "old" gave way to "new", which is before the second version of the other table.
        assert [await primary.tables.get() for _ in range(3)] in ([1, 2, 4], [1, 3, 4])
        assert (members.table.contents, members.other.contents) in (
            ([b"new"], [b"x", b"y"]),
            ([b"old", b"new"], [b"x", b"y"]),
        )


async def test_nothing_of_a_primary_is_written_once_the_next_one_has_sent_its_tables() -> None:
    async with replica_set() as members:
        first = await members.follow(1)
        first.send(b"begun", 1)
        first.send(b"z", 2, table="other")
        await asyncio.to_thread(members.table.begun.wait, 30)
        first.writer.close()
        assert await members.member.heard.get() == ("lost", 1)
        second = await members.follow(2)
        members.table.free.set()
        second.send(b"second", 1)
        assert await second.tables.get() == 1
        assert (members.table.contents, members.other.contents) == ([b"begun", b"second"], [])


async def test_the_end_of_a_life_waits_for_the_table_that_is_being_written_and_drops_the_others() -> None:
    async with replica_set() as members:
        primary = await members.follow(1)
        primary.send(b"begun", 1)
        await asyncio.to_thread(members.table.begun.wait, 30)
        primary.send(b"waits", 2)
        primary.writer.close()
        assert await members.member.heard.get() == ("lost", 1)
        stopping = asyncio.create_task(members.followed.stop())
        await asyncio.sleep(0)
        members.table.free.set()
        await stopping
        assert members.table.contents == [b"begun"]


async def test_a_table_before_the_welcome_or_of_another_epoch_ends_the_connection() -> None:
    async with replica_set() as members:
        members.table.free.set()
        stranger = await members.greet(1)
        stranger.send(b"early", 1)
        assert await members.member.heard.get() == ("lost", 1)
        late = await members.follow(2)
        late.send(b"of another epoch", 1, epoch=EPOCH - 1)
        assert await members.member.heard.get() == ("lost", 2)
        assert members.table.contents == []


async def test_a_primary_that_asks_for_no_login_is_refused_by_a_member_with_a_user() -> None:
    async with replica_set("ops") as members:
        members.followed.connect(1, members.address)
        assert await members.member.heard.get() == ("lost", 1)
        assert "asks for no login" in members.followed.refusal


# ---- Reports that the disk's thread sends.


def position(flushed: int, written: int = 100) -> PositionReport:
    return PositionReport(EPOCH, written, flushed, complete=True)


def made(members: Set, report: PositionReport) -> Notice:
    notice = members.followed.notice(1, report)
    assert notice is not None
    return notice


async def test_a_report_that_the_disk_has_sent_is_not_repeated() -> None:
    async with replica_set() as members:
        primary = await members.follow(1)
        notice = made(members, position(50))
        os.write(notice.fd, notice.content)
        notice.done(len(notice.content))
        members.followed.report(1, position(50, written=200))
        members.followed.report(1, position(50, written=200))
        members.followed.report(1, position(200, written=200))
        assert [await primary.tables.get() for _ in range(3)] == [0, 0, 0]
        assert primary.flushed == [0, 50, 50, 200]


async def test_a_report_is_sent_if_the_disk_has_sent_none_or_another_one() -> None:
    async with replica_set() as members:
        primary = await members.follow(1)
        made(members, position(50)).done(0)
        members.followed.report(1, position(50))
        notice = made(members, position(60))
        os.write(notice.fd, notice.content)
        notice.done(len(notice.content))
        members.followed.report(1, position(70))
        assert [await primary.tables.get() for _ in range(3)] == [0, 0, 0]
        assert primary.flushed == [0, 50, 60, 70]


async def test_a_report_of_the_loop_withdraws_that_of_the_disk() -> None:
    async with replica_set() as members:
        await members.follow(1)
        notice = made(members, position(50))
        assert members.followed.notice(1, position(60)) is None  # one at a time
        assert members.member.withdrawn == 0
        members.followed.report(1, position(40))
        assert members.member.withdrawn == 1
        notice.done(0)
        members.followed.report(1, position(50))
        assert members.member.withdrawn == 1


async def test_the_first_report_of_a_connection_is_not_the_disks() -> None:
    async with replica_set() as members:
        members.followed.connect(1, members.address)
        assert await members.member.heard.get() == ("connected", 1)
        members.followed.greet(1, Hello("set", EPOCH, "b", 0, ()), 1 << 20)
        assert members.followed.notice(1, position(0)) is None
        assert members.followed.notice(2, position(0)) is None


async def test_the_disk_can_send_nothing_on_a_connection_that_was_closed_and_no_other_gets_its_descriptor() -> None:
    async with replica_set() as members:
        await members.follow(1)
        notice = made(members, position(50))
        members.followed.close(1)
        await members.follow(2)
        with pytest.raises(BrokenPipeError):
            os.write(notice.fd, notice.content)
        notice.done(-1)
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            os.fstat(notice.fd)


async def test_half_a_report_ends_the_connection() -> None:
    async with replica_set() as members:
        await members.follow(1)
        notice = made(members, position(50))
        notice.done(len(notice.content) // 2)
        assert await members.member.heard.get() == ("lost", 1)
