"""Names and contents of a store's files that the broker, its tools and ``storage.reader`` share."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

from .errors import ConfigurationError
from .storage.layout import (
    CHECKPOINT,
    CHECKPOINT_MARK,
    CHECKPOINT_MARK_AT,
    CHECKPOINT_MARK_MAGIC,
    CheckpointMark,
    CheckpointTimes,
)

OFFSET_NAME = re.compile(r"\d{20}\Z", re.ASCII)
"""Name of a file of the CommitLog or of a ConsumeQueue: the position of its first byte in the whole."""

QUEUE_NAME = re.compile(r"(0|[1-9]\d{0,9})\Z", re.ASCII)
"""Name of the folder of a ConsumeQueue in its topic's folder: the number of the queue."""

QUARANTINE_INDEX = "index.json"
"""Name of the list of the log's damaged ranges, in the store's folder ``flintmq/quarantine``."""

FILE_MODE, FOLDER_MODE = 0o600, 0o700
"""Permissions of what FlintMQ creates in a store or a backup: the messages are for the broker's user alone."""

_OFFSETS = struct.Struct(">qq")


def file_name(start_offset: int) -> str:
    """Return the name of the file that begins at ``start_offset``: 20 digits."""
    return f"{start_offset:020d}"


def checkpoint_mark(blob: bytes | bytearray) -> CheckpointMark | None:
    """Return FlintMQ's mark in a checkpoint file; None if it is missing or damaged, or if RocketMQ wrote the file."""
    mark = CHECKPOINT_MARK.unpack(blob, CHECKPOINT_MARK_AT)
    sound = mark.magic == CHECKPOINT_MARK_MAGIC and mark.crc & 0xFFFFFFFF == _mark_crc(blob[: CHECKPOINT.size], mark)
    return mark if sound and 0 <= mark.dispatched_offset <= mark.flushed_offset else None


def encode_checkpoint(times: CheckpointTimes, flushed_offset: int, dispatched_offset: int) -> bytes:
    """Return the checkpoint file's bytes up to the end of FlintMQ's mark."""
    head = CHECKPOINT.pack(*times)
    mark = CheckpointMark(CHECKPOINT_MARK_MAGIC, 0, flushed_offset, dispatched_offset)
    crc = _mark_crc(head, mark)
    signed = crc - (1 << 32) if crc >> 31 else crc  # the layout's integers are signed
    return head.ljust(CHECKPOINT_MARK_AT, b"\0") + CHECKPOINT_MARK.pack(*mark._replace(crc=signed))


def _mark_crc(times: bytes | bytearray, mark: CheckpointMark) -> int:
    """Return the checksum over RocketMQ's part and the mark's offsets."""
    return zlib.crc32(bytes(times) + _OFFSETS.pack(mark.flushed_offset, mark.dispatched_offset))


# ---- Telling the folder of a backup from the folder of a store. Both have a subfolder ``commitlog``.
#
# ``flintmq-broker backup`` writes ``backup.json`` last: a backup folder without it is incomplete.

MANIFEST, PROGRESS = "backup.json", "backup-progress.json"
TABLES_PREFIX = "tables-"
_TABLES_NAME = re.compile(rf"{TABLES_PREFIX}[0-9]+\Z")

WHOLE, INCOMPLETE = "a backup", "an incomplete backup"


class NotAStore(ConfigurationError):
    """A command that needs a store got the folder of a backup."""


def backup_kind(folder: Path) -> str:
    """Return ``WHOLE``, ``INCOMPLETE``, or an empty string if the folder holds no backup."""
    if (folder / MANIFEST).exists():
        return WHOLE
    if (folder / PROGRESS).exists():
        return INCOMPLETE
    # A copy of a backup without its manifest still has tables-N folders. A store keeps its tables in `config`.
    has_tables = folder.is_dir() and any(_TABLES_NAME.match(path.name) for path in folder.iterdir())
    return INCOMPLETE if has_tables and not (folder / "checkpoint").exists() else ""


def refuse_backup(folder: Path) -> None:
    """Raise ``NotAStore`` if the folder holds a backup. Call this before changing anything in a store."""
    kind = backup_kind(folder)
    if kind == WHOLE:
        raise NotAStore(
            f"{folder} is a backup, not a store: it contains {MANIFEST}. Use `flintmq-broker restore {folder} STORE` "
            f"to restore it into the empty folder STORE, or `flintmq-broker verify {folder}` to check it. Nothing was "
            "changed"
        )
    if kind:
        raise NotAStore(
            f"{folder} is not a store: it holds an incomplete backup, without {MANIFEST}. If the backup was "
            f"interrupted, `flintmq-broker backup STORE {folder}` continues it; if this is a copy, copy {MANIFEST} "
            f"too. Then `flintmq-broker restore {folder} STORE` restores it. Nothing was changed"
        )
