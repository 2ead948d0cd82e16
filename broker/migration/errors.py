"""Errors of a migration from RocketMQ."""

from __future__ import annotations

from ...protocol.errors import FlintError


class MigrationError(FlintError):
    """Root of the errors that end a migration; a person has to decide."""


class MasterUnsuitable(MigrationError):
    """The RocketMQ broker cannot be followed: its settings or its log do not allow it."""


class MasterRefused(MigrationError):
    """The RocketMQ broker answered a request with an error. ``code``: its ``ResponseCode``."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class HistoryDiffers(MigrationError):
    """The store's log is not the beginning of the master's log."""


class FollowsNothing(MigrationError):
    """The store follows no master."""


class StillServing(MigrationError):
    """The master may have, or still take, messages that the store lacks."""


class HaStreamError(MigrationError):
    """A master sent bytes over its HA connection that cannot be what was asked for; nothing of them was written.

    ``physical_offset``: where in the log.
    """

    def __init__(self, physical_offset: int, reason: str) -> None:
        super().__init__(
            f"the master's bytes for offset {physical_offset:,} of the log cannot be right: {reason}. Nothing of them "
            "was written; if it happens again, verify the master's store"
        )
        self.physical_offset = physical_offset
