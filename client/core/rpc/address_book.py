"""The choice of the address to connect to: a broker's, or those of the members of a replica set."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ....protocol.errors import NotPrimary
from ...errors import InvalidAddress
from .address import ADDRESSES_MAX, Address, parse_address
from .timeouts import CONNECT_SECONDS_MAX, CONNECT_SECONDS_MIN

LEARNED_MAX = 4
"""Maximum number of addresses that only followers have named: a set has at most five members, and one was given."""
_HOST_CHARS_MAX = 255


class Attempt(NamedTuple):
    """One attempt to connect: the address, and the seconds after which the next one is tried."""

    address: Address
    seconds: float


class AddressBook:
    """The addresses of one client. Calls from several threads need no lock: each reads and replaces whole values.

    A driver searches for the primary: it asks for the ``next_attempt`` with the addresses that it has tried, and
    reports ``mark_answered`` or ``mark_failed``. A search begins with the last known primary and ends after each
    address was tried once. A follower that names the primary has it tried next.
    """

    def __init__(self, given: tuple[Address, ...]) -> None:
        self._given = given
        self._learned: tuple[Address, ...] = ()
        self.first = given[0]
        """The address of the broker that served this client last, or that is tried next."""

    def next_attempt(self, tried: Collection[Address], seconds: float) -> Attempt | None:
        """Return the next attempt of a search that has ``seconds`` left; None: the search is over.

        Addresses that are not tried yet share the time, so that one that does not respond leaves some for the others.
        """
        if tried and (seconds <= 0 or len(tried) >= ADDRESSES_MAX + LEARNED_MAX):
            return None
        untried = [address for address in self._in_turn() if address not in tried]
        if not untried:
            return None
        share = max(seconds / len(untried), CONNECT_SECONDS_MIN)
        return Attempt(untried[0], max(0.001, min(share, seconds, CONNECT_SECONDS_MAX)))

    def mark_answered(self, address: Address) -> None:
        """Begin with this address next time: its broker serves this client."""
        self.first = address

    def mark_failed(self, address: Address, error: BaseException, tried: Collection[Address] = ()) -> None:
        """Begin with another address than this one, which failed with ``error``: with the primary that the error names,
        unless the present search has ``tried`` that already, else with the next address."""
        primary = _primary_named_by(error)
        if primary is not None and primary != address and primary not in tried:
            self._learn(primary)
            self.first = primary
        elif self.first == address:
            addresses = self._in_turn()
            self.first = addresses[1 % len(addresses)]

    def _learn(self, address: Address) -> None:
        if address not in self._given:
            others = tuple(other for other in self._learned if other != address)
            self._learned = (*others, address)[-LEARNED_MAX:]

    def _in_turn(self) -> list[Address]:
        """Return all addresses, in the order in which to try them now."""
        addresses, first = [*self._given, *self._learned], self.first
        at = addresses.index(first) if first in addresses else 0
        return [*addresses[at:], *addresses[:at]]


def _primary_named_by(error: BaseException) -> Address | None:
    """Return the primary that an error, or its cause, names; None without a valid address."""
    refusal = error if isinstance(error, NotPrimary) else error.__cause__
    named = refusal.primary if isinstance(refusal, NotPrimary) else ""
    if not 0 < len(named) <= _HOST_CHARS_MAX + len("[]:65535"):
        return None
    try:
        return parse_address(named)
    except InvalidAddress:
        return None  # the other addresses may still lead to the primary
