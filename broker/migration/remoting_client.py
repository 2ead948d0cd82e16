"""RocketMQ's remoting protocol, as far as a slave needs it: requests with a JSON header, one after the other.

A frame is u32 length of what follows, u32 (type << 24 | header length), header, body; type 0 is a header in JSON.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ...protocol.errors import ConnectionFailed, RemoteProtocolError, RequestTimeout
from ..addresses import format_address
from .errors import MasterRefused

FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Longest frame that is read: the answers are whole tables."""
CALL_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
SUCCESS = 0

_LENGTHS = struct.Struct(">II")
_HEADER_MASK = 0xFFFFFF
_VERSION = 479
"""RocketMQ 5.3.3's number, so that a master answers in that version's form."""
_RESPONSE_FLAG = 1


@dataclass(frozen=True, slots=True)
class RemotingAnswer:
    """Response of a RocketMQ broker. ``code``: its ``ResponseCode``; ``remark``: its words about it."""

    code: int
    remark: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def encode_request(code: int, opaque: int, fields: Mapping[str, str]) -> bytes:
    """Return a request without a body. ``opaque`` is copied into its response."""
    header = json.dumps(
        {
            "code": code,
            "language": "OTHER",
            "version": _VERSION,
            "opaque": opaque,
            "flag": 0,
            "extFields": dict(fields),
            "serializeTypeCurrentRPC": "JSON",
        },
        separators=(",", ":"),
    ).encode()
    return _LENGTHS.pack(4 + len(header), len(header)) + header


def decode_answer(frame: bytes) -> tuple[int, RemotingAnswer] | None:
    """Return opaque and response of a frame without its first four bytes; None if it is a request.

    Raises ``RemoteProtocolError``.
    """
    kind, header_bytes = frame[0], int.from_bytes(frame[:4], "big") & _HEADER_MASK
    if kind != 0 or header_bytes > len(frame) - 4:
        raise RemoteProtocolError(f"a frame has header type {kind} and a header of {header_bytes:,} bytes")
    try:
        header: Any = json.loads(frame[4 : 4 + header_bytes])
        opaque, flag = int(header["opaque"]), int(header.get("flag", 0))
        fields = {str(name): str(value) for name, value in (header.get("extFields") or {}).items()}
        answer = RemotingAnswer(int(header["code"]), str(header.get("remark") or ""), fields, frame[4 + header_bytes :])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RemoteProtocolError(f"a frame has a header that is not RocketMQ's: {error}") from error
    return (opaque, answer) if flag & _RESPONSE_FLAG else None


class MasterClient:
    """A connection to a RocketMQ broker; one request at a time."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._opaque = 0

    async def ask(self, code: int, **fields: str) -> RemotingAnswer:
        """Return the response to a request, whatever its code is.

        Raises ``ConnectionFailed``, ``RequestTimeout`` or ``RemoteProtocolError``; the client is then unusable.
        """
        self._opaque += 1
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                self._writer.write(encode_request(code, self._opaque, fields))
                await self._writer.drain()
                while True:
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
                f"{self.address} does not answer as a RocketMQ broker: {error}. Name its listenPort (10911 by default)"
            ) from None

    async def call(self, code: int, **fields: str) -> RemotingAnswer:
        """Return the successful response to a request. Raises as ``ask``, and ``MasterRefused``."""
        answer = await self.ask(code, **fields)
        if answer.code != SUCCESS:
            raise MasterRefused(
                f"{self.address} refused request {code} with code {answer.code}: {answer.remark[:500]}. If it requires "
                "access keys, allow this address without them: this command does not sign requests",
                answer.code,
            )
        return answer

    async def _read_frame(self) -> bytes:
        length = int.from_bytes(await self._reader.readexactly(4), "big")
        if not 4 <= length <= FRAME_BYTES_MAX:
            raise RemoteProtocolError(f"a frame of {length:,} bytes is not between 4 and {FRAME_BYTES_MAX:,}")
        return await self._reader.readexactly(length)


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
async def connected(host: str, port: int) -> AsyncIterator[MasterClient]:
    """Connect to a RocketMQ broker's ``listenPort``. Raises ``ConnectionFailed``."""
    reader, writer = await connect(host, port)
    try:
        yield MasterClient(format_address(host, port), reader, writer)
    finally:
        writer.close()
