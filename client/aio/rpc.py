"""Requests to a broker: to the first of several addresses that serves clients, and again while that can help."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any, TypeVar

from ...protocol.commands import READ_FROM_ANY
from ...protocol.errors import BrokerError, ConnectionFailed, FlintError
from ..core.rpc.access import ClientAccess
from ..core.rpc.address import Address, AddressBook
from ..core.rpc.connection_errors import no_address_answered
from ..core.rpc.operation import Operation, Plan, Retries, detached
from ..core.rpc.timeouts import check_timeout
from ..endpoint import ConnectionLog
from .connection import Connection
from .runtime import ClientRuntime
from .shared_connection import SharedConnection

T = TypeVar("T")


# sync: from .runtime import ClientRuntime
# => from ..core.client_guard import Guard
# sync: from .shared_connection import SharedConnection
# => from .pool import ConnectionPool
# sync: access: ClientAccess, log: ConnectionLog, life: ClientRuntime
# => access: ClientAccess, log: ConnectionLog
# sync: self._access = access
# sync: self.life = life
# => self._access = access
# sync: access, self.log, self.life)
# => access, self.log)
# sync: seconds, self._access, self.life)
# => seconds, self._access)
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

    def mark_failed(self, address: Address, error: BaseException) -> None:
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


# sync: while that can help and time is left.
# => while that can help and time is left. Thread-safe.
# sync: self._shared = SharedConnection(
# => self.pool = ConnectionPool(
# sync: await self._shared.exchange(
# => self.pool.exchange(
# sync: self.life.enter()
# => self.life.check()
# sync: await self.life.pause(seconds)
# => time.sleep(seconds)
class Caller:
    """Sends requests to a broker and retries them while that can help and time is left."""

    def __init__(self, dialer: Dialer, life: ClientRuntime, timeout: float) -> None:
        self.timeout = timeout
        self.dialer = dialer
        self.life = life
        self._shared = SharedConnection(dialer.dial, dialer.addresses, life)

    @property
    def addresses(self) -> AddressBook:
        return self.dialer.addresses

    def of_any_member(self) -> Caller:
        """Return a caller with a connection of its own, whose requests followers may answer."""
        return Caller(self.dialer.of_any_member(), self.life, self.timeout)

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
                return operation.result(await self._shared.exchange(operation, deadline))
            except FlintError as error:
                self.life.check()  # if the client was closed meanwhile, that is why the connection broke
                seconds = retries.pause(error, time.monotonic())
                if seconds is None:
                    raise
                self.dialer.log.retried(operation.command.name, error)
            await self.life.pause(seconds)

    async def run(self, plan: Plan[T], deadline: float) -> T:
        results: list[Any] | None = None
        with contextlib.closing(plan):
            while True:
                try:
                    operations = plan.send(results)  # type: ignore[arg-type] # the first send of a generator takes None
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                results = [await self.call(operation, deadline) for operation in operations]
