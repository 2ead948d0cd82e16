"""The background services that maintain the store, and that dispatch its log."""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...protocol.errors import ServiceNotAvailable
from ..latency import quantile
from ..store.retention import HOUR_MS, NextExpiry
from .loop_work import Service

if TYPE_CHECKING:
    from ..config import RetentionSection
    from ..store import MessageStore
    from ..store.retention import OldFile
    from .flush import FlushService
    from .loop_work import OnFatal, Post

log = logging.getLogger(__name__)


# ---- CheckpointService: periodically puts queues, index, checkpoint and tables on disk.

CHECKPOINT_S = 5.0
"""Interval of checkpoints; longer while thousands of queues are written. A start after a crash dispatches what is newer
once more."""
SYNC_SHARE = 20
"""After a sync of queues and index, this many times its duration pass before the next one."""
SYNC_PAUSE_MAX_SECONDS = 60.0
"""Maximum of that pause."""
UNSYNCED_BYTES_MAX = 1 << 30
"""Bytes of the log after which the next sync waits no longer: a start dispatches them in about 2 s."""


class CheckpointService(Service):
    """The service that limits how much of the log has to be dispatched again after a crash.

    ``sync_share``: the pause after a sync, in multiples of its duration; 0: every round may sync.
    """

    name = "checkpoint"

    def __init__(self, store: MessageStore, post: Post, on_fatal: OnFatal, *, sync_share: int = SYNC_SHARE) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self.interval_seconds = CHECKPOINT_S
        self._sync_share = sync_share
        self._synced = -1
        self._next_sync = 0.0
        """Time from which on queues and index are synced again, by ``time.monotonic``."""
        self._topics_version = -1
        self.also: list[Callable[[], None]] = []
        """Functions that persist other state, called in every round."""

    def do_once(self) -> bool:
        """Do one round: persist what has changed."""
        store = self._store
        # Read before the sync, which may cover more but never less.
        reput_offset = store.reput_offset
        if store.failed is None and reput_offset != self._synced and self._is_due():
            began = time.monotonic()
            if store.sync_derived():
                self._synced = reput_offset
            # Each changed queue is a file to sync: with thousands of them, a sync in each round would keep the disk
            # busy and take a large part of a processor.
            ended = time.monotonic()
            self._next_sync = ended + min(self._sync_share * (ended - began), SYNC_PAUSE_MAX_SECONDS)
        for name, table in (("consumer offsets", store.consumer_offsets), ("groups", store.groups)):
            if not table.dirty:
                continue
            try:
                table.persist()
            except OSError as error:
                # A full disk ends nothing: the progress is only older after a crash, and its messages are delivered
                # again.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                log.error("cannot save the %s of %s, the disk is full: %s; retrying", name, store.path, error)
        self._fold_topics()
        for persist in self.also:
            persist()
        return False

    def _is_due(self) -> bool:
        """Return whether the pause after the last sync is over, or a start would have too much to dispatch."""
        return time.monotonic() >= self._next_sync or self.backlog() > UNSYNCED_BYTES_MAX

    def _fold_topics(self) -> None:
        """Write the topic table if its journal did not change for a round, since RocketMQ reads only the table.

        If that fails, nothing is lost: the journal is on disk.
        """
        topics = self._store.topics
        rested, self._topics_version = topics.version == self._topics_version, topics.version
        if rested and topics.dirty:
            try:
                topics.persist()
            except OSError as error:
                log.error("cannot write the topic table of %s: %s; retrying", self._store.path, error)

    def backlog(self) -> int:
        """Return the number of bytes of the log whose units and index entries a crash would lose."""
        return max(self._store.reput_offset - self.synced_offset, 0)

    @property
    def synced_offset(self) -> int:
        """Physical offset below which queues and index are known to be on disk."""
        return max(self._synced, 0)


# ---- AllocateMappedFileService: prepares the next extents and files of CommitLog and index ahead of their writers.


class AllocateMappedFileService(Service):
    """Preallocation, so that appends and dispatch do not wait for the file system.

    A full disk is not an error here: the append that needs the space is refused with its own error.
    """

    name = "allocation"
    interval_seconds = 0.5

    def __init__(self, store: MessageStore, post: Post, on_fatal: OnFatal) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self.full = False
        """True if the last attempt to preallocate found the disk full."""

    def do_once(self) -> bool:
        """Prepare one step of extents, or the next file."""
        try:
            did = self._store.commitlog.prepare_ahead()
        except OSError:
            if not self.full:
                log.warning("the disk of %s is full; refusing new messages until there is space", self._store.path)
            self.full = True
            return False
        if did and self.full:
            log.warning("the disk of %s has space again", self._store.path)
            self.full = False
        # After the log: without it, nothing would need an index.
        return self._store.index.prepare() or did


# ---- CleanCommitLogService: deletes old CommitLog files, and refuses writes before the disk is full.
#
# The rules are RocketMQ's. Files whose newest message is older than ``file_reserved_hours`` are deleted at
# the hours of ``delete_when``; if the disk is fuller than ``disk_clean_percent``, at any hour; above
# ``disk_force_percent`` the oldest files are deleted whatever their age. A percentage counts only while less
# than ``headroom_bytes`` are free: a large disk that is 90 % full still has enough space.

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


RETENTION_CHECK_S = 1.0
"""Interval between checks of the rules and of the disk."""


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
        self.interval_seconds = RETENTION_CHECK_S
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
        reserved_hours, forced = self._policy.settings.file_reserved_hours, self._policy.forced(disk)
        old = self._store.expiry.old_files(int(now * 1000), reserved_hours, forced=forced)
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
        forced = self._policy.forced(disk)
        for file in self._store.expiry.old_files(int(now * 1000), reserved_hours, forced=forced):
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
        remedy = "Free space or shorten retention.file_reserved_hours"
        if store.expiry.waits_for_archive():
            remedy = (
                "The oldest files are not archived yet (retention.until_archived): see `flintmq archive status`, free "
                'space, or set archive.on_full to "gap"'
            )
        message = (
            f"the disk of {store.path} is {disk.used_percent:.0f} % full: {disk.free_bytes:,} bytes are free, "
            f"{needed:,} more are needed (retention.disk_refuse_percent is {settings.disk_refuse_percent}, "
            f"retention.headroom_bytes {settings.headroom_bytes:,}); nothing was written. {remedy}; writes then resume "
            "automatically"
        )
        if store.refusal is None:
            log.warning("%s", message)
        free_bytes = disk.free_bytes
        store.refusal = lambda: ServiceNotAvailable(
            message, retry_after_ms=RETRY_AFTER_MS, free_bytes=free_bytes, needed_bytes=needed
        )


# ---- StoreStatsService: samples the store once a second, so that queries for rates and ages need not wait.

WINDOW_S = 60
"""Period of rates and quantiles."""
AGES_KEPT = 3600
"""Maximum age of waiting bytes that is known, in seconds (approximate)."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """Totals at one moment: bytes written to the store (log, queues and index), and the histogram of flush times."""

    at: float
    written_bytes: int
    flush_counts: list[int]


class StoreStatsService(Service):
    """Samples of the store. ``clock``: monotonic, in seconds; ``disk``: reads the usage of a folder's file system.

    All queries may be called from any thread.
    """

    name = "store-stats"
    interval_seconds = 1.0

    def __init__(
        self,
        store: MessageStore,
        retention: RetentionSection,
        flush: FlushService,
        checkpoint: CheckpointService,
        post: Post,
        on_fatal: OnFatal,
        *,
        clock: Callable[[], float] = time.monotonic,
        disk: Callable[[Path], Disk] = Disk.of,
    ) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self.retention = retention
        """Settings that decide when messages are refused; may be replaced at any time."""
        self._flush_latencies = flush.latencies
        self._checkpoint = checkpoint
        self._clock = clock
        self._look = disk
        self.disk = disk(store.path)
        """Disk usage of the newest sample, at most a second old."""
        self._samples: deque[_Sample] = deque(maxlen=WINDOW_S + 1)
        self._ends: deque[tuple[float, int]] = deque(maxlen=AGES_KEPT)
        """Pairs of (time, end of the log at that time) for the part of the log that a stage has not processed yet."""

    def do_once(self) -> bool:
        store, now = self._store, self._clock()
        self.disk = self._look(store.path)
        written_bytes = store.write_offset + store.dispatcher.derived_bytes
        self._samples.append(_Sample(now, written_bytes, list(self._flush_latencies.counts)))
        done = min(self._done().values())
        while self._ends and self._ends[0][1] <= done:
            self._ends.popleft()
        end = store.write_offset
        # Bytes that an earlier sample has are as old as that sample, so only further bytes are noted.
        if end > done and (not self._ends or self._ends[-1][1] < end):
            self._ends.append((now, end))
        return False

    def _done(self) -> dict[str, int]:
        store = self._store
        return {"flush": store.flushed_offset, "reput": store.reput_offset, "checkpoint": self.checkpoint_offset}

    @property
    def checkpoint_offset(self) -> int:
        """Physical offset up to which queues and index are on disk."""
        return self._checkpoint.synced_offset

    def lags(self) -> dict[str, tuple[int, float]]:
        """Return the lag by stage (``flush``, ``reput``, ``checkpoint``): (bytes, seconds).

        ``bytes``: size of the log that the stage has not processed; ``seconds``: how long the oldest of these bytes has
        waited, 0.0 if it is newer than the last sample.
        """
        done = self._done()
        end = self._store.write_offset
        return {stage: (max(end - offset, 0), self._seconds_behind(offset)) for stage, offset in done.items()}

    def _seconds_behind(self, physical_offset: int) -> float:
        # A copy, because the service's thread changes it while others look.
        for at, end in list(self._ends):
            if end > physical_offset:
                return max(self._clock() - at, 0.0)
        return 0.0

    def room_bytes(self) -> int:
        """Return the number of bytes that the store accepts before it refuses messages; 0 while it refuses them.

        Retention lifts a refusal up to one check after the disk or the settings change. Until then no byte is accepted,
        however much room the newest sample shows.
        """
        if self._store.refusal is not None:
            return 0
        disk, rules = self.disk, self.retention
        allowed = (disk.used_bytes + disk.free_bytes) * rules.disk_refuse_percent // 100
        # Messages are refused only if both bounds are passed, so the one that leaves more room counts.
        return min(max(allowed - disk.used_bytes, disk.free_bytes - rules.headroom_bytes, 0), disk.free_bytes)

    def write_rate(self) -> float:
        """Return the growth of the store in bytes a second over the last minute; 0.0 if it is not known yet."""
        samples = list(self._samples)
        if len(samples) < 2:
            return 0.0
        first, last = samples[0], samples[-1]
        return (last.written_bytes - first.written_bytes) / max(last.at - first.at, 1e-3)

    def runway_seconds(self) -> float:
        """Return how long the room lasts at the current write rate; infinite if nothing is written."""
        room, rate = self.room_bytes(), self.write_rate()
        if not room:
            return 0.0
        return room / rate if rate > 0 else math.inf

    def flush_quantiles(self, *shares: float) -> list[float]:
        """Return, for each of ``shares`` (0 to 1), that quantile of the last minute's flush times, in seconds."""
        counts = list(self._flush_latencies.counts)
        samples = list(self._samples)
        if samples:
            counts = [now - before for now, before in zip(counts, samples[0].flush_counts, strict=True)]
        return [quantile(counts, share) for share in shares]


# ---- Dispatch of the log to queues and index, without delaying the producers.
#
# Dispatch has one owner at a time, which changes only on the loop. While the backlog fits in one chunk, the loop itself
# dispatches, directly after it has answered the producers: a held pull sees a message within a fraction of a
# millisecond. A larger backlog goes to the thread, whose kernels run in parallel to the loop on another core. After it
# has caught up, the thread hands dispatch back.

Touched = list[tuple[str, int, int]]
"""(topic, queue, new max offset) of queues that got messages."""

DISK_FULL_WAIT_SECONDS = 1.0
"""Pause of the thread while the disk has no room for queues or index."""
INLINE_BYTES = 256 * 1024
"""Backlog above which the thread dispatches instead of the event loop."""
THREAD_CHUNK_BYTES = 2 * 1024 * 1024
"""CommitLog bytes that one step of the thread covers."""
GIVE_BACK_BYTES = 64 * 1024
"""Backlog at which the thread hands dispatch back: a hand-over costs more than a small step."""


class ReputMessageService(Service):
    """The dispatch of one store. ``on_dispatched`` is called on the loop."""

    name = "reput"

    def __init__(
        self, store: MessageStore, post: Post, on_dispatched: Callable[[Touched], None], on_fatal: OnFatal
    ) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self._on_dispatched = on_dispatched
        self._threaded = False
        """True while the thread owns dispatch; written on the loop only."""
        self._giving_back = False
        """True when the thread has caught up and waits for the loop to take dispatch back."""
        self._no_room = False
        """True if the disk was full for queues or index at the last attempt; written by the owner of dispatch."""

    def backlog(self) -> int:
        """Return the number of bytes of the log that are not dispatched yet."""
        return self._store.write_offset - self._store.reput_offset

    def step(self) -> None:
        """Dispatch the backlog, or hand it to the thread. Only for the loop."""
        if self._threaded or self._stopping:
            return
        store = self._store
        end = store.dispatchable_offset
        backlog = end - store.reput_offset
        if backlog <= 0:
            return
        if backlog > INLINE_BYTES:
            self._hand_over()
            return
        while store.reput_offset < end:
            try:
                touched = store.dispatch(end)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._no_room = True
                log.error("no space for consumequeue or index in %s: %s; retrying", store.path, error)
                self._hand_over()  # the thread can wait for space, the loop cannot
                return
            if touched:
                self._on_dispatched(touched)

    def stop_on_loop(self) -> None:
        """Dispatch no more on the loop, whose timers still run while another thread calls ``stop``. Only for the
        loop."""
        self._stopping = True

    def _hand_over(self) -> None:
        self._threaded = True
        self.wake()

    def _take_back(self) -> None:
        """Make the loop the owner again, after the thread has caught up. Only for the loop."""
        self._giving_back = False
        self._threaded = False
        # Records that arrived during the hand-over are dispatched at once.
        self.step()

    def do_once(self) -> bool:
        """Dispatch one chunk while the thread owns dispatch."""
        # Between the decision to give back and ``_take_back``, neither loop nor thread dispatches.
        if not self._threaded or self._giving_back:
            return False
        store = self._store
        end = store.dispatchable_offset
        # As long as there is no room, dispatch stays here, because only a thread can wait for it.
        if end - store.reput_offset <= GIVE_BACK_BYTES and not self._no_room:
            self._giving_back = True
            self._call_on_loop(self._take_back)
            return False
        try:
            touched = store.dispatch(end, THREAD_CHUNK_BYTES)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if not self._no_room:
                log.error("no space for consumequeue or index in %s: %s; retrying", store.path, error)
            self._no_room = True
            # A stop ends the pause.
            self._woken.wait(DISK_FULL_WAIT_SECONDS)
            return not self._stopping
        if self._no_room:
            self._no_room = False
            log.warning("there is space for consumequeue and index in %s again", store.path)
        if touched:
            self._call_on_loop(self._on_dispatched, touched)
        return True

    def stop(self) -> None:
        """Stop the thread, then dispatch the rest for up to 5 s. If a loop dispatches too, call ``stop_on_loop`` first,
        so that dispatch keeps one owner."""
        super().stop()
        store = self._store
        deadline = time.monotonic() + 5
        while store.failed is None and store.reput_offset < store.dispatchable_offset and time.monotonic() < deadline:
            try:
                store.dispatch(store.dispatchable_offset, THREAD_CHUNK_BYTES)
            except OSError as error:
                log.error("stopped with %d bytes of the log not dispatched: %s", self.backlog(), error)
                return
