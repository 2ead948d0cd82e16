"""The outcome of a transaction, as a producer reports it."""

from __future__ import annotations

import enum


class Outcome(enum.StrEnum):
    """The result of ``check`` when the broker asks about a transaction."""

    COMMIT = "commit"
    """The related work succeeded: the broker delivers the message."""
    ROLLBACK = "rollback"
    """The related work failed: the broker never delivers the message."""
    UNKNOWN = "unknown"
    """The outcome is not known yet: the broker asks again later."""
