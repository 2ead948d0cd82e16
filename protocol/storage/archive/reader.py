"""Reads an archive without a broker: the newest manifest, then fragments, their units and frames, and records by key.

A reader may be used by any number of threads. It keeps a bounded amount of what it has read: frames of the log, heads
of indexes and groups of the manifest. Everything that it returns has passed its checksum; anything else raises
``CorruptObject``, which names the object. Other fragments can still be read.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from math import isqrt
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ..layout import RECORD_BYTES_MIN, UNIT_BYTES
from ..record import PROPERTY_KEYS, PROPERTY_UNIQ_KEY, CorruptRecord, Record, decode_record, split_keys
from .errors import ArchiveError, CorruptObject
from .fragment import (
    FRAME_DTYPE,
    QUEUE_RUN_DTYPE,
    IndexHead,
    Rows,
    check_units,
    decode_frame,
    decode_head,
    decode_part,
    head_end,
    stored_range,
)
from .keys import (
    BLOCK_ENTRIES,
    HASH_MAX,
    Entries,
    block_range,
    blocks_in,
    decode_blocks,
    key_hash,
    positions_of,
    run_bytes,
)
from .manifest import (
    IDENTITY,
    VERSIONS,
    ArchiveManifest,
    Entry,
    Group,
    Identity,
    KeyRun,
    decode_group,
    decode_identity,
    find_newest,
    overlapping,
    topics_in,
)
from .objects import ObjectCutShort, ObjectNotFound, Objects

T = TypeVar("T")

CACHE_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes of the log that a reader keeps."""
AHEAD_FRAMES, AHEAD_READS = 4, 4
"""Frames of one request ahead of a sequential read, and how many such requests are under way at a time."""
THREADS = 64
"""Threads of a reader, which are started when they are needed: a search by key reads all runs side by side."""
_FRAGMENTS_MAX = 1_024
_GROUPS_MAX = 256
_HEAD_BYTES = 64 * 1024
"""Bytes of an index that are read at first: nearly always its head, frames and queues."""
_HEAD_PARTS = ("frames", "queues")
MISSING = "it is missing"


class NoArchive(ArchiveError):
    """There is no archive under the URL."""


class FragmentMoved(ArchiveError):
    """The archive's writer has replaced or dropped a fragment since its manifest was read. Read again."""

    retriable = True


class _Cache(Generic[T]):
    """Values by key, the least recently used dropped beyond ``size_max``; loaded once for all threads that wait."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 0
        self._held: OrderedDict[Hashable, tuple[Future[T], int]] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        """Return whether a value is there, or being loaded."""
        return key in self._held

    def get(self, key: Hashable, load: Callable[[], T], size: int = 1) -> T:
        """Return the value; ``load`` makes it if it is not there. An error is raised and not kept."""
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
            else:
                mine: Future[T] = Future()
                self._held[key] = mine, size
                self._size += size
                while self._size > self._size_max and len(self._held) > 1:
                    self._size -= self._held.popitem(last=False)[1][1]
        if held is not None:
            return held[0].result()
        try:
            value = load()
        except BaseException as error:
            with self._lock:
                if (now := self._held.get(key)) is not None and now[0] is mine:
                    self._size -= self._held.pop(key)[1]
            mine.set_exception(error)
            raise
        mine.set_result(value)
        return value


class ArchiveReader:
    """The archive in ``objects``. ``cache_bytes``: of the log; ``threads``: for reads side by side and ahead.

    The constructor reads nothing. Methods raise ``NoArchive``, ``CorruptObject``, ``UnknownFormat``,
    ``FragmentMoved``, ``CompressionMissing``, and ``ObjectError`` if the object store fails.
    """

    def __init__(self, objects: Objects, *, cache_bytes: int = CACHE_BYTES, threads: int = THREADS) -> None:
        self.objects = objects
        self._manifest: ArchiveManifest | None = None
        self._fragments: _Cache[Fragment] = _Cache(_FRAGMENTS_MAX)
        self._groups: _Cache[tuple[list[Entry], list[str]]] = _Cache(_GROUPS_MAX)
        self.blocks: _Cache[bytes] = _Cache(cache_bytes)
        """Bytes of the log; those of several frames under one key."""
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="flintmq-archive")

    def close(self) -> None:
        """End the threads, after what they are reading."""
        self.pool.shutdown(cancel_futures=True)

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the manifest

    @property
    def manifest(self) -> ArchiveManifest:
        """The version that was read last; the newest one at first. Two requests, if no writer is at work."""
        return self._manifest or self.refresh()

    @property
    def known(self) -> ArchiveManifest | None:
        """The version that was read last; None if none was."""
        return self._manifest

    def use(self, manifest: ArchiveManifest) -> None:
        """Take a version that somebody else has read or written."""
        self._manifest = manifest

    def refresh(self) -> ArchiveManifest:
        """Read the newest version of the manifest, and return it."""

        def get(name: str) -> bytes:
            try:
                return self.objects.get(name)
            except ObjectNotFound as error:
                raise KeyError(name) from error

        newest = find_newest(get, lambda: (each.name for each in self.objects.list(VERSIONS.rstrip("/"))))
        if newest is None:
            raise NoArchive(
                f"{self.objects.url} is not an archive: it has no manifest. Correct the URL, or wait until the broker "
                "that has it as archive.url has written its first fragment"
            )
        self._manifest = newest
        return newest

    def identity(self) -> Identity:
        """Return whose history the archive is."""
        return decode_identity(self._whole(IDENTITY))

    def _whole(self, name: str) -> bytes:
        """Return an object that must be there."""
        try:
            return self.objects.get(name)
        except ObjectNotFound:
            raise CorruptObject(name, MISSING) from None

    def group(self, group: Group) -> tuple[list[Entry], list[str]]:
        """Return the entries of a group, and the list of topics that their bitmaps number."""
        return self._groups.get(group.name, lambda: decode_group(self._whole(group.name), group.name))

    def entries(
        self,
        begin: int = 0,
        end: int | None = None,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        topics: Callable[[str], bool] | None = None,
    ) -> Iterator[tuple[Entry, list[str]]]:
        """Yield the fragments that may have messages in physical offsets ``[begin, end)``, with store times in
        ``[since_ms, until_ms)``, and of a topic for which ``topics`` is true, with their topics, in the log's order."""
        manifest = self.manifest
        end = manifest.end if end is None else end
        older = (
            self.group(group)
            for group in manifest.groups
            if group.start < end and group.end > begin and _may_be_in(group, since_ms, until_ms)
        )
        for entries, table in chain(older, [(manifest.entries, manifest.topics)]):
            for entry in overlapping(entries, begin, end):
                names = topics_in(entry.topics, table)
                if _may_be_in(entry, since_ms, until_ms) and (topics is None or any(map(topics, names))):
                    yield entry, names

    def entry_at(self, physical_offset: int) -> Entry | None:
        """Return the fragment that covers a position; None if none does: it is in a gap, or not archived."""
        manifest = self.manifest
        found = _covering(manifest.entries, physical_offset)
        if found is None and (group := _covering(manifest.groups, physical_offset)) is not None:
            found = _covering(self.group(group)[0], physical_offset)
        return found

    # ---- fragments

    def fragment(self, entry: Entry) -> Fragment:
        """Return a fragment whose head has been read."""
        return self._fragments.get(entry.name, lambda: self._opened(entry))

    def _opened(self, entry: Entry) -> Fragment:
        name = entry.name.idx
        blob = self.range(entry, name, 0, min(_HEAD_BYTES, entry.idx_bytes))
        if (needed := head_end(blob, name)) > len(blob):
            blob = self.range(entry, name, 0, _within(needed, entry))
        head = decode_head(blob, name)
        if (head.start, head.end) != (entry.start, entry.end):
            raise CorruptObject(name, f"it is the index of physical offsets {head.start:,} to {head.end:,}")
        needed = _within(max(head.range_of(part)[1] for part in ("frames", "queues")), entry)
        if needed > len(blob):
            blob += self.range(entry, name, len(blob), needed)
        frames, queues = (decode_part(blob[slice(*head.range_of(part))], head, part, name) for part in _HEAD_PARTS)
        return Fragment(self, entry, head, np.frombuffer(frames, FRAME_DTYPE), np.frombuffer(queues, QUEUE_RUN_DTYPE))

    def range(self, entry: Entry, name: str, begin: int, end: int) -> bytes:
        """Return a range of one of a fragment's objects, which must be there as long as the manifest lists it."""
        try:
            return self.objects.range(name, begin, end)
        except ObjectNotFound:
            self.refresh()
            if self.entry_at(entry.start) == entry:
                raise CorruptObject(name, MISSING) from None
            raise FragmentMoved(
                f"{name} of the archive {self.objects.url} was replaced or dropped after the manifest had been read. "
                "Read again"
            ) from None
        except ObjectCutShort as error:
            raise CorruptObject(name, str(error)) from None

    # ---- records

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the bytes of the record that begins at a physical offset; None if the archive has none there any more.

        It has been checked, its body's checksum too.
        """
        found = self._record_at(physical_offset)
        return None if found is None else found[0]

    def _record_at(self, physical_offset: int) -> tuple[bytes, Record] | None:
        entry = self.entry_at(physical_offset)
        if entry is None:
            return None
        fragment = self.fragment(entry)
        if not fragment.holds(physical_offset):
            return None
        name, where = entry.name.log, f"at physical offset {physical_offset:,}"
        size = int.from_bytes(fragment.read(physical_offset, physical_offset + 4), "big", signed=True)
        if not RECORD_BYTES_MIN <= size <= entry.end - physical_offset:
            raise CorruptObject(name, f"no record begins {where}")
        blob = fragment.read(physical_offset, physical_offset + size)
        try:
            record = decode_record(blob)
        except CorruptRecord as error:
            raise CorruptObject(name, f"the record {where}: {error}") from None
        if record.physical_offset != physical_offset:
            raise CorruptObject(name, f"the record {where} says that it is at {record.physical_offset:,}")
        return blob, record

    # ---- keys

    def find_key(
        self, topic: str, key: str, *, since_ms: int | None = None, until_ms: int | None = None
    ) -> Iterator[bytes]:
        """Yield the bytes of the records of a topic that have a key (one of KEYS, or UNIQ_KEY), newest first.

        One block of each sorted run is read, side by side, and then the records. A record that retention has removed is
        left out.
        """
        positions = sorted(self.positions_of_key(topic, key, since_ms, until_ms), reverse=True)
        for at in range(0, len(positions), _KEY_RECORDS):
            for found in self.pool.map(self._record_at, positions[at : at + _KEY_RECORDS]):
                if found is None:
                    continue
                blob, record = found
                at_ms = record.store_timestamp
                # Another key may have the same hash.
                if (
                    record.topic.decode("utf-8", "replace") == topic
                    and key in _keys_of(record)
                    and (since_ms is None or at_ms >= since_ms)
                    and (until_ms is None or at_ms < until_ms)
                ):
                    yield blob

    def positions_of_key(self, topic: str, key: str, since_ms: int | None, until_ms: int | None) -> set[int]:
        """Return the physical offsets of the records that have a key with the hash of ``key``."""
        hash_ = key_hash(topic, key)
        return {
            position
            for found in self.pool.map(
                lambda run: self._search(run, hash_), self._runs(topic, hash_, since_ms, until_ms)
            )
            for position in found
        }

    def _runs(self, topic: str, hash_: int, since_ms: int | None, until_ms: int | None) -> list[_Run]:
        """Return the runs that may have a key: the merged ones, and those of fragments that none of these covers."""
        manifest = self.manifest
        runs = [
            _Run(run.name, 0, run.keys, None, run.first_hash, run.last_hash)
            for run in manifest.runs
            if run.keys and run.first_hash <= hash_ <= run.last_hash and _may_be_in(run, since_ms, until_ms)
        ]
        covered = [(run.start, run.end) for run in manifest.runs]
        for begin, end in _uncovered(covered, manifest.start, manifest.end):
            for entry, _ in self.entries(begin, end, since_ms=since_ms, until_ms=until_ms, topics=topic.__eq__):
                if entry.keys:
                    runs.append(_Run(entry.name.idx, entry.idx_bytes - run_bytes(entry.keys), entry.keys, entry))
        return runs

    def _search(self, run: _Run, hash_: int) -> list[int]:
        """Return the positions of a hash in a run.

        Hashes are spread evenly, so that the k-th of n is near k / n of their range, but only within some roots of n
        entries. So the first read takes a few blocks of a large run, and if they do not enclose the hash, how far they
        miss it says where it is.
        """
        low, high = 0, blocks_in(run.keys)
        first, end = _blocks_around(run.entries_below(hash_ - run.first_hash), run.keys, low, high)
        while True:
            entries = self._blocks(run, first, end)
            begin, last = int(entries["hash"][0]), int(entries["hash"][-1])
            if begin > hash_ and first > low:
                high, away = first, run.entries_below(begin - hash_)
                first, end = _blocks_around(first * BLOCK_ENTRIES - away, away, low, high)
            elif last < hash_ and end < high:
                low, away = end, run.entries_below(hash_ - last)
                first, end = _blocks_around(end * BLOCK_ENTRIES + away, away, low, high)
            else:
                break
        found = positions_of(hash_, entries)
        step = 1
        while begin == hash_ and first > 0:  # many messages have the key
            end_before, first, step = first, max(first - step, 0), 2 * step
            entries = self._blocks(run, first, end_before)
            begin = int(entries["hash"][0])
            found = positions_of(hash_, entries) + found
        step = 1
        while last == hash_ and end < blocks_in(run.keys):
            begin_behind, end, step = end, min(end + step, blocks_in(run.keys)), 2 * step
            entries = self._blocks(run, begin_behind, end)
            last = int(entries["hash"][-1])
            found += positions_of(hash_, entries)
        return found

    def _blocks(self, run: _Run, first: int, end: int) -> Entries:
        """Return the entries of the blocks ``[first, end)`` of a run, in one request."""
        begin, stop = block_range(first, run.keys)[0], block_range(end - 1, run.keys)[1]
        if run.entry is not None:
            return decode_blocks(self.range(run.entry, run.name, run.at + begin, run.at + stop), run.name)
        try:
            return decode_blocks(self.objects.range(run.name, begin, stop), run.name)
        except ObjectNotFound:
            raise CorruptObject(run.name, MISSING) from None
        except ObjectCutShort as error:
            raise CorruptObject(run.name, str(error)) from None


BLOCKS_MAX = 16
"""Maximum number of blocks that a search reads at a time: a MiB."""


def _blocks_around(entry: int, of: int, low: int, high: int) -> tuple[int, int]:
    """Return the blocks, within ``[low, high)``, in which a hash is that should be at ``entry``, which was reckoned
    over a distance of ``of`` entries: within twice the standard deviation, or less if that are too many."""
    margin = min(isqrt(of), (BLOCKS_MAX - 1) * BLOCK_ENTRIES // 2)
    first = min(max((entry - margin) // BLOCK_ENTRIES, low), high - 1)
    return first, min(max((entry + margin) // BLOCK_ENTRIES + 1, first + 1), high)


_KEY_RECORDS = 64
"""Records of a key that are read side by side."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A sorted run of keys: its object, where it begins there, its length; the fragment that it belongs to, or None;
    the hashes that it may have."""

    name: str
    at: int
    keys: int
    entry: Entry | None
    first_hash: int = 0
    last_hash: int = HASH_MAX

    def entries_below(self, distance: int) -> int:
        """Return how many entries have hashes in a range of this size, if they are spread evenly."""
        return distance * self.keys // (self.last_hash - self.first_hash + 1)


def _keys_of(record: Record) -> tuple[str, ...]:
    properties = record.property_map()
    unique = properties.get(PROPERTY_UNIQ_KEY)
    return (*split_keys(properties.get(PROPERTY_KEYS)), *((unique,) if unique else ()))


def _within(end: int, entry: Entry) -> int:
    if end > entry.idx_bytes:
        raise CorruptObject(entry.name.idx, f"its parts end at byte {end:,}, and it has {entry.idx_bytes:,}")
    return end


def _may_be_in(listed: Entry | Group | KeyRun, since_ms: int | None, until_ms: int | None) -> bool:
    """Return whether something listed may have messages of a time range."""
    return (since_ms is None or listed.last_ms >= since_ms) and (until_ms is None or listed.first_ms < until_ms)


_Ranged = TypeVar("_Ranged", Entry, Group)


def _covering(listed: Sequence[_Ranged], physical_offset: int) -> _Ranged | None:
    """Return the one that covers a position, of some in the log's order."""
    at = bisect_right(listed, physical_offset, key=lambda each: each.start)
    return listed[at - 1] if at and physical_offset < listed[at - 1].end else None


def _uncovered(covered: Iterable[tuple[int, int]], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``[begin, end)`` that none of the ranges covers."""
    for start, stop in sorted(covered):
        if start > begin:
            yield begin, min(start, end)
        begin = max(begin, stop)
    if begin < end:
        yield begin, end


class Fragment:
    """A fragment: its entry, and its index's head, frames and queues."""

    def __init__(self, reader: ArchiveReader, entry: Entry, head: IndexHead, frames: Rows, queues: Rows) -> None:
        self.entry = entry
        self.head = head
        self.frames = frames
        """Rows of ``LogFrame``."""
        self.queues = queues
        """Rows of ``QueueRun``."""
        self._reader = reader
        self._starts = frames["physical_offset"].astype(np.int64)
        self._ends = self._starts + frames["raw_bytes"]
        self._before = np.concatenate(([0], np.cumsum(frames["raw_bytes"], dtype=np.int64)))
        """Bytes of the log in the frames before each."""

        begins = np.ones(len(frames), np.bool_)
        begins[1:] = self._starts[1:] != self._ends[:-1]
        self._stretches = self._starts[begins]
        """Where the ranges of the log begin that the fragment holds without a hole."""

    def stretches(self) -> list[tuple[int, int]]:
        """Return the ranges of the log that the fragment holds without a hole, in order."""
        last = np.append(np.searchsorted(self._starts, self._stretches[1:]) - 1, len(self._ends) - 1)
        return list(zip(self._stretches.tolist(), self._ends[last].tolist(), strict=True)) if len(self._ends) else []

    def stretch_of(self, physical_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of the stretch that each byte of the log is in; all must be in one."""
        return np.searchsorted(self._stretches, physical_offsets, "right") - 1

    def holds(self, physical_offset: int) -> bool:
        """Return whether the fragment holds this byte of the log."""
        row = int(np.searchsorted(self._starts, physical_offset, "right")) - 1
        return row >= 0 and physical_offset < int(self._ends[row])

    def read(self, begin: int, end: int, *, ahead: bool = False) -> bytes:
        """Return ``[begin, end)`` of the log, which must be within a stretch. ``ahead``: as for ``read_into``."""
        found = bytearray(end - begin)
        self.read_into(memoryview(found), begin, ahead=ahead)
        return bytes(found)

    def read_into(self, buffer: memoryview, begin: int, *, ahead: bool) -> None:
        """Fill ``buffer`` with the log from ``begin`` on, all of which must be within a stretch.

        ``ahead``: what follows will be read too; it is asked for meanwhile. Raises ``CorruptObject``.
        """
        end = begin + len(buffer)
        starts, ends = self._starts, self._ends
        first = int(np.searchsorted(starts, begin, "right")) - 1
        stop = int(np.searchsorted(starts, end, "left"))
        if first < 0 or end > ends[stop - 1] or (starts[first + 1 : stop] != ends[first : stop - 1]).any():
            raise CorruptObject(self.entry.name.log, f"it lacks physical offsets {begin:,} to {end:,}")
        step = AHEAD_FRAMES if ahead else 1
        blocks = range(first // step, -(-stop // step))
        if ahead:
            for block in range(blocks.stop, min(blocks.stop + AHEAD_READS, -(-len(starts) // step))):
                if (self.entry.name, step, block) not in self._reader.blocks:
                    self._reader.pool.submit(self._block, block, step)
        at = int(self._before[first]) + begin - int(starts[first])  # counted in bytes of the log in this fragment
        done = 0
        for block in blocks:
            raw = memoryview(self._block(block, step))
            skipped = max(at - int(self._before[block * step]), 0)
            part = raw[skipped : skipped + len(buffer) - done]
            buffer[done : done + len(part)] = part
            done += len(part)

    def _block(self, block: int, step: int) -> bytes:
        """Return the bytes of the log in ``step`` frames."""
        rows = self.frames[block * step : (block + 1) * step]
        size = int(rows["raw_bytes"].sum(dtype=np.int64))
        return self._reader.blocks.get((self.entry.name, step, block), lambda: self._decoded(rows), size)

    def _decoded(self, rows: Rows) -> bytes:
        name, compression = self.entry.name.log, self.head.compression
        begin, end = stored_range(rows)
        stored = self._reader.range(self.entry, name, begin, end)
        view = memoryview(stored)
        raws = []
        for row in rows:
            at = int(row["at"]) - begin
            raws.append(decode_frame(view[at : at + int(row["stored_bytes"])], row, compression, name))
        return stored if compression == "none" else b"".join(raws)

    # ---- units

    def runs_of(self, topic: str, queue_id: int) -> Rows:
        """Return the rows of ``queues`` of a queue, in its order."""
        if topic not in self.head.topics:
            return self.queues[:0]
        queues = self.queues
        chosen = queues[(queues["topic"] == self.head.topics.index(topic)) & (queues["queue_id"] == queue_id)]
        ordered: Rows = chosen[np.argsort(chosen["first"])]
        return ordered

    def units(self, run: Any) -> bytes:
        """Return the ConsumeQueue units of a row of ``queues``. Raises ``CorruptObject``."""
        name, begin = self.entry.name.idx, self.head.range_of("units")[0] + int(run["units_at"])
        key = self.entry.name, "units", int(run["units_at"])
        size = int(run["length"]) * UNIT_BYTES

        def load() -> bytes:
            units = self._reader.range(self.entry, name, begin, _within(begin + size, self.entry))
            check_units(units, run, name)
            return units

        return self._reader.blocks.get(key, load, size)
