"""What the store can be told. ``conf/broker.toml`` sections ``store`` and ``flush`` carry the same names."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes in bytes, times in milliseconds; the defaults are RocketMQ's where RocketMQ has the setting."""

    commitlog_file_bytes: int = 1024 * MIB
    """Size of a CommitLog file, from 4 MiB, a multiple of 4096. A store keeps the size it was made with."""
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
    """How much of the newest log is read and checked at every start; what was not known to be flushed always is."""
    record_checksum: bool = False
    """Whether every record gets a checksum over all of it, ``__CRC32#``; the body alone always has one."""
    reput_chunk_bytes: int = 1 * MIB
    """CommitLog bytes that one dispatch step covers; a larger backlog is dispatched by a thread."""
    flush_policy: str = "sync"
    """`sync`: acknowledge after fdatasync; `async`: after the write."""
    flush_interval_ms: int = 500
    """async: how often the CommitLog is flushed when enough pages are dirty."""
    flush_least_pages: int = 4
    """async: fewer dirty pages (4 KiB) than this wait for the thorough flush."""
    flush_thorough_interval_ms: int = 10_000
    """async: at the latest after this time everything is flushed."""
    flush_stall_ms: int = 5_000
    """A flush that takes longer is a stall: no message is taken until it is over."""
    flush_sync_timeout_ms: int = 5_000
    """Who has waited longer for a flush is told that it did not finish in time."""
    checkpoint_interval_ms: int = 5_000
    """How often ConsumeQueues, index and checkpoint are synced; what a crash leaves behind this is dispatched again."""
