"""What a setting may be: each rule checks a value, and says in words what is valid."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ..protocol.commands import DEFAULT_PORT

I32_MAX = 2**31 - 1

_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*\Z")
_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Rule:
    """``check`` returns the value to use or raises ``ValueError``; ``describe`` says what is valid, for messages."""

    def check(self, value: object) -> object:
        """The value as the broker uses it; text from the environment or a flag is understood too."""
        raise NotImplementedError

    def describe(self) -> str:
        """What is valid, to follow "must be"."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


@dataclass(frozen=True)
class Whole(Rule):
    """An integer in ``[low, high]`` and a multiple of ``step``."""

    low: int
    high: int = I32_MAX
    step: int = 1

    def check(self, value: object) -> int:
        if isinstance(value, str) and _WHOLE.match(value.strip()):
            value = int(value)
        if type(value) is not int or not self.low <= value <= self.high or value % self.step:
            raise ValueError("not such an integer")
        return value

    def describe(self) -> str:
        multiple = f", a multiple of {self.step}" if self.step > 1 else ""
        return f"an integer from {self.low} to {self.high}{multiple}"


@dataclass(frozen=True)
class Switch(Rule):
    """True or false."""

    def check(self, value: object) -> bool:
        if isinstance(value, str):
            value = _SWITCH.get(value.strip().lower(), value)
        if type(value) is not bool:
            raise ValueError("neither true nor false")
        return value

    def describe(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Choice(Rule):
    """One of a few words; with ``switch`` also true and false."""

    words: tuple[str, ...]
    switch: bool = False

    def check(self, value: object) -> str | bool:
        if self.switch and type(value) is bool:
            return value
        if isinstance(value, str):
            word = value.strip().lower()
            if word in self.words:
                return word
            if self.switch and word in _SWITCH:
                return _SWITCH[word]
        raise ValueError("none of the choices")

    def describe(self) -> str:
        words = [*(["true", "false"] if self.switch else []), *(f'"{word}"' for word in self.words)]
        return f"{', '.join(words[:-1])} or {words[-1]}"


@dataclass(frozen=True)
class Text(Rule):
    """A string that ``pattern`` matches, without control characters."""

    meaning: str
    pattern: re.Pattern[str] = re.compile(r".{1,4096}\Z")

    def check(self, value: object) -> str:
        if not isinstance(value, str) or not value.isprintable() or not self.pattern.match(value):
            raise ValueError("not such a string")
        return value

    def describe(self) -> str:
        return self.meaning


@dataclass(frozen=True)
class AddressRule(Rule):
    """HOST:PORT; ``optional``: the empty string too; ``words``: what else it may be."""

    optional: bool = False
    words: tuple[str, ...] = ()

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("not a string")
        word = value.strip().lower()
        if word in self.words:
            return word
        if value or not self.optional:
            parse_address(value)
        return value

    def describe(self) -> str:
        words = [*(['""'] if self.optional else []), *(f'"{word}"' for word in self.words)]
        return " or ".join(["HOST:PORT (127.0.0.1:10911), [IPV6]:PORT or HOST, with a port from 0 to 65535", *words])


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """``(host, port)`` of ``HOST:PORT``, ``[IPV6]:PORT``, ``IPV6`` or ``HOST``; ``*`` and no host mean every interface.

    Raises ``ValueError`` where the text is none of these.
    """
    host, port_text = text.strip(), ""
    if host.startswith("["):
        host, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not [IPV6]:PORT")
        ipaddress.IPv6Address(host.partition("%")[0])
        port_text = rest[1:]
    elif host.count(":") == 1:
        host, _, port_text = host.partition(":")
        if not port_text:
            raise ValueError(f"{text!r} ends without a port")
    elif ":" in host:
        ipaddress.IPv6Address(host.partition("%")[0])
    elif not host:
        raise ValueError("an empty address")
    elif host.isdigit():
        raise ValueError(
            f"{host!r} is a port without a host; write 127.0.0.1:{host} for this machine alone, 0.0.0.0:{host} for all"
        )
    if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= 65535) and port_text:
        raise ValueError(f"{port_text!r} is not a port")
    if host in ("", "*"):
        host = "0.0.0.0"  # noqa: S104 - said by the user; refused without server.insecure
    if not re.match(r"[A-Za-z0-9_.:%-]{1,253}\Z", host):
        raise ValueError(f"{host!r} is not a host")
    return host, int(port_text) if port_text else default_port


def format_address(host: str, port: int) -> str:
    """``HOST:PORT``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether every address that ``host`` stands for is reachable from this machine alone."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # what cannot be looked up is not known to be loopback
    return all(ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)
