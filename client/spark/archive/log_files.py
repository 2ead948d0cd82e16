"""The files of a CommitLog: which there are, whether they fit together, how far the checkpoint says they are flushed.

Everything here reads names, sizes and the checkpoint; what stands in the files is another module's.
"""

from __future__ import annotations

import logging
import os
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ....protocol.layout import (
    CHECKPOINT,
    CHECKPOINT_FILE_BYTES,
    CHECKPOINT_MARK,
    CHECKPOINT_MARK_AT,
    CHECKPOINT_MARK_MAGIC,
    CHECKPOINT_MARK_STRUCT,
)
from ..errors import DataLoss, InvalidOption
from .errors import SKIP_HINT, CorruptLog
from .quarantine import quarantined_ranges
from .queues import Queues

COMMITLOG = "commitlog"
_NAME = re.compile(r"\d{20}\Z", re.ASCII)
_ATTEMPTS = 20
_PAUSE_S = 0.01
_RESTORE = "Restore it from a backup, or " + SKIP_HINT
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log: ``[start, end)`` in physical offsets. ``end`` is where the file's own bytes end;
    ``quarantined``: (begin, end) of what was damaged in it and holds tombstones now, which are no messages."""

    path: Path
    start: int
    end: int
    quarantined: tuple[tuple[int, int], ...] = ()

    @contextmanager
    def open(self) -> Iterator[int]:
        """A descriptor for reading. Raises ``DataLoss`` where the file is not there any more."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DataLoss(
                f"{self.path} is gone: physical offsets {self.start:,} to {self.end:,} were taken away "
                "(by the broker's retention, most likely) after the read was planned. Read again: it is planned anew"
            ) from None
        try:
            yield fd
        finally:
            os.close(fd)

    def read(self, fd: int, physical_offset: int, count: int) -> bytes:
        """``count`` bytes at a place of the log, fewer where the file ends before."""
        blob = os.pread(fd, count, physical_offset - self.start)
        if blob and len(blob) < count:  # a call reads 2 GiB at most
            blob += self.read(fd, physical_offset + len(blob), count - len(blob))
        return blob

    def read_into(self, fd: int, physical_offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from a place of the log; how many bytes there are before the file ends."""
        done = 0
        while done < len(buffer):
            count = os.preadv(fd, [buffer[done:]], physical_offset - self.start + done)
            if not count:
                break
            done += count
        return done

    def damaged(self, physical_offset: int, reason: str, help_: str) -> CorruptLog:
        """The error for a place in this file."""
        return CorruptLog(self.path, physical_offset - self.start, physical_offset, reason, help_)


@dataclass(frozen=True, slots=True)
class LogFiles:
    """A log's files in their order.

    ``flushed_offset``: below it everything is on disk and never changes, by FlintMQ's mark in the checkpoint; None
    without a mark. ``store``: the folder that holds ``commitlog``, None where only its files were given.
    ``stopped_in_order``: a store that no broker has open, and whose last one flushed everything.
    """

    folder: Path
    store: Path | None
    files: tuple[LogFile, ...]
    flushed_offset: int | None
    stopped_in_order: bool = False

    def queues(self) -> Queues:
        """The ConsumeQueues beside the log."""
        return Queues(self.store / "consumequeue" if self.store is not None else None)

    @property
    def start(self) -> int:
        """Where the log begins."""
        return self.files[0].start if self.files else 0


def find_log(path: str, *, fail_on_corruption: bool = True) -> LogFiles:
    """The files of the store at ``path``: a store's folder, its commitlog folder, or a ``file:`` URI of either.

    Raises ``InvalidOption`` where neither is there, ``CorruptLog`` where files are missing, cut short or misnamed
    (without ``fail_on_corruption`` that is logged, and what is there is read).
    """
    folder, store = _locate(path)
    # The mark is read before the files are listed: what it covers is in files that are there, but for retention.
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
    """The commitlog folder, and the store's folder where it is one."""
    given = Path(_local(path))
    if (given / COMMITLOG).is_dir():
        return given / COMMITLOG, given
    if given.is_dir() and any(_NAME.match(file.name) for file in given.iterdir()):
        return given, given.parent if given.name == COMMITLOG else None
    if not given.exists():
        what = "there is nothing"
    elif not given.is_dir():
        what = "it is a file"
    else:
        what = f"it is a folder that holds {_some_names(given)}"
    raise InvalidOption(
        f"load({path!r}): {what}. Name the folder of a store (it holds the folder `{COMMITLOG}`), or a folder of "
        f"CommitLog files (their names are physical offsets of 20 digits); every Spark executor must see it too"
    )


def _local(path: str) -> str:
    """The path that a ``file:`` URI names."""
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", path):
        return path
    uri = urlsplit(path)
    if uri.scheme != "file" or uri.netloc not in ("", "localhost"):
        raise InvalidOption(
            f"load({path!r}): the archive source reads a file system that is mounted on the driver and on every "
            "executor; give its path, or file:///its/path. Copy the store there from elsewhere first"
        )
    return unquote(uri.path)


def _some_names(folder: Path, shown: int = 4) -> str:
    names = sorted(file.name for file in folder.iterdir())
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "") or "nothing"


def _list_files(folder: Path) -> list[LogFile]:
    """What has a log file's name. Empty files are none: a broker takes them away when it starts."""
    for attempt in range(_ATTEMPTS):
        try:
            entries = sorted((entry.name, entry.stat().st_size) for entry in os.scandir(folder))
        except FileNotFoundError:  # the oldest file went meanwhile
            if attempt + 1 == _ATTEMPTS:
                raise
        else:
            break
    return [LogFile(folder / name, int(name), int(name) + size) for name, size in entries if _NAME.match(name) and size]


def _check_names(folder: Path, files: list[LogFile]) -> None:
    """A compressed or renamed log file beside the others is not read: that must be known."""
    known = {file.path.name for file in files}
    for file in sorted(folder.iterdir()):
        if file.name not in known and re.match(r"\d{6,}", file.name) and not _NAME.match(file.name):
            logger.warning("%s is not read: a CommitLog file's name is a physical offset of 20 digits", file)


def _check_sizes(files: list[LogFile], fail: bool) -> list[LogFile]:
    """Every file but the last one ends where the next one begins."""
    if not files:
        return files
    usual = Counter(file.end - file.start for file in files[:-1] or files).most_common(1)[0][0]
    fitting = []
    for file, following in zip(files, [*files, None][1:], strict=True):
        size = file.end - file.start
        if following is None or file.end == following.start:
            fitting.append(file)
        elif size == usual and following.start > file.end:
            missing = file.path.with_name(f"{file.end:020d}")
            error = CorruptLog(
                missing, 0, file.end,
                f"the file is missing: {file.path.name} ends at {file.end:,}, the next one there is "
                f"{following.path.name}", _RESTORE,
            )  # fmt: skip
            fitting.append(_tolerate(error, fail, file))
        elif size < usual:
            reason = f"the file has {size:,} bytes, the others {usual:,}: it was cut short"
            fitting.append(_tolerate(file.damaged(file.end, reason, _RESTORE), fail, file))
        else:
            reason = (
                f"the file has {size:,} bytes and reaches beyond {following.start:,}, where the next one begins by its "
                "name: one of them is no file of this log, or was renamed"
            )
            error = file.damaged(file.end, reason, "Put the name right or move the file away, or " + SKIP_HINT)
            fitting.append(replace(_tolerate(error, fail, file), end=following.start))
    return fitting


def _tolerate(error: CorruptLog, fail: bool, file: LogFile) -> LogFile:
    if fail:
        raise error
    logger.warning("passed over: %s", error)
    return file


def _check_reaches(folder: Path, files: list[LogFile], flushed_offset: int, fail: bool) -> None:
    """What the checkpoint says is flushed must be there."""
    end = files[-1].end if files else 0
    if end >= flushed_offset or (not files and not flushed_offset):
        return
    path = files[-1].path if files else folder / f"{0:020d}"
    position = end - files[-1].start if files else 0
    error = CorruptLog(
        path, position, end,
        f"the log ends here, but the store's checkpoint says that it is flushed up to {flushed_offset:,}: the file was "
        "cut short, later files are missing, or the copy is older than its checkpoint",
        _RESTORE + "; where the copy is complete as it is, load its commitlog folder without the checkpoint",
    )  # fmt: skip
    if fail:
        raise error
    logger.warning("passed over: %s", error)


def _read_mark(path: Path) -> int | None:
    """``flushed_offset`` of FlintMQ's mark; None where there is none, or RocketMQ wrote the file since.

    A broker may be writing it: one that does not check is read again.
    """
    for _ in range(_ATTEMPTS):
        try:
            blob = path.read_bytes()[:CHECKPOINT_FILE_BYTES].ljust(CHECKPOINT_FILE_BYTES, b"\0")
        except FileNotFoundError:
            return None
        magic, crc, flushed_offset, dispatched_offset = CHECKPOINT_MARK_STRUCT.unpack_from(blob, CHECKPOINT_MARK_AT)
        if magic != CHECKPOINT_MARK_MAGIC:
            return None
        offsets = blob[CHECKPOINT_MARK_AT + CHECKPOINT_MARK.at["flushed_offset"] :][:16]
        if (
            zlib.crc32(blob[: CHECKPOINT.size] + offsets) == crc & 0xFFFFFFFF
            and 0 <= dispatched_offset <= flushed_offset
        ):
            return int(flushed_offset)
        time.sleep(_PAUSE_S)
    return None
