"""Check of the Host header of requests to the metrics endpoint, which protects it from DNS rebinding."""

from __future__ import annotations

import re

from ...protocol.hosts import AllowedHosts
from ..addresses import parse_address

_HOST_LINE = re.compile(rb"^host[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class Hosts:
    """Allowed names: loopback, the host in ``listen`` (HOST:PORT or ""), and ``names`` (separated by ``;``)."""

    def __init__(self, listen: str, names: str) -> None:
        own = [parse_address(listen)[0]] if listen else []
        self._allowed = AllowedHosts([*own, *names.split(";")])

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
        if self._allowed.allows(name, local_address):
            return ""
        return (
            f"{name[:100]!a} is not an allowed name of this broker; to allow it, add it to metrics.hosts at the broker"
        )
