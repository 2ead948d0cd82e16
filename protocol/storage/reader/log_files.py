"""The files of a CommitLog: finds them, checks that they fit together, and reads the checkpoint's flushed offset.

This module reads only names, sizes and the checkpoint; other modules read the files' contents.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ...store_files import OFFSET_NAME, QUARANTINE_INDEX, checkpoint_mark, file_name
from ..layout import CHECKPOINT_FILE_BYTES, CHECKPOINT_MARK, CHECKPOINT_MARK_AT, CHECKPOINT_MARK_MAGIC
from .errors import SKIP_HINT, CorruptLog, DataLoss, OnDamage, raise_damage
from .files import LOCAL, LocalFiles
from .queues import Queues

# ---- The damaged ranges of a log that now contain tombstones, from the store's
# ``flintmq/quarantine/index.json``.

INDEX = Path("flintmq", "quarantine", QUARANTINE_INDEX)

logger = logging.getLogger(__name__)


def quarantined_ranges(store: Path | None, on_damage: OnDamage, files: LocalFiles = LOCAL) -> list[tuple[int, int]]:
    """Return (begin, end) of each, in order of physical offset; none if the store's folder is unknown.

    If neither the index nor its .bak can be read, and ``on_damage`` returns, tombstones are read as messages.
    """
    if store is None:
        return []
    problem: Exception | None = None
    path = store / INDEX
    for each in (path, path.with_name(path.name + ".bak")):
        try:
            holes = json.loads(files.read_whole(each))["holes"]
            return sorted(
                (int(hole["physicalOffset"]), int(hole["physicalOffset"]) + int(hole["bytes"])) for hole in holes
            )
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = error
    if problem is not None:
        what = f"it cannot be read: {type(problem).__name__}: {problem}"
        on_damage(CorruptLog(path, 0, 0, what, f"Restore it from a backup, or {SKIP_HINT}"))
    return []


_ATTEMPTS = 20
_PAUSE_S = 0.01
_RESTORE = "Restore it from a backup, or " + SKIP_HINT


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log: ``[start, end)`` in physical offsets, ``end`` being the end of the file's own bytes.

    ``quarantined``: (begin, end) of its damaged ranges, which now contain tombstones instead of messages.
    """

    path: Path
    start: int
    end: int
    quarantined: tuple[tuple[int, int], ...] = ()
    files: LocalFiles = LOCAL

    @contextmanager
    def open(self) -> Iterator[int]:
        """Open the file and yield a handle for reading. Raises ``DataLoss`` if the file no longer exists."""
        try:
            fd = self.files.open(self.path)
        except FileNotFoundError:
            raise DataLoss(
                f"{self.path} is gone: physical offsets {self.start:,} to {self.end:,} were deleted "
                "(most likely by retention) after the read was planned. Start the read again"
            ) from None
        try:
            yield fd
        finally:
            self.files.close(fd)

    def read(self, fd: int, physical_offset: int, count: int) -> bytearray:
        """Return ``count`` bytes from a position in the log, fewer if the file ends before."""
        blob = bytearray(min(count, max(self.end - physical_offset, 0)))
        del blob[self.read_into(fd, physical_offset, memoryview(blob)) :]
        return blob

    def read_into(self, fd: int, physical_offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from a position in the log; return the number of bytes, fewer if the file ends before."""
        return self.files.read_into(fd, buffer, physical_offset - self.start)

    def next_data(self, fd: int, physical_offset: int) -> int:
        """Return ``physical_offset``, or the end of the sparse hole that contains it."""
        at = self.files.next_data(fd, physical_offset - self.start)
        return self.end if at is None else self.start + at

    def damaged(self, physical_offset: int, reason: str, help_: str) -> CorruptLog:
        """Return the error for a position in this file."""
        return CorruptLog(self.path, physical_offset - self.start, physical_offset, reason, help_)


@dataclass(frozen=True, slots=True)
class LogFiles:
    """A log's files in order.

    ``flushed_offset``: everything below is on disk and never changes, according to FlintMQ's mark in the checkpoint;
    None without a mark. ``store``: the folder that contains ``commitlog``, None if only its files were given.
    ``stopped_in_order``: no broker has the store open, and the last one flushed everything.
    """

    folder: Path
    store: Path | None
    files: tuple[LogFile, ...]
    flushed_offset: int | None
    stopped_in_order: bool = False
    storage: LocalFiles = LOCAL

    def queues(self) -> Queues:
        """Return the ConsumeQueues of the log's store."""
        return Queues(self.store / "consumequeue" if self.store is not None else None, self.storage)

    @property
    def start(self) -> int:
        """Physical offset at which the log begins."""
        return self.files[0].start if self.files else 0


def open_log(
    folder: Path, store: Path | None, *, on_damage: OnDamage = raise_damage, files: LocalFiles = LOCAL
) -> LogFiles:
    """Return the log files in ``folder``, the ``commitlog`` of ``store`` if that is there.

    ``on_damage`` is called for files that are missing, cut short or misnamed; the others are used if it returns.
    """
    # Read the mark before listing the files: then the list contains all that it covers, except what retention deleted.
    flushed_offset = _read_mark(store / "checkpoint", files) if store is not None else None
    held = [
        LogFile(folder / name, int(name), int(name) + size, files=files)
        # Empty files are left out: a broker deletes them when it starts.
        for name, size in _listed(folder, files)
        if size
    ]
    if flushed_offset is not None:
        held = [file for file in held if file.start < flushed_offset]
    held = _check_sizes(held, on_damage)
    if flushed_offset is not None:
        _check_reaches(folder, held, flushed_offset, on_damage)
    ranges = quarantined_ranges(store, on_damage, files)
    if ranges:
        held = [
            replace(file, quarantined=tuple(each for each in ranges if file.start <= each[0] < file.end))
            for file in held
        ]
    in_store = {name for name, _ in files.files_in(store)} if store is not None else set()
    stopped_in_order = "checkpoint" in in_store and "abort" not in in_store
    return LogFiles(folder, store, tuple(held), flushed_offset, stopped_in_order, files)


def _listed(folder: Path, files: LocalFiles) -> Iterator[tuple[str, int]]:
    """Yield name and size of the log files in the folder; warn about compressed or renamed ones, which are not read."""
    for name, size in files.files_in(folder):
        if OFFSET_NAME.match(name):
            yield name, size
        elif re.match(r"\d{6,}", name):
            logger.warning("%s is not read: a CommitLog file's name is a physical offset of 20 digits", folder / name)


def _check_sizes(files: list[LogFile], on_damage: OnDamage) -> list[LogFile]:
    """Check that every file except the last ends where the next one begins."""
    if not files:
        return files
    usual = Counter(file.end - file.start for file in files[:-1] or files).most_common(1)[0][0]
    fitting = []
    for file, following in zip(files, [*files, None][1:], strict=True):
        size = file.end - file.start
        if following is None or file.end == following.start:
            fitting.append(file)
        elif size == usual and following.start > file.end:
            missing = file.path.with_name(file_name(file.end))
            reason = (
                f"the file is missing: {file.path.name} ends at {file.end:,}, the next one there is "
                f"{following.path.name}"
            )
            on_damage(CorruptLog(missing, 0, file.end, reason, _RESTORE))
            fitting.append(file)
        elif size < usual:
            reason = f"the file has {size:,} bytes, the others {usual:,}: it was cut short"
            on_damage(file.damaged(file.end, reason, _RESTORE))
            fitting.append(file)
        else:
            reason = (
                f"the file has {size:,} bytes and reaches beyond {following.start:,}, where the next one begins by its "
                "name: one of them is not a file of this log, or was renamed"
            )
            on_damage(file.damaged(file.end, reason, "Correct the name or move the file away, or " + SKIP_HINT))
            fitting.append(replace(file, end=following.start))
    return fitting


def _check_reaches(folder: Path, files: list[LogFile], flushed_offset: int, on_damage: OnDamage) -> None:
    """Check that the files reach the checkpoint's flushed offset."""
    end = files[-1].end if files else 0
    if end >= flushed_offset or (not files and not flushed_offset):
        return
    path = files[-1].path if files else folder / file_name(0)
    on_damage(
        CorruptLog(
            path,
            end - files[-1].start if files else 0,
            end,
            f"the log ends here, but the store's checkpoint says that it is flushed up to {flushed_offset:,}: the file "
            "was cut short, later files are missing, or the copy is older than its checkpoint",
            _RESTORE + "; if the copy is complete as it is, load its commitlog folder without the checkpoint",
        )
    )


def _read_mark(path: Path, files: LocalFiles) -> int | None:
    """Return ``flushed_offset`` of FlintMQ's mark, or None without a mark or if RocketMQ wrote the file since.

    A broker may be writing the file, so a mark with a wrong checksum is read again.
    """
    for _ in range(_ATTEMPTS):
        try:
            blob = files.read_whole(path)[:CHECKPOINT_FILE_BYTES].ljust(CHECKPOINT_FILE_BYTES, b"\0")
        except FileNotFoundError:
            return None
        mark = checkpoint_mark(blob)
        if mark is not None:
            return mark.flushed_offset
        if CHECKPOINT_MARK.unpack(blob, CHECKPOINT_MARK_AT).magic != CHECKPOINT_MARK_MAGIC:
            return None
        time.sleep(_PAUSE_S)
    return None
