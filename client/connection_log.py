"""The log of a client's connections: one line when the broker is lost, one while it is away, one when it is back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..protocol.errors import ConnectionFailed, FlintError
from .core.rpc.address import Address
from .core.rpc.retry import is_retriable
from .log_rate import LogRate

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
