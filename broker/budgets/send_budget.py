"""Budget for responses that the broker has produced and their clients have not read yet.

Each connection may have ``limits.write_buffer_bytes_max`` of unsent bytes; this module bounds their sum. While the sum
exceeds ``limits.send_bytes_max``, requests of clients that have not drained their responses wait. All other clients
are served up to 1.5 times the limit, so that slow readers do not block them. The closer the sum is to the limit, the
smaller are the responses that are read from the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

SMALL_BYTES = 16 * 1024
"""Unsent bytes of a connection up to this number do not count; while memory is short, it may not have more."""
ANSWER_BYTES_MIN = 64 * 1024
"""Lower bound for the size limit of a response; a client may ask for less."""
TRIED_MAX = 64
"""Maximum number of waiting requests that are retried at a time."""
LOOK_EVERY_S = 0.005
"""Poll interval for drained bytes while any request waits."""


class Sender(Protocol):
    """A connection that may have unsent bytes."""

    def unsent_bytes(self) -> int:
        """Return the current number of unsent bytes."""


class SendBudget:
    """The budget of unsent bytes. Belongs to the event loop.

    ``clock``: monotonic seconds; ``call_later``: that of the loop.
    """

    def __init__(
        self, max_bytes: int, clock: Callable[[], float], call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        """Upper bound for the unsent bytes of all connections: some may have been sent since the last poll."""
        self._clock = clock
        self._call_later = call_later
        self._senders: dict[Sender, int] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._looked_at = 0.0
        self._due = False

    def note(self, sender: Sender, unsent_bytes: int) -> None:
        """Record the number of unsent bytes of ``sender``."""
        counted = unsent_bytes if unsent_bytes > SMALL_BYTES else 0
        self.used_bytes += counted - self._senders.pop(sender, 0)
        if counted:
            self._senders[sender] = counted

    def may_read(self, sender: Sender) -> bool:
        """Return whether a response for ``sender`` may be read from the store now."""
        if not self.is_short():
            return True
        return sender not in self._senders and self.used_bytes < self.max_bytes + self.max_bytes // 2

    def is_short(self) -> bool:
        """Return whether the budget is exhausted, so that slow readers must wait."""
        # At most once at a time of the clock, because a look goes through all connections that count.
        if self.used_bytes >= self.max_bytes and self._clock() != self._looked_at:
            self._look()
        return self.used_bytes >= self.max_bytes

    def answer_bytes(self) -> int:
        """Return the size limit of a response that is read now. Callable from any thread."""
        # An eighth of the rest, since other responses may be read before this one counts.
        return max((self.max_bytes - self.used_bytes) // 8, ANSWER_BYTES_MIN)

    def wait(self, call: Callable[[], None]) -> None:
        """Call ``call`` when there may be memory again; it must check, and wait again if there is none."""
        self._waiting.append(call)
        self._look_later()

    def _look(self) -> None:
        self._looked_at = self._clock()
        for sender in list(self._senders):
            self.note(sender, sender.unsent_bytes())

    def _look_later(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._call_later(LOOK_EVERY_S, self._retry)

    def _retry(self) -> None:
        self._due = False
        self._look()
        # Each at most once: a request that must still wait joins the end of the line.
        for _ in range(min(len(self._waiting), TRIED_MAX)):
            self._waiting.popleft()()
        self._look_later()
