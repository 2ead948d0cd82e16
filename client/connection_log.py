"""The log of a client's connections: a line when the broker goes, one while it is away, and one when it is back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..protocol.errors import ConnectionFailed, FlintError
from .core.address import Address
from .core.retry import is_retriable
from .log_rate import LogRate

log = logging.getLogger(__name__)

CONNECTED = "connected"
LOST = "lost"
WAITING = "waiting"
BACK = "back"
RETRIED = "retried"
"""The attribute ``event`` of a record is one of these; its ``said`` is the line without the client's name."""


class ConnectionLog:
    """One client's. Safe from threads; holds nothing that grows.

    ``name``: of the client, in every line; ``trouble_level``: of the line about a lost connection.
    """

    def __init__(
        self, name: str, trouble_level: int = logging.INFO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._trouble_level = trouble_level
        self._clock = clock
        self._lock = threading.Lock()
        self._known = False
        """Whether there was a connection before."""
        self._away_since: float | None = None
        self._waiting = False
        self._changes = LogRate(clock=clock)
        self._retries = LogRate(clock=clock)

    def connected(self, address: Address) -> None:
        """A connection stands. That is a line where it is the first, or the broker was away."""
        with self._lock:
            away_since, self._away_since = self._away_since, None
            first, self._known, self._waiting = not self._known, True, False
        if away_since is not None:
            self._say(BACK, f"connected to the broker at {address} again, after {self._clock() - away_since:.1f} s")
        elif first:
            self._say(CONNECTED, f"connected to the broker at {address}")

    def lost(self, error: FlintError) -> None:
        """A connection that was in use went."""
        with self._lock:
            if self._away_since is not None:
                return
            self._away_since = self._clock()
        self._say(LOST, f"lost the connection: {error}; connecting again", self._trouble_level)

    def unreachable(self, error: FlintError) -> None:
        """No connection could be made. That is a line where it may be possible later, and the first time."""
        if not is_retriable(error):
            return
        with self._lock:
            if self._away_since is None:
                self._away_since = self._clock()
            if self._waiting:
                return
            self._waiting = True
        self._say(WAITING, f"waiting for the broker: {error}")

    def retried(self, what: str, error: FlintError) -> None:
        """A request failed and is sent again."""
        if isinstance(error, ConnectionFailed):
            self.lost(error)
        elif (left_out := self._retries.admit()) is not None:
            log.info("%s: %s is tried again: %s%s", self._name, what, error, left_out, extra={"event": RETRIED})

    def _say(self, event: str, text: str, level: int = logging.INFO) -> None:
        left_out = self._changes.admit()
        if left_out is not None:
            log.log(level, "%s: %s%s", self._name, text, left_out, extra={"event": event, "said": text + left_out})
