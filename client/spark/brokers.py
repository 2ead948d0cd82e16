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
from typing import TypeVar

from ...protocol.commands import QueueStats, TopicInfo
from ...protocol.errors import ConnectionFailed
from ..core import topics as topic_operations
from ..core.client_guard import Guard
from ..core.rpc.access import NO_ACCESS, ClientAccess
from ..core.rpc.address import parse_addresses
from ..core.rpc.operation import Operation
from ..endpoint import ConnectionLog
from ..errors import InvalidArgument, TlsFailed
from ..sync.rpc import Caller, Dialer

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


def topics_of(broker: BrokerAddress, timeout: float) -> dict[str, TopicInfo]:
    return call(broker, topic_operations.topics(system=True), timeout)


def topic_stats(broker: BrokerAddress, topic: str, timeout: float) -> list[QueueStats]:
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
