"""Memory for answers that were made and that their clients have not taken.

Each connection may have ``limits.write_buffer_bytes_max`` of them; this bounds all together. While they take more than
``limits.send_bytes_max``, nothing more is read for who has not taken what was sent: such a request waits. Who has is
served on, up to half as much again, so that slow readers hold up nobody else. The nearer the bound is, the smaller are
the answers that are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

SMALL_BYTES = 16 * 1024
"""So much of one connection does not count, and is all that it may have while memory is short."""
ANSWER_BYTES_MIN = 64 * 1024
"""Answers are not made smaller than this, unless less is asked for."""
TRIED_MAX = 64
"""So many of those that wait are tried at a time."""
LOOK_EVERY_S = 0.005
"""While somebody waits it is looked so often at what was taken meanwhile."""


class Sender(Protocol):
    """A connection with answers that were not taken."""

    def unsent_bytes(self) -> int:
        """How much it has, as of now."""


class SendMemory:
    """Belongs to the event loop. ``clock``: seconds, never going back; ``call_later``: the loop's."""

    def __init__(
        self, max_bytes: int, clock: Callable[[], float], call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        """What all have not taken, at most: some of it may have gone since it was looked."""
        self._clock = clock
        self._call_later = call_later
        self._senders: dict[Sender, int] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._looked_at = 0.0
        self._due = False

    def note(self, sender: Sender, unsent_bytes: int) -> None:
        """So much of what ``sender`` was sent is not taken."""
        counted = unsent_bytes if unsent_bytes > SMALL_BYTES else 0
        self.used_bytes += counted - self._senders.pop(sender, 0)
        if counted:
            self._senders[sender] = counted

    def may_read(self, sender: Sender) -> bool:
        """Whether an answer may be read for ``sender``."""
        if not self.is_short():
            return True
        return sender not in self._senders and self.used_bytes < self.max_bytes + self.max_bytes // 2

    def is_short(self) -> bool:
        """Whether slow readers are not served."""
        if self.used_bytes >= self.max_bytes and self._clock() != self._looked_at:
            self._look()
        return self.used_bytes >= self.max_bytes

    def answer_bytes(self) -> int:
        """How large an answer may be that is read now. Any thread."""
        return max((self.max_bytes - self.used_bytes) // 8, ANSWER_BYTES_MIN)

    def wait(self, call: Callable[[], None]) -> None:
        """Call when there may be memory again; where there is not, it waits again."""
        self._waiting.append(call)
        self._look_later()

    def _look(self) -> None:
        self._looked_at = self._clock()
        for sender in list(self._senders):
            self.note(sender, sender.unsent_bytes())

    def _look_later(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._call_later(LOOK_EVERY_S, self._go_on)

    def _go_on(self) -> None:
        self._due = False
        self._look()
        for _ in range(min(len(self._waiting), TRIED_MAX)):
            self._waiting.popleft()()
        self._look_later()
