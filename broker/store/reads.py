"""Reading the store: pull by offset, query by key, view by id, offsets by time.

Every function is synchronous and takes ``hot``. With ``hot`` it answers from the page cache alone and raises
``WouldBlock`` where it cannot; the caller repeats it with ``hot=False`` in a reader thread, so that a consumer at the
far end of the log never holds up a producer. No view of a map leaves: records are read into a fresh buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from ...protocol.delivery import UNREADABLE_TOPICS
from ...protocol.errors import (
    PULL_NOT_FOUND,
    PULL_RETRY_IMMEDIATELY,
    SUCCESS,
    InvalidParameter,
    MessageNotFound,
    OffsetOutOfRange,
    QueueNotExist,
    TopicNotExist,
)
from ...protocol.fields import I32_MAX
from ...protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from ...protocol.ids import parse_offset_id
from ...protocol.javahash import index_key_hash
from ...protocol.layout import RECORD_BYTES_MIN, RECORD_STRUCT, UNIT_BYTES
from ...protocol.names import is_system_topic
from ...protocol.record import (
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
    CorruptRecord,
    Record,
    check_record_crc,
    decode_record,
    split_keys,
)
from ..kernels import gather as kernel
from .checksummed import ChecksummedRanges
from .commitlog import CommitLog
from .config_files import TopicTable
from .consume_queue import ConsumeQueue
from .errors import CorruptLog, DamagedRecord, WouldBlock
from .index_file import IndexFile, IndexService
from .quarantine import Quarantine, QuarantinedRange
from .queue_table import ConsumeQueueTable
from .record_filter import RecordFilter, keep_matching
from .store_state import StoreState

UNITS_A_STEP = 4096
FILTERED_UNITS_MAX = 65_536
"""A pull with tags looks at no more units than this before it answers."""
FILTERED_RECORDS_MAX = 512
FILTERED_RECORDS_MIN = 256
"""So many records are read for a filter although fewer are wanted: it may let few of them through."""
FILTERED_BYTES_MAX = 512 * 1024
"""A pull with a filter reads no more records and bytes than this before it answers, but for a single larger record."""
ANSWER_BYTES_MAX = FRAME_BYTES_MAX - HEADER_BYTES_MAX - 8
QUERY_PAGE_MAX = 64
HOT_ENTRIES_MAX = 256
"""A query that looks at more index entries than this goes on in a reader thread."""
GAP_BYTES_MAX = 4096
SPARSE_MAX = 8
SPAN_BYTES_MAX = 4 * 1024 * 1024

_NO_TAGS = np.zeros(1, np.int64)


@dataclass(slots=True)
class Pulled:
    """The answer to a pull. ``body``: count × u32 sizes, then the records, in a buffer of its own."""

    code: int
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytearray


@dataclass(slots=True)
class Found:
    """The answer to a query: records as in ``Pulled``, newest first; ``cursor``: where the next page begins, empty at
    the end; ``index_behind_bytes``: CommitLog bytes that the index does not cover yet."""

    count: int
    cursor: str
    index_behind_bytes: int
    body: bytearray


class Reads:
    """The read side of a store; any thread."""

    def __init__(
        self,
        commitlog: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService,
        topics: TopicTable,
        state: StoreState,
        quarantine: Quarantine,
    ) -> None:
        self.quarantine = quarantine
        self._commitlog = commitlog
        self._queues = queues
        self._index = index
        self._topics = topics
        self._state = state

    # Queues.

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue; None where it holds no message. Raises ``TopicNotExist`` or ``QueueNotExist``."""
        config = self._topics.get(topic)
        if config is None:
            raise TopicNotExist(f"topic {topic!r} does not exist; create it or produce to it first")
        if not 0 <= queue_id < config.queues:
            raise QueueNotExist(f"topic {topic!r} has queues 0 to {config.queues - 1}, not {queue_id}")
        return self._with_messages(topic, queue_id)

    def _with_messages(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queue = self._queues.get(topic, queue_id)
        return queue if queue is not None and queue.max_offset > queue.start_offset else None

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the queue's next message, when all that was appended is dispatched.

        The ConsumeQueue's end, unless retention or a deletion took its records: then only the store's state knows.
        """
        queue = self._queues.get(topic, queue_id)
        return max(queue.max_offset if queue is not None else 0, self._state.next_offset(topic, queue_id))

    def end_offset(self, topic: str, queue_id: int) -> int:
        """Behind the queue's last message, or where its offsets go on if it has none, whether there is such a topic or
        not."""
        queue = self._with_messages(topic, queue_id)
        return queue.max_offset if queue is not None else self.next_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the queue's next dispatched message has."""
        self.queue(topic, queue_id)
        return self.end_offset(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int, *, hot: bool) -> int:
        """The first offset that can be read."""
        queue = self.queue(topic, queue_id)
        return self._min_offset(queue, hot) if queue is not None else self.next_offset(topic, queue_id)

    def first_offset(self, queue: ConsumeQueue, *, hot: bool = False) -> int:
        """The first offset of a queue whose message is still in the log."""
        return self._min_offset(queue, hot)

    def _min_offset(self, queue: ConsumeQueue, hot: bool) -> int:
        log_start = max(self._commitlog.start_offset, self._state.deleted_below(queue.topic))
        low, high = queue.min_hint, queue.max_offset
        if log_start == 0 or low >= high or queue.unit(low, hot=hot)[0] >= log_start:
            return low
        while low < high:
            middle = (low + high) // 2
            if queue.unit(middle, hot=hot)[0] < log_start:
                low = middle + 1
            else:
                high = middle
        queue.min_hint = low
        return low

    def _store_ms(self, queue: ConsumeQueue, queue_offset: int, hot: bool) -> int | None:
        physical_offset, size, _ = queue.unit(queue_offset, hot=hot)
        return self.stored_ms(physical_offset, size, hot=hot) if size > 0 else None

    def stored_ms(self, physical_offset: int, size: int, *, hot: bool = False) -> int | None:
        """When the record there was stored, ms; of a tombstone, when the one in front of it was. None where there is
        none."""
        record = self._decoded(self._bytes_at(physical_offset, size, hot), physical_offset)
        return record.store_timestamp if record is not None else None

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, hot: bool) -> int:
        """The first offset whose store time is not before ``timestamp_ms``; the max offset where all are before."""
        queue = self.queue(topic, queue_id)
        if queue is None:
            return self.next_offset(topic, queue_id)
        low, high = self._min_offset(queue, hot), queue.max_offset
        while low < high:
            middle = (low + high) // 2
            store_ms = self._store_ms(queue, middle, hot)
            if store_ms is None or store_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def earliest_store_time(self, topic: str, queue_id: int, *, hot: bool) -> int:
        """Store time of the queue's first message in ms, -1 where it is empty."""
        queue = self.queue(topic, queue_id)
        if queue is None:
            return -1
        first = self._min_offset(queue, hot)
        store_ms = self._store_ms(queue, first, hot) if first < queue.max_offset else None
        return -1 if store_ms is None else store_ms

    def topic_stats(self, topic: str, *, hot: bool) -> list[tuple[int, int, int, int]]:
        """(queue, min offset, max offset, store time of the last message or -1) of every queue of the topic."""
        self.queue(topic, 0)
        config = self._topics.get(topic)
        rows = []
        for queue_id in range(config.queues if config is not None else 0):
            queue = self._with_messages(topic, queue_id)
            if queue is None:
                next_offset = self.next_offset(topic, queue_id)
                rows.append((queue_id, next_offset, next_offset, -1))
                continue
            low, high = self._min_offset(queue, hot), queue.max_offset
            store_ms = self._store_ms(queue, high - 1, hot) if high > low else None
            rows.append((queue_id, low, high, -1 if store_ms is None else store_ms))
        return rows

    # Pull.

    def pull(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tags: frozenset[int] | None,
        *, hot: bool, records: RecordFilter | None = None, one_at_least: bool = True,
    ) -> Pulled:  # fmt: skip
        """Records of a queue from ``offset`` on; with ``one_at_least`` one comes however few bytes are asked for.

        ``tags``: tag codes, any of which a record must have; None: all. ``records``: what a record must match, too.
        Where none of those that were looked at does, the code is ``PULL_RETRY_IMMEDIATELY``. Raises
        ``OffsetOutOfRange``, ``TopicNotExist``, ``QueueNotExist``, ``CorruptLog`` where a unit's record is damaged, and
        with ``hot`` ``WouldBlock``.
        """
        queue = self.queue(topic, queue_id)
        max_offset = queue.max_offset if queue is not None else self.next_offset(topic, queue_id)
        min_offset = self._min_offset(queue, hot) if queue is not None else max_offset
        if not min_offset <= offset <= max_offset:
            raise OffsetOutOfRange(
                f"offset {offset} of queue {queue_id} of {topic!r} is outside of [{min_offset}, {max_offset}]; pull "
                "from one of these on",
                min_offset=min_offset, max_offset=max_offset,
            )  # fmt: skip
        if queue is None or offset == max_offset:
            return Pulled(PULL_NOT_FOUND, 0, offset, min_offset, max_offset, bytearray())
        max_bytes = min(max_bytes, ANSWER_BYTES_MAX - 4 * min(max_count, max_bytes // RECORD_BYTES_MIN + 1))
        read_count, read_bytes = max_count, max_bytes
        if records is not None:
            read_count = min(max(max_count, FILTERED_RECORDS_MIN), FILTERED_RECORDS_MAX)
            read_bytes = FILTERED_BYTES_MAX
        chosen, count, size, next_offset = self._choose(queue, offset, max_offset, read_count, read_bytes, tags, hot)
        body = bytearray()
        if count:
            body, sound = self._read_chosen(chosen, count, size, queue, hot)
            if sound < count:  # what stands in front of a damaged record is delivered; the next pull says what it is
                next_offset = int(chosen[sound * kernel.CHOSEN_ROW + kernel.C_QUEUE_OFFSET])
                count = sound
        if records is not None and count:
            kept = keep_matching(body, count, records, max_count, max_bytes, one_at_least=one_at_least)
            if kept.looked < count:
                next_offset = int(chosen[kept.looked * kernel.CHOSEN_ROW + kernel.C_QUEUE_OFFSET])
            count, body = kept.count, kept.body
        if count == 0:
            code = PULL_RETRY_IMMEDIATELY if next_offset < max_offset else PULL_NOT_FOUND
            return Pulled(code, 0, next_offset, min_offset, max_offset, bytearray())
        return Pulled(SUCCESS, count, next_offset, min_offset, max_offset, body)

    def _choose(
        self, queue: ConsumeQueue, offset: int, max_offset: int, max_count: int, max_bytes: int,
        tags: frozenset[int] | None, hot: bool,
    ) -> tuple[np.ndarray, int, int, int]:  # fmt: skip
        """(chosen records, how many, their bytes, queue offset to go on from)."""
        commitlog = self._commitlog
        codes = np.array(sorted(tags), np.int64) if tags else _NO_TAGS
        looked_max = FILTERED_UNITS_MAX if tags else min(max_count, max_bytes // RECORD_BYTES_MIN + 1)
        looked = 0
        while True:
            step = min(
                UNITS_A_STEP if tags else looked_max, max_offset - offset, looked_max - looked, UNITS_A_STEP * 16
            )
            units = queue.read_units(offset, step, hot=hot)
            unit_count = len(units) // UNIT_BYTES
            if unit_count == 0:
                raise CorruptLog(f"{queue.folder} has no unit {offset:,} although it should reach to {max_offset:,}")
            chosen = np.empty(min(unit_count, max_count) * kernel.CHOSEN_ROW, np.int64)
            seen, count, size = kernel.choose(
                np.frombuffer(units, np.uint8), unit_count, offset, codes, len(tags) if tags else 0,
                commitlog.start_offset, commitlog.write_offset, max_count, max_bytes, chosen,
            )  # fmt: skip
            offset += seen
            looked += seen
            if self.quarantine and count:
                chosen, count, size = self._without_quarantined(chosen, count)
            if count or offset >= max_offset or looked >= looked_max:
                return chosen, count, size, offset

    def _without_quarantined(self, chosen: np.ndarray, count: int) -> tuple[np.ndarray, int, int]:
        """The chosen records that are no tombstones, how many, and their bytes."""
        rows = chosen[: count * kernel.CHOSEN_ROW].reshape(-1, kernel.CHOSEN_ROW)
        kept = np.ascontiguousarray(rows[~self.quarantine.mask(rows[:, kernel.C_PHYSICAL_OFFSET])])
        return kept.reshape(-1), len(kept), int(kept[:, kernel.C_SIZE].sum())

    def _read_chosen(
        self, chosen: np.ndarray, count: int, size: int, queue: ConsumeQueue, hot: bool
    ) -> tuple[bytearray, int]:
        """The chosen records up to the first that is damaged, and how many. Raises ``DamagedRecord`` for the first."""
        records_at = 4 * count
        body = bytearray(records_at + size)
        self._copy_chosen(chosen, count, body, records_at, hot)
        bad = kernel.finish(np.frombuffer(body, np.uint8), records_at, chosen, count, queue.queue_id)
        if bad == kernel.SOUND:
            return body, count
        if bad:
            return self._read_chosen(chosen, bad, int(chosen[1 : 3 * bad : 3].sum()), queue, hot)
        physical_offset, queue_offset = int(chosen[kernel.C_PHYSICAL_OFFSET]), int(chosen[kernel.C_QUEUE_OFFSET])
        raise DamagedRecord(
            f"message {queue_offset:,} of queue {queue.queue_id} of {queue.topic!r} is damaged: no sound record is "
            f"at physical offset {physical_offset:,}, where the queue points. Stop the broker and run `flintmq-broker "
            f"repair --apply` on its store, which keeps the bytes aside; or go on from offset {queue_offset + 1:,}",
            physical_offset, "no sound record where a queue points",
        )  # fmt: skip

    def records(self, chosen: np.ndarray, *, hot: bool) -> bytearray:
        """The bytes of records one behind the other, not looked at: ``chosen`` has a row of (physical offset, size,
        anything) for each, within the log."""
        count = len(chosen) // kernel.CHOSEN_ROW
        body = bytearray(int(chosen[kernel.C_SIZE :: kernel.CHOSEN_ROW].sum()))
        self._copy_chosen(chosen, count, body, 0, hot)
        return body

    def _copy_chosen(self, chosen: np.ndarray, count: int, body: bytearray, at: int, hot: bool) -> None:
        """Fill ``body`` from ``at`` on with the chosen records."""
        out = np.frombuffer(body, np.uint8)
        view = memoryview(body)
        log_files = self._commitlog.queue
        reads = np.empty(count * kernel.READ_ROW, np.int64)
        read_count = kernel.plan_reads(
            chosen, count, log_files.file_bytes, GAP_BYTES_MAX, SPARSE_MAX, SPAN_BYTES_MAX, reads
        )
        for begin, length, first, records in (
            reads[: read_count * kernel.READ_ROW].reshape(-1, kernel.READ_ROW).tolist()
        ):
            wanted = int(chosen[first * 3 + 1 : (first + records) * 3 : 3].sum()) if records > 1 else length
            if wanted == length:
                log_files.read(begin, view[at : at + length], hot=hot)
                at += length
                continue
            span = bytearray(length)
            log_files.read(begin, memoryview(span), hot=hot)
            at = kernel.gather(np.frombuffer(span, np.uint8), begin, chosen, first, records, out, at)

    # By key and by id.

    def record_at(self, physical_offset: int, size: int) -> Record | None:
        """The record there, checked; None where there is none. ``size``: 0 where it is not known. Reads from disk."""
        return self._record(physical_offset, size, hot=False)

    def consumable_record(self, physical_offset: int, *, hot: bool) -> Record | None:
        """The record there if a consumer could have it: of a topic that is there and that may be read."""
        record = self._record(physical_offset, 0, hot)
        if record is None:
            return None
        name = record.topic.decode("utf-8", "replace")
        if self._topics.get(name) is None or name in UNREADABLE_TOPICS:
            return None
        return record if physical_offset >= self._state.deleted_below(name) else None

    def record(self, physical_offset: int, size: int, *, hot: bool) -> Record | None:
        """As ``record_at``; with ``hot`` from the page cache alone, or ``WouldBlock``."""
        return self._record(physical_offset, size, hot)

    def _record(self, physical_offset: int, size: int, hot: bool) -> Record | None:
        """The record there, checked; None where there is none, or a tombstone."""
        return self._decoded(self._raw(physical_offset, size, hot), physical_offset)

    @property
    def checksummed(self) -> ChecksummedRanges:
        """Where every record must have a checksum over all of it."""
        return self._state.checksummed

    def _decoded(self, blob: bytearray | None, physical_offset: int) -> Record | None:
        if blob is None:
            return None
        try:
            record = decode_record(blob)
            if self.checksummed.at(physical_offset)[0]:
                check_record_crc(blob)
        except CorruptRecord:
            return None
        return record if record.physical_offset == physical_offset else None

    def _raw(self, physical_offset: int, size: int, hot: bool) -> bytearray | None:
        """The bytes of the record there, but of no tombstone."""
        if self.quarantine and self.quarantine.covers(physical_offset):
            return None
        return self._bytes_at(physical_offset, size, hot)

    def _bytes_at(self, physical_offset: int, size: int, hot: bool) -> bytearray | None:
        commitlog = self._commitlog
        file = commitlog.queue.find(physical_offset)
        end = min(file.end_offset, commitlog.write_offset) if file is not None else 0
        if physical_offset < 0 or physical_offset + max(size, RECORD_BYTES_MIN) > end:
            return None
        if size <= 0:
            head = bytearray(RECORD_BYTES_MIN)
            commitlog.queue.read(physical_offset, memoryview(head), hot=hot)
            size = RECORD_STRUCT.unpack_from(head)[0]
            if size < RECORD_BYTES_MIN or physical_offset + size > end:
                return None
        blob = bytearray(size)
        commitlog.queue.read(physical_offset, memoryview(blob), hot=hot)
        return blob

    def query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_count: int, cursor: str, *, hot: bool,
        behind_bytes: int = 0, visible_below: int | None = None,
    ) -> Found:  # fmt: skip
        """Messages of the topic with that key (one of KEYS, or the unique key), stored in ``[begin_ms, end_ms]``,
        newest first.

        ``visible_below``: records at or behind this physical offset are not shown (not yet flushed). Raises
        ``TopicNotExist``, ``InvalidParameter`` for a cursor that is none, and with ``hot`` ``WouldBlock``.
        """
        if self._topics.get(topic) is None:
            raise TopicNotExist(f"topic {topic!r} does not exist; create it or produce to it first")
        after = _parse_cursor(cursor)
        records: list[bytearray] = []
        size = 0
        max_count = min(max_count, QUERY_PAGE_MAX)
        next_cursor = ""
        seen_offset = after[2] if after else None
        entries = 0
        for file, physical_offset, number in self._entries(topic, key, begin_ms, end_ms, after, hot):
            entries += 1
            if hot and entries > HOT_ENTRIES_MAX:
                raise WouldBlock
            if seen_offset is not None and physical_offset >= seen_offset:
                continue  # a page ends inside of a chain, and an offset can stand in it twice
            seen_offset = physical_offset
            if visible_below is not None and physical_offset >= visible_below:
                continue
            blob = self._match(topic, key, begin_ms, end_ms, physical_offset, hot)
            if blob is None:
                continue
            if len(records) == max_count or (records and size + len(blob) > ANSWER_BYTES_MAX):
                break
            records.append(blob)
            size += len(blob)
            last = (file, number, physical_offset)
        else:
            return Found(len(records), "", behind_bytes, _join(records))
        next_cursor = f"{last[0].path.name}:{last[1]}:{last[2]}"
        return Found(len(records), next_cursor, behind_bytes, _join(records))

    def _entries(
        self, topic: str, key: str, begin_ms: int, end_ms: int, after: tuple[str, int, int] | None, hot: bool
    ) -> Iterator[tuple[IndexFile, int, int]]:
        key_hash = index_key_hash(topic, key)
        for file in reversed(list(self._index.files)):
            entry = 0
            if after is not None and file.path.name > after[0]:
                continue
            if after is not None and file.path.name == after[0]:
                entry = after[1]
            if not file.overlaps(begin_ms, end_ms):
                continue
            for physical_offset, number in file.chain(key_hash, begin_ms, end_ms, entry, hot=hot):
                yield file, physical_offset, number

    def _match(
        self, topic: str, key: str, begin_ms: int, end_ms: int, physical_offset: int, hot: bool
    ) -> bytearray | None:
        """The record there if it really is of that topic, key and time: hashes collide, and entries keep seconds."""
        blob = self._raw(physical_offset, 0, hot) if physical_offset >= self._state.deleted_below(topic) else None
        if blob is None:
            return None
        try:
            record = decode_record(blob, check_crc=False)
            if self.checksummed.at(physical_offset)[0]:
                check_record_crc(blob)
        except CorruptRecord:
            return None
        if record.topic != topic.encode() or record.physical_offset != physical_offset:
            return None
        if not begin_ms <= record.store_timestamp <= end_ms:
            return None
        properties = record.property_map()
        if properties.get(PROPERTY_UNIQ_KEY) != key and key not in split_keys(properties.get(PROPERTY_KEYS)):
            return None
        return blob

    def _may_show(self, record: Record, topic: str, may_show: Callable[[str], bool] | None) -> bool:
        """Whether an id may lead to the record: of that topic, if one was named, and of one that is there."""
        name = record.topic.decode("utf-8", "replace")
        return (
            topic in ("", name)
            and (may_show is None or may_show(name))
            and self._topics.get(name) is not None
            and not is_system_topic(name)
            and record.physical_offset >= self._state.deleted_below(name)
        )

    def view(
        self, message_id: str, topic: str, *, hot: bool, visible_below: int,
        may_show: Callable[[str], bool] | None = None,
    ) -> Found:  # fmt: skip
        """One message by id: first as an offset id, then as a unique key, in ``topic`` or in every user topic.

        ``may_show``: messages of other topics than those are as if they were not there. Raises ``MessageNotFound``, and
        with ``hot`` ``WouldBlock``.
        """
        parsed = parse_offset_id(message_id)
        damaged = self.quarantine.find(parsed[1]) if parsed is not None else None
        if damaged is not None:
            raise MessageNotFound(self._what_was_lost(message_id, damaged))
        if parsed is not None and parsed[1] < visible_below:
            record = self._record(parsed[1], 0, hot)
            if record is not None and self._may_show(record, topic, may_show):
                return Found(1, "", 0, _join([bytearray(record.encode())]))
        names = [topic] if topic else [config.name for config in self._topics if not is_system_topic(config.name)]
        for name in names if may_show is None else filter(may_show, names):
            found = self.query(name, message_id, 0, I32_MAX << 31, 1, "", hot=hot, visible_below=visible_below)
            if found.count:
                return Found(1, "", 0, found.body)
        where = f"topic {topic!r}" if topic else "any topic"
        raise MessageNotFound(
            f"no message with id {message_id!r} was found in {where}; it may be expired or not indexed yet"
        )

    def _what_was_lost(self, message_id: str, damaged: QuarantinedRange) -> str:
        found = datetime.fromtimestamp(damaged.found_ms / 1000, tz=UTC)
        return (
            f"the message with id {message_id!r} is lost: the log was damaged there ({damaged.reason} at physical "
            f"offset {damaged.physical_offset:,}, {damaged.bytes:,} bytes), found at {found:%Y-%m-%d %H:%M:%S} UTC. "
            f"Its bytes are kept in {self.quarantine.folder / damaged.file}; a backup of the log may have it"
        )


def _join(records: list[bytearray]) -> bytearray:
    """count × u32 sizes, then the records."""
    body = bytearray()
    for record in records:
        body += len(record).to_bytes(4, "big")
    for record in records:
        body += record
    return body


def _parse_cursor(cursor: str) -> tuple[str, int, int] | None:
    """(index file, entry number, physical offset) of the last record of the page before; None for the first page."""
    if not cursor:
        return None
    name, _, rest = cursor.partition(":")
    number, _, physical_offset = rest.partition(":")
    if not (len(name) == 17 and name.isascii() and name.isdigit() and _digits(number) and _digits(physical_offset)):
        raise InvalidParameter(f"{cursor[:80]!r} is no cursor; pass the one of the answer before, or none")
    return name, int(number), int(physical_offset)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18  # fits the kernels' integers
