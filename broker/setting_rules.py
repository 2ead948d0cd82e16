"""Rules for settings: each rule checks a value, and describes valid values for error messages."""

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


class SettingRule:
    """Base class of the rules."""

    def check(self, value: object) -> object:
        """Return the value to use, also for text from the environment or a flag; raise ``ValueError`` if invalid."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return a description of valid values, to follow "must be"."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


@dataclass(frozen=True)
class Whole(SettingRule):
    """An integer in ``[low, high]`` and a multiple of ``step``."""

    low: int
    high: int = I32_MAX
    step: int = 1

    def check(self, value: object) -> int:
        if isinstance(value, str) and _WHOLE.match(value.strip()):
            value = int(value)
        if type(value) is not int or not self.low <= value <= self.high or value % self.step:
            raise ValueError("not an integer in the allowed range")
        return value

    def describe(self) -> str:
        multiple = f", a multiple of {self.step}" if self.step > 1 else ""
        return f"an integer from {self.low} to {self.high}{multiple}"


@dataclass(frozen=True)
class Switch(SettingRule):
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
class Choice(SettingRule):
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
        raise ValueError("not one of the choices")

    def describe(self) -> str:
        words = [*(["true", "false"] if self.switch else []), *(f'"{word}"' for word in self.words)]
        return f"{', '.join(words[:-1])} or {words[-1]}"


@dataclass(frozen=True)
class TextRule(SettingRule):
    """A string without control characters that matches ``pattern``. ``meaning``: description for error messages."""

    meaning: str
    pattern: re.Pattern[str] = re.compile(r".{1,4096}\Z")

    def check(self, value: object) -> str:
        if not isinstance(value, str) or not value.isprintable() or not self.pattern.match(value):
            raise ValueError("not a valid string")
        return value

    def describe(self) -> str:
        return self.meaning


@dataclass(frozen=True)
class AddressRule(SettingRule):
    """HOST:PORT. ``optional``: the empty string is also valid; ``words``: other valid values."""

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
    """Return ``(host, port)`` of ``HOST:PORT``, ``[IPV6]:PORT``, ``IPV6`` or ``HOST``.

    ``*`` or an empty host means every interface. Raises ``ValueError`` for any other text.
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
        raise ValueError("the address is empty")
    elif host.isdigit():
        raise ValueError(
            f"{host!r} is a port without a host; use 127.0.0.1:{host} for this machine only, 0.0.0.0:{host} for all"
        )
    if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= 65535) and port_text:
        raise ValueError(f"{port_text!r} is not a port")
    if host in ("", "*"):
        host = "0.0.0.0"  # noqa: S104 - the user asked for it; refused without server.insecure
    if not re.match(r"[A-Za-z0-9_.:%-]{1,253}\Z", host):
        raise ValueError(f"{host!r} is not a host")
    return host, int(port_text) if port_text else default_port


def format_address(host: str, port: int) -> str:
    """Return ``HOST:PORT``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether every address that ``host`` resolves to is reachable only from this machine."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # a name that cannot be resolved now may turn out not to be loopback
    return all(ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)
