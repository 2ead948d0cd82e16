"""By which names the metrics' port may be asked.

A page in a browser can have its own name resolve to this machine (DNS rebinding) and so read what the port serves. The
browser then still sends that name as Host: requests for names that are not expected are refused.
"""

from __future__ import annotations

import ipaddress
import re

from ...setting_rules import parse_address

_HOST_LINE = re.compile(rb"^host[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]+))(?::[0-9]{1,5})?\Z")


class Hosts:
    """The names: those of loopback, the one in ``listen`` (HOST:PORT, or empty), and ``names`` (separated by ``;``)."""

    def __init__(self, listen: str, names: str) -> None:
        self._names = {"localhost", *(name.strip().lower() for name in names.split(";") if name.strip())}
        if listen:
            self._names.add(parse_address(listen)[0].lower())

    def refusal(self, head: bytes, local_address: str) -> str:
        """Why a request with this head is refused; empty: it is not. ``local_address``: where it arrived.

        One without a Host is none of a browser, and served.
        """
        given = _HOST_LINE.findall(head)
        if not given:
            return ""
        if len(given) > 1:
            return "a request has one Host"
        name = given[0].decode("latin-1")
        if self._is_ours(name, local_address):
            return ""
        return (
            f"{name[:100]!a} is none of the names of this port; add its name to metrics.hosts where the broker is "
            "to be asked so"
        )

    def _is_ours(self, name: str, local_address: str) -> bool:
        match = _HOST.match(name)
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
