"""The files of a CommitLog: finds them, checks that they fit together, and reads the checkpoint's flushed offset.

This module reads only names, sizes and the checkpoint; other modules read the files' contents.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ....protocol.storage.layout import (
    CHECKPOINT_FILE_BYTES,
    CHECKPOINT_MARK,
    CHECKPOINT_MARK_AT,
    CHECKPOINT_MARK_MAGIC,
)
from ....protocol.store_files import OFFSET_NAME, checkpoint_mark, file_name
from ..errors import DataLoss, InvalidOption
from .errors import SKIP_HINT, CorruptLog
from .queues import Queues

# ---- The damaged ranges of a log that now contain tombstones, from the store's
# ``flintmq/quarantine/index.json``.

INDEX = Path("flintmq", "quarantine", "index.json")

logger = logging.getLogger(__name__)


def quarantined_ranges(store: Path | None, *, fail_on_corruption: bool) -> list[tuple[int, int]]:
    """Return (begin, end) of each, in order of physical offset; none if the store's folder is unknown.

    Raises ``CorruptLog`` if neither the index nor its .bak can be read; without ``fail_on_corruption`` it logs that,
    and tombstones are read as messages.
    """
    if store is None:
        return []
    problem: Exception | None = None
    path = store / INDEX
    for each in (path, path.with_name(path.name + ".bak")):
        try:
            holes = json.loads(each.read_text(encoding="utf-8"))["holes"]
            return sorted(
                (int(hole["physicalOffset"]), int(hole["physicalOffset"]) + int(hole["bytes"])) for hole in holes
            )
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = error
    if problem is not None:
        what = f"it cannot be read: {type(problem).__name__}: {problem}"
        if fail_on_corruption:
            raise CorruptLog(path, 0, 0, what, f"Restore it from a backup, or {SKIP_HINT}")
        logger.warning("%s: %s; tombstones are read as messages", path, what)
    return []


COMMITLOG = "commitlog"
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

    @contextmanager
    def open(self) -> Iterator[int]:
        """Open the file and yield a descriptor for reading. Raises ``DataLoss`` if the file no longer exists."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DataLoss(
                f"{self.path} is gone: physical offsets {self.start:,} to {self.end:,} were deleted "
                "(most likely by retention) after the read was planned. Start the read again"
            ) from None
        try:
            yield fd
        finally:
            os.close(fd)

    def read(self, fd: int, physical_offset: int, count: int) -> bytes:
        """Return ``count`` bytes from a position in the log, fewer if the file ends before."""
        blob = os.pread(fd, count, physical_offset - self.start)
        if blob and len(blob) < count:  # one call reads at most 2 GiB
            blob += self.read(fd, physical_offset + len(blob), count - len(blob))
        return blob

    def read_into(self, fd: int, physical_offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from a position in the log; return the number of bytes, fewer if the file ends before."""
        done = 0
        while done < len(buffer):
            count = os.preadv(fd, [buffer[done:]], physical_offset - self.start + done)
            if not count:
                break
            done += count
        return done

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

    def queues(self) -> Queues:
        """Return the ConsumeQueues of the log's store."""
        return Queues(self.store / "consumequeue" if self.store is not None else None)

    @property
    def start(self) -> int:
        """Physical offset at which the log begins."""
        return self.files[0].start if self.files else 0


def find_log(path: str, *, fail_on_corruption: bool = True) -> LogFiles:
    """Return the files of the store at ``path``: a store's folder, its commitlog folder, or a ``file:`` URI of either.

    Raises ``InvalidOption`` if neither exists there, ``CorruptLog`` if files are missing, cut short or misnamed
    (without ``fail_on_corruption`` it logs that and uses the existing files).
    """
    folder, store = _locate(path)
    # Read the mark before listing the files: then the list contains all that it covers, except what retention deleted.
    flushed_offset = _read_mark(store / "checkpoint") if store is not None else None
    files = _list_files(folder)
    _check_names(folder, files)
    if flushed_offset is not None:
        files = [file for file in files if file.start < flushed_offset]
    files = _check_sizes(files, fail_on_corruption)
    if flushed_offset is not None:
        _check_reaches(folder, files, flushed_offset, fail_on_corruption)
    ranges = quarantined_ranges(store, fail_on_corruption=fail_on_corruption)
    if ranges:
        files = [
            replace(file, quarantined=tuple(each for each in ranges if file.start <= each[0] < file.end))
            for file in files
        ]
    stopped_in_order = store is not None and (store / "checkpoint").exists() and not (store / "abort").exists()
    return LogFiles(folder, store, tuple(files), flushed_offset, stopped_in_order)


def _locate(path: str) -> tuple[Path, Path | None]:
    """Return the commitlog folder, and the store's folder if it is in one."""
    given = Path(_local(path))
    if (given / COMMITLOG).is_dir():
        return given / COMMITLOG, given
    if given.is_dir() and any(OFFSET_NAME.match(file.name) for file in given.iterdir()):
        return given, given.parent if given.name == COMMITLOG else None
    if not given.exists():
        what = "it does not exist"
    elif not given.is_dir():
        what = "it is a file"
    else:
        what = f"it is a folder that contains {_some_names(given)}"
    raise InvalidOption(
        f"{path!r} is not a store: {what}. Pass the folder of a store (it contains the folder `{COMMITLOG}`), or a "
        "folder of CommitLog files (their names are physical offsets of 20 digits); with Spark, one that the driver "
        "and every executor see"
    )


def _local(path: str) -> str:
    """Return the path in a ``file:`` URI."""
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", path):
        return path
    uri = urlsplit(path)
    if uri.scheme != "file" or uri.netloc not in ("", "localhost"):
        raise InvalidOption(
            f"{path!r} is not a path: a store is read from a file system that is mounted here (with Spark: on the "
            "driver and on every executor); pass its path, or file:///its/path. Copy a store from elsewhere there first"
        )
    return unquote(uri.path)


def _some_names(folder: Path, shown: int = 4) -> str:
    names = sorted(file.name for file in folder.iterdir())
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "") or "nothing"


def _list_files(folder: Path) -> list[LogFile]:
    """Return the files with a log file's name. Empty files are left out: a broker deletes them when it starts."""
    for attempt in range(_ATTEMPTS):
        try:
            entries = sorted((entry.name, entry.stat().st_size) for entry in os.scandir(folder))
        except FileNotFoundError:  # retention deleted the oldest file meanwhile
            if attempt + 1 == _ATTEMPTS:
                raise
        else:
            break
    return [
        LogFile(folder / name, int(name), int(name) + size)
        for name, size in entries
        if OFFSET_NAME.match(name) and size
    ]


def _check_names(folder: Path, files: list[LogFile]) -> None:
    """Warn about compressed or renamed log files in the folder, which are not read."""
    known = {file.path.name for file in files}
    for file in sorted(folder.iterdir()):
        if file.name not in known and re.match(r"\d{6,}", file.name) and not OFFSET_NAME.match(file.name):
            logger.warning("%s is not read: a CommitLog file's name is a physical offset of 20 digits", file)


def _check_sizes(files: list[LogFile], fail: bool) -> list[LogFile]:
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
            error = CorruptLog(
                missing,
                0,
                file.end,
                f"the file is missing: {file.path.name} ends at {file.end:,}, the next one there is "
                f"{following.path.name}",
                _RESTORE,
            )
            fitting.append(_tolerate(error, fail, file))
        elif size < usual:
            reason = f"the file has {size:,} bytes, the others {usual:,}: it was cut short"
            fitting.append(_tolerate(file.damaged(file.end, reason, _RESTORE), fail, file))
        else:
            reason = (
                f"the file has {size:,} bytes and reaches beyond {following.start:,}, where the next one begins by its "
                "name: one of them is not a file of this log, or was renamed"
            )
            error = file.damaged(file.end, reason, "Correct the name or move the file away, or " + SKIP_HINT)
            fitting.append(replace(_tolerate(error, fail, file), end=following.start))
    return fitting


def _tolerate(error: CorruptLog, fail: bool, file: LogFile) -> LogFile:
    if fail:
        raise error
    logger.warning("skipped: %s", error)
    return file


def _check_reaches(folder: Path, files: list[LogFile], flushed_offset: int, fail: bool) -> None:
    """Check that the files reach the checkpoint's flushed offset."""
    end = files[-1].end if files else 0
    if end >= flushed_offset or (not files and not flushed_offset):
        return
    path = files[-1].path if files else folder / file_name(0)
    position = end - files[-1].start if files else 0
    error = CorruptLog(
        path,
        position,
        end,
        f"the log ends here, but the store's checkpoint says that it is flushed up to {flushed_offset:,}: the file was "
        "cut short, later files are missing, or the copy is older than its checkpoint",
        _RESTORE + "; if the copy is complete as it is, load its commitlog folder without the checkpoint",
    )
    if fail:
        raise error
    logger.warning("skipped: %s", error)


def _read_mark(path: Path) -> int | None:
    """Return ``flushed_offset`` of FlintMQ's mark, or None without a mark or if RocketMQ wrote the file since.

    A broker may be writing the file, so a mark with a wrong checksum is read again.
    """
    for _ in range(_ATTEMPTS):
        try:
            blob = path.read_bytes()[:CHECKPOINT_FILE_BYTES].ljust(CHECKPOINT_FILE_BYTES, b"\0")
        except FileNotFoundError:
            return None
        mark = checkpoint_mark(blob)
        if mark is not None:
            return mark.flushed_offset
        if CHECKPOINT_MARK.unpack(blob, CHECKPOINT_MARK_AT).magic != CHECKPOINT_MARK_MAGIC:
            return None
        time.sleep(_PAUSE_S)
    return None
