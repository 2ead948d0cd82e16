"""Queries: finding messages by key and by id, and deciding whether the caller may see them.

``hot`` means the same as in ``LogReads``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ....protocol.errors import InvalidParameter, MessageNotFound
from ....protocol.fields import I32_MAX
from ....protocol.names import is_system_topic
from ....protocol.storage.delivery import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, UNREADABLE_TOPICS
from ....protocol.storage.javahash import index_hash
from ....protocol.storage.record import (
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
    CorruptRecord,
    check_record_crc,
    decode_record,
    parse_offset_id,
    split_keys,
)
from ...kernels.text import java_hash
from ..errors import WouldBlock
from .queue_reads import ANSWER_BYTES_MAX

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ..damage import QuarantinedRange
    from ..index import IndexFile, IndexService
    from ..tables.store_state import StoreState
    from ..tables.topic_table import TopicTable
    from .queue_reads import LogReads

log = logging.getLogger(__name__)

QUERY_PAGE_MAX = 64
"""Maximum number of messages in a page."""
HOT_ENTRIES_MAX = 256
"""Maximum number of index entries that a hot query examines; a longer one is repeated in a reader thread."""
ARCHIVE_CURSOR = "archive:"
"""Beginning of the cursor of a page that the archive has; the physical offset before which it begins follows."""
ARCHIVED_TOPICS_MAX = 64
"""Maximum number of topics in which a unique key is searched in the archive, where each costs requests."""
LATEST_MS = I32_MAX << 31
"""A time after the store times of all messages."""


@dataclass(frozen=True, slots=True)
class KeySearch:
    """A search for the messages of a topic with a key: one of KEYS, or the unique key.

    Only messages that were stored in ``[begin_ms, end_ms]`` count. ``max_count``: maximum number of messages in the
    page, at most ``QUERY_PAGE_MAX``; ``cursor``: that of the page before, empty for the first page. ``unique``: only
    the unique key counts, which names one message; other messages may have it as one of their KEYS.
    """

    topic: str
    key: str
    begin_ms: int = 0
    end_ms: int = LATEST_MS
    max_count: int = QUERY_PAGE_MAX
    cursor: str = ""
    unique: bool = False


@dataclass(slots=True)
class QueryResult:
    """The response to a query.

    ``body``: records as in ``pulls.PullResult``, newest first; ``cursor``: start of the next page, empty at the end;
    ``index_behind_bytes``: CommitLog bytes that are not indexed yet; ``damaged``: number of records that the index has
    for the key and that cannot be read.
    """

    count: int
    cursor: str
    index_behind_bytes: int
    body: bytearray
    damaged: int = 0


class ArchivedMessages(Protocol):
    """The messages that only the archive has. Raises ``InArchive`` outside of the archive's threads."""

    def find_key(self, topic: str, key: str, begin_ms: int, end_ms: int, below: int) -> Iterator[bytes]:
        """Yield the records of a topic with a key, newest first, stored in ``[begin_ms, end_ms]`` and at physical
        offsets before ``below``."""

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset; None if there is none."""


class Queries:
    """Lookups by key and id. Any thread may call them."""

    def __init__(self, index: IndexService, topics: TopicTable, state: StoreState, log: LogReads) -> None:
        self._index = index
        self._topics = topics
        self._state = state
        self._log = log
        self.archived: ArchivedMessages | None = None
        """The messages that the disk no longer has; None: there is no archive."""

    def query(
        self, search: KeySearch, *, hot: bool, behind_bytes: int = 0, visible_below: int | None = None
    ) -> QueryResult:
        """Return a page of the messages that ``search`` finds, newest first: those on the disk, then archived ones.

        ``visible_below``: hide records at or after this physical offset, which are not flushed yet. Raises
        ``TopicNotExist``, ``InvalidParameter`` for an invalid cursor, and ``WouldBlock`` with ``hot``.
        """
        if search.cursor.startswith(ARCHIVE_CURSOR) and self.archived is not None:
            self._topics.existing(search.topic)
            return self._archived_page(self.archived, search, _position(search.cursor), behind_bytes)
        found = self.local_page(search, hot, behind_bytes, visible_below)
        log_start = self._log.start_offset
        if self.archived is None or found.cursor or not log_start:
            return found
        if found.count:
            found.cursor = f"{ARCHIVE_CURSOR}{log_start}"
            return found
        return self._archived_page(self.archived, search, log_start, behind_bytes)

    def _archived_page(
        self, archived: ArchivedMessages, search: KeySearch, below: int, behind_bytes: int
    ) -> QueryResult:
        """Return a page of the archived messages before physical offset ``below``."""
        records: list[bytearray] = []
        size, last = 0, below
        visible_from = self._state.readable_from(search.topic)
        for blob in archived.find_key(search.topic, search.key, search.begin_ms, search.end_ms, below):
            record = decode_record(blob, check_crc=False)
            if record.physical_offset < visible_from:
                break
            if search.unique and search.key != record.property_map().get(PROPERTY_UNIQ_KEY):
                continue
            if len(records) == min(search.max_count, QUERY_PAGE_MAX) or (
                records and size + len(blob) > ANSWER_BYTES_MAX
            ):
                return QueryResult(len(records), f"{ARCHIVE_CURSOR}{last}", behind_bytes, _join(records))
            records.append(bytearray(blob))
            size, last = size + len(blob), record.physical_offset
        return QueryResult(len(records), "", behind_bytes, _join(records))

    def local_page(
        self, search: KeySearch, hot: bool, behind_bytes: int = 0, visible_below: int | None = None
    ) -> QueryResult:
        """Return a page of the messages that are on the disk."""
        self._topics.existing(search.topic)
        after = parse_cursor(search.cursor)
        records: list[bytearray] = []
        size = 0
        max_count = min(search.max_count, QUERY_PAGE_MAX)
        next_cursor = ""
        seen_offset = after[2] if after else None
        entries = damaged = 0
        for file, physical_offset, number in self._entries(search, after, hot):
            entries += 1
            if hot and entries > HOT_ENTRIES_MAX:
                raise WouldBlock
            if seen_offset is not None and physical_offset >= seen_offset:
                continue  # a page can end inside a chain, and a chain can have the same offset twice
            seen_offset = physical_offset
            if visible_below is not None and physical_offset >= visible_below:
                continue
            try:
                blob = self._match(search, physical_offset, hot)
            except CorruptRecord as error:
                log.error("the index has a message of %r with key %r: %s", search.topic, search.key, error)
                damaged += 1
                continue
            if blob is None:
                continue
            if len(records) == max_count or (records and size + len(blob) > ANSWER_BYTES_MAX):
                break
            records.append(blob)
            size += len(blob)
            last = (file, number, physical_offset)
        else:
            return QueryResult(len(records), "", behind_bytes, _join(records), damaged)
        next_cursor = f"{last[0].path.name}:{last[1]}:{last[2]}"
        return QueryResult(len(records), next_cursor, behind_bytes, _join(records), damaged)

    def _entries(
        self, search: KeySearch, after: tuple[str, int, int] | None, hot: bool
    ) -> Iterator[tuple[IndexFile, int, int]]:
        key_hash = _key_hash(search.topic, search.key)
        for file in reversed(list(self._index.files)):
            entry = 0
            if after is not None and file.path.name > after[0]:
                continue
            if after is not None and file.path.name == after[0]:
                entry = after[1]
            if not file.overlaps(search.begin_ms, search.end_ms):
                continue
            for physical_offset, number in file.chain(key_hash, search.begin_ms, search.end_ms, entry, hot=hot):
                yield file, physical_offset, number

    def _match(self, search: KeySearch, physical_offset: int, hot: bool) -> bytearray | None:
        """Return the record at an offset if it really has that topic, key and time; otherwise None.

        The check is needed because hashes collide and entries hold whole seconds. Raises ``CorruptRecord`` if there is
        no sound record.
        """
        if physical_offset < self._state.readable_from(search.topic) or not self._log.should_have(physical_offset):
            return None
        blob, record = self._record(physical_offset, hot)
        if record.topic != search.topic.encode():
            return None
        if not search.begin_ms <= record.store_timestamp <= search.end_ms:
            return None
        properties = record.property_map()
        if search.key == properties.get(PROPERTY_UNIQ_KEY):
            return blob
        is_key = not search.unique and search.key in split_keys(properties.get(PROPERTY_KEYS))
        return blob if is_key else None

    def _record(self, physical_offset: int, hot: bool) -> tuple[bytearray, Record]:
        """Return the record at an offset; the client checks its body. Raises ``CorruptRecord`` if there is none."""
        blob = self._log.bytes_of(physical_offset, hot=hot)
        record = decode_record(blob, check_crc=False) if blob is not None else None
        if blob is None or record is None or record.physical_offset != physical_offset:
            raise CorruptRecord(f"no record begins at physical offset {physical_offset:,}")
        if self._log.checksummed.at(physical_offset)[0]:
            check_record_crc(blob)
        return blob, record

    def _may_show(self, record: Record, topic: str, may_show: Callable[[str], bool] | None) -> bool:
        """Return whether a lookup by id may return the record: its topic exists, and is ``topic`` if that is given."""
        name = record.topic.decode("utf-8", "replace")
        return (
            topic in ("", name)
            and (may_show is None or may_show(name))
            and self._topics.get(name) is not None
            and not is_system_topic(name)
            and record.physical_offset >= self._state.readable_from(name)
        )

    def visible_at(
        self,
        physical_offset: int,
        topic: str,
        *,
        hot: bool,
        visible_below: int,
        may_show: Callable[[str], bool] | None = None,
    ) -> bytearray | None:
        """Return the record at a physical offset if it is sound and clients may see it, else None.

        ``topic``, ``may_show``: as for ``view``. Raises ``WouldBlock`` with ``hot``.
        """
        if not 0 <= physical_offset < visible_below or not self._log.should_have(physical_offset):
            return None
        try:
            blob, record = self._record(physical_offset, hot)
        except CorruptRecord:  # the caller may have made up the offset
            return None
        return blob if self._may_show(record, topic, may_show) else None

    def view(
        self,
        message_id: str,
        topic: str,
        *,
        hot: bool,
        visible_below: int,
        may_show: Callable[[str], bool] | None = None,
    ) -> QueryResult:
        """Return one message by id: first as an offset id, then as a unique key, in ``topic`` or in every user topic.

        ``may_show``: predicate of a topic; messages of other topics are treated as missing. Raises ``MessageNotFound``,
        and ``WouldBlock`` with ``hot``.
        """
        parsed = parse_offset_id(message_id)
        damaged = self._log.quarantine.find(parsed[1]) if parsed is not None else None
        if damaged is not None:
            raise MessageNotFound(self._what_was_lost(message_id, damaged))
        if parsed is not None:
            blob = self.visible_at(parsed[1], topic, hot=hot, visible_below=visible_below, may_show=may_show)
            if blob is None and self.archived is not None and 0 <= parsed[1] < self._log.start_offset:
                archived = self.archived.record_at(parsed[1])
                if archived is not None and self._may_show(decode_record(archived), topic, may_show):
                    blob = bytearray(archived)
            if blob is not None:
                return QueryResult(1, "", 0, _join([blob]))
        damages = 0
        names = [topic] if topic else [config.name for config in self._topics if not is_system_topic(config.name)]
        # Last, because they have copies: retries and dead letters keep the id of their message.
        names.sort(key=lambda name: name.startswith((RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)))
        for name in names if may_show is None else filter(may_show, names):
            search = KeySearch(name, message_id, max_count=1, unique=True)
            found = self.local_page(search, hot, visible_below=visible_below)
            if found.count:
                return QueryResult(1, "", 0, found.body)
            damages += found.damaged
        if self.archived is not None and self._log.start_offset and len(names) <= ARCHIVED_TOPICS_MAX:
            for name in names if may_show is None else filter(may_show, names):
                search = KeySearch(name, message_id, max_count=1, unique=True)
                found = self._archived_page(self.archived, search, self._log.start_offset, 0)
                if found.count:
                    return QueryResult(1, "", 0, found.body)
        where = f"topic {topic!r}" if topic else "any topic"
        if damages:
            raise MessageNotFound(
                f"no message with id {message_id!r} can be read in {where}: the log is damaged where it should be. "
                "Stop the broker and run `flintmq-broker verify` on its store, which says what helps"
            )
        raise MessageNotFound(
            f"no message with id {message_id!r} was found in {where}; it may be expired or not indexed yet"
        )

    def _what_was_lost(self, message_id: str, damaged: QuarantinedRange) -> str:
        found = datetime.fromtimestamp(damaged.found_ms / 1000, tz=UTC)
        return (
            f"the message with id {message_id!r} is lost: the log was damaged there ({damaged.reason} at physical "
            f"offset {damaged.physical_offset:,}, {damaged.bytes:,} bytes), found at {found:%Y-%m-%d %H:%M:%S} UTC. "
            f"Its bytes are kept in {self._log.quarantine.folder / damaged.file}; a backup of the log may have it"
        )

    def consumable_record(self, physical_offset: int, *, hot: bool) -> Record | None:
        """Return the record at an offset if its topic exists and consumers may read it; otherwise None."""
        record = self._log.record_at(physical_offset, hot=hot)
        if record is None:
            return None
        name = record.topic.decode("utf-8", "replace")
        if self._topics.get(name) is None or name in UNREADABLE_TOPICS:
            return None
        return record if physical_offset >= self._state.deleted_below(name) else None


def _join(records: list[bytearray]) -> bytearray:
    """Return a response body: count × u32 sizes, then the records."""
    body = bytearray()
    for record in records:
        body += len(record).to_bytes(4, "big")
    for record in records:
        body += record
    return body


def parse_cursor(cursor: str) -> tuple[str, int, int] | None:
    """Return (index file, entry number, physical offset) of the previous page's last record; None for the first
    page."""
    if not cursor:
        return None
    name, _, rest = cursor.partition(":")
    number, _, physical_offset = rest.partition(":")
    if not (len(name) == 17 and name.isascii() and name.isdigit() and _digits(number) and _digits(physical_offset)):
        raise InvalidParameter(f"{cursor[:80]!r} is not a cursor; pass the one of the answer before, or none")
    return name, int(number), int(physical_offset)


def _position(cursor: str) -> int:
    position = cursor.removeprefix(ARCHIVE_CURSOR)
    if not _digits(position):
        raise InvalidParameter(f"{cursor[:80]!r} is not a cursor; pass the one of the answer before, or none")
    return int(position)


def _key_hash(topic: str, key: str) -> int:
    """Return ``index_key_hash``, computed by the kernel: a key may have thousands of characters."""
    text = np.frombuffer(bytearray(f"{topic}#{key}", "utf-8", "surrogatepass"), np.uint8)
    return index_hash(int(java_hash(text, 0, len(text))))


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18  # fits the kernels' integers
