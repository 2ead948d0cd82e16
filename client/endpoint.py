"""The client's end of a connection: its name for HELLO, and its address as bytes."""

from __future__ import annotations

import os
import socket
import sys


def client_name() -> str:
    """Return the name by which this process introduces itself to a broker."""
    program = os.path.basename(sys.argv[0] if sys.argv else "") or "python"  # noqa: PTH119
    return f"{program[:100]} pid {os.getpid()} on {socket.gethostname()[:100]}"


def packed_address(host: str) -> bytes:
    """Return an IP address (with or without a zone) as its 4 or 16 bytes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.inet_pton(family, host.partition("%")[0])
