"""Settings of the store. The sections ``store`` and ``flush`` of ``conf/broker.toml`` use the same names."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
LOG_SIZE, QUEUE_SIZE = "store.commitlog_file_bytes", "store.consumequeue_file_bytes"
SLOTS, ENTRIES = "store.index_slots", "store.index_entries"
"""Names under which a store records the sizes that it was created with."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes in bytes, times in milliseconds. Defaults are RocketMQ's if RocketMQ has the setting."""

    commitlog_file_bytes: int = 1024 * MIB
    """Size of a CommitLog file, from 4 MiB, a multiple of 4096. A store keeps the size it was created with."""
    consumequeue_file_bytes: int = 6_000_000
    """Size of a ConsumeQueue file, a multiple of 20."""
    index_slots: int = 5_000_000
    """Hash slots of an IndexFile, from 500."""
    index_entries: int = 20_000_000
    """Entries of an IndexFile, from 4."""
    message_bytes_max: int = 512 * 1024
    """Largest stored record of a produced message."""
    allocate_step_bytes: int = 64 * MIB
    """Extents are allocated this far ahead of the CommitLog's write offset."""
    verify_at_start_bytes: int = 1024 * MIB
    """Bytes at the log's end that every start reads and checks; records not known to be flushed are always checked."""
    record_checksum: bool = False
    """Give every record a checksum over the whole record, ``__CRC32#``; the body always has one."""
    flush_policy: str = "sync"
    """`sync`: acknowledge after fdatasync; `async`: after the write."""
    flush_interval_ms: int = 500
    """async: interval of flushes of the CommitLog if enough pages are dirty."""
    flush_stall_ms: int = 5_000
    """A flush that takes longer is a stall: the broker accepts no message until it is over."""
    flush_sync_timeout_ms: int = 5_000
    """A request that waits longer for a flush fails with ``FLUSH_DISK_TIMEOUT``."""

    @property
    def fixed_sizes(self) -> dict[str, int]:
        """The sizes that a store keeps once it is created, by the names under which it records them."""
        return {
            LOG_SIZE: self.commitlog_file_bytes,
            QUEUE_SIZE: self.consumequeue_file_bytes,
            SLOTS: self.index_slots,
            ENTRIES: self.index_entries,
        }
