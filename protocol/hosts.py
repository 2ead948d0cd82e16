"""Hosts: the network that counts as one visitor, and the check of the Host header against DNS rebinding.

A web page can make its own host name resolve to this machine, and its script could then read what the port serves. But
the browser still sends that name as Host, so a server refuses requests for names that are not its own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]+))(?::[0-9]{1,5})?\Z")


IPV6_PREFIX = 64
"""Length of the IPv6 prefix that counts as one address: one client usually controls the whole network."""


def network_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, the network of an IPv6 address, or any other text itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(address), IPV6_PREFIX), strict=False))
        address = address.ipv4_mapped
    return str(address)


class AllowedHosts:
    """Names under which a port may be requested: loopback, the address of the connection, and ``names``."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {"localhost", *(name.strip().lower() for name in names if name.strip())}

    def allows(self, header: str, local_address: str) -> bool:
        """Return whether a Host header names this server. ``local_address``: the address that the request reached."""
        match = _HOST.match(header)
        if match is None:
            return False
        host = (match[1] or match[2]).lower().rstrip(".")
        if host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
            local = ipaddress.ip_address(local_address.partition("%")[0])
        except ValueError:
            return False
        return address.is_loopback or address == local or address == getattr(local, "ipv4_mapped", None)
