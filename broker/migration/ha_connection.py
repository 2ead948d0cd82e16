"""A connection to a master's haListenPort: bytes of its log in, reports out."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ...protocol.errors import ConnectionFailed, FlintError
from ...protocol.storage.layout import BLANK_BYTES_MIN
from ..addresses import format_address
from ..remoting.outbound import connect

# ---- Errors of a migration from RocketMQ.


class MigrationError(FlintError):
    """Root of the errors that end a migration; a person has to decide."""


class MasterUnsuitable(MigrationError):
    """The RocketMQ broker cannot be followed: its settings or its log do not allow it."""


class MasterRefused(MigrationError):
    """The RocketMQ broker answered a request with an error. ``code``: its ``ResponseCode``."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class HistoryDiffers(MigrationError):
    """The store's log is not the beginning of the master's log."""


class FollowsNothing(MigrationError):
    """The store follows no master."""


class StillServing(MigrationError):
    """The master may have, or still take, messages that the store lacks."""


class HaStreamError(MigrationError):
    """A master sent bytes over its HA connection that cannot be what was asked for; nothing of them was written.

    ``physical_offset``: where in the log.
    """

    def __init__(self, physical_offset: int, reason: str) -> None:
        super().__init__(
            f"the master's bytes for offset {physical_offset:,} of the log cannot be right: {reason}. Nothing of them "
            "was written; if it happens again, verify the master's store"
        )
        self.physical_offset = physical_offset


# ---- RocketMQ's classic HA protocol, the slave's side: pieces of the log come in, whole records go out. No
# I/O.
#
# The slave sends an i64, the physical offset below which it has everything; the first one says where the
# master begins. The master sends pieces: i64 offset, i32 size, and that many raw bytes of its log; size 0 is
# a heartbeat. A piece ends anywhere, also inside of a record, and there is no checksum.

BUFFER_BYTES_MAX = 64 * 1024 * 1024
"""Maximum number of bytes that wait for the rest of their record."""
FEED_BYTES_MAX = 1024 * 1024
"""Maximum number of bytes of one ``feed``."""
RECORD_BYTES_MAX = BUFFER_BYTES_MAX - FEED_BYTES_MAX
"""Longest record that is waited for. RocketMQ's default ``maxMessageSize`` is 4 MiB."""
PIECE_BYTES_MAX = 1024 * 1024 * 1024
"""Longest piece that a master can mean: a whole file of its log."""

_HEAD = struct.Struct(">qi")
_SIZE = struct.Struct(">i")
_REPORT = struct.Struct(">q")


def encode_report(physical_offset: int) -> bytes:
    """Return the slave's message that it has everything below ``physical_offset``."""
    return _REPORT.pack(physical_offset)


@dataclass(frozen=True, slots=True)
class RecordBytes:
    """Whole records of the master's log, and the blanks between its files. ``offset``: physical offset of the first."""

    offset: int
    data: bytearray


class HaReceiver:
    """State of one connection to a master, for a log that ends at ``log_end``."""

    def __init__(self, log_end: int) -> None:
        # A first report of 0 means "your last file only". The first byte of a log is 0, because it begins the length of
        # a record that is shorter than 16 MiB: so an empty log asks for the bytes from 1 on.
        self.first_report = log_end or 1
        """The report that begins the connection."""
        self._buffer = bytearray(0 if log_end else 1)
        self._buffer_offset = log_end
        self._head = bytearray()
        self._piece_left = 0

    @property
    def received_offset(self) -> int:
        """Physical offset of the next byte that the master must send."""
        return self._buffer_offset + len(self._buffer)

    def feed(self, data: bytes) -> RecordBytes | None:
        """Take bytes from the connection, at most ``FEED_BYTES_MAX``; return the records that they complete, if any.

        Raises ``HaStreamError``; the connection cannot be used any more.
        """
        assert len(data) <= FEED_BYTES_MAX, len(data)
        view, at = memoryview(data), 0
        while at < len(view):
            if self._piece_left:
                taken = view[at : at + self._piece_left]
                self._buffer += taken
                self._piece_left -= len(taken)
            else:
                taken = view[at : at + _HEAD.size - len(self._head)]
                self._head += taken
                if len(self._head) == _HEAD.size:
                    self._begin_piece()
            at += len(taken)
        return self._take_whole()

    def _begin_piece(self) -> None:
        offset, size = _HEAD.unpack(self._head)
        self._head.clear()
        wanted = self.received_offset
        if offset != wanted:
            raise HaStreamError(wanted, f"a piece is for offset {offset:,}")
        if not 0 <= size <= PIECE_BYTES_MAX:
            raise HaStreamError(wanted, f"a piece of {size:,} bytes")
        self._piece_left = size

    def _take_whole(self) -> RecordBytes | None:
        """Cut the whole records from the front of the buffer."""
        buffer, at = self._buffer, 0
        while len(buffer) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(buffer, at)
            if not BLANK_BYTES_MIN <= size <= RECORD_BYTES_MAX:
                if at:
                    break  # the records before it are taken; the next call raises
                raise HaStreamError(self._buffer_offset + at, f"a record of {size:,} bytes")
            if len(buffer) - at < size:
                break
            at += size
        if not at:
            return None
        # The rest is copied and the records are not, because the rest is usually the smaller part.
        records = RecordBytes(self._buffer_offset, buffer)
        self._buffer = buffer[at:]
        del buffer[at:]
        self._buffer_offset += at
        return records


SILENCE_S = 20.0
"""A master that sends nothing, not even a heartbeat, for this time is gone (``haHousekeepingInterval``)."""


class HaConnection:
    """The streams of one connection."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer

    def report(self, physical_offset: int) -> None:
        """Tell the master that everything below an offset is here."""
        self._writer.write(encode_report(physical_offset))

    async def read(self, wait_s: float = SILENCE_S) -> bytes:
        """Return the next bytes; empty if none came within a ``wait_s`` shorter than ``SILENCE_S``.

        Raises ``ConnectionFailed`` if the connection ended or was silent for ``SILENCE_S``.
        """
        try:
            async with asyncio.timeout(wait_s):
                data = await self._reader.read(FEED_BYTES_MAX)
        except TimeoutError:
            if wait_s < SILENCE_S:
                return b""
            raise ConnectionFailed(f"{self.address} sent nothing for {SILENCE_S:.0f} s") from None
        except OSError as error:
            raise ConnectionFailed(f"the connection to {self.address} broke: {error}") from error
        if not data:
            raise ConnectionFailed(f"{self.address} closed the connection")
        return data


@asynccontextmanager
async def ha_connected(host: str, port: int) -> AsyncIterator[HaConnection]:
    """Connect to a master. Raises ``ConnectionFailed``."""
    reader, writer = await connect(host, port, limit=FEED_BYTES_MAX)
    try:
        yield HaConnection(format_address(host, port), reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
