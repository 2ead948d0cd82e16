"""Broker addresses: ``host:port``, several separated by commas."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from ....protocol.commands import DEFAULT_PORT
from ...errors import InvalidArgument

BROKER_VARIABLE = "FLINTMQ_BROKER"
"""Environment variable with the broker's address, for a program that does not pass one."""
_PORT_MAX = 65535


class Address(NamedTuple):
    """A broker's address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class AddressBook:
    """Several addresses of a broker, tried in turn, beginning with the one that answered last."""

    def __init__(self, addresses: tuple[Address, ...]) -> None:
        self._addresses = addresses
        self._first = 0

    def in_turn(self) -> list[Address]:
        """Return all addresses, in the order in which to try them now."""
        return [*self._addresses[self._first :], *self._addresses[: self._first]]

    def mark_answered(self, address: Address) -> None:
        """Begin with this address next time: a connection to it succeeded."""
        self._first = self._addresses.index(address)

    def mark_failed(self, address: Address) -> None:
        """Begin with the next address: a connection to this one failed."""
        if self._addresses[self._first] == address:
            self._first = (self._first + 1) % len(self._addresses)


def parse_addresses(addresses: str | Iterable[str] | None) -> tuple[Address, ...]:
    """Parse ``"a:1,b:2"`` or several such strings; the default port is 10911. IPv6 hosts are in brackets.

    None: the environment variable ``FLINTMQ_BROKER``, or ``127.0.0.1:10911`` if it is not set.

    Raises ``InvalidArgument`` if there is no address or one is malformed.
    """
    if addresses is None:
        addresses = os.environ.get(BROKER_VARIABLE) or f"127.0.0.1:{DEFAULT_PORT}"
    texts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    parsed = tuple(dict.fromkeys(_parse(text.strip()) for text in texts if text.strip()))
    if not parsed:
        raise InvalidArgument(f"no broker address in {addresses!r}; pass one as 'host:port'")
    return parsed


def _parse(text: str) -> Address:
    scheme, separator, rest = text.partition("://")
    if separator:
        tls = ", and tls=True for TLS" if scheme in ("tls", "ssl", "https") else ""
        raise InvalidArgument(
            f"broker address {text!r} has the scheme {scheme + separator!r}, but FlintMQ's addresses have none: "
            f"use {rest.partition('/')[0]!r}{tls}"
        )
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port_text = rest.removeprefix(":")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidArgument(f"broker address {text!r} has an unclosed '['; write it as '[::1]:{DEFAULT_PORT}'")
    elif text.count(":") > 1:
        raise InvalidArgument(
            f"broker address {text!r} looks like IPv6; put the host in brackets: '[{text}]:{DEFAULT_PORT}'"
        )
    else:
        host, _, port_text = text.partition(":")
    if host.isdigit() and not port_text:
        raise InvalidArgument(f"broker address {text!r} is a port without a host; write it as '127.0.0.1:{text}'")
    if not host:
        raise InvalidArgument(f"broker address {text!r} has no host; write it as 'host:port'")
    if not port_text:
        return Address(host, DEFAULT_PORT)
    if not (port_text.isascii() and port_text.isdigit()) or not 0 < int(port_text) <= _PORT_MAX:
        raise InvalidArgument(f"broker address {text!r} has the port {port_text!r}; it must be 1 to {_PORT_MAX}")
    return Address(host, int(port_text))
