"""A connection to a master's haListenPort: bytes of its log in, reports out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...protocol.errors import ConnectionFailed
from ..addresses import format_address
from ..remoting.outbound import connect
from .ha_codec import FEED_BYTES_MAX, encode_report

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
