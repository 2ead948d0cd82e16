"""Concurrent requests over one shared connection, matched to their responses by id."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from dataclasses import replace
from typing import Any, TypeVar

from ...protocol.commands import READ_FROM_ANY
from ...protocol.errors import BrokerError, ConnectionFailed, FlintError, RequestTimeout
from ..core.rpc.access import ClientAccess
from ..core.rpc.address import Address, AddressBook
from ..core.rpc.connection_errors import SilenceLimit, no_address_answered, share_seconds, unanswered
from ..core.rpc.operation import Operation, Plan, Retries, detached
from ..core.rpc.session import Answer
from ..core.rpc.timeouts import CONNECT_SECONDS_MAX, check_timeout
from ..endpoint import ConnectionLog
from .connection import Connection
from .runtime import ClientRuntime

# ---- Connection attempts to several addresses, one after the other.


class Dialer:
    """Connects to the first of several addresses whose broker serves clients: in a replica set, to the primary, unless
    ``access`` says that any member may answer."""

    def __init__(
        self, addresses: tuple[Address, ...], access: ClientAccess, log: ConnectionLog, life: ClientRuntime
    ) -> None:
        self.log = log
        self._given = addresses
        self.addresses = AddressBook(addresses)
        self._access = access
        self.life = life

    def of_any_member(self) -> Dialer:
        """Return a dialer to the same addresses that accepts followers."""
        access = replace(self._access, read_from=READ_FROM_ANY)
        return Dialer(self._given, access, self.log, self.life)

    def mark_failed(self, address: Address, error: FlintError) -> None:
        """Mark an address whose connection failed, so that another address is tried first."""
        self.addresses.mark_failed(address, error)

    async def dial(self, timeout: float) -> Connection:
        """Return a new connection, made within ``timeout`` seconds.

        Raises ``ConnectionFailed`` with every address and its error, or the broker's refusal.
        """
        deadline = time.monotonic() + timeout
        failures: dict[Address, FlintError] = {}
        while (attempt := self.addresses.next_attempt(failures, deadline - time.monotonic())) is not None:
            address, seconds = attempt
            try:
                connection = await Connection.open(address, seconds, self._access, self.life)
            except (ConnectionFailed, BrokerError) as error:
                failures[address] = detached(error)
                self.addresses.mark_failed(address, error, failures)
            else:
                self.addresses.mark_answered(address)
                self.log.connected(address)
                return connection
        raise self.log.unreachable(no_address_answered(failures))


ABANDONED_MAX = 16
"""Maximum number of requests on one connection whose callers have gone. The broker still responds to each, and may hold
it; above this number the connection is replaced, and closed as soon as no caller waits on it."""
_GRACE_SECONDS = 0.05
"""A connection attempt fails by itself when the call's time is over; the call ends at the latest this much later."""

T = TypeVar("T")


class Line:
    """The shared connection. Once retired it accepts no more requests and closes after the last one."""

    def __init__(self, connection: Connection, dialer: Dialer, life: ClientRuntime) -> None:
        self.connection = connection
        self.retired = False
        self._dialer = dialer
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
                    self._dialer.mark_failed(connection.address, error)
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
            self._dialer.mark_failed(self.connection.address, error)
        for future in self._asked.values():
            if not future.done():
                # A copy for each caller: an exception object has only one traceback.
                future.set_exception(copy.copy(error))
        self._asked.clear()

    def writable(self) -> None:
        """Do nothing: requests are small, so nothing waits for the connection to become writable."""


class RpcClient:
    """Sends requests to a broker and retries them while that can help and time is left."""

    def __init__(self, dialer: Dialer, life: ClientRuntime, timeout: float) -> None:
        self.timeout = timeout
        self.dialer = dialer
        self.life = life
        self._line: Line | None = None
        self._dialing = False
        self._waiting: set[asyncio.Future[Line]] = set()

    @property
    def addresses(self) -> AddressBook:
        """The addresses that it calls."""
        return self.dialer.addresses

    def of_any_member(self) -> RpcClient:
        """Return a client with a connection of its own, whose requests followers may answer."""
        return RpcClient(self.dialer.of_any_member(), self.life, self.timeout)

    def now(self) -> float:
        """Return the clock of deadlines."""
        return time.monotonic()

    def deadline(self, timeout: float | None) -> float:
        """Begin a call and return its deadline (monotonic). ``timeout``: the caller's, None for the client's.
        Raises if the client cannot be used."""
        self.life.enter()
        return time.monotonic() + (self.timeout if timeout is None else check_timeout("timeout", timeout))

    async def call(self, operation: Operation[T], deadline: float) -> T:
        """Return the operation's result. Retries after a lost connection or if the broker is busy, until ``deadline``.
        An operation that the broker may hold has that time in addition."""
        deadline += operation.hold_seconds
        retries = Retries(deadline)
        while True:
            self.life.check()
            try:
                line = await self._get_line(deadline)
                now = time.monotonic()
                answer = await line.ask(operation, self.life.loop.create_future(), max(0.001, deadline - now), now)
                return operation.result(answer)
            except FlintError as error:
                self.life.check()  # if the client was closed meanwhile, that is why the connection broke
                seconds = retries.pause(error, time.monotonic())
                if seconds is None:
                    raise
                self.dialer.log.retried(operation.command.name, error)
            await self.life.pause(seconds)

    async def run(self, plan: Plan[T], deadline: float) -> T:
        """Run a plan and return its result."""
        results: list[Any] | None = None
        with contextlib.closing(plan):
            while True:
                try:
                    operations = plan.send(results)  # type: ignore[arg-type] # the first send of a generator takes None
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                results = [await self.call(operation, deadline) for operation in operations]

    # ---- the connection

    async def _get_line(self, deadline: float) -> Line:
        """Return the shared connection, or make it first. The attempt survives the caller's cancellation,
        because other callers may wait for it."""
        line = self._line
        if line is not None and not line.retired:
            return line
        if not self._dialing:
            self._dialing = True
            seconds = min(CONNECT_SECONDS_MAX, max(0.001, deadline - time.monotonic()))
            self.life.start("connecting", self._dial(seconds))
        future: asyncio.Future[Line] = self.life.loop.create_future()
        self._waiting.add(future)
        try:
            return await self.life.wait(future, deadline + _GRACE_SECONDS, self._too_late)
        finally:
            self._waiting.discard(future)
            del future  # else the raised error would be a local of a frame in its own traceback, a reference cycle

    def _too_late(self) -> FlintError:
        return RequestTimeout("no connection to the broker could be made in time; use a longer timeout=")

    async def _dial(self, seconds: float) -> None:
        try:
            connection = await self.dialer.dial(seconds)
        except FlintError as error:
            for future in self._waiting:
                if not future.done():
                    future.set_exception(copy.copy(error))
        else:
            self._line = Line(connection, self.dialer, self.life)
            for future in self._waiting:
                if not future.done():
                    future.set_result(self._line)
        finally:
            self._dialing = False
            self._waiting.clear()
