"""Keys of messages whose clients give them none."""

from __future__ import annotations

import secrets

from ...protocol.storage.ids import UNIQUE_PREFIX_DIGITS, unique_key


class UniqueKeys:
    """Numbered keys of one run of the broker. Belongs to the event loop."""

    def __init__(self) -> None:
        # Random, because keys of earlier runs are in the log.
        self.prefix = secrets.token_hex(UNIQUE_PREFIX_DIGITS // 2).upper()
        self._count = 0

    def take(self, count: int) -> int:
        """Return the first of ``count`` numbers that no other message gets."""
        first = self._count
        self._count += count
        return first

    def next_key(self) -> str:
        """Return a key that no other message has."""
        return unique_key(self.prefix, self.take(1))
