"""The store's errors. Every message names the file, the reason, and what to do."""

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
    """A record of the log is damaged.

    ``physical_offset``: where it begins; ``reason``: the damage in a few words; ``queue_offset``: queue offset of the
    message that was requested, -1 if none was.
    """

    def __init__(self, message: str, physical_offset: int, reason: str, queue_offset: int = -1) -> None:
        super().__init__(message)
        self.physical_offset = physical_offset
        self.reason = reason
        self.queue_offset = queue_offset


class ContainmentStuck(CorruptLog):
    """A start would contain the same place of the log again and again. Raised as a safeguard against an endless
    loop."""


class LogCopyRefused(StoreError):
    """Bytes that another broker sent do not continue this log, or are damaged; nothing was written.

    ``physical_offset``: where they are wrong; ``reason``: why, in a few words.
    """

    def __init__(self, physical_offset: int, reason: str) -> None:
        super().__init__(
            f"the bytes for offset {physical_offset:,} of the log were refused: {reason}. Nothing was written; ask for "
            "them again, and if it happens again, verify the sender's store"
        )
        self.physical_offset = physical_offset
        self.reason = reason


class FollowsMaster(StoreError):
    """The store follows a RocketMQ master; only the migration's own commands may open it for writing."""


class CorruptFile(StoreError):
    """Neither a configuration file of the store nor its backup can be read."""


class StoreFailed(StoreError):
    """A flush or a write failed. It is unknown which bytes are on disk, so the process must end."""


class WouldBlock(Exception):
    """Signal, not an error: the bytes are not in the page cache. Repeat the read in a thread that may wait for the
    disk."""


class InArchive(WouldBlock):
    """Signal, not an error: only the archive has the bytes. Repeat the read in one of the archive's threads."""
