"""A RocketMQ master for followers, with any log: remoting requests of a slave, and the classic HA protocol.

The real one is in ``tests/integration/test_rocketmq_follow.py``. This one can also lie, and needs no Java.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from typing import Any

TICK_S = 0.002
RECORD_NOT_FOUND = 1

Mangle = Callable[[int, bytes], tuple[int, bytes]]
"""Returns the offset and the bytes to send instead of a piece."""


class FakeMaster:
    """A master on loopback. ``log``: its log's bytes from physical offset ``begin`` on; a test may change everything.

    ``end``: physical offset up to which it says that it has its log; None: all of ``log``.
    """

    def __init__(self, log: bytes, begin: int = 0, file_bytes: int = 4 << 20) -> None:
        self.log = bytearray(log)
        self.begin = begin
        self.end: int | None = None
        self.piece_bytes = 32 * 1024
        self.mangle: Mangle = lambda offset, data: (offset, data)
        self.settings = {
            "brokerRole": "ASYNC_MASTER",
            "brokerPermission": "6",
            "mappedFileSizeCommitLog": str(file_bytes),
            "timerWheelEnable": "true",
            "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        }
        self.tables: dict[int, Any] = {
            21: {"topicConfigTable": {}},
            43: {"offsetTable": {}},
            45: {"offsetTable": {}},
            201: {"subscriptionGroupTable": {}},
        }
        self.bodies: dict[int, bytes] = {}
        """Bodies to answer with instead of tables."""
        self.refusals: list[int] = []
        """Codes of the requests that are refused next, with RocketMQ's words while it starts."""
        self.timer_check = struct.pack(">7q", 0, 0, 0, 0, 0, 0, 0)
        self.reports: list[list[int]] = []
        """The reports of each HA connection."""
        self.port = 0
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> FakeMaster:
        for serve in (self._serve_requests, self._serve_log):
            self._servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        self.port, ha_port = (server.sockets[0].getsockname()[1] for server in self._servers)
        self.settings["haListenPort"] = str(ha_port)
        return self

    async def __aexit__(self, *error: object) -> None:
        for server in self._servers:
            server.close()
        self.cut()

    def cut(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.close()

    @property
    def address(self) -> str:
        """HOST:PORT for requests."""
        return f"127.0.0.1:{self.port}"

    @property
    def log_end(self) -> int:
        """Physical offset at which its log ends."""
        return self.begin + len(self.log)

    # ---- requests ----

    async def _serve_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.read(8):
                header = json.loads(await reader.readexactly(struct.unpack(">II", head)[1]))
                code, body = self._answer(header["code"], header["extFields"])
                text = json.dumps({"code": code, "opaque": header["opaque"], "flag": 1, "remark": "no"}).encode()
                writer.write(struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a follower that was stopped
        finally:
            writer.close()

    def _answer(self, code: int, fields: dict[str, str]) -> tuple[int, bytes]:
        if code in self.refusals:
            self.refusals.remove(code)
            return 1, b""
        end = self.log_end if self.end is None else self.end
        if code == 26:
            return 0, "".join(f"{name}={value}\n" for name, value in self.settings.items()).encode()
        if code == 28:
            begin = self.begin if self.begin or self.log else -1  # a RocketMQ without files
            extent = {"commitLogMinOffset": str(begin), "commitLogMaxOffset": str(end)}
            return 0, json.dumps({"table": extent}).encode()
        if code == 33:
            at = int(fields["offset"]) - self.begin
            size = int.from_bytes(self.log[at : at + 4], "big") if at >= 0 else 0
            return (0, bytes(self.log[at : at + size])) if size else (RECORD_NOT_FOUND, b"")
        if code in self.bodies:
            return 0, self.bodies[code]
        return 0, self.timer_check if code == 60 else json.dumps(self.tables[code]).encode()

    # ---- the log ----

    async def _serve_log(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        reports: list[int] = []
        sending = None
        try:
            while True:
                reports.append(int.from_bytes(await reader.readexactly(8), "big", signed=True))
                if sending is None:
                    self.reports.append(reports)
                    sending = asyncio.create_task(self._send_log(writer, reports[0]))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a follower that was stopped
        finally:
            if sending is not None:
                sending.cancel()
            writer.close()

    async def _send_log(self, writer: asyncio.StreamWriter, at: int) -> None:
        while not writer.is_closing():
            data = bytes(self.log[at - self.begin : at - self.begin + self.piece_bytes])
            offset, said = self.mangle(at, data)
            if data:
                writer.write(struct.pack(">qi", offset, len(said)) + said)
                await writer.drain()
                at += len(data)
            else:
                await asyncio.sleep(TICK_S)
