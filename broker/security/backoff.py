"""Limit on password guessing: after each failure, the next attempt of the same user and address is checked later.

One client with an old password must not keep others behind its address out, so the pauses of an address are those of
each user name. Guesses with many names meet a pause of the whole address, which grows with the number of these names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ...protocol.errors import SystemBusy
from ...protocol.names import network_of

if TYPE_CHECKING:
    from ..background.loop_work import LoopTimer

PAUSE_S = 0.1
"""Pause after the first failure; each further failure doubles it."""
PAUSE_S_MAX = 3.0
"""Maximum pause. It allows about 20 attempts a minute as one user in the long run, until one succeeds."""
FREE_NAMES = 3
"""Number of names that may fail from one address without a pause for the others. Each further name doubles the pause of
the address: guesses with any number of names have about 125 attempts a minute at most."""
NAMES_MAX = 9
"""Maximum number of names remembered for an address, those that failed last. So many have the maximum pause."""
WAIT_S_MAX = 4.0
"""Maximum wait for a turn; beyond it the client is asked to retry, since clients wait 5 s for a connection."""
FORGET_S = 600.0
"""Time without a failure after which a name starts again without a pause."""
ADDRESSES_MAX = 10_000
"""Maximum number of addresses remembered (those that failed most recently), at most 2 KB each."""


class _Failures(NamedTuple):
    """Failures of one name: their number and the time of the last one."""

    number: int
    failed_at: float


class _Waiting(NamedTuple):
    name: int
    judge: Callable[[], None]


class _Address:
    """``names``: the failures by the hash of a name, which is short whatever a client sends; the last is at the end."""

    __slots__ = ("names", "timer", "waiting")

    def __init__(self) -> None:
        self.names: OrderedDict[int, _Failures] = OrderedDict()
        self.timer: LoopTimer | None = None
        self.waiting: dict[object, _Waiting] = {}

    def failures(self, name: int) -> int:
        found = self.names.get(name)
        return 0 if found is None else found.number

    @property
    def shared_pause(self) -> float:
        """Seconds after a failure in which no attempt from here is checked."""
        return pause_after(len(self.names) - FREE_NAMES)

    def next_at(self, name: int) -> float:
        """Return the time from which an attempt as ``name`` may be checked."""
        found = self.names.get(name)
        own = 0.0 if found is None else found.failed_at + pause_after(found.number)
        if len(self.names) <= FREE_NAMES:
            return own
        return max(own, next(reversed(self.names.values())).failed_at + self.shared_pause)

    def add_failure(self, name: int, now: float) -> None:
        while self.names and now > next(iter(self.names.values())).failed_at + PAUSE_S_MAX + FORGET_S:
            self.names.popitem(last=False)
        self.names[name] = _Failures(self.failures(name) + 1, now)
        self.names.move_to_end(name)
        if len(self.names) > NAMES_MAX:
            self.names.popitem(last=False)


class LoginBackoff:
    """The pauses by address and user name. Runs on the event loop, whose ``clock`` and ``call_at`` it uses.

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

    def must_wait(self, host: str, name: str) -> bool:
        """Return whether an attempt from ``host`` as the user, or with the access key, ``name`` has to wait."""
        address = self._addresses.get(network_of(host))
        if address is None:
            return False
        key = hash(name)
        return address.next_at(key) > self._clock() or any(each.name == key for each in address.waiting.values())

    def wait(self, host: str, name: str, judge: Callable[[], None]) -> Callable[[], None]:
        """Call ``judge`` when it is the turn of this attempt from ``host``. Return a function that cancels the attempt.

        Raises ``SystemBusy`` if the attempt would wait longer than ``WAIT_S_MAX``.
        """
        network, key = network_of(host), hash(name)
        address = self._addresses.get(network)
        if address is None:
            address = self._addresses[network] = _Address()
        failures, waiting = address.failures(key), address.waiting
        before_it = sum(each.name == key for each in waiting.values()) * pause_after(failures + 1)
        before_it = max(before_it, len(waiting) * address.shared_pause)
        wait_s = max(0.0, address.next_at(key) - self._clock()) + before_it
        if wait_s > WAIT_S_MAX:
            raise SystemBusy(
                f"attempts to authenticate from {host} have failed ({failures} as this user, "
                f"{len(address.names)} users in all), and {len(waiting)} wait for their turn; try again later",
                retry_after_ms=int(wait_s * 1000) + 1,
            )
        token = object()
        waiting[token] = _Waiting(key, judge)
        self._set_timer(network, address)
        return lambda: _cancel(waiting, token)

    def _set_timer(self, network: str, address: _Address) -> None:
        """Make the timer of an address that of the waiting attempt whose turn comes first."""
        if address.timer is not None:
            address.timer.cancel()
        first_at = min(address.next_at(each.name) for each in address.waiting.values())
        address.timer = self._call_at(max(first_at, self._clock()), self._turn, network)

    def _turn(self, network: str) -> None:
        """Check the waiting attempts of an address whose turn has come. Each failure delays the others again."""
        address = self._addresses.get(network)
        if address is None:
            return
        address.timer = None
        for token, attempt in tuple(address.waiting.items()):
            if address.next_at(attempt.name) <= self._clock() and address.waiting.pop(token, None) is not None:
                attempt.judge()
        if address.waiting:
            self._set_timer(network, address)
        elif not address.names and self._addresses.get(network) is address:
            del self._addresses[network]

    def record_failure(self, host: str, name: str) -> float:
        """Note a failed attempt. Return the seconds that the next one as this user from this address has to wait."""
        network, key = network_of(host), hash(name)
        now = self._clock()
        address = self._addresses.get(network)
        if address is None:
            address = self._addresses[network] = _Address()
        address.add_failure(key, now)
        self._addresses.move_to_end(network)
        if len(self._addresses) > ADDRESSES_MAX:  # an attacker with many addresses must not fill the memory
            self._forget_oldest()
        return address.next_at(key) - now

    def record_success(self, host: str, name: str) -> None:
        """Note a successful attempt: forget this user's failures from this address, and check its waiting attempts.

        Those of others stay: who has one password must not guess others faster.
        """
        network = network_of(host)
        address = self._addresses.get(network)
        if address is None or address.names.pop(hash(name), None) is None:
            return
        if address.waiting:
            self._set_timer(network, address)
        elif not address.names:
            del self._addresses[network]

    def _forget_oldest(self) -> None:
        for network, address in self._addresses.items():
            if not address.waiting:
                del self._addresses[network]
                return


def pause_after(failures: int) -> float:
    """Return the seconds that the next attempt has to wait after this number of failures."""
    return min(PAUSE_S * 2.0 ** min(failures - 1, 30), PAUSE_S_MAX) if failures > 0 else 0.0


def _cancel(waiting: dict[object, _Waiting], token: object) -> None:
    waiting.pop(token, None)
