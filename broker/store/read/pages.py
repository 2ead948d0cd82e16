"""Pages of a topic: the messages of all its queues in the order in which they were stored, newest or oldest first.

The physical offset is the order of the log, and within a queue the units' physical offsets ascend. So one number bounds
a page in every queue at once: each queue is searched for it by halving, and no message is looked at in vain unless tags
or a filter select some. Functions block and belong in a reader thread.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.layout import PRE_BLANK_SIZE, RECORD_BYTES_MIN, RECORD_HEAD_BYTES_MAX, UNIT, record_head
from ....protocol.storage.record import (
    PROPERTY_SEPARATOR,
    CorruptRecord,
    decode_host,
    locate_record,
    offset_id,
    unpack_head,
)
from ..errors import CorruptLog

if TYPE_CHECKING:
    from ....protocol.storage.layout import RecordHead
    from ..log.commitlog import CommitLog
    from ..queues import ConsumeQueue
    from .pulls import RecordFilter
    from .queue_reads import LogReads, QueueReads

BLOCK_UNITS_MAX = 4096
"""Maximum number of units that are read of one queue at a time."""
SEARCH_S = 0.1
"""Time after which a search by tags or filter returns what it has found: its thread shares the GIL with the loop."""
FILTERED_RECORDS = 64
"""Number of records whose properties are filtered together."""
PAGE_BYTES_MAX = 1024 * 1024
"""Approximate maximum bytes of bodies and properties in one page."""
WHOLE_BYTES_MAX = 16 * 1024
"""Records up to this size are read in one piece; of longer ones, the body's middle is not read."""

_UNIT_DTYPE = np.dtype(UNIT.dtype())
_I32 = struct.Struct(">i")
_EVERYTHING = np.iinfo(np.int64).max
_PHYSICAL, _SIZE, _CODE, _QUEUE, _OFFSET = range(5)
Rows = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""Units, one a row: physical offset, size, tag code, queue, queue offset."""


@dataclass(frozen=True, slots=True)
class PageBounds:
    """Where a page begins, and in which direction it goes. Of the three positions at most one is set; none: it begins
    at the end that the direction comes from.

    ``backward``: newest first, from before the position; else oldest first, from the position on. ``physical``: a
    physical offset; ``since_ms``: a store time; ``queue_offset``: an offset of the only queue; -1: not set.
    """

    backward: bool = True
    physical: int = -1
    since_ms: int = -1
    queue_offset: int = -1


@dataclass(frozen=True, slots=True)
class PageSelection:
    """Limits and conditions of a page. ``tags``: tag codes, one of which a message must have (None: all);
    ``records``: a filter that it must match too; ``scan_max``: number of messages to look at if either is given."""

    count: int
    body_bytes: int
    tags: frozenset[int] | None = None
    records: RecordFilter | None = None
    scan_max: int = 10_000


@dataclass(slots=True)
class MessagePage:
    """The messages of a page. ``rows``: as in the response to BROWSE_MESSAGES; ``next_physical``: the position at which
    the next page in this direction begins, or -1; ``examined``: number of messages looked at; ``reached_ms``,
    ``reached_physical``: store time of the last one, in ms since 1970 UTC, and its physical offset, or -1;
    ``lost``: number of messages on the way that are damaged or in quarantine; ``messages``: number of messages in
    the queues; ``max_offsets``: sum of the queues' max offsets."""

    rows: list[tuple[object, ...]] = field(default_factory=list)
    next_physical: int = -1
    examined: int = 0
    reached_ms: int = -1
    reached_physical: int = -1
    lost: int = 0
    messages: int = 0
    max_offsets: int = 0


class _Reader:
    """One queue's part of a search. ``low``, ``high``: the offsets that are still to be looked at."""

    __slots__ = ("high", "low", "queue")

    def __init__(self, queue: ConsumeQueue, low: int, high: int) -> None:
        self.queue = queue
        self.low = low
        self.high = high


class Pages:
    """Reads of pages. Any thread may call them. ``clock``: seconds."""

    def __init__(
        self, commitlog: CommitLog, queues: QueueReads, log: LogReads, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._log = log
        self._clock = clock

    def page(self, topic: str, queue_ids: Sequence[int], bounds: PageBounds, selection: PageSelection) -> MessagePage:
        """Return a page of these queues of a topic. Raises ``TopicNotExist`` and ``QueueNotExist``."""
        found = MessagePage()
        readers = [reader for queue_id in queue_ids if (reader := self._reader(topic, queue_id, bounds, found))]
        selects = selection.tags is not None or selection.records is not None
        deadline = self._clock() + SEARCH_S
        block, size = selection.count + 1, 0
        step = FILTERED_RECORDS if selects else min(FILTERED_RECORDS, selection.count + 1)
        while any(reader.low < reader.high for reader in readers):
            units = self._next_units(readers, block, bounds.backward)
            for start in range(0, len(units), step):
                chunk = units[start : start + step]
                matches, lost = self._matching(chunk, selection)
                for number, content in matches:
                    if len(found.rows) == selection.count or size > PAGE_BYTES_MAX:
                        # The next page begins with this match.
                        found.examined += number
                        found.lost += sum(1 for each in lost if each < number)
                        found.next_physical = content.head.physical_offset + (1 if bounds.backward else 0)
                        return found
                    found.rows.append(content.row())
                    found.reached_physical = content.head.physical_offset
                    found.reached_ms = content.head.store_timestamp
                    size += len(content.prefix) + len(content.properties)
                found.examined += len(chunk)
                found.lost += len(lost)
                found.reached_physical = int(chunk[-1, _PHYSICAL])
                if selects and (found.examined >= selection.scan_max or self._clock() > deadline):
                    self._stop(found, chunk[-1], bounds.backward)
                    return found
            block = min(2 * block, BLOCK_UNITS_MAX) if selects else block
        return found

    def _stop(self, found: MessagePage, last: np.ndarray, backward: bool) -> None:
        """Note that the search ended after this unit, and when its message was stored."""
        physical, size = int(last[_PHYSICAL]), int(last[_SIZE])
        found.next_physical = physical if backward else physical + 1
        reached_ms = self._log.stored_ms(physical, size)
        found.reached_ms = found.reached_ms if reached_ms is None else reached_ms

    def _reader(self, topic: str, queue_id: int, bounds: PageBounds, found: MessagePage) -> _Reader | None:
        """Return a queue's part of the search, or None if the queue is empty; add its messages to the totals."""
        queue = self._queues.queue(topic, queue_id)
        if queue is None:
            found.max_offsets += self._queues.next_offset(topic, queue_id)
            return None
        low, high = self._queues.first_offset(queue, hot=False), queue.max_offset
        found.messages += high - low
        found.max_offsets += high
        if bounds.queue_offset >= 0:
            at = min(max(bounds.queue_offset, low), high)
        elif bounds.since_ms >= 0:
            at = self._queues.first_since(queue, bounds.since_ms, hot=False)
        elif bounds.physical >= 0:
            at = self._first_from(queue, bounds.physical, low, high)
        else:
            at = high if bounds.backward else low
        return _Reader(queue, low, at) if bounds.backward else _Reader(queue, at, high)

    def _next_units(self, readers: list[_Reader], block: int, backward: bool) -> Rows:
        """Return the next units of all queues in the page's order, and advance the readers past them.

        Each queue gives up to ``block`` units. A queue that has more of them limits the others: what it has not given
        yet may belong before their last ones.
        """
        parts = []
        limits = []
        for reader in readers:
            if reader.low >= reader.high:
                continue
            first = max(reader.low, reader.high - block) if backward else reader.low
            end = reader.high if backward else min(reader.high, reader.low + block)
            part = self._units(reader.queue, first, end)
            if first > reader.low if backward else end < reader.high:
                # A block of fillings alone says nothing about the units after it, so all others wait for them.
                nothing = _EVERYTHING if backward else -1
                limits.append(int(part[0 if backward else -1, _PHYSICAL]) if len(part) else nothing)
            parts.append((reader, first, end, part))
        taken = []
        for reader, first, end, part in parts:
            kept = part
            if limits and backward:
                kept = part[part[:, _PHYSICAL] >= max(limits)]
            elif limits:
                kept = part[part[:, _PHYSICAL] <= min(limits)]
            taken.append(kept)
            if len(kept) == len(part):
                reader.low, reader.high = (reader.low, first) if backward else (end, reader.high)
            elif len(kept) and backward:
                reader.high = int(kept[0, _OFFSET])
            elif len(kept):
                reader.low = int(kept[-1, _OFFSET]) + 1
        units = np.concatenate(taken)
        order = np.argsort(units[:, _PHYSICAL], kind="stable")
        return units[order[::-1]] if backward else units[order]

    def _units(self, queue: ConsumeQueue, first: int, end: int) -> Rows:
        """Return the units of the queue offsets from ``first`` to before ``end`` that stand for a message in the
        log."""
        units = np.frombuffer(queue.read_units(first, end - first, hot=False), _UNIT_DTYPE)
        rows = np.empty((len(units), 5), np.int64)
        for column, name in ((_PHYSICAL, "physical_offset"), (_SIZE, "size"), (_CODE, "tags_code")):
            rows[:, column] = units[name]
        rows[:, _QUEUE] = queue.queue_id
        rows[:, _OFFSET] = np.arange(first, first + len(units))
        sizes, offsets = rows[:, _SIZE], rows[:, _PHYSICAL]
        is_message = (sizes >= RECORD_BYTES_MIN) & (sizes != PRE_BLANK_SIZE)
        is_message &= (offsets >= self._commitlog.start_offset) & (offsets <= self._commitlog.write_offset - sizes)
        chosen: Rows = rows[is_message]
        return chosen

    def _first_from(self, queue: ConsumeQueue, physical: int, low: int, high: int) -> int:
        """Return the first queue offset in ``[low, high)`` whose message is at ``physical`` or later; else ``high``."""
        while low < high:
            middle = (low + high) // 2
            probe, size, _ = queue.unit(middle, hot=False)
            at = middle
            if size == PRE_BLANK_SIZE and probe == 0:
                # A filling has no place in the order of the log; the nearest message before it has.
                before = self._units(queue, max(low, middle - BLOCK_UNITS_MAX), middle)
                if len(before):
                    probe, at = int(before[-1, _PHYSICAL]), int(before[-1, _OFFSET])
            if probe < physical:
                low = middle + 1
            else:
                high = at
        return low

    def _matching(self, chunk: Rows, selection: PageSelection) -> tuple[list[tuple[int, _Content]], list[int]]:
        """Return number and content of each message of ``chunk`` that the selection wants, in their order, and the
        numbers of those that are damaged or in quarantine."""
        wanted = np.ones(len(chunk), bool)
        lost: list[int] = []
        if self._log.quarantine:
            gone = self._log.quarantine.mask(chunk[:, _PHYSICAL])
            lost += np.flatnonzero(gone).tolist()
            wanted &= ~gone
        if selection.tags is not None:
            wanted &= np.isin(chunk[:, _CODE], np.array(sorted(selection.tags), np.int64))
        contents = []
        for number in np.flatnonzero(wanted).tolist():
            content = self._content(chunk[number], selection.body_bytes)
            if content is None:
                lost.append(number)
            else:
                contents.append((number, content))
        if selection.records is not None and contents:
            sources = [PROPERTY_SEPARATOR + content.properties for _, content in contents]
            contents = [contents[place] for place in selection.records.select(sources)]
        return contents, lost

    def _content(self, row: np.ndarray, body_bytes: int) -> _Content | None:
        """Return the content of a unit's record; None if it is damaged, or if retention has just deleted it."""
        physical, size = int(row[_PHYSICAL]), int(row[_SIZE])
        try:
            blob = self._record_bytes(physical, size, body_bytes)
            parts = locate_record(blob)
        except (CorruptLog, CorruptRecord):
            return None
        head = parts.head
        if head.physical_offset != physical or head.queue_id != row[_QUEUE] or head.queue_offset != row[_OFFSET]:
            return None
        return _Content(
            head,
            size,
            len(blob) - size,
            bytes(blob[parts.body_at : min(parts.body_end, parts.body_at + body_bytes)]),
            bytes(blob[parts.properties_at : parts.end]),
        )

    def _record_bytes(self, physical: int, size: int, body_bytes: int) -> bytearray:
        """Return the bytes of a record. A long body is cut to ``body_bytes``, and the lengths in the head agree."""
        log = self._commitlog.queue
        if size <= WHOLE_BYTES_MAX + body_bytes:
            blob = bytearray(size)
            log.read(physical, memoryview(blob), hot=False)
            return blob
        begin = bytearray(RECORD_HEAD_BYTES_MAX + body_bytes)
        log.read(physical, memoryview(begin), hot=False)
        head = unpack_head(begin)
        head_bytes = record_head(head.sys_flag).size
        tail_at = head_bytes + head.body_length
        if not head_bytes + body_bytes <= tail_at < size:
            raise CorruptRecord(f"the record at {physical:,} has {size:,} bytes, and a body of {head.body_length:,}")
        tail = bytearray(size - tail_at)
        log.read(physical + tail_at, memoryview(tail), hot=False)
        blob = begin[: head_bytes + body_bytes] + tail
        _I32.pack_into(blob, 0, len(blob))
        _I32.pack_into(blob, head_bytes - _I32.size, body_bytes)  # the body's length is the last field of the head
        return blob


@dataclass(frozen=True, slots=True)
class _Content:
    """A record's parts, its body perhaps cut. ``missing``: minus the number of bytes that were not read."""

    head: RecordHead
    record_bytes: int
    missing: int
    prefix: bytes
    properties: bytes

    def row(self) -> tuple[object, ...]:
        """Return the row of BROWSE_MESSAGES."""
        head = self.head
        host, port = decode_host(head.born_host)
        return (
            head.queue_id,
            head.queue_offset,
            head.physical_offset,
            self.record_bytes,
            head.flag,
            head.sys_flag,
            head.born_timestamp,
            head.store_timestamp,
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            head.reconsume_times,
            head.body_length - self.missing,
            self.prefix,
            self.properties,
            offset_id(head.store_host, head.physical_offset),
        )
