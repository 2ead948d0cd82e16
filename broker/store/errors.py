"""What can go wrong with a store. Every message names the file, says why, and what helps."""

from __future__ import annotations

from ...protocol.errors import FlintError


class StoreError(FlintError):
    """Root of the store's errors."""


class StoreLocked(StoreError):
    """Another broker, FlintMQ's or RocketMQ's, has the store open."""


class SettingMismatch(StoreError):
    """A file of the store has another size than the settings say."""


class CorruptLog(StoreError):
    """The CommitLog has damage that is not the torn end of the last write; it is never cut in silence."""


class DamagedRecord(CorruptLog):
    """A record is there that cannot be what was written. ``physical_offset``: where it begins; ``reason``: what is
    wrong with it, in a few words; ``queue_offset``: which message of its queue it should be, -1 where nobody asked for
    one."""

    def __init__(self, message: str, physical_offset: int, reason: str, queue_offset: int = -1) -> None:
        super().__init__(message)
        self.physical_offset = physical_offset
        self.reason = reason
        self.queue_offset = queue_offset


class ContainmentStuck(CorruptLog):
    """A start would contain the same place of the log again and again. None should come to this: it ends instead."""


class CorruptFile(StoreError):
    """A configuration file of the store cannot be read, nor its backup."""


class StoreFailed(StoreError):
    """A flush or a write failed; what is on disk is no longer known, and the process must end."""


class WouldBlock(Exception):
    """Bytes are not in the page cache; the read is to be repeated where it may wait for the disk. Not an error."""
