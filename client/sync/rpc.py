# Generated from client/aio/rpc.py:
# change that file, and run python scripts/lib/shells.py
"""Requests to a broker: to the first of several addresses that serves clients, and again while that can help."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any, TypeVar

from ...protocol.commands import READ_FROM_ANY
from ...protocol.errors import BrokerError, ConnectionFailed, FlintError
from ..core.client_guard import Guard
from ..core.rpc.access import ClientAccess
from ..core.rpc.address import Address, AddressBook
from ..core.rpc.connection_errors import no_address_answered
from ..core.rpc.operation import Operation, Plan, Retries, detached
from ..core.rpc.timeouts import check_timeout
from ..endpoint import ConnectionLog
from .connection import Connection
from .pool import ConnectionPool

T = TypeVar("T")


class Dialer:
    """Connects to the first of several addresses whose broker serves clients: in a replica set, to the primary, unless
    ``access`` says that any member may answer."""

    def __init__(self, addresses: tuple[Address, ...], access: ClientAccess, log: ConnectionLog) -> None:
        self.log = log
        self._given = addresses
        self.addresses = AddressBook(addresses)
        self._access = access

    def of_any_member(self) -> Dialer:
        """Return a dialer to the same addresses that accepts followers."""
        access = replace(self._access, read_from=READ_FROM_ANY)
        return Dialer(self._given, access, self.log)

    def mark_failed(self, address: Address, error: BaseException) -> None:
        """Mark an address whose connection failed, so that another address is tried first."""
        self.addresses.mark_failed(address, error)

    def dial(self, timeout: float) -> Connection:
        """Return a new connection, made within ``timeout`` seconds.

        Raises ``ConnectionFailed`` with every address and its error, or the broker's refusal.
        """
        deadline = time.monotonic() + timeout
        failures: dict[Address, FlintError] = {}
        while (attempt := self.addresses.next_attempt(failures, deadline - time.monotonic())) is not None:
            address, seconds = attempt
            try:
                connection = Connection.open(address, seconds, self._access)
            except (ConnectionFailed, BrokerError) as error:
                failures[address] = detached(error)
                self.addresses.mark_failed(address, error, failures)
            else:
                self.addresses.mark_answered(address)
                self.log.connected(address)
                return connection
        raise self.log.unreachable(no_address_answered(failures))


class Caller:
    """Sends requests to a broker and retries them while that can help and time is left. Thread-safe."""

    def __init__(self, dialer: Dialer, life: Guard, timeout: float) -> None:
        self.timeout = timeout
        self.dialer = dialer
        self.life = life
        self.pool = ConnectionPool(dialer.dial, dialer.addresses, life)

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
        self.life.check()
        return time.monotonic() + (self.timeout if timeout is None else check_timeout("timeout", timeout))

    def call(self, operation: Operation[T], deadline: float) -> T:
        """Return the operation's result. Retries after a lost connection or if the broker is busy, until ``deadline``.
        An operation that the broker may hold has that time in addition."""
        deadline += operation.hold_seconds
        retries = Retries(deadline)
        while True:
            self.life.check()
            try:
                return operation.result(self.pool.exchange(operation, deadline))
            except FlintError as error:
                self.life.check()  # if the client was closed meanwhile, that is why the connection broke
                seconds = retries.pause(error, time.monotonic())
                if seconds is None:
                    raise
                self.dialer.log.retried(operation.command.name, error)
            time.sleep(seconds)

    def run(self, plan: Plan[T], deadline: float) -> T:
        results: list[Any] | None = None
        with contextlib.closing(plan):
            while True:
                try:
                    operations = plan.send(results)  # type: ignore[arg-type] # the first send of a generator takes None
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                results = [self.call(operation, deadline) for operation in operations]
