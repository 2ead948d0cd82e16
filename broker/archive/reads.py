"""Reads of messages that retention took from the disk and that the archive still has.

They have threads of their own, so that a reader of old messages waits for the bucket and nobody else does. Any other
thread gets ``InArchive``, and the request is repeated in one of these. What is on the disk is never read here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ...protocol.errors import PULL_RETRY_IMMEDIATELY, SUCCESS, MessageDamaged, ServiceNotAvailable
from ...protocol.storage.archive.errors import ArchiveError, CorruptObject
from ...protocol.storage.archive.objects import ObjectError, Objects
from ...protocol.storage.archive.reader import ArchiveReader, Fragment
from ...protocol.storage.layout import RECORD, RECORD_BYTES_MIN, RECORD_HEAD_BYTES_MAX
from ...protocol.storage.record import unpack_head
from ..background.loop_work import ColdReads
from ..store.errors import InArchive
from ..store.queues import UNIT_DTYPE
from ..store.read.pulls import (
    FILTERED_BYTES_MAX,
    FILTERED_RECORDS_MAX,
    FILTERED_RECORDS_MIN,
    FILTERED_UNITS_MAX,
    ArchivedPull,
    PullResult,
    keep_matching,
)
from ..store.read.queue_reads import ANSWER_BYTES_MAX

if TYPE_CHECKING:
    from ...protocol.storage.archive.manifest import ArchiveManifest, Entry

log = logging.getLogger(__name__)

READS_MAX = 8
"""Maximum number of reads at a time. Each waits for the bucket most of its time."""
DEADLINE_S = 5.0
REFRESH_S = 10.0
"""Time after which a broker that does not write the archive reads its manifest again."""
RETRY_AFTER_MS = 1_000
FAILED_S = 5.0
"""Time for which the first offsets of queues are not looked for after the bucket has failed."""
FIRSTS_MAX = 100_000
"""Maximum number of queues whose first archived offset is kept."""
TOPICS_KEPT = 64
"""Maximum number of topics whose list of fragments is kept."""
AHEAD_BYTES_MIN = 256 * 1024
"""Size from which on a pull has the bytes after it read too: a consumer that asks for so much goes on."""
GAP_BYTES_MAX = 4_096

_thread = threading.local()


class ArchivedReads:
    """The archive in ``objects`` as readers of this broker see it. ``written``: returns the manifest that this broker
    itself has written, None if it does not write the archive or has not read it yet."""

    def __init__(self, objects: Objects, written: Callable[[], ArchiveManifest | None]) -> None:
        self._reader = ArchiveReader(objects)
        self._written = written
        self._read_at = 0.0
        self._firsts: dict[tuple[str, int], tuple[int, int, int | None, float]] = {}
        """Of each queue: the archive's start, ``visible_from``, the first offset, and until when that holds."""
        self._failed_until = 0.0
        self._entries: dict[str, tuple[int, list[Entry]]] = {}
        self.gate = ColdReads(READS_MAX)
        self.threads = ThreadPoolExecutor(READS_MAX, "flintmq-archived", initializer=_mark_thread)

    def close(self) -> None:
        """End the threads; reads that wait for the bucket are left behind."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self._reader.pool.shutdown(wait=False, cancel_futures=True)

    # ---- the queues; see ``ArchivedQueues``

    def known_first(self, topic: str, queue_id: int, visible_from: int) -> int | None:
        held = self._firsts.get((topic, queue_id))
        return held[2] if held is not None and held[1] == visible_from else None

    def first_offset(self, topic: str, queue_id: int, visible_from: int, *, hot: bool) -> int | None:
        held = self._firsts.get((topic, queue_id))
        manifest = self._written() or self._reader.known
        start = manifest.start if manifest is not None else -1
        now = time.monotonic()
        if held is not None and held[:2] == (start, visible_from) and now < held[3]:
            return held[2]
        if now < self._failed_until:
            return self.known_first(topic, queue_id, visible_from)
        if not _is_archive_thread():
            if hot:
                raise InArchive
            return self.known_first(topic, queue_id, visible_from)
        try:
            start = self._manifest().start
            found = self._first_of(topic, queue_id, visible_from)
        except ArchiveError as error:
            log.warning("the first archived message of queue %d of %r is unknown: %s", queue_id, topic, error)
            # Nobody else waits for the bucket in vain: until then the disk's offsets are shown where no other is known.
            self._failed_until = time.monotonic() + FAILED_S
            return self.known_first(topic, queue_id, visible_from)
        # A queue without an archived message may have one any moment.
        until = float("inf") if found is not None else time.monotonic() + REFRESH_S
        if len(self._firsts) >= FIRSTS_MAX:
            self._firsts.clear()
        self._firsts[topic, queue_id] = start, visible_from, found, until
        return found

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, hot: bool) -> int | None:
        if not _is_archive_thread():
            if hot:
                raise InArchive
            return None
        with _told_to_clients(topic, queue_id, 0):
            self._manifest()
            for fragment, run in self._runs(topic, queue_id, since_ms=timestamp_ms):
                if int(run["last_ms"]) >= timestamp_ms:
                    return self._since(fragment, run, timestamp_ms)
        return None

    def pull(self, wanted: ArchivedPull) -> PullResult:
        if not _is_archive_thread():
            raise InArchive
        with _told_to_clients(wanted.topic, wanted.queue_id, wanted.offset):
            self._manifest()
            return self._pull(wanted)

    # ---- keys and ids

    def find_key(self, topic: str, key: str, begin_ms: int, end_ms: int, below: int) -> Iterator[bytes]:
        """Yield the archived records of a topic with a key, newest first, stored in ``[begin_ms, end_ms]`` and at
        physical offsets before ``below``."""
        if not _is_archive_thread():
            raise InArchive
        with _told_to_clients(topic, -1, 0):
            self._manifest()
            for record in self._reader.find_key(topic, key, since_ms=begin_ms, until_ms=end_ms + 1):
                if RECORD.unpack(record).physical_offset < below:
                    yield record

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the archived record at a physical offset; None if there is none."""
        if not _is_archive_thread():
            raise InArchive
        with _told_to_clients("", -1, 0):
            self._manifest()
            try:
                return self._reader.record_at(physical_offset)
            except CorruptObject as error:  # the caller may have made up the offset
                log.warning("%s", error)
                return None

    # ---- the archive

    def _manifest(self) -> ArchiveManifest:
        """Return a manifest that is as new as it has to be."""
        written = self._written()
        if written is not None:
            self._reader.use(written)
        elif time.monotonic() - self._read_at > REFRESH_S:
            self._reader.refresh()
            self._read_at = time.monotonic()
        return self._reader.manifest

    def _runs(
        self, topic: str, queue_id: int, begin: int = 0, since_ms: int | None = None
    ) -> Iterator[tuple[Fragment, Any]]:
        """Yield the units of a queue, a run of consecutive ones at a time, in the queue's order."""
        for entry, _ in self._reader.entries(begin, since_ms=since_ms, topics=topic.__eq__):
            fragment = self._reader.fragment(entry)
            for run in fragment.runs_of(topic, queue_id):
                yield fragment, run

    def _first_of(self, topic: str, queue_id: int, visible_from: int) -> int | None:
        for fragment, run in self._runs(topic, queue_id, visible_from):
            units = np.frombuffer(fragment.units(run), UNIT_DTYPE) if fragment.entry.start < visible_from else None
            if units is None:
                return int(run["first"])
            rows = np.flatnonzero(units["physical_offset"] >= visible_from)
            if len(rows):
                return int(run["first"]) + int(rows[0])
        return None

    def _from(self, topic: str, queue_id: int, offset: int) -> tuple[Fragment, Any] | None:
        """Return the run of a queue that has an offset, or else the next one; None if the archive ends before.

        The fragments of a topic are searched by halving; one without a message of the queue says nothing, so that the
        ones after it are looked at.
        """
        entries = self._entries_of(topic)
        low, high = 0, len(entries)
        while low < high:
            middle = probe = (low + high) // 2
            runs = self._runs_in(entries[probe], topic, queue_id)
            while not len(runs) and probe + 1 < high:
                probe += 1
                runs = self._runs_in(entries[probe], topic, queue_id)
            if len(runs) and int(runs[-1]["first"]) + int(runs[-1]["length"]) <= offset:
                low = probe + 1
            else:
                high = middle
        for entry in entries[low:]:
            for run in self._runs_in(entry, topic, queue_id):
                if int(run["first"]) + int(run["length"]) > offset:
                    return self._reader.fragment(entry), run
        return None

    def _entries_of(self, topic: str) -> list[Entry]:
        """Return the fragments with messages of a topic."""
        version = self._reader.manifest.version
        held = self._entries.get(topic)
        if held is None or held[0] != version:
            if len(self._entries) >= TOPICS_KEPT:
                self._entries.clear()
            held = self._entries[topic] = version, [entry for entry, _ in self._reader.entries(topics=topic.__eq__)]
        return held[1]

    def _runs_in(self, entry: Entry, topic: str, queue_id: int) -> Any:
        return self._reader.fragment(entry).runs_of(topic, queue_id)

    def _since(self, fragment: Fragment, run: Any, timestamp_ms: int) -> int:
        """Return the first offset of a run that was stored at a time or later; its last message was."""
        units = np.frombuffer(fragment.units(run), UNIT_DTYPE)
        low, high = 0, len(units) - 1
        while low < high:
            middle = (low + high) // 2
            at = int(units["physical_offset"][middle])
            head = fragment.read(at, at + min(int(units["size"][middle]), RECORD_HEAD_BYTES_MAX))
            if unpack_head(head).store_timestamp >= timestamp_ms:
                high = middle
            else:
                low = middle + 1
        return int(run["first"]) + low

    def _pull(self, wanted: ArchivedPull) -> PullResult:
        bounds = wanted.min_offset, wanted.max_offset
        found = self._from(wanted.topic, wanted.queue_id, wanted.offset)
        if found is None or int(found[1]["first"]) >= wanted.end:
            # A part that was never archived: the reader goes on where the disk begins.
            return PullResult(PULL_RETRY_IMMEDIATELY, 0, wanted.end, *bounds, bytearray())
        fragment, run = found
        begin = max(wanted.offset, int(run["first"]))
        units = np.frombuffer(fragment.units(run), UNIT_DTYPE)[begin - int(run["first"]) :]
        units = units[: wanted.end - begin]
        max_count, max_bytes, tags, records, one_at_least = wanted.selection
        max_bytes = min(max_bytes, ANSWER_BYTES_MAX - 4 * min(max_count, max_bytes // RECORD_BYTES_MIN + 1))
        read_count, read_bytes = max_count, max_bytes
        if records is not None:
            read_count = min(max(max_count, FILTERED_RECORDS_MIN), FILTERED_RECORDS_MAX)
            read_bytes = FILTERED_BYTES_MAX
        units = units[: read_count if tags is None else FILTERED_UNITS_MAX]
        rows = np.arange(len(units))
        if tags is not None:
            rows = np.flatnonzero(np.isin(units["tags_code"], list(tags)))
        rows = rows[_readable(units["physical_offset"][rows], fragment.head.quarantined)]
        sizes = units["size"][rows].astype(np.int64)
        fit = int(np.searchsorted(np.cumsum(sizes), read_bytes, "right"))
        if not fit and one_at_least:
            fit = 1
        count = min(len(rows), read_count, fit)
        examined = int(rows[count]) if count < len(rows) else len(units)
        rows, sizes = rows[:count], sizes[:count]
        next_offset = begin + examined
        if not count:
            return PullResult(PULL_RETRY_IMMEDIATELY, 0, next_offset, *bounds, bytearray())
        body = bytearray(sizes.astype(">u4").tobytes())
        body += _records(fragment, units["physical_offset"][rows].astype(np.int64), sizes)
        if records is not None:
            kept = keep_matching(body, count, records, max_count, max_bytes, one_at_least=one_at_least)
            if kept.looked < count:
                next_offset = begin + int(rows[kept.looked])
            count, body = kept.count, kept.body
        code = SUCCESS if count else PULL_RETRY_IMMEDIATELY
        return PullResult(code, count, next_offset, *bounds, body)


def _records(fragment: Fragment, positions: np.ndarray, sizes: np.ndarray) -> bytes:
    """Return the bytes of records, one after the other; those that are near each other are read together."""
    ahead = int(sizes.sum()) >= AHEAD_BYTES_MIN
    ends = positions + sizes
    # Where a file of the log ended, there is a hole.
    stretches = fragment.stretch_of(positions)
    breaks = np.flatnonzero((positions[1:] - ends[:-1] > GAP_BYTES_MAX) | (stretches[1:] != stretches[:-1])) + 1
    parts = []
    for first, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(sizes)], strict=True):
        begin = int(positions[first])
        span = fragment.read(begin, int(ends[stop - 1]), ahead=ahead)
        if int(sizes[first:stop].sum()) == len(span):
            parts.append(span)
        else:
            starts = (positions[first:stop] - begin).tolist()
            parts += [span[at : at + size] for at, size in zip(starts, sizes[first:stop].tolist(), strict=True)]
    return b"".join(parts)


def _readable(positions: np.ndarray, quarantined: list[tuple[int, int]]) -> np.ndarray:
    """Return which of some records are messages, not tombstones of damage that was found before they were archived."""
    rows = np.ones(len(positions), np.bool_)
    for begin, end in quarantined:
        rows &= (positions < begin) | (positions >= end)
    return rows


def _mark_thread() -> None:
    _thread.is_archive = True


def _is_archive_thread() -> bool:
    return getattr(_thread, "is_archive", False)


class _told_to_clients:  # noqa: N801 - a context manager
    """Turn errors of the archive into the broker's, which clients understand."""

    def __init__(self, topic: str, queue_id: int, offset: int) -> None:
        self._queue = topic, queue_id, offset

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        topic, queue_id, offset = self._queue
        if isinstance(error, CorruptObject):
            log.error("%s", error)
            raise MessageDamaged(
                f"message {offset:,} of queue {queue_id} of {topic!r} cannot be read: {error}", queue_offset=offset
            ) from error
        if isinstance(error, ObjectError | ArchiveError):
            log.warning("%s", error)
            raise ServiceNotAvailable(
                f"these messages are in the archive only, which cannot be read now: {error}",
                retry_after_ms=RETRY_AFTER_MS,
            ) from error
