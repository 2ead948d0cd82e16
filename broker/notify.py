"""Tells systemd how the broker is, where it asks (``Type=notify``): a datagram to the socket of NOTIFY_SOCKET."""

from __future__ import annotations

import logging
import os
import socket
import time

log = logging.getLogger(__name__)

EVERY_S = 1.0
EXTENSION_S = 60
"""A start that makes progress is given this much more time, each time."""


class ServiceManager:
    """Does nothing where no service manager asks. ``address``: the socket, by default what the environment says."""

    def __init__(self, address: str | None = None) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "") if address is None else address
        self._said_at = float("-inf")

    def starting(self, stage: str, done: int, total: int) -> None:
        """The start goes on; said once a second at most. ``total`` 0: not known. Any thread."""
        now = time.monotonic()
        if self._address and now >= self._said_at + EVERY_S:
            self._said_at = now
            share = f", {done * 100 // total} %" if total else ""
            self._say(f"STATUS=starting: {stage}{share}", f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}")

    def ready(self, where: str) -> None:
        """The port is open."""
        self._say("READY=1", f"STATUS=listening on {where}")

    def stopping(self) -> None:
        """An orderly stop has begun."""
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
            log.warning("the service manager at NOTIFY_SOCKET=%s cannot be told: %s", self._address, error)
