"""ArchiveService: copies the log into the archive, in the background.

Its thread cuts and compresses fragments and changes the manifest; two more carry objects into the bucket. A fragment is
listed after all before it, so the archive never has a gap that it does not name. Whatever the bucket does, messages are
stored and delivered as without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ...protocol.errors import ConfigurationError
from ...protocol.storage.archive.errors import ArchiveError
from ...protocol.storage.archive.fragment import (
    FRAGMENT_BYTES,
    Compression,
    CompressionMissing,
    FragmentName,
    check_compression,
)
from ...protocol.storage.archive.keys import run_bytes
from ...protocol.storage.archive.manifest import GROUPS, KEY_RUNS, VERSIONS, ArchiveManifest, Entry, Group, decode_group
from ...protocol.storage.archive.objects import ConditionsIgnored, ObjectError, Objects
from ...protocol.storage.archive.tables import TABLES, ArchivedTable, encode_table, table_object
from ...protocol.storage.arrays.jit import interpreted_count
from ..background.loop_work import Service
from . import RUNNING, STARTING, STOPPED, UNAVAILABLE
from .cutter import Cutter, DamagedLog
from .key_runs import KeySpan, next_index, write_merged
from .leftovers import ORPHAN_MS, READER_MS, old_tables, old_versions, orphans
from .lineage import ArchiveStopped, Lineage, NewFragment, ReadAgain, Writer, random_hex
from .merge import merged, next_merge

if TYPE_CHECKING:
    from ..background.loop_work import OnFatal, Post
    from ..config import ArchiveSection
    from ..store import MessageStore

log = logging.getLogger(__name__)

NICENESS = 10
"""Priority of the archive's threads, as of the command ``nice``."""
IN_FLIGHT = 2
"""Fragments that are carried into the bucket at a time."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 5.0
"""Pause after a failure of the bucket: random, doubled each time up to the maximum."""
LOOK_S = 0.25
"""Interval at which the service looks for new records; nothing wakes it, so that messages do not pay for it."""

TABLES_S = 10.0
"""Minimum interval at which changed tables are written."""
COMPILED_S = 300.0
"""Time after which the kernels are taken for impossible to compile here."""
CARE_AGAIN_S = 60.0
"""Pause after merging or sweeping has failed."""
SWEEP_S = 600.0
"""Interval at which objects are looked for that are no longer needed."""
STOP_S = 1.0
"""Time that a stop waits for the thread, which may be in a request that the bucket does not answer."""


@dataclass(slots=True)
class ArchiveCounts:
    """What the service has done since the broker started."""

    fragments: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    merged_bytes: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Upload:
    """A fragment on its way. ``error``: that of the last attempt."""

    fragment: NewFragment
    done: bool = False
    under_way: bool = False
    error: ObjectError | None = None


def open_archive(settings: ArchiveSection) -> Objects:
    """Return the bucket or folder of ``archive.url``; it is asked for nothing yet.

    Raises ``ConfigurationError`` for a URL that is none, or a library that is not installed.
    """
    try:
        check_compression(settings.compression)
    except CompressionMissing as error:
        raise ConfigurationError(
            f'archive.compression = "zstd": {error}, or set archive.compression to "none"'
        ) from None
    return Objects(settings.url, kms_key=settings.kms_key)


TakeOver: TypeAlias = Callable[[], None]


@dataclass(slots=True)
class _Work:
    """Something that a thread of its own does. ``take_over``: what the service's thread then does with it."""

    what: str
    run: Callable[[], TakeOver | None]
    ended: bool = False
    take_over: TakeOver | None = None
    error: Exception | None = None


class TableSource(Protocol):
    """A table beside the log. ``version``: changes with the table, called on the loop; ``read``: any thread."""

    name: str

    def version(self) -> object:
        """Return a value that changes with the table."""

    def read(self) -> bytes:
        """Return the table's content."""


class Interrupted(ObjectError):
    """The broker stops; a request is not tried again."""


def yield_the_processor() -> None:
    """Let every other thread go first from now on, where the processor is busy: messages are more urgent.

    The archive's threads hold the GIL for moments only, so that nobody waits for one that waits for the processor.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class LogGone(Exception):
    """Retention deleted a part of the log while it was being read."""


class ArchiveService(Service):
    """The archive's writer for one opening of a store. ``objects``: the bucket or folder."""

    name = "archive"
    interval_seconds = LOOK_S

    def __init__(
        self,
        store: MessageStore,
        settings: ArchiveSection,
        objects: Objects,
        writer: Writer,
        tables: Sequence[TableSource],
        post: Post,
        on_fatal: OnFatal,
    ) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self._tables = tables
        self._table_versions: dict[str, object] = {}
        """Versions of the tables that are in the archive."""
        self._next_tables = 0.0
        self._work: _Work | None = None
        self._replaced: list[tuple[float, list[str]]] = []
        """Objects of merged fragments, and from when on no reader needs them, by ``time.monotonic``. A restart forgets
        them; then they are orphans."""
        self._began = time.monotonic()
        self._next_care = 0.0
        self._next_sweep = time.monotonic() + SWEEP_S
        self._next_orphans = self._next_sweep
        self.settings = settings
        """May be replaced at any time, except for the URL."""
        self._objects = objects
        objects.on_trouble = self._troubled
        self._writer = writer
        self._lineage: Lineage | None = None
        self._cutter = Cutter(self._read, self._end_of_file)
        self._uploads: deque[_Upload] = deque()
        self._position = 0
        """End of the last fragment that was cut."""
        self._next_upload = 0.0
        self._retry_at = 0.0
        self._pause_s = PAUSE_MIN_S
        self._waiting_since: float | None = None
        self._caught_up_ms = 0
        self._jobs: queue.SimpleQueue[_Upload | None] = queue.SimpleQueue()
        self.state = STARTING
        self.reason = ""
        """Why the service is not ``running``."""
        self.archived_offset = 0
        """Physical offset below which the log is archived, or missing from the archive for good; 0 until known."""
        self.archived_ms = 0
        """Store time of the newest archived message."""
        self.counts = ArchiveCounts()

    # ---- what others ask; any thread

    def backlog(self) -> int:
        """Return the bytes of the log that are confirmed and not archived."""
        return max(self._store.acknowledged_offset - max(self.archived_offset, self._store.min_physical_offset), 0)

    def oldest_age_ms(self, now_ms: int) -> int:
        """Return the age of the oldest message that is not archived, at most; 0 if all are."""
        if not self.backlog():
            return 0
        since = max(self.archived_ms, self._caught_up_ms)
        return max(now_ms - since, 0) if since else 0

    @property
    def url(self) -> str:
        """Where the archive is."""
        return self._objects.url

    @property
    def manifest(self) -> ArchiveManifest | None:
        """The newest version of the manifest; None until it was read."""
        lineage = self._lineage
        return lineage.manifest if lineage is not None else None

    def requests(self) -> dict[str, int]:
        """Return the number of requests to the bucket since the broker started, by verb."""
        return dict(self._objects.requests)

    # ---- the service

    def start(self) -> None:
        for number in range(IN_FLIGHT):
            threading.Thread(target=self._carry, name=f"flintmq-upload-{number}", daemon=True).start()
        super().start()

    def _run(self) -> None:
        yield_the_processor()
        super()._run()

    def stop(self) -> None:
        """End the thread. A request that waits for the bucket is left behind: what it writes is listed by nobody."""
        self._stopping = True
        self._woken.set()
        for _ in range(IN_FLIGHT):
            self._jobs.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_S)
            self._thread = None

    def do_once(self) -> bool:
        """Do what there is to do; return whether there may be more at once."""
        if self.state == STOPPED or time.monotonic() < self._retry_at or self._store.failed is not None:
            return False
        try:
            if self._lineage is None:
                self._open()
            assert self._lineage is not None
            self._lineage.settle()
            more = self._list_finished()
            more |= self._begin_uploads()
            self._save_tables()
            more |= self._care()
        except ReadAgain as error:
            log.info("%s", error)
            self._begin_again()
            return True
        except (ArchiveStopped, ConditionsIgnored, DamagedLog) as error:
            self._stop_for_good(error)
            return False
        except (ObjectError, ArchiveError, OSError) as error:
            self._fails(error)
            return False
        return more

    def _open(self) -> None:
        """Read the archive's manifest, and find the place from which this store continues it."""
        store = self._store
        self._check_conditions()
        lineage = Lineage(self._objects, self._writer)

        lineage.open(
            store.min_physical_offset,
            store.acknowledged_offset,
            lambda start, end: self._cutter.cut(start, end, end - start),
        )
        self._lineage = lineage
        self._note_archived()
        self._position = self.archived_offset
        log.info(
            "archiving to %s from physical offset %s on; version %d of its manifest",
            self._objects.url,
            f"{self._position:,}",
            lineage.manifest.version,
        )
        self._runs()

    def _check_conditions(self) -> None:
        try:
            self._objects.check_conditions()
        except ConditionsIgnored as error:
            if not self.settings.single_writer or self._writer.set:
                raise
            log.warning("%s; archive.single_writer says that no other broker writes there", error)

    def _note_archived(self) -> None:
        assert self._lineage is not None
        manifest = self._lineage.manifest
        self.archived_offset = manifest.end
        newest: tuple[Group | Entry, ...] = (*manifest.groups[-1:], *manifest.entries[-1:])
        self.archived_ms = max((each.last_ms for each in newest), default=0)

    # ---- fragments: cut, carried, listed

    def _begin_uploads(self) -> bool:
        """Cut the next fragment if it is due; return whether one was cut."""
        if len(self._uploads) >= IN_FLIGHT or self._stopping or self._waits_for_kernel():
            return False
        store, now = self._store, time.monotonic()
        limit = store.acknowledged_offset
        self._position = max(self._position, store.min_physical_offset)
        if limit <= self._position:
            self._waiting_since = None
            if not self._uploads:
                self._caught_up_ms = store.clock.seen_ms()
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        is_full = limit - self._position >= FRAGMENT_BYTES
        if now < self._next_upload or not (is_full or now - self._waiting_since >= self.settings.interval_ms / 1000):
            return False
        try:
            cut = self._cutter.cut(self._position, limit)
        except LogGone:
            return True  # the beginning of the log has moved
        self._waiting_since = now
        if cut is None:
            return False
        quarantined = [(each.physical_offset, each.end_offset) for each in list(store.quarantine.ranges)]
        blobs = cut.encode(self.settings.compression, quarantined)
        name = FragmentName(self._writer.epoch, cut.start, cut.end, random_hex())
        self._position = cut.end
        upload = _Upload(NewFragment(cut, name, *blobs))
        self._uploads.append(upload)
        self._hand_over(upload)
        rate = self.settings.rate_bytes_max
        if rate:
            self._next_upload = max(now, self._next_upload) + (len(blobs[0]) + len(blobs[1])) / rate
        return True

    def _waits_for_kernel(self) -> bool:
        """Return whether the kernel is being compiled. Interpreted, it would hold the GIL, and messages would wait."""
        return interpreted_count() > 0 and time.monotonic() - self._began < COMPILED_S

    def _hand_over(self, upload: _Upload) -> None:
        upload.under_way, upload.error = True, None
        self._jobs.put(upload)

    def _carry(self) -> None:
        """Write the objects of fragments. On a thread of its own."""
        yield_the_processor()
        while (upload := self._jobs.get()) is not None:
            fragment = upload.fragment
            try:
                self._objects.create(fragment.name.idx, fragment.idx)
                self._objects.create(fragment.name.log, fragment.log)
                upload.done = True
            except ObjectError as error:
                upload.error = error
            except OSError as error:
                upload.error = ObjectError(f"cannot write to {self._objects.url}: {error}")
            upload.under_way = False
            self.wake()

    def _list_finished(self) -> bool:
        """Have the manifest list the fragments that have arrived; return whether there were any."""
        assert self._lineage is not None
        finished = []
        for upload in self._uploads:
            if not upload.done:
                break
            finished.append(upload.fragment)
        if finished:
            self._lineage.add(finished)
            for fragment in finished:
                self._uploads.popleft()
                self.counts.fragments += 1
                self.counts.raw_bytes += fragment.cut.raw_bytes
                self.counts.stored_bytes += len(fragment.log) + len(fragment.idx)
            self._note_archived()
            self._runs()
            self._lineage.seal()
        failed = [upload for upload in self._uploads if upload.error is not None]
        if failed:
            error = failed[0].error
            assert error is not None
            self._fails(error)
            for upload in failed:
                self._hand_over(upload)
        return bool(finished)

    # ---- tables

    def _save_tables(self) -> None:
        """Write the tables that have changed, if it is time."""
        now = time.monotonic()
        if now < self._next_tables or self._stopping:
            return
        versions = self._versions()
        changed = [table for table in self._tables if self._table_versions.get(table.name) != versions.get(table.name)]
        contents = [(table.name, table.read()) for table in changed]
        # Taken after the tables, which therefore refer to nothing beyond it.
        start, at_ms = self._store.write_offset, self._store.clock.seen_ms()
        for name, content in contents:
            self._objects.put(table_object(start, name), encode_table(ArchivedTable(name, start, at_ms, content)))
            self._table_versions[name] = versions[name]
        self._next_tables = now + max(self.settings.interval_ms / 1000, TABLES_S)

    def _versions(self) -> dict[str, object]:
        """Return the tables' versions, which belong to the loop; none if it is not there any more."""
        answers: queue.SimpleQueue[dict[str, object]] = queue.SimpleQueue()
        self._call_on_loop(lambda: answers.put({table.name: table.version() for table in self._tables}))
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=STOP_S)
        return dict(self._table_versions)

    def _begin_again(self) -> None:
        """Forget what was read of the archive. Fragments under way are listed by nobody."""
        self._lineage = self._work = None
        self._uploads.clear()

    # ---- care: merging and sweeping, on a thread of its own

    def _care(self) -> bool:
        """Take over what the other thread has done, and have it do what is next; return whether there may be more."""
        work, now = self._work, time.monotonic()
        if work is not None:
            if not work.ended:
                return False
            self._work = None
            if work.error is not None:
                self.counts.failures += 1
                log.error("cannot %s of the archive %s: %s", work.what, self._objects.url, work.error)
                self._next_care = now + CARE_AGAIN_S
                return False
            if work.take_over is not None:
                work.take_over()
            return True
        if now >= self._next_care and not self._uploads and not self._stopping:
            self._work = self._next_work(now)
            if self._work is not None:
                threading.Thread(target=self._do, args=(self._work,), name="flintmq-archive-care", daemon=True).start()
        return False

    def _next_work(self, now: float) -> _Work | None:
        lineage = self._lineage
        assert lineage is not None
        if old := next_merge(lineage.manifest.entries):
            epoch, compression = self._writer.epoch, self.settings.compression
            return _Work("merge fragments", lambda: self._merge(lineage, old, epoch, compression))
        if spans := next_index(lineage.manifest):
            return _Work("merge keys", lambda: self._index(lineage, spans))
        if now < self._next_sweep:
            return None
        self._next_sweep = now + SWEEP_S
        replaced = {name for due, names in self._replaced if due <= now for name in names}
        self._replaced = [each for each in self._replaced if each[0] > now]
        return _Work("sweep objects", lambda: self._sweep(lineage, replaced))

    def _do(self, work: _Work) -> None:
        """Do work. On a thread of its own."""
        yield_the_processor()
        try:
            work.take_over = work.run()
        except Exception as error:  # noqa: BLE001 - the service's thread decides what it means
            work.error = error
        work.ended = True
        self.wake()

    def _merge(self, lineage: Lineage, old: Sequence[Entry], epoch: int, compression: Compression) -> TakeOver:
        """Write one fragment that holds what the old ones hold."""
        new = merged(self._objects, old, Cutter(self._read, self._end_of_file), epoch, compression)
        self._objects.create(new.name.idx, new.idx)
        self._objects.create(new.name.log, new.log)

        def take_over() -> None:
            if lineage.replace(old, new):
                self._note_archived()
                self.counts.merged_bytes += len(new.log) + len(new.idx)
                self._has_replaced(name for entry in old for name in (entry.name.log, entry.name.idx))

        return take_over

    def _index(self, lineage: Lineage, spans: Sequence[KeySpan]) -> TakeOver:
        """Write one run of keys that holds what the spans hold."""
        old, new = [run for span in spans for run in span.runs], write_merged(self._objects, spans)

        def take_over() -> None:
            if lineage.index(old, new):
                self.counts.merged_bytes += sum(run_bytes(run.keys) for run in new)
                self._has_replaced(run.name for run in old)

        return take_over

    def _has_replaced(self, names: Iterable[str]) -> None:
        """Note objects that only readers of an older version of the manifest still need."""
        self._replaced.append((time.monotonic() + READER_MS / 1000, list(names)))

    def _sweep(self, lineage: Lineage, replaced: Set[str]) -> None:
        """Delete what no reader can still need."""
        objects, now_ms = self._objects, time.time_ns() // 10**6
        for_orphans = time.monotonic() >= self._next_orphans
        versions, tables = list(objects.list(VERSIONS.rstrip("/"))), list(objects.list(TABLES))
        folders = ("log", GROUPS.rstrip("/"), KEY_RUNS.rstrip("/")) if for_orphans else ()
        listed = [each for folder in folders for each in objects.list(folder)]
        # After the lists: an object in them that the newest version does not name was named by none that will come. So
        # a process that was paused for days deletes nothing of what another has written since.
        manifest = lineage.newest()
        if manifest is None or manifest.writer != self._writer.id:
            return
        entries = list(manifest.entries)
        if for_orphans:
            self._next_orphans = time.monotonic() + ORPHAN_MS / 1000
            for group in manifest.groups:
                entries += decode_group(objects.get(group.name), group.name)[0]
        named = {group.name for group in manifest.groups} | {run.name for run in manifest.runs}
        named.update(name for entry in entries for name in (entry.name.log, entry.name.idx))
        gone = [*old_versions(versions, manifest, now_ms), *old_tables(tables, now_ms), *(replaced - named)]
        gone += orphans(listed, named, now_ms)
        for name in gone:
            if self._stopping:
                return
            objects.delete(name)
        if gone:
            log.info("deleted %d objects of the archive %s that no reader needs", len(gone), objects.url)

    # ---- states

    def _troubled(self, reason: str) -> None:
        """Note that a request failed and is about to be tried again."""
        if self._stopping:
            raise Interrupted(f"{reason}; the broker stops")
        self.counts.failures += 1
        if self.state != STOPPED:
            self._says_unavailable(reason)

    def _runs(self) -> None:
        if self.state == UNAVAILABLE:
            log.warning("the archive %s can be written again", self._objects.url)
        self.state, self.reason = RUNNING, ""
        self._pause_s = PAUSE_MIN_S

    def _fails(self, error: Exception) -> None:
        """Note a failure that may pass, and wait."""
        if self._stopping:
            return
        self.counts.failures += 1
        self._says_unavailable(str(error))
        self._retry_at = time.monotonic() + random.uniform(PAUSE_MIN_S, self._pause_s)  # noqa: S311 - only a pause
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def _says_unavailable(self, reason: str) -> None:
        if self.state != UNAVAILABLE:
            log.warning("the archive %s cannot be written: %s; it is tried again", self._objects.url, reason)
        self.state, self.reason = UNAVAILABLE, reason

    def _stop_for_good(self, error: Exception) -> None:
        log.error("this broker archives no more: %s", error)
        self.counts.failures += 1
        self.state, self.reason = STOPPED, str(error)

    # ---- the log

    def _end_of_file(self, physical_offset: int) -> int:
        file = self._store.commitlog.queue.find(physical_offset)
        if file is None:
            raise LogGone
        return file.end_offset

    def _read(self, physical_offset: int, buffer: memoryview) -> None:
        """Read a part of one file, and drop from the page cache what was not in it before."""
        files = self._store.files
        file = self._store.commitlog.queue.find(physical_offset)
        if file is None:
            raise LogGone
        at = physical_offset - file.start_offset
        done = files.read(file.fd, buffer, at, wait=False)
        if done < len(buffer):
            read = files.read(file.fd, buffer[done:], at + done, wait=True)
            if done + read < len(buffer):
                raise DamagedLog(physical_offset + done + read, "no more bytes in its file")
            with contextlib.suppress(OSError, AttributeError):  # not on every system
                os.posix_fadvise(file.fd, at + done, read, os.POSIX_FADV_DONTNEED)
