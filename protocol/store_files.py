"""Names and contents of a store's files that the broker, its tools and the Spark archive read alike."""

from __future__ import annotations

import re
import struct
import zlib

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
