"""The client's end of a connection: its name for HELLO, its address as bytes, and the options of its socket."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ..protocol.errors import ConnectionFailed, FlintError
from .core.rpc.address import Address
from .core.rpc.operation import is_retriable

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


# ---- A rate limit for one kind of log line of a client.

LINES_MAX = 10
SECONDS = 10.0
"""A client may log ``LINES_MAX`` lines at once, then as many again per ``SECONDS``, spread evenly."""


class LogRate:
    """Token bucket: admits ``lines`` at once and then one every ``seconds`` / ``lines``. Thread-safe."""

    __slots__ = ("_clock", "_left_out", "_lines", "_lock", "_refilled_at", "_seconds", "_tokens")

    def __init__(
        self, lines: int = LINES_MAX, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines = lines
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = float(lines)
        self._refilled_at = clock()
        self._left_out = 0

    def admit(self) -> str | None:
        """Return a suffix for the line to be logged now, which says how many lines before it were left out (empty if
        none); None: leave this line out too."""
        now = self._clock()
        with self._lock:
            refill = (now - self._refilled_at) * self._lines / self._seconds
            self._tokens = min(float(self._lines), self._tokens + refill)
            self._refilled_at = now
            if self._tokens < 1.0:
                self._left_out += 1
                return None
            self._tokens -= 1.0
            left_out, self._left_out = self._left_out, 0
        return f" ({left_out} lines like this were left out)" if left_out else ""


# ---- The log of a client's connections: one line when the broker is lost, one while it is away, one when it
# is back.

log = logging.getLogger(__name__)

CONNECTED = "connected"
LOST = "lost"
WAITING = "waiting"
BACK = "back"
RETRIED = "retried"
"""The attribute ``event`` of a log record is one of these; its ``said`` is the line without the client's name."""


class ConnectionLog:
    """The connection log of one client. Thread-safe; its memory use is constant.

    ``name``: the client's, part of every line; ``trouble_level``: log level of the line about a lost connection.
    """

    def __init__(
        self, name: str, trouble_level: int = logging.INFO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._trouble_level = trouble_level
        self._clock = clock
        self._lock = threading.Lock()
        self._known = False
        """True once a connection has been made."""
        self._away_since: float | None = None
        self._waiting = False
        self._changes = LogRate(clock=clock)
        self._retries = LogRate(clock=clock)

    def connected(self, address: Address) -> None:
        """Record a new connection. Logs a line if it is the first one or the broker was away."""
        with self._lock:
            away_since, self._away_since = self._away_since, None
            first, self._known, self._waiting = not self._known, True, False
        if away_since is not None:
            self._say(BACK, f"connected to the broker at {address} again, after {self._clock() - away_since:.1f} s")
        elif first:
            self._say(CONNECTED, f"connected to the broker at {address}")

    def lost(self, error: FlintError) -> None:
        """Record that a connection in use was lost."""
        with self._lock:
            if self._away_since is not None:
                return
            self._away_since = self._clock()
        self._say(LOST, f"lost the connection: {error}; connecting again", self._trouble_level)

    def unreachable(self, error: FlintError) -> FlintError:
        """Record a failed connection attempt; return its error. Logs only the first of a series, and only if a retry
        can help."""
        if is_retriable(error):
            with self._lock:
                if self._away_since is None:
                    self._away_since = self._clock()
                first, self._waiting = not self._waiting, True
            if first:
                self._say(WAITING, f"waiting for the broker: {error}")
        return error

    def retried(self, what: str, error: FlintError) -> None:
        """Record that a request failed and is being resent."""
        if isinstance(error, ConnectionFailed):
            self.lost(error)
        elif (left_out := self._retries.admit()) is not None:
            log.info("%s: retrying %s: %s%s", self._name, what, error, left_out, extra={"event": RETRIED})

    def _say(self, event: str, text: str, level: int = logging.INFO) -> None:
        left_out = self._changes.admit()
        if left_out is not None:
            log.log(level, "%s: %s%s", self._name, text, left_out, extra={"event": event, "said": text + left_out})
