"""A connection that the broker opens to a program of RocketMQ's: a master that it follows, or a name server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from ...protocol.errors import ConnectionFailed, RemoteProtocolError, RequestTimeout
from ...protocol.frames import REQUEST, RESPONSE
from ...protocol.remoting.command import LENGTHS, decode_frame, encode_head
from ..addresses import format_address

FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Longest frame that is read: the answers are whole tables."""
CALL_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class RemotingAnswer:
    """Response of a program of RocketMQ's. ``code``: its ``ResponseCode``; ``remark``: its words about it."""

    code: int
    remark: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def encode_request(code: int, opaque: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return a request. ``opaque`` is copied into its response."""
    return encode_head(REQUEST, code, opaque, fields, len(body)) + body


def decode_answer(frame: bytes) -> tuple[int, RemotingAnswer] | None:
    """Return opaque and response of a frame without its first four bytes; None if it is a request.

    Raises ``RemoteProtocolError``.
    """
    # ``decode_frame`` wants room for the length, and does not read it.
    blob = bytearray(_LENGTH_BYTES) + frame
    if len(blob) < LENGTHS.size:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes, which has no header")
    decoded = decode_frame(blob, 0, len(blob))
    if decoded.kind != RESPONSE:
        return None
    answer = RemotingAnswer(decoded.code, decoded.remark, decoded.fields, bytes(decoded.body))
    return decoded.request_id, answer


class OutboundConnection:
    """A connection to a program of RocketMQ's; one request at a time.

    ``kind``: what it is, and ``advice``: what to do if it is something else, for error messages.
    """

    kind, advice = "program of RocketMQ's", ""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._opaque = 0

    async def ask(self, code: int, body: bytes = b"", /, **fields: str) -> RemotingAnswer:
        """Return the response to a request, whatever its code is.

        Raises ``ConnectionFailed``, ``RequestTimeout`` or ``RemoteProtocolError``; the connection is then unusable.
        """
        self._opaque += 1
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                self._writer.write(encode_request(code, self._opaque, fields, body))
                await self._writer.drain()
                while True:
                    # The other side may send requests of its own, which get no answer.
                    found = decode_answer(await self._read_frame())
                    if found is not None and found[0] == self._opaque:
                        return found[1]
        except TimeoutError:
            raise RequestTimeout(
                f"{self.address} did not answer request {code} within {CALL_TIMEOUT_S:.0f} s"
            ) from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ConnectionFailed(f"{self.address} closed the connection before it answered: {error}") from error
        except RemoteProtocolError as error:
            raise RemoteProtocolError(
                f"{self.address} does not answer as a {self.kind}: {error}{self.advice}"
            ) from None

    async def _read_frame(self) -> bytes:
        length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
        if not 4 <= length <= FRAME_BYTES_MAX:
            raise RemoteProtocolError(f"a frame of {length:,} bytes is not between 4 and {FRAME_BYTES_MAX:,}")
        return await self._reader.readexactly(length)

    async def closed(self) -> None:
        """Wait until the other end closes the connection; what it sends meanwhile is passed over.

        Only while no request is under way.
        """
        try:
            while await self._reader.read(2**16):
                pass
        except OSError:
            return

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


C = TypeVar("C", bound=OutboundConnection)


async def connect(host: str, port: int, limit: int = 2**16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection's streams. ``limit``: bytes that wait to be read. Raises ``ConnectionFailed``."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await asyncio.open_connection(host, port, limit=limit)
    except TimeoutError:
        reason = f"it did not accept a connection within {CONNECT_TIMEOUT_S:.0f} s"
    except OSError as error:
        reason = str(error)
    raise ConnectionFailed(f"{format_address(host, port)} cannot be reached: {reason}")


@asynccontextmanager
async def connected_as(kind: type[C], host: str, port: int) -> AsyncIterator[C]:
    """Connect to a program of RocketMQ's. Raises ``ConnectionFailed``."""
    reader, writer = await connect(host, port)
    connection = kind(format_address(host, port), reader, writer)
    try:
        yield connection
    finally:
        connection.close()
