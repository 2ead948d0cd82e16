"""The connection that the requests of a client share: responses are matched to them by id."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ...protocol.errors import FlintError, RequestTimeout
from ..core.rpc.address import AddressBook
from ..core.rpc.connection_errors import SilenceLimit, share_seconds, unanswered
from ..core.rpc.operation import Operation, detached
from ..core.rpc.session import Answer
from ..core.rpc.timeouts import CONNECT_SECONDS_MAX
from .connection import Connection
from .runtime import ClientRuntime

ABANDONED_MAX = 16
"""Maximum number of requests on one connection whose callers have gone. The broker still responds to each, and may hold
it; above this number the connection is replaced, and closed as soon as no caller waits on it."""
_GRACE_SECONDS = 0.05
"""A connection attempt fails by itself when the call's time is over; the call ends at the latest this much later."""


class Line:
    """The shared connection. Once retired it accepts no more requests and closes after the last one."""

    def __init__(self, connection: Connection, addresses: AddressBook, life: ClientRuntime) -> None:
        self.connection = connection
        self.retired = False
        self._addresses = addresses
        self._life = life
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._abandoned = 0
        connection.receiver = self

    async def ask(
        self, operation: Operation[Any], future: asyncio.Future[Answer], seconds: float, now: float
    ) -> Answer:
        """Send an operation and return its response, within ``seconds`` from ``now``; ``future`` is used for the
        wait."""
        connection = self.connection
        own_seconds = operation.own_seconds(seconds)
        deadline, silence = now + seconds, SilenceLimit(own_seconds, now)

        def late() -> FlintError | float:
            now = time.monotonic()
            if now >= deadline:
                return unanswered(connection.address, operation.command.name, seconds)
            try:
                return min(deadline, now + silence.check(connection, now))
            except FlintError as error:
                if not self.retired:
                    self._addresses.mark_failed(connection.address, error)
                self.retired = True
                return detached(error)

        request_id = connection.request(operation)
        self._asked[request_id] = future
        try:
            return await self._life.wait(future, min(deadline, now + share_seconds(own_seconds)), late)
        finally:
            if self._asked.pop(request_id, None) is not None:
                self._abandoned += 1
            if self._abandoned > ABANDONED_MAX:
                self.retired = True
            if self.retired and not self._asked:
                connection.abort()
            del future  # else the raised error would be a local of a frame in its own traceback, a reference cycle

    def received(self, answers: list[Answer]) -> None:
        """Complete the futures of the requests that these responses belong to."""
        for answer in answers:
            future = self._asked.pop(answer.request_id, None)
            if future is None:
                # The late response to a request whose caller has gone.
                self._abandoned -= 1
            elif not future.done():
                future.set_result(answer)

    def lost(self, error: FlintError) -> None:
        """Fail all outstanding requests."""
        self.retired = True
        if self._asked:  # a close while idle does not count against the address
            self._addresses.mark_failed(self.connection.address, error)
        for future in self._asked.values():
            if not future.done():
                # A copy for each caller: an exception object has only one traceback.
                future.set_exception(copy.copy(error))
        self._asked.clear()

    def writable(self) -> None:
        """Do nothing: requests are small, so nothing waits for the connection to become writable."""


class SharedConnection:
    """Makes the connection on first use, and again whenever it is lost. ``dial``: makes one within so many seconds."""

    def __init__(
        self, dial: Callable[[float], Awaitable[Connection]], addresses: AddressBook, life: ClientRuntime
    ) -> None:
        self._dial = dial
        self._addresses = addresses
        self._life = life
        self._line: Line | None = None
        self._dialing = False
        self._waiting: set[asyncio.Future[Line]] = set()

    async def exchange(self, operation: Operation[Any], deadline: float) -> Answer:
        """Return the response to a request that is sent once."""
        line = await self._get_line(deadline)
        now = time.monotonic()
        return await line.ask(operation, self._life.loop.create_future(), max(0.001, deadline - now), now)

    async def _get_line(self, deadline: float) -> Line:
        """Return the shared connection, or make it first. The attempt survives the caller's cancellation,
        because other callers may wait for it."""
        line = self._line
        if line is not None and not line.retired:
            return line
        if not self._dialing:
            self._dialing = True
            seconds = min(CONNECT_SECONDS_MAX, max(0.001, deadline - time.monotonic()))
            self._life.start("connecting", self._connect(seconds))
        future: asyncio.Future[Line] = self._life.loop.create_future()
        self._waiting.add(future)
        try:
            return await self._life.wait(future, deadline + _GRACE_SECONDS, self._too_late)
        finally:
            self._waiting.discard(future)
            del future  # else the raised error would be a local of a frame in its own traceback, a reference cycle

    def _too_late(self) -> FlintError:
        return RequestTimeout("no connection to the broker could be made in time; use a longer timeout=")

    async def _connect(self, seconds: float) -> None:
        try:
            connection = await self._dial(seconds)
        except FlintError as error:
            for future in self._waiting:
                if not future.done():
                    future.set_exception(copy.copy(error))
        else:
            self._line = Line(connection, self._addresses, self._life)
            for future in self._waiting:
                if not future.done():
                    future.set_result(self._line)
        finally:
            self._dialing = False
            self._waiting.clear()
