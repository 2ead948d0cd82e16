"""How fast passwords may be tried: after each failure the next attempt from the same address is judged later."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from ...protocol.errors import SystemBusy

PAUSE_S = 0.1
"""After the first failure; doubled by each that follows."""
PAUSE_S_MAX = 3.0
"""So one address has about 20 attempts a minute in the long run, right ones included, until one is right."""
WAIT_S_MAX = 4.0
"""Who would have to wait longer for its turn is told to come again: clients wait 5 s for a connection."""
FORGET_S = 600.0
"""After as long without a failure an address begins anew."""
ADDRESSES_MAX = 10_000
"""As many addresses are remembered, the latest to fail; some 400 bytes each."""
IPV6_PREFIX = 64
"""Whoever has one IPv6 address of such a network mostly has them all."""


class Timer(Protocol):
    """What ``call_at`` returns."""

    def cancel(self) -> None:
        """Do not call."""


class _Address:
    __slots__ = ("failures", "next_at", "timer", "waiting")

    def __init__(self) -> None:
        self.failures = 0
        self.next_at = 0.0
        self.timer: Timer | None = None
        self.waiting: dict[object, Callable[[], None]] = {}


class Backoff:
    """The pauses, by address. Belongs to the event loop, whose ``clock`` and ``call_at`` it takes.

    Whoever judges an attempt says ``failed`` or ``succeeded`` at once. Right attempts wait as wrong ones do: a guess
    must not be told from a hit by how soon it is answered.
    """

    def __init__(
        self, clock: Callable[[], float], call_at: Callable[[float, Callable[[str], None], str], Timer]
    ) -> None:
        self._clock = clock
        self._call_at = call_at
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def __len__(self) -> int:
        return len(self._addresses)

    def must_wait(self, host: str) -> bool:
        """Whether an attempt from ``host`` may not be judged yet."""
        address = self._addresses.get(network_of(host))
        return address is not None and (bool(address.waiting) or address.next_at > self._clock())

    def wait(self, host: str, judge: Callable[[], None]) -> Callable[[], None]:
        """Call ``judge`` when an attempt from ``host`` may be judged, later; returns what takes the attempt back.

        Raises ``SystemBusy`` where that would be later than in ``WAIT_S_MAX``.
        """
        network = network_of(host)
        address = self._addresses.get(network)
        if address is None:
            address = self._addresses[network] = _Address()
        wait_s = max(0.0, address.next_at - self._clock()) + len(address.waiting) * pause_after(address.failures + 1)
        if wait_s > WAIT_S_MAX:
            raise SystemBusy(
                f"{address.failures} attempts to authenticate from {host} have failed, and {len(address.waiting)} wait "
                "for their turn; try again later",
                retry_after_ms=int(wait_s * 1000) + 1,
            )
        token = object()
        waiting = address.waiting
        waiting[token] = judge
        if address.timer is None:
            address.timer = self._call_at(address.next_at, self._turn, network)
        return lambda: _take_back(waiting, token)

    def _turn(self, network: str) -> None:
        """The next attempt of an address may be judged."""
        address = self._addresses.get(network)
        if address is None:
            return
        address.timer = None
        if address.waiting:
            token = next(iter(address.waiting))
            address.waiting.pop(token)()
        if address.waiting and self._addresses.get(network) is address:
            address.timer = self._call_at(max(address.next_at, self._clock()), self._turn, network)

    def failed(self, host: str) -> float:
        """An attempt was wrong; how many seconds the next one from there has to wait."""
        network = network_of(host)
        now = self._clock()
        address = self._addresses.get(network)
        if address is None:
            address = self._addresses[network] = _Address()
        elif now > address.next_at + FORGET_S:
            address.failures = 0
        address.failures += 1
        pause = pause_after(address.failures)
        address.next_at = now + pause
        self._addresses.move_to_end(network)
        if len(self._addresses) > ADDRESSES_MAX:
            self._forget_oldest()
        return pause

    def succeeded(self, host: str) -> None:
        """An attempt was right: the address begins anew, and who waits there has its turn."""
        address = self._addresses.pop(network_of(host), None)
        if address is None:
            return
        if address.timer is not None:
            address.timer.cancel()
        waiting = address.waiting
        while waiting:
            judge = waiting.pop(next(iter(waiting)))
            if self.must_wait(host):  # one of them was wrong again
                self.wait(host, judge)
            else:
                judge()

    def _forget_oldest(self) -> None:
        for network, address in self._addresses.items():
            if not address.waiting:
                del self._addresses[network]
                return


def pause_after(failures: int) -> float:
    """Seconds that the attempt behind so many failures has to wait."""
    return min(PAUSE_S * 2.0 ** min(failures - 1, 30), PAUSE_S_MAX)


def network_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or the network of an IPv6 one."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address), IPV6_PREFIX), strict=False))


def _take_back(waiting: dict[object, Callable[[], None]], token: object) -> None:
    waiting.pop(token, None)
