"""``flintmq/state.json``: facts about a store that RocketMQ's files do not hold.

ConsumeQueues are derived from the log, except their ends: once retention or a deletion took a queue's last record, only
this file knows the queue's next offset. It also lists what existed, so that the next start notices a missing file or
folder, or a changed setting.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CorruptFile, FollowsMaster
from ..files.file_system import make_durable_folder, replace_file
from ..files.json_table import ConfigFile

if TYPE_CHECKING:
    from ..files.file_system import Files

# ---- Ranges of the log in which every record must carry ``__CRC32#``, a checksum over the whole record.
#
# While the option is off, RocketMQ copies old checksums into records that it rewrites. A wrong checksum is
# therefore damage only in records that FlintMQ itself wrote with the option on: half-open ranges of physical
# offsets. The last range may be open: it extends to the end of the log.

OPEN = -1
"""End of an open range."""
FOREVER = 1 << 62
"""Physical offset that no log reaches."""


class ChecksummedRanges:
    """The ranges, in ascending order; they neither touch nor overlap."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges = [(begin, end) for begin, end in ranges]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def at(self, physical_offset: int) -> tuple[bool, int]:
        """Return (whether a record there must have a checksum, the physical offset up to which that holds)."""
        for begin, end in self._ranges:
            if physical_offset < begin:
                return False, begin
            if end == OPEN or physical_offset < end:
                return True, FOREVER if end == OPEN else end
        return False, FOREVER

    def around(self, physical_offset: int) -> tuple[int, int]:
        """Return the range that contains a physical offset; an empty one if records there need no checksum."""
        for begin, end in self._ranges:
            if begin <= physical_offset and (end == OPEN or physical_offset < end):
                return begin, FOREVER if end == OPEN else end
        return 0, 0

    def begin(self, physical_offset: int) -> None:
        """Open a range: all records appended from this offset on have a checksum."""
        if not self._ranges or self._ranges[-1][1] != OPEN:
            if self._ranges and self._ranges[-1][1] == physical_offset:
                physical_offset = self._ranges.pop()[0]
            self._ranges.append((physical_offset, OPEN))

    def end(self, physical_offset: int) -> None:
        """Cut all ranges at this offset: records from here on need no checksum."""
        self._ranges = [
            (begin, physical_offset if end == OPEN else min(end, physical_offset))
            for begin, end in self._ranges
            if begin < physical_offset
        ]

    def cut(self, physical_offset: int) -> None:
        """Cut closed ranges at the new end of the log: they say nothing about records appended later."""
        self._ranges = [
            (begin, end if end == OPEN else min(end, physical_offset))
            for begin, end in self._ranges
            if begin < physical_offset or (end == OPEN and begin == physical_offset)
        ]

    def drop_below(self, physical_offset: int) -> None:
        """Drop the ranges that end at or before the new beginning of the log."""
        self._ranges = [(begin, end) for begin, end in self._ranges if end == OPEN or end > physical_offset]


# ---- The file.

QueueEnds = dict[str, dict[int, int]]
"""Next queue offset by topic and queue id."""


@dataclass(slots=True)
class DeletedTopic:
    """A deleted topic. Its records below ``physical_offset`` are gone; a new topic of that name continues at
    ``next_offsets``."""

    physical_offset: int
    next_offsets: dict[int, int]


@dataclass(slots=True)
class Snapshot:
    """Queue ends and index files on disk; they cover no record at or after ``physical_offset``."""

    physical_offset: int = 0
    next_offsets: QueueEnds = field(default_factory=dict)
    index_files: list[str] = field(default_factory=list)
    log_start: int = -1
    """Start of the log; -1: unknown."""


class StoreState:
    """The file. Thread-safe."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(files, path)
        self._lock = threading.Lock()
        self.path = path
        self.deleted: dict[str, DeletedTopic] = {}
        self.snapshot = Snapshot()
        self.floors: dict[str, int] = {}
        """Physical offset by topic at which its messages begin because of its own retention. Not persisted."""
        self.kept_offsets: QueueEnds = {}
        """Next offsets of queues that no longer have files."""
        self.sizes: dict[str, int] = {}
        """Settings by name with which the store's files were created; empty if FlintMQ has not opened the store
        before."""
        self.checksummed = ChecksummedRanges()
        """Ranges in which every record must have a checksum over the whole record."""
        self.archive_id = ""
        """Random id by which an archive recognises this store again; empty if it was never archived."""
        self._saved: dict[str, Any] = {}
        self.changes = 0
        """Number of changes of ``deleted`` and ``kept_offsets`` in memory."""

    def load(self) -> None:
        """Read the file. Raises ``CorruptFile``."""
        self._file.load(self._read)

    def _read(self, table: dict[str, Any]) -> None:
        self.deleted = {
            topic: DeletedTopic(int(row["physicalOffset"]), _offsets(row["nextOffsets"]))
            for topic, row in table.get("deletedTopics", {}).items()
        }
        self.snapshot = Snapshot(
            int(table.get("physicalOffset", 0)),
            _queue_ends(table.get("nextOffsets", {})),
            [str(name) for name in table.get("indexFiles", [])],
            int(table.get("logStart", -1)),
        )
        self.kept_offsets = _queue_ends(table.get("keptOffsets", {}))
        self.sizes = {str(name): int(size) for name, size in table.get("sizes", {}).items()}
        self.checksummed = ChecksummedRanges((int(begin), int(end)) for begin, end in table.get("checksummed", []))
        self.archive_id = str(table.get("archiveId", ""))
        self._saved = table

    def readable_from(self, topic: str) -> int:
        """Return the physical offset below which the topic has no visible messages.

        Messages below it were deleted with the topic, or the topic's own retention hides them.
        """
        return max(self.deleted_below(topic), self.floors.get(topic, 0))

    def deleted_below(self, topic: str) -> int:
        """Return the physical offset at which the topic was last deleted; 0 if never."""
        deleted = self.deleted.get(topic)
        return deleted.physical_offset if deleted else 0

    def deleted_end(self, topic: str, queue_id: int) -> int:
        """Return the queue offset below which the queue's messages were deleted with the topic; 0 if none were."""
        deleted = self.deleted.get(topic)
        return deleted.next_offsets.get(queue_id, 0) if deleted else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the least queue offset that the queue's next message may get."""
        return max(
            self.deleted_end(topic, queue_id),
            self.snapshot.next_offsets.get(topic, {}).get(queue_id, 0),
            self.kept_offsets.get(topic, {}).get(queue_id, 0),
        )

    def recorded_ends(self, log_start: int, dispatched: int) -> Iterator[tuple[str, int, int]]:
        """Yield (topic, queue, next offset) of each queue that must exist and reach that far, as last recorded.

        Nothing is known of queues that may have lost records since: ``dispatched``, the end of the dispatched records,
        must reach the record's, and retention (``log_start``) or a deletion of the topic must not have taken all.
        """
        snapshot = self.snapshot
        if dispatched < snapshot.physical_offset:
            return
        for topic, row in snapshot.next_offsets.items():
            if max(log_start, self.deleted_below(topic)) < snapshot.physical_offset:
                for queue_id, next_offset in row.items():
                    yield topic, queue_id, next_offset

    def take(self, snapshot: Snapshot) -> None:
        """Replace the snapshot, in memory. Ends that it lacks are kept."""
        with self._lock:
            for topic, row in self.snapshot.next_offsets.items():
                for queue_id, next_offset in row.items():
                    if snapshot.next_offsets.get(topic, {}).get(queue_id, 0) < next_offset:
                        self.changes += 1
                        self.kept_offsets.setdefault(topic, {})[queue_id] = next_offset
            self.snapshot = snapshot

    def somebody_else_wrote(self) -> None:
        """End the checksummed ranges at the last snapshot, in memory: the checkpoint has no mark of FlintMQ.

        Another program wrote the store since, so only records before the snapshot are known to be FlintMQ's.
        """
        self.checksummed.end(self.snapshot.physical_offset)

    def log_begins_at(self, physical_offset: int, index_files: list[str]) -> None:
        """Note that retention is about to delete the log before ``physical_offset`` and all index files except these.

        Durable when it returns, in the ``.bak`` too, which would otherwise report the deleted files as missing. Raises
        OSError; retention must then delete nothing. Blocks.
        """
        with self._lock:
            before = self.snapshot
            self.snapshot = replace(before, log_start=physical_offset, index_files=index_files)
            try:
                self._save(backed_up=True)
            except BaseException:
                self.snapshot = before
                raise
            self.checksummed.drop_below(physical_offset)

    def identify(self, archive_id: str) -> None:
        """Note the store's id for its archive; durable when it returns, in the ``.bak`` too. Blocks."""
        with self._lock:
            self.archive_id = archive_id
            self._save(backed_up=True)

    def keep_offset(self, topic: str, queue_id: int, next_offset: int) -> None:
        """Note the next offset of a queue that is about to lose its files, in memory."""
        with self._lock:
            row = self.kept_offsets.setdefault(topic, {})
            self.changes += 1
            row[queue_id] = max(row.get(queue_id, 0), next_offset)

    def log_ends_at(self, physical_offset: int) -> list[str]:
        """Limit deletions to the end of a log that was cut, in memory; return the topics concerned.

        Otherwise, records that are appended after the cut would count as deleted too.
        """
        self.checksummed.cut(physical_offset)
        beyond = [topic for topic, row in self.deleted.items() if row.physical_offset > physical_offset]
        for topic in beyond:
            self.deleted[topic] = DeletedTopic(physical_offset, self.deleted[topic].next_offsets)
        return beyond

    def log_was_cut(self, physical_offset: int) -> None:
        """Forget ends of queues and index files that cover records at or above the log's new end; durable when it
        returns, in the ``.bak`` too. Blocks."""
        with self._lock:
            if self.snapshot.physical_offset > physical_offset:
                self.snapshot = Snapshot(log_start=self.snapshot.log_start)
                self._save(backed_up=True)

    def delete(self, deleted: Mapping[str, DeletedTopic]) -> None:
        """Note that topics are deleted; durable when it returns, in the ``.bak`` too: a start that had to use an older
        one would find the topics again by their messages. Raises OSError, noting none of them. Blocks."""
        with self._lock:
            before = {topic: self.deleted.get(topic) for topic in deleted}
            self.changes += 1
            self.deleted |= deleted
            try:
                self._save(backed_up=True)
            except BaseException:
                for topic, row in before.items():
                    if row is None:
                        del self.deleted[topic]
                    else:
                        self.deleted[topic] = row
                raise

    def persist(self) -> None:
        """Write the file if its content changed; durable when it returns. Blocks."""
        with self._lock:
            before = self._saved.get("checksummed", [])
            if self._table() != self._saved:
                self._save()
            if self._saved["checksummed"] != before:
                self._save()  # again, because the .bak must not claim checksums that do not exist either

    def _save(self, *, backed_up: bool = False) -> None:
        table = self._table()
        self._file.save(table, backed_up=backed_up)
        self._saved = table

    def _table(self) -> dict[str, Any]:
        return {
            "sizes": self.sizes,
            "physicalOffset": self.snapshot.physical_offset,
            "logStart": self.snapshot.log_start,
            "nextOffsets": _json_ends(self.snapshot.next_offsets),
            "indexFiles": self.snapshot.index_files,
            "checksummed": [list(each) for each in self.checksummed],
            **({"archiveId": self.archive_id} if self.archive_id else {}),
            **self._ends(),
        }

    def ends_json(self) -> dict[str, Any]:
        """Return the ends of queues without records: ``deletedTopics`` and ``keptOffsets`` as in the file."""
        with self._lock:
            return self._ends()

    def _ends(self) -> dict[str, Any]:
        return {
            "keptOffsets": _json_ends(self.kept_offsets),
            "deletedTopics": {
                topic: {"physicalOffset": row.physical_offset, "nextOffsets": _text_keys(row.next_offsets)}
                for topic, row in self.deleted.items()
            },
        }


def _queue_ends(table: dict[str, Any]) -> QueueEnds:
    return {topic: _offsets(row) for topic, row in table.items()}


def _json_ends(ends: QueueEnds) -> dict[str, dict[str, int]]:
    return {topic: _text_keys(row) for topic, row in ends.items()}


def _offsets(row: dict[str, Any]) -> dict[int, int]:
    return {int(queue): int(offset) for queue, offset in row.items()}


def _text_keys(row: dict[int, int]) -> dict[str, int]:
    return {str(queue): offset for queue, offset in sorted(row.items())}


# ---- ``flintmq/following.json``: says that a store's log is a RocketMQ master's, which nothing else may
# append to.


class FollowedMaster:
    """The note of one store. It exists from the first byte that is copied until the store is promoted."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self.is_expected = False
        """True if this process opens the store to continue or to end the migration."""

    def check(self) -> None:
        """Raise ``FollowsMaster`` if there is a note and this process does not expect it."""
        if self._path.exists() and not self.is_expected:
            raise FollowsMaster(
                f"{self._path.parents[1]} follows the RocketMQ master {self.address()}: a message that another program "
                "appends would end that. Continue with `flintmq-broker follow-rocketmq`, or take the store over with "
                "`flintmq-broker promote`"
            )

    def address(self) -> str:
        """Return the master's address, HOST:PORT; empty if the store follows none. Raises ``CorruptFile``."""
        try:
            return str(json.loads(self._path.read_bytes())["master"])
        except FileNotFoundError:
            return ""
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFile(
                f"{self._path} says which RocketMQ master the store follows, and is damaged: {error}. Remove it, then "
                "run `flintmq-broker follow-rocketmq` again, which compares the store with its master. Nothing was "
                "changed"
            ) from error

    def note(self, address: str) -> None:
        """Note the master's address, HOST:PORT; durable when it returns."""
        make_durable_folder(self._files, self._path.parent)
        replace_file(self._files, self._path, json.dumps({"master": address}).encode())

    def remove(self) -> None:
        """Remove the note, if there is one; durable when it returns."""
        if self._path.exists():
            self._files.unlink(self._path)
            self._files.sync_folder(self._path.parent)


# ---- ``flintmq/replication.json``: the set that a store belongs to, and the epochs of its log.


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """Content of the file."""

    cluster_id: str = ""
    """Identity of the set; empty: the store never was in one."""
    member: str = ""
    """Id of the member whose store it is."""
    epochs: tuple[tuple[int, int], ...] = ()
    """(number of the leadership, physical offset of its first byte), oldest first."""
    complete: bool = False
    """True if the log lacks nothing since the member was last in sync."""

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> ReplicaRecord:
        """Return the record of a row. Raises ``SHAPE_ERRORS`` for a row that ``to_json`` cannot have made."""
        complete = row.get("complete", False)
        if not isinstance(complete, bool):
            raise TypeError(f"complete is {complete!r}")
        epochs = tuple((int(number), int(start)) for number, start in row.get("epochs", []))
        _check(epochs)
        return cls(str(row.get("clusterId", "")), str(row.get("member", "")), epochs, complete)

    def to_json(self) -> dict[str, Any]:
        """Return the record as a row."""
        return {
            "clusterId": self.cluster_id,
            "member": self.member,
            "epochs": [list(each) for each in self.epochs],
            "complete": self.complete,
        }


def _check(epochs: Iterable[tuple[int, int]]) -> None:
    last_number, last_start = 0, -1
    for number, start in epochs:
        if number <= last_number or start <= last_start:
            raise ValueError(f"epoch {number} at {start} follows epoch {last_number} at {last_start}")
        last_number, last_start = number, start


class ReplicaState:
    """The file. For one thread at a time."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(files, path)
        self.path = path
        self.record = ReplicaRecord()

    def load(self) -> None:
        """Read the file. Raises ``CorruptFile``."""
        self.record = self._file.load(ReplicaRecord.from_json)

    def save(self, record: ReplicaRecord) -> None:
        """Replace the file, and its ``.bak``, whose older epochs would be wrong; durable when it returns. Blocks."""
        self._file.save(record.to_json(), backed_up=True)
        self.record = record


# ---- ``flintmq/prepared.json``: a snapshot of staged transactions, and the offset from which a start replays
# their notes. The file keeps the wire's word for them.


@dataclass(frozen=True, slots=True)
class StagedSnapshot:
    """State after the notes below ``next_note``. ``next_message``: the first staged message that may still be needed;
    both are queue offsets. ``sequences``: sequence of the last committed transaction by scope, least recent first."""

    next_note: int = 0
    next_message: int = 0
    sequences: dict[str, int] = field(default_factory=dict)


class StagedState:
    """The file. A snapshot is written once the log that it covers is on disk. Thread-safe."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(files, path)
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, StagedSnapshot]] = deque()
        self.path = path
        self.saved = StagedSnapshot()
        """Snapshot on disk."""

    def load(self) -> None:
        """Read the file. Raises ``CorruptFile``."""
        self.saved = self._file.load(self._read)

    @staticmethod
    def _read(table: dict[str, Any]) -> StagedSnapshot:
        sequences = {str(scope): int(sequence) for scope, sequence in table.get("committed", [])}
        return StagedSnapshot(int(table.get("nextNote", 0)), int(table.get("nextMessage", 0)), sequences)

    def offer(self, end_offset: int, snapshot: StagedSnapshot) -> None:
        """Offer a snapshot for writing: the state when the log ended at ``end_offset``."""
        with self._lock:
            self._waiting.append((end_offset, snapshot))

    def persist(self, flushed_offset: int) -> None:
        """Write the newest snapshot whose part of the log is on disk below ``flushed_offset``. Blocks."""
        newest = None
        with self._lock:
            while self._waiting and self._waiting[0][0] <= flushed_offset:
                newest = self._waiting.popleft()
        if newest is None or newest[1] == self.saved:
            return
        snapshot = newest[1]
        try:
            self._file.save(
                {
                    "nextNote": snapshot.next_note,
                    "nextMessage": snapshot.next_message,
                    "committed": list(snapshot.sequences.items()),
                }
            )
        except BaseException:
            with self._lock:
                self._waiting.appendleft(newest)
            raise
        self.saved = snapshot
