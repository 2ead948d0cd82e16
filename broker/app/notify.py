"""State notifications to systemd (``Type=notify``): datagrams to the socket in NOTIFY_SOCKET."""

from __future__ import annotations

import logging
import os
import socket
import time

log = logging.getLogger(__name__)

EVERY_S = 1.0
EXTENSION_S = 60
"""Additional time for the start that each progress report asks for."""


class ServiceManager:
    """The service manager, if there is one. ``address``: its socket, by default from the environment; "": none."""

    def __init__(self, address: str | None = None) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "") if address is None else address
        self._said_at = float("-inf")

    def starting(self, stage: str, done: int, total: int) -> None:
        """Report progress of the start, at most once per second. ``total``: 0 if unknown. Callable from any thread."""
        now = time.monotonic()
        if self._address and now >= self._said_at + EVERY_S:
            self._said_at = now
            share = f", {done * 100 // total} %" if total else ""
            self._say(f"STATUS=starting: {stage}{share}", f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}")

    def ready(self, where: str) -> None:
        """Report that the port is open."""
        self._say("READY=1", f"STATUS=listening on {where}")

    def stopping(self) -> None:
        """Report that an orderly stop has begun."""
        self._say("STOPPING=1", "STATUS=stopping")

    def _say(self, *lines: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of an abstract socket.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.connect(address)
                sock.sendall("\n".join(lines).encode())
        except OSError as error:
            log.warning("cannot notify the service manager at NOTIFY_SOCKET=%s: %s", self._address, error)
