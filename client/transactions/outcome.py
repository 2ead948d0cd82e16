"""How a transaction ended, as a producer tells it."""

from __future__ import annotations

import enum


class Outcome(enum.StrEnum):
    """What ``check`` answers when the broker asks about a transaction."""

    COMMIT = "commit"
    """It went well: the message is to be delivered."""
    ROLLBACK = "rollback"
    """It did not: the message is never to be delivered."""
    UNKNOWN = "unknown"
    """It is not known yet: the broker asks again later."""
