"""Check of the Host header of requests to the metrics endpoint.

A web page can make its own host name resolve to this machine (DNS rebinding), and its script could then read the
endpoint. But the browser still sends that name as Host, so the endpoint refuses requests for unexpected names.
"""

from __future__ import annotations

import ipaddress
import re

from ..addresses import parse_address

_HOST_LINE = re.compile(rb"^host[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]+))(?::[0-9]{1,5})?\Z")


class Hosts:
    """Allowed names: loopback, the host in ``listen`` (HOST:PORT or ""), and ``names`` (separated by ``;``)."""

    def __init__(self, listen: str, names: str) -> None:
        self._names = {"localhost", *(name.strip().lower() for name in names.split(";") if name.strip())}
        if listen:
            self._names.add(parse_address(listen)[0].lower())

    def refusal(self, head: bytes, local_address: str) -> str:
        """Return why a request with this head must be refused, or "". ``local_address``: the address it arrived at.

        A request without a Host is accepted, because it does not come from a browser.
        """
        given = _HOST_LINE.findall(head)
        if not given:
            return ""
        if len(given) > 1:
            return "a request must have only one Host"
        name = given[0].decode("latin-1")
        if self._is_ours(name, local_address):
            return ""
        return (
            f"{name[:100]!a} is not an allowed name of this broker; to allow it, add it to metrics.hosts at the broker"
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
