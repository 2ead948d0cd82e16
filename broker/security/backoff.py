"""Limit on password guessing: after each failure, the next attempt from the same address is checked later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...protocol.errors import SystemBusy
from ...protocol.names import network_of

if TYPE_CHECKING:
    from ..background.loop_work import LoopTimer

PAUSE_S = 0.1
"""Pause after the first failure; each further failure doubles it."""
PAUSE_S_MAX = 3.0
"""Maximum pause. It allows one address about 20 attempts a minute in the long run, until one succeeds."""
WAIT_S_MAX = 4.0
"""Maximum wait for a turn; beyond it the client is asked to retry, since clients wait 5 s for a connection."""
FORGET_S = 600.0
"""Time without a failure after which an address starts again without a pause."""
ADDRESSES_MAX = 10_000
"""Maximum number of addresses remembered (those that failed most recently), about 400 bytes each."""


class _Address:
    __slots__ = ("failures", "next_at", "timer", "waiting")

    def __init__(self) -> None:
        self.failures = 0
        self.next_at = 0.0
        self.timer: LoopTimer | None = None
        self.waiting: dict[object, Callable[[], None]] = {}


class LoginBackoff:
    """The pauses by address. Runs on the event loop, whose ``clock`` and ``call_at`` it uses.

    The code that checks an attempt must call ``record_failure`` or ``record_success`` at once. Correct attempts wait
    too: the response time must not tell a correct guess from a wrong one.
    """

    def __init__(
        self, clock: Callable[[], float], call_at: Callable[[float, Callable[[str], None], str], LoopTimer]
    ) -> None:
        self._clock = clock
        self._call_at = call_at
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def __len__(self) -> int:
        return len(self._addresses)

    def must_wait(self, host: str) -> bool:
        """Return whether an attempt from ``host`` has to wait."""
        address = self._addresses.get(network_of(host))
        return address is not None and (bool(address.waiting) or address.next_at > self._clock())

    def wait(self, host: str, judge: Callable[[], None]) -> Callable[[], None]:
        """Call ``judge`` when it is the turn of this attempt from ``host``. Return a function that cancels the attempt.

        Raises ``SystemBusy`` if the attempt would wait longer than ``WAIT_S_MAX``.
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
        return lambda: _cancel(waiting, token)

    def _turn(self, network: str) -> None:
        """Check the next attempt of an address."""
        address = self._addresses.get(network)
        if address is None:
            return
        address.timer = None
        if address.waiting:
            token = next(iter(address.waiting))
            address.waiting.pop(token)()

        # The attempt may have been right, and then the address is forgotten.
        if address.waiting and self._addresses.get(network) is address:
            address.timer = self._call_at(max(address.next_at, self._clock()), self._turn, network)

    def record_failure(self, host: str) -> float:
        """Note a failed attempt. Return the seconds that the next one from this address has to wait."""
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
        if len(self._addresses) > ADDRESSES_MAX:  # an attacker with many addresses must not fill the memory
            self._forget_oldest()
        return pause

    def record_success(self, host: str) -> None:
        """Note a successful attempt: forget the address's failures and check its waiting attempts."""
        address = self._addresses.pop(network_of(host), None)
        if address is None:
            return
        if address.timer is not None:
            address.timer.cancel()
        waiting = address.waiting
        while waiting:
            judge = waiting.pop(next(iter(waiting)))
            if self.must_wait(host):  # one of these attempts has failed, so the rest waits again
                self.wait(host, judge)
            else:
                judge()

    def _forget_oldest(self) -> None:
        for network, address in self._addresses.items():
            if not address.waiting:
                del self._addresses[network]
                return


def pause_after(failures: int) -> float:
    """Return the seconds that the next attempt has to wait after this number of failures."""
    return min(PAUSE_S * 2.0 ** min(failures - 1, 30), PAUSE_S_MAX)


def _cancel(waiting: dict[object, Callable[[], None]], token: object) -> None:
    waiting.pop(token, None)
