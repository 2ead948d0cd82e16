"""The brokers that a query reads from: their addresses, and connections that a process keeps.

Each address is a broker of its own. A topic that several brokers have is read from all of them; its queues are told
apart by the broker's name, which is its address, or what the user calls it: ``east=host:port,west=host:port``.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TypeVar

from ...protocol.errors import ConnectionFailed
from ..core import operations
from ..core.address import parse_addresses
from ..core.guard import Guard
from ..core.operations import Operation
from ..core.topics import QueueStats
from ..errors import InvalidArgument
from ..sync.pool import Caller, Dialer

T = TypeVar("T")

FIRST_CONTACT_SECONDS = 3.0
"""How long a broker may take to be there when a query begins: an address that is wrong is to be known soon."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker: what offsets call it, and ``host:port``."""

    name: str
    address: str


def parse_bootstrap(written: str) -> tuple[BrokerAddress, ...]:
    """The brokers in ``"host:port,name=host:port"``. Raises ``InvalidArgument``."""
    found: dict[str, BrokerAddress] = {}
    for part in (text.strip() for text in written.split(",")):
        if not part:
            continue
        name, equals, address_text = part.rpartition("=")
        (address,) = parse_addresses(address_text)
        name = name.strip() if equals else str(address)
        if not name or "@" in name or "/" in name:
            raise InvalidArgument(f"{part!r} names a broker {name!r}; a name must not be empty nor contain '@' or '/'")
        if name in found:
            raise InvalidArgument(f"broker {name!r} is there twice")
        found[name] = BrokerAddress(name, str(address))
    if not found:
        raise InvalidArgument("it names no broker; give one as 'host:port'")
    return tuple(found.values())


_callers: dict[tuple[int, str], Caller] = {}
_lock = threading.Lock()


def caller_of(address: str, timeout: float) -> Caller:
    """The connections of this process to a broker: Spark's workers are used again, and read many partitions."""
    key = os.getpid(), address
    with _lock:
        caller = _callers.get(key)
        if caller is None:
            # A fork copies the table, but the connections in it are the parent's.
            for other in [other for other in _callers if other[0] != key[0]]:
                del _callers[other]
            caller = _callers[key] = Caller(Dialer(parse_addresses(address)), Guard("Spark source"), timeout)
        return caller


def call(broker: BrokerAddress, operation: Operation[T], timeout: float) -> T:
    """The operation's result, within ``timeout`` seconds; a broker that is away meanwhile is waited for."""
    return caller_of(broker.address, timeout).call(operation, time.monotonic() + timeout)


def topics_of(broker: BrokerAddress, timeout: float) -> dict[str, bool]:
    """The topics of a broker by name, and whether each is the broker's own."""
    return {info.topic: info.system for info in call(broker, operations.topics(), timeout)}


def topic_stats(broker: BrokerAddress, topic: str, timeout: float) -> list[QueueStats]:
    """What the queues of a topic hold."""
    return call(broker, operations.topic_stats(topic), timeout)


def greet(broker: BrokerAddress, timeout: float) -> dict[str, bool]:
    """The topics of a broker that must be there now. Raises ``ConnectionFailed``, which says what to do."""
    try:
        return topics_of(broker, min(timeout, FIRST_CONTACT_SECONDS))
    except ConnectionFailed as error:
        raise ConnectionFailed(
            f"option 'bootstrap': no broker answers at {broker.address}: {error}. Start it, or correct the address"
        ) from None
