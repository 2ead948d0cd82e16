"""The brokers that a query reads from: their addresses, and the connections that a process keeps.

Each address is a separate broker. A topic that exists on several brokers is read from all of them. Its queues are told
apart by the broker's name: its address, or the name that the user gives it (``east=host:port,west=host:port``). The
members of a replica set are one broker with a name and several addresses (``east=host:port;host:port``).
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...protocol.errors import ConnectionFailed, FlintError, RequestTimeout
from ..connection_log import ConnectionLog
from ..core import topics as topic_operations
from ..core.client_guard import Guard
from ..core.rpc.access import NO_ACCESS, ClientAccess
from ..core.rpc.address import parse_addresses
from ..core.rpc.connection_errors import unanswered
from ..core.rpc.operation import Operation
from ..core.rpc.retry import is_retriable
from ..core.rpc.session import Answer
from ..core.topics import QueueStats, TopicInfo
from ..errors import InvalidArgument, TlsFailed
from ..sync.connection import Connection
from ..sync.pool import Caller, Dialer

T = TypeVar("T")

FIRST_CONTACT_SECONDS = 3.0
"""Time that a broker has to respond when a query begins; short, so that a wrong address is reported soon."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker: its name in offsets, and its ``host:port``, or those of a replica set's members with commas."""

    name: str
    address: str
    access: ClientAccess = NO_ACCESS


def parse_bootstrap(written: str) -> tuple[BrokerAddress, ...]:
    """Parse the brokers in ``"host:port,name=host:port;host:port"``. Raises ``InvalidArgument``."""
    found: dict[str, BrokerAddress] = {}
    for part in (text.strip() for text in written.split(",")):
        if not part:
            continue
        name, equals, address_text = part.rpartition("=")
        addresses = ",".join(map(str, parse_addresses(address_text.split(";"))))
        name = name.strip() if equals else addresses
        if "," in name:
            raise InvalidArgument(f"{part!r} has several addresses and no name: give the replica set one, 'set={part}'")
        if not name or set(name) & set("@/;"):
            raise InvalidArgument(
                f"{part!r} names a broker {name!r}; a name must not be empty or contain '@', '/' or ';'"
            )
        if name in found:
            raise InvalidArgument(f"broker {name!r} is named twice; name each broker once")
        found[name] = BrokerAddress(name, addresses)
    if not found:
        raise InvalidArgument("it names no broker; pass one as 'host:port'")
    return tuple(found.values())


_callers: dict[tuple[int, str, ClientAccess], Caller] = {}
_lock = threading.Lock()


def caller_of(broker: BrokerAddress, timeout: float) -> Caller:
    """Return this process's connections to a broker. Spark reuses its workers, which read many partitions."""
    key = os.getpid(), broker.address, broker.access
    with _lock:
        caller = _callers.get(key)
        if caller is None:
            # A forked process inherits this table, but the connections in it belong to the parent.
            for other in [other for other in _callers if other[0] != key[0]]:
                del _callers[other]
            caller = _callers[key] = Caller(
                Dialer(parse_addresses(broker.address), broker.access, ConnectionLog("Spark source")),
                Guard("Spark source"),
                timeout,
            )
        return caller


def call(broker: BrokerAddress, operation: Operation[T], timeout: float) -> T:
    """Run an operation and return its result within ``timeout`` seconds, waiting if the broker is away meanwhile."""
    return caller_of(broker, timeout).call(operation, time.monotonic() + timeout)


class Asker(Generic[T]):
    """Sends one broker one request after another, each before the caller works on the previous response.

    ``ask`` only sends. ``answer`` waits; if the connection is lost or the broker is busy, it asks again until
    ``timeout`` seconds are over. The caller must close it.
    """

    def __init__(self, broker: BrokerAddress, timeout: float) -> None:
        self._caller = caller_of(broker, timeout)
        self._timeout = timeout
        self._connection: Connection | None = None
        self._asked: Operation[T] | None = None
        self._request_id = 0

    @property
    def is_asked(self) -> bool:
        """Return whether a response is outstanding."""
        return self._asked is not None

    def ask(self, operation: Operation[T]) -> None:
        """Send a request; the previous one must have been answered."""
        assert self._asked is None
        self._asked = operation
        try:
            if self._connection is None:
                self._connection = self._caller.pool.acquire(self._timeout)
                self._connection.in_use.acquire()
            self._request_id = self._connection.request(operation.command, operation.fields, operation.body)
        except ConnectionFailed as error:
            self._give_up(error)

    def answer(self) -> T:
        """Return the response to the request. Raises the broker's error, ``ConnectionFailed`` or ``RequestTimeout``."""
        operation = self._asked
        assert operation is not None
        deadline = time.monotonic() + self._timeout
        try:
            if self._connection is not None:
                return operation.result(self._wait(self._connection, operation, deadline))
        except FlintError as error:
            if not is_retriable(error) or isinstance(error, RequestTimeout):
                raise
        finally:
            self._asked = None
        return self._caller.call(operation, deadline)

    def _wait(self, connection: Connection, operation: Operation[T], deadline: float) -> Answer:
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                answers = connection.receive(remaining)
            except ConnectionFailed as error:
                self._give_up(error)
                raise
            for answer in answers:
                if answer.request_id == self._request_id:
                    return answer
        late = unanswered(connection.address, operation.command.name, self._timeout)
        self._give_up(late)
        raise late

    def _give_up(self, error: FlintError) -> None:
        """Discard the connection, which is no longer usable."""
        if self._connection is not None:
            self._connection.in_use.release()
            self._caller.pool.discard(self._connection, error)
            self._connection = None

    def close(self) -> None:
        """Return the connection to the pool, or close it if a response is outstanding."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.in_use.release()
            if self._asked is None:
                self._caller.pool.release(connection)
            else:
                self._caller.pool.discard(connection)


def topics_of(broker: BrokerAddress, timeout: float) -> dict[str, TopicInfo]:
    """Return the topics of a broker by name."""
    return call(broker, topic_operations.topics(system=True), timeout)


def topic_stats(broker: BrokerAddress, topic: str, timeout: float) -> list[QueueStats]:
    """Return the offsets and counts of a topic's queues."""
    return call(broker, topic_operations.topic_stats(topic), timeout)


def greet(broker: BrokerAddress, timeout: float) -> dict[str, TopicInfo]:
    """Return the topics of a broker that must be reachable now. Raises ``ConnectionFailed``, which says what to do."""
    try:
        return topics_of(broker, min(timeout, FIRST_CONTACT_SECONDS))
    except TlsFailed:  # the broker is reachable, and the error says what to do
        raise
    except ConnectionFailed as error:
        raise ConnectionFailed(
            f"option 'bootstrap': no broker answers at {broker.address}: {error}. Start it, or correct the address"
        ) from None
