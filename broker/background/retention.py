"""CleanCommitLogService: deletes old CommitLog files, and refuses writes before the disk is full.

The rules are RocketMQ's. Files whose newest message is older than ``file_reserved_hours`` are deleted at the hours of
``delete_when``; if the disk is fuller than ``disk_clean_percent``, at any hour; above ``disk_force_percent`` the oldest
files are deleted whatever their age. A percentage counts only while less than ``headroom_bytes`` are free: a large disk
that is 90 % full still has enough space.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...protocol.errors import ServiceNotAvailable
from ..store.retention.expiry import HOUR_MS, NextExpiry
from .service import Service, log

if TYPE_CHECKING:
    from ..config import RetentionSection
    from ..store import MessageStore
    from ..store.retention.expiry import OldFile
    from .service import OnFatal, Post

FILES_A_ROUND = 10
"""Maximum number of files deleted in a round, as in RocketMQ."""
RETRY_AFTER_MS = 1_000
HOURS_A_DAY = 24
AHEAD_SECONDS = 30
"""Time for which the next file to be deleted is remembered: to find it, the ends of all queues are looked up."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Usage of a file system: bytes in use, and bytes that an ordinary user may still write."""

    used_bytes: int
    free_bytes: int

    @classmethod
    def of(cls, path: Path) -> Disk:
        """Return the usage of the file system that contains ``path``."""
        status = os.statvfs(path)
        return cls((status.f_blocks - status.f_bfree) * status.f_frsize, status.f_bavail * status.f_frsize)

    @property
    def used_percent(self) -> float:
        """Percentage in use of the space that is not reserved for root."""
        return 100 * self.used_bytes / max(self.used_bytes + self.free_bytes, 1)

    def tight(self, percent: int, headroom_bytes: int) -> bool:
        """Return whether at least ``percent`` are in use and less than ``headroom_bytes`` are free."""
        return self.used_percent >= percent and self.free_bytes < headroom_bytes

    def needed_bytes(self, percent: int, headroom_bytes: int) -> int:
        """Return the number of bytes to free until the disk is no longer ``tight``."""
        # To be under one of the two bounds is enough. One byte more, because a share that is just reached counts as
        # full.
        allowed = (self.used_bytes + self.free_bytes) * percent // 100
        return max(min(self.used_bytes - allowed + 1, headroom_bytes - self.free_bytes), 0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision on one file: whether it is to be deleted, and the reason. ``rolls``: it can be deleted after the
    messages that wait in it have been appended again."""

    file: OldFile
    goes: bool
    reason: str
    rolls: bool = False


class Policy:
    """The rules of the settings, applied to a disk and its files. ``now``: seconds since 1970."""

    def __init__(self, settings: RetentionSection) -> None:
        self.settings = settings
        self._hours = {int(hour) for hour in settings.delete_when.split(";")}

    def due(self, now: float, disk: Disk) -> bool:
        """Return whether files that are old enough may be deleted now."""
        at_its_hour = time.localtime(now).tm_hour in self._hours
        return at_its_hour or self._tight(disk, self.settings.disk_clean_percent) or self.forced(disk)

    def forced(self, disk: Disk) -> bool:
        """Return whether the oldest file must be deleted whatever its age."""
        return self._tight(disk, self.settings.disk_force_percent)

    def refuses(self, disk: Disk) -> bool:
        """Return whether the broker must refuse messages."""
        return self._tight(disk, self.settings.disk_refuse_percent)

    def _tight(self, disk: Disk, percent: int) -> bool:
        return disk.tight(percent, self.settings.headroom_bytes)

    def verdict(self, file: OldFile, now: float, disk: Disk, *, first: bool) -> Verdict:
        """Decide on the oldest remaining file. ``first``: no file was deleted in this round yet."""
        if file.rolls:
            # The messages that wait in the file can be rolled, so its deletion is decided as if there were none.
            goes = self.verdict(replace(file, kept_for="", rolls=False), now, disk, first=first)
            return Verdict(file, False, f"kept: it contains {file.kept_for}; {goes.reason}", rolls=goes.goes)
        if file.kept_for:
            return Verdict(file, False, f"kept: it contains {file.kept_for}")
        assert file.newest_ms is not None
        age_hours = (now * 1000 - file.newest_ms) / HOUR_MS
        reserved = self.settings.file_reserved_hours
        if age_hours > reserved:
            due = self.due(now, disk)
            reason = f"its newest message is {age_hours:,.1f} h old, retention.file_reserved_hours is {reserved}"
            return Verdict(file, due, reason if due else f"{reason}; deletion at hour {self.settings.delete_when}")
        if first and self.forced(disk):  # one file at a time, since that may free enough
            return Verdict(file, True, f"the disk is {disk.used_percent:.0f} % full and the file is the oldest")
        return Verdict(file, False, f"its newest message is {age_hours:,.1f} of {reserved} h old")

    def goes_at(self, file: OldFile, now: float, disk: Disk) -> float | None:
        """Return when the oldest file is to be deleted if the disk stays as it is, seconds since 1970; None: that is
        unknown, because its messages keep it."""
        if file.newest_ms is None or (file.kept_for and not file.rolls):
            return None
        if self.forced(disk):
            return now
        at = max(now, file.newest_ms / 1000 + self.settings.file_reserved_hours * HOUR_MS / 1000)
        if self._tight(disk, self.settings.disk_clean_percent):
            return at
        # An hour may be missing on the day on which the clocks change.
        for _ in range(2 * HOURS_A_DAY + 1):
            local = time.localtime(at)
            if local.tm_hour in self._hours:
                break
            # To the beginning of the next local hour, which need not be one of UTC.
            at = int(at) + 3600 - 60 * local.tm_min - local.tm_sec
        return at


class CleanCommitLogService(Service):
    """Retention of one store. ``clock``: seconds since 1970; ``disk``: reads the usage of a folder's file system."""

    name = "retention"

    def __init__(
        self,
        store: MessageStore,
        settings: RetentionSection,
        post: Post,
        on_fatal: OnFatal,
        *,
        clock: Callable[[], float] = time.time,
        disk: Callable[[Path], Disk] = Disk.of,
    ) -> None:
        super().__init__(post, on_fatal)
        self.interval_seconds = settings.check_interval_ms / 1000
        self._store = store
        self._policy = Policy(settings)
        self._clock = clock
        self._look = disk
        self._kept = ""
        """Last logged file and reason of an expired file that is kept."""
        self._primary_begin: int | None = None
        self._ahead_at: float | None = None
        """When the next file was looked for last; None: it is to be looked for now."""
        self.roll: Callable[[int], object] = lambda end_offset: None
        """Has the messages that wait below ``end_offset`` appended again, so that a later round can delete the file."""

    def follow(self, begin: int | None) -> None:
        """Delete what is before ``begin``, where the log of the primary begins, and nothing else; None: decide by the
        rules. Any thread."""
        self._primary_begin, self._ahead_at = begin, None
        self.wake()

    def change(self, settings: RetentionSection) -> None:
        """Use these settings from now on. Any thread."""
        self._policy, self._ahead_at = Policy(settings), None
        self.interval_seconds = settings.check_interval_ms / 1000
        self.wake()

    def do_once(self) -> bool:
        """Apply the topics' retention, check the disk, and delete expired files. Return whether there may be more."""
        store, now = self._store, self._clock()
        if store.failed is not None:
            return False
        store.topic_retention.step(int(now * 1000))
        disk = self._look(store.path)
        more = False
        if self._primary_begin is not None:
            self._delete_before(self._primary_begin)
        elif self._policy.due(now, disk):
            more = self._clean(now, disk)
            disk = self._look(store.path)
        # After the deletion, which may have made room.
        self._refuse(disk)
        if not more:
            self._look_ahead(now, disk)
        return more

    def _look_ahead(self, now: float, disk: Disk) -> None:
        known, files = self._store.expiry.next, self._store.commitlog.queue.files
        # If another file has become the oldest, it is looked up at once.
        is_oldest = (known.file if known else "") == (files[0].path.name if len(files) > 1 else "")
        if is_oldest and self._ahead_at is not None and 0 <= now - self._ahead_at < AHEAD_SECONDS:
            return
        self._ahead_at = now
        old = self._store.expiry.old_files(int(now * 1000), self._policy.settings.file_reserved_hours)
        file = next(old, None) if self._primary_begin is None else None
        if file is None:
            self._store.expiry.next = None
            return
        at = self._policy.goes_at(file, now, disk)
        reason = self._policy.verdict(file, now, disk, first=True).reason
        self._store.expiry.next = NextExpiry(file.path.name, -1 if at is None else int(at * 1000), reason)

    def _delete_before(self, begin: int) -> None:
        files = self._store.commitlog.queue.files
        # Never the last file, which is being written.
        count = sum(file.end_offset <= begin for file in files[:-1])
        gone_bytes = self._store.expire(count) if count else 0
        if gone_bytes:
            log.info("removed %d bytes of the log, as the primary has; it begins at %d", gone_bytes, begin)

    def _clean(self, now: float, disk: Disk) -> bool:
        count = 0
        reason = ""
        reserved_hours = self._policy.settings.file_reserved_hours
        for file in self._store.expiry.old_files(int(now * 1000), reserved_hours):
            verdict = self._policy.verdict(file, now, disk, first=count == 0)
            if verdict.rolls:
                self.roll(file.end_offset)
                break
            # The log must stay without a gap, so the first file that stays ends the round.
            if not verdict.goes:
                self._say_kept(file)
                break
            count += 1
            reason = reason or verdict.reason
            if count == FILES_A_ROUND:
                break
        if not count:
            return False
        gone_bytes = self._store.expire(count)
        self._ahead_at = None
        if gone_bytes:
            log.info(
                "retention removed %d CommitLog files, %d bytes; the log begins at %d: %s",
                count,
                gone_bytes,
                self._store.min_physical_offset,
                reason,
            )

        # If nothing could go, the next round waits for its interval instead of beginning at once.
        return gone_bytes > 0

    def _say_kept(self, file: OldFile) -> None:
        """Log why an expired file is kept, once for each file and reason."""
        kept = f"{file.path} {file.kept_for}"
        if file.kept_for and kept != self._kept:
            self._kept = kept
            log.warning("retention keeps %s: it contains %s", file.path, file.kept_for)

    def _refuse(self, disk: Disk) -> None:
        store, settings = self._store, self._policy.settings
        if not self._policy.refuses(disk):
            if store.refusal is not None:
                log.warning("the disk of %s has space again: accepting messages", store.path)
            store.refusal = None
            return
        needed = disk.needed_bytes(settings.disk_refuse_percent, settings.headroom_bytes)
        message = (
            f"the disk of {store.path} is {disk.used_percent:.0f} % full: {disk.free_bytes:,} bytes are free, "
            f"{needed:,} more are needed (retention.disk_refuse_percent is {settings.disk_refuse_percent}, "
            f"retention.headroom_bytes {settings.headroom_bytes:,}); nothing was written. Free space or shorten "
            "retention.file_reserved_hours; writes then resume automatically"
        )
        if store.refusal is None:
            log.warning("%s", message)
        free_bytes = disk.free_bytes
        store.refusal = lambda: ServiceNotAvailable(
            message, retry_after_ms=RETRY_AFTER_MS, free_bytes=free_bytes, needed_bytes=needed
        )
