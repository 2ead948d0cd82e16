"""A member counts a table for the primary that sent it, and for no other; over real connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flintmq.broker.replication.core.messages import Hello, Message, PositionReport
from flintmq.broker.replication.member.followed_primary import FollowedPrimary
from flintmq.broker.replication.member.primary_link import LinkAccess
from flintmq.broker.replication.member.tables import TableCopy
from flintmq.protocol.commands import (
    HELLO,
    PROTOCOL_VERSION,
    REPLICATE_TABLE,
    REPORT_POSITION,
    HelloAnswer,
    ReplicateTableRequest,
    ReportPositionRequest,
)
from flintmq.protocol.errors import SUCCESS
from flintmq.protocol.fields import decode_fields, encode_fields
from flintmq.protocol.frames import ONE_WAY, RESPONSE, FrameParser, encode_frame

EPOCH = 7


class SlowTable:
    """A table whose disk works only after ``free`` is set."""

    name = "slow"

    def __init__(self) -> None:
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

    async def serve(self) -> None:
        while data := await self._reader.read(4096):
            view = self._parser.writable()
            view[: len(data)] = data
            self._parser.received(len(data))
            while (frame := self._parser.next_frame()) is not None:
                if frame.code == HELLO.code:
                    limits = HelloAnswer(PROTOCOL_VERSION, "primary", "0", "sync", 1 << 24, 1 << 20, 1 << 19)
                    self.writer.write(encode_frame(RESPONSE, SUCCESS, frame.request_id, encode_fields(limits)))
                elif frame.code == REPORT_POSITION.code:
                    self.tables.put_nowait(decode_fields(ReportPositionRequest, frame.fields).tables)

    def send(self, body: bytes, version: int, *, last: bool = True) -> None:
        part = ReplicateTableRequest(epoch=EPOCH, table="slow", version=version, last=last)
        self.writer.write(encode_frame(ONE_WAY, REPLICATE_TABLE.code, version, encode_fields(part), body))


class Member:
    """The member's core, which notes what it hears."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    def primary_connected(self, number: int) -> None:
        self.heard.put_nowait(("connected", number))

    def primary_lost(self, number: int, refused: bool) -> None:
        self.heard.put_nowait(("lost", number))

    def primary_said(self, number: int, message: Message, body: memoryview) -> None:
        raise AssertionError(message)


class Set:
    """A member, the table that it has, and the primaries that it connects to, one after the other."""

    def __init__(self, address: str, arrived: asyncio.Queue[Primary]) -> None:
        self.table, self.member = SlowTable(), Member()
        self._address, self._arrived = address, arrived
        access, loop = LinkAccess("follower"), asyncio.get_running_loop()
        self.followed = FollowedPrimary(access, TableCopy([self.table], 1000), self.member, loop)

    async def follow(self, number: int) -> Primary:
        """Connect to the next primary, greet it and report a position."""
        self.followed.connect(number, self._address)
        primary = await self._arrived.get()
        assert await self.member.heard.get() == ("connected", number)
        self.followed.greet(number, Hello("set", EPOCH, "b", 0, ()), 1 << 20)
        self.followed.report(number, PositionReport(EPOCH, 0, 0, complete=True))
        assert await primary.tables.get() == 0
        return primary


@asynccontextmanager
async def replica_set() -> AsyncIterator[Set]:
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
        followers = Set(f"{host}:{port}", arrived)
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
