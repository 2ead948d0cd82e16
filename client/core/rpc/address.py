"""Broker addresses: ``host:port``, several separated by commas."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ....protocol.commands import DEFAULT_PORT
from ....protocol.errors import NotPrimary
from ...errors import InvalidAddress
from .timeouts import CONNECT_SECONDS_MAX, CONNECT_SECONDS_MIN

BROKER_VARIABLE = "FLINTMQ_BROKER"
"""Environment variable with the broker's address, for a program that does not pass one."""
ADDRESSES_MAX = 16
"""Maximum number of addresses that a client takes."""
_PORT_MAX = 65535
_LABEL_CHARS_MAX = 63


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(addresses: str | Iterable[str] | None) -> tuple[Address, ...]:
    """Parse ``"a:1,b:2"``, or several addresses; the default port is 10911. IPv6 hosts are in brackets.

    None: the environment variable ``FLINTMQ_BROKER``, or ``127.0.0.1:10911`` if it is not set.

    Raises ``InvalidAddress`` if there is no address, there are more than 16, or one is empty, malformed or repeated.
    """
    if addresses is None:
        addresses = os.environ.get(BROKER_VARIABLE) or f"127.0.0.1:{DEFAULT_PORT}"
    addresses = addresses if isinstance(addresses, str) else list(addresses)
    for each in (addresses,) if isinstance(addresses, str) else addresses:
        _refuse_credentials(each)  # before a comma in a password cuts it in two
    texts = [text.strip() for text in (addresses.split(",") if isinstance(addresses, str) else addresses)]
    if not any(texts):
        raise InvalidAddress(f"no broker address in {addresses!r}; pass one as 'host:port'")
    if len(texts) > ADDRESSES_MAX:
        raise InvalidAddress(
            f"{len(texts)} broker addresses were given, and a client takes at most {ADDRESSES_MAX}; pass those of one "
            "replica set, which has at most five members"
        )
    if not all(texts):
        raise InvalidAddress(f"broker address {texts.index('') + 1} of {addresses!r} is empty; remove the extra comma")
    parsed = tuple(map(parse_address, texts))
    for place, address in enumerate(parsed):
        if address in parsed[:place]:
            raise InvalidAddress(f"broker address {texts[place]!r} is given twice in {addresses!r}; pass each once")
    return parsed


def parse_address(text: str) -> Address:
    """Parse one address, ``host`` or ``host:port``. Raises ``InvalidAddress``."""
    _refuse_credentials(text)
    scheme, separator, rest = text.partition("://")
    if separator:
        tls = ", and tls=True for TLS" if scheme in ("tls", "ssl", "https") else ""
        raise InvalidAddress(
            f"broker address {text!r} has the scheme {scheme + separator!r}, but FlintMQ's addresses have none: "
            f"use {rest.partition('/')[0]!r}{tls}"
        )
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port_text = rest.removeprefix(":")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidAddress(f"broker address {text!r} has an unclosed '['; write it as '[::1]:{DEFAULT_PORT}'")
    elif text.count(":") > 1:
        raise InvalidAddress(
            f"broker address {text!r} looks like IPv6; put the host in brackets: '[{text}]:{DEFAULT_PORT}'"
        )
    else:
        host, _, port_text = text.partition(":")
    if host.isdigit() and not port_text:
        raise InvalidAddress(f"broker address {text!r} is a port without a host; write it as '127.0.0.1:{text}'")
    if not host:
        raise InvalidAddress(f"broker address {text!r} has no host; write it as 'host:port'")
    if not _is_host(host):
        raise InvalidAddress(f"broker address {text!r} has the host {host!r}, which is not a host name")
    if not port_text:
        return Address(host, DEFAULT_PORT)
    is_number = port_text.isascii() and port_text.isdigit() and len(port_text) <= len(str(_PORT_MAX))
    if not is_number or not 0 < int(port_text) <= _PORT_MAX:
        raise InvalidAddress(f"broker address {text!r} has the port {port_text!r}; it must be 1 to {_PORT_MAX}")
    return Address(host, int(port_text))


def _refuse_credentials(text: str) -> None:
    """Raise ``InvalidAddress``, which does not repeat them, if there is a user or a password in an address."""
    _, separator, rest = text.rpartition("@")
    if separator:
        raise InvalidAddress(
            f"the broker address that ends with {separator + rest!r} has a user before it, but FlintMQ's addresses "
            "have none: pass the user and the password as such (user=, password=; on the command line --user and "
            "--password-file)"
        )


def _is_host(host: str) -> bool:
    """Return whether sockets can look this host up: for others they raise no ``OSError`` but ``UnicodeError``."""
    if host.isascii():
        return all(0 < len(label) <= _LABEL_CHARS_MAX for label in host.removesuffix(".").split("."))
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


# ---- The choice of the address to connect to: a broker's, or those of the members of a replica set.

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
