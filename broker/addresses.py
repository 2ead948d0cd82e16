"""Network addresses as text: HOST:PORT, and whether an address is loopback."""

from __future__ import annotations

import ipaddress
import re
import socket

from ..protocol.commands import DEFAULT_PORT


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
        # Only one colon divides host and port; with more, the text is an IPv6 address.
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


def unmapped(host: str) -> str:
    """Return the IPv4 address inside an IPv4-mapped IPv6 address (``::ffff:…``), else ``host``; without a zone."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
