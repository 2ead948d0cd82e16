"""The client's end of a connection: its name for HELLO, its address as bytes, and the options of its socket."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

_LOST_AFTER = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 6_000}
"""Options by which the system ends a connection to a host that is silent for six seconds (the last one is in
milliseconds), also while a request waits for its response. A host that is slow to respond keeps it. Systems lack some
of them."""


def set_options(sock: socket.socket) -> None:
    """Prepare a connected socket for requests and responses."""
    # Frames are written whole: Nagle's algorithm would only delay them.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _LOST_AFTER.items():
        option = getattr(socket, name, None)
        if option is not None:
            with suppress(OSError):  # Python knows an option that the system refuses: the connection works without it
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def client_name() -> str:
    """Return the name by which this process introduces itself to a broker."""
    program = os.path.basename(sys.argv[0] if sys.argv else "") or "python"  # noqa: PTH119
    return f"{program[:100]} pid {os.getpid()} on {socket.gethostname()[:100]}"


def packed_address(host: str) -> bytes:
    """Return an IP address (with or without a zone) as its 4 or 16 bytes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.inet_pton(family, host.partition("%")[0])
