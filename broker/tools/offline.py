"""A store opened read-only, in whatever state it is.

Wrong names or sizes of files, and unreadable tables, become findings; everything else can still be read. A broker is
stricter: it does not start on such a store.
"""

from __future__ import annotations

import mmap
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...protocol.errors import ConfigurationError
from ...protocol.names import is_system_topic
from ...protocol.storage.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, UNIT_BYTES
from ...protocol.store_files import OFFSET_NAME, QUEUE_NAME, file_name, refuse_backup
from ..kernels import dispatch as kernel
from ..kernels import search
from ..kernels.dispatch import Q_DELETED_BELOW
from ..store.check import points_at_own_record
from ..store.damage import Quarantine
from ..store.derivation import LogScan, RecordAt
from ..store.errors import CorruptFile, StoreLocked
from ..store.files.file_system import ZERO_CHUNK, Files, is_plain_file, open_file
from ..store.files.mapped_file import MappedFile
from ..store.files.store_lock import AbortFile, StoreLock, strange_places
from ..store.index import IndexFile, index_file_bytes
from ..store.message_store import OWN_FOLDER
from ..store.queues import LIGHT_QUEUE_PREFIX, ConsumeQueue, ConsumeQueueTable, count_units, last_record_unit
from ..store.settings import ENTRIES, QUEUE_SIZE, SLOTS, StoreSettings
from ..store.tables.checkpoint import StoreCheckpoint
from ..store.tables.offset_tables import ConsumerOffsetTable
from ..store.tables.store_state import StoreState
from ..store.tables.topic_table import TopicTable
from .findings import Findings

_INDEX_NAME = re.compile(r"\d{17}\Z", re.ASCII)
FOREVER = 1 << 62


class ReadOnlyFiles(Files):
    """Opens files read-only and maps them privately: writes of a kernel to such a map stay in this process."""

    def open(self, path: Path, *, create: bool = False) -> int:
        assert not create, f"{path} would be created by a tool that only reads"
        return open_file(path, os.O_RDONLY | os.O_CLOEXEC)

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map the file's first ``size`` bytes, private and writable."""
        return mmap.mmap(fd, size, access=mmap.ACCESS_COPY)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Raise: a tool that only reads must never get here."""
        raise AssertionError("a tool that only reads would have changed the store")


class OfflineStore:
    """The files and tables of the store at ``path``. Context manager.

    ``shared``: share the lock with other readers, so that no broker starts meanwhile; otherwise nothing is locked.
    ``index_slots``: slots of the index files, if the store does not say. Raises ``StoreLocked``, and
    ``ConfigurationError`` if there is no store (``NotAStore`` if it is a backup), or the number of slots is
    unknown.
    """

    def __init__(self, path: Path, findings: Findings, *, shared: bool = True, index_slots: int | None = None) -> None:
        refuse_backup(path)
        if not (path / "commitlog").is_dir():
            raise ConfigurationError(
                f"{path} is not a store: it has no folder `commitlog`. Name the folder that the broker serves (--store)"
            )
        self.path = path
        self.findings = findings
        self.files = ReadOnlyFiles()
        for place, problem in strange_places(path):
            findings.add("foreign-file", place, problem)
        self._lock = StoreLock(self.files, path)
        self.shared = shared
        if shared:
            self._share()
        own = path / OWN_FOLDER
        self.clean = not AbortFile(self.files, path).exists()
        self.state = StoreState(self.files, own / "state.json")
        self.quarantine = Quarantine(self.files, own / "quarantine")
        self.checkpoint = StoreCheckpoint(self.files, path / "checkpoint")
        self.topics = TopicTable(self.files, path / "config" / "topics.json")
        self.consumer_offsets = ConsumerOffsetTable(self.files, path / "config" / "consumerOffset.json")
        self.log_files: list[MappedFile] = []
        self.index_files: list[IndexFile] = []
        try:
            # In this order: the notes tell the sizes of the files, and the topics tell which queues are deleted.
            self._load_tables()
            self.settings = self._sizes(index_slots)
            self.queues = ConsumeQueueTable(
                self.files, path / "consumequeue", own / "aside", self.settings.consumequeue_file_bytes
            )
            self.queues.deleted_below = self.deleted_below
            self._load_log()
            self._load_queues()
            self._load_index()
        except BaseException:
            self.close()
            raise

    def _share(self) -> None:
        try:
            self._lock.share()
        except StoreLocked:
            raise StoreLocked(
                f"{self.path} is open in a broker or in another tool (it holds a lock on {self.path / 'lock'}). Stop "
                "it first"
            ) from None

    def __enter__(self) -> OfflineStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files and release the lock."""
        for file in self.log_files:
            file.close()
        for index_file in self.index_files:
            index_file.close()
        # The constructor calls this too, perhaps before the queues are there.
        if hasattr(self, "queues"):
            self.queues.close()
        self._lock.release()

    @property
    def is_rocketmq(self) -> bool:
        """True if RocketMQ used the store last, or if the last user is unknown."""
        return self.checkpoint.mark is None

    @property
    def log_start(self) -> int:
        """Physical offset at which the log begins."""
        return self.log_files[0].start_offset if self.log_files else 0

    def deleted_below(self, topic: str) -> int:
        """Return the physical offset below which the topic's records belong to a deleted topic."""
        if self.is_rocketmq and len(self.topics) and self.topics.get(topic) is None and not is_system_topic(topic):
            return FOREVER  # RocketMQ deletes a topic by taking it out of the table
        return self.state.deleted_below(topic)

    def take_for_deleted(self, begun_again: dict[int, int]) -> None:
        """Treat messages before these physical offsets, by queue row, as those of a deleted topic; in other queues of
        the topic, those before the first of these offsets."""
        topics: dict[str, int] = {}
        for row, physical_offset in begun_again.items():
            topic = self.queues.rows[row].topic
            topics[topic] = min(topics.get(topic, FOREVER), physical_offset)
        for queue in self.queues:
            if queue.topic in topics:
                below = begun_again.get(queue.row, topics[queue.topic])
                self.queues.kernel_rows[queue.row, Q_DELETED_BELOW] = below

    def first_live(self, queue: ConsumeQueue) -> int:
        """Return the physical offset from which the queue's messages exist and are not deleted."""
        return max(self.log_start, int(self.queues.kernel_rows[queue.row, Q_DELETED_BELOW]))

    def find(self, physical_offset: int) -> MappedFile | None:
        """Return the CommitLog file that contains a physical offset."""
        for file in self.log_files:
            if file.start_offset <= physical_offset < file.end_offset:
                return file
        return None

    def fits(self, queue: ConsumeQueue, unit: tuple[int, int, int]) -> bool:
        """Return whether a unit of the queue (queue offset, physical offset, size) points at the record of its message,
        whose body may be damaged."""
        return points_at_own_record(self.find, queue, unit, any_body=True)

    def store_time(self, physical_offset: int) -> int | None:
        """Return the store time of the record there in ms; None if there is no record."""
        file = self.find(physical_offset)
        record = None if file is None else RecordAt(file, physical_offset)
        return record.store_ms if record is not None and record.has_parts else None

    # Loading.

    def _load_tables(self) -> None:
        for load, table in (
            (self.topics.load, self.path / "config" / "topics.json"),
            (self.consumer_offsets.load, self.path / "config" / "consumerOffset.json"),
            (self.state.load, self.state.path),
            (self.quarantine.load, self.quarantine.path),
        ):
            self._load_table(load, table)
        for journalled in (self.topics, self.consumer_offsets):
            if journalled.problem:
                self.findings.add("table", journalled.journal_path, journalled.problem)
        self.checkpoint.load()
        if self.is_rocketmq:
            self.state.somebody_else_wrote()

    def _load_table(self, load: Callable[[], None], path: Path) -> None:
        try:
            load()
        except CorruptFile as error:
            self.findings.add("table", path, str(error))

    def _sizes(self, index_slots: int | None) -> StoreSettings:
        """Return the sizes that the store was created with: from its own notes, else those of most of its files."""
        known = self.state.sizes
        defaults = StoreSettings()
        log_bytes = _most_common(_file_sizes(self.path / "commitlog", OFFSET_NAME))
        queue_bytes = known.get(QUEUE_SIZE) or _most_common(
            size
            for folder in sorted((self.path / "consumequeue").glob("*/*"))
            for size in _file_sizes(folder, OFFSET_NAME)
            if size % UNIT_BYTES == 0
        )
        # The size of an index file alone does not tell how it is divided into slots and entries.
        slots, entries = known.get(SLOTS), known.get(ENTRIES)
        index_bytes = _most_common(_file_sizes(self.path / "index", _INDEX_NAME))
        if index_slots is not None and index_bytes:
            slots = index_slots
            entries = (index_bytes - INDEX_HEADER_BYTES - INDEX_SLOT_BYTES * slots) // INDEX_ENTRY_BYTES
            if slots < 1 or entries < 1 or index_file_bytes(slots, entries) != index_bytes:
                raise ConfigurationError(
                    f"--index-slots {index_slots} does not fit index files of {index_bytes:,} bytes: a header of "
                    f"{INDEX_HEADER_BYTES} bytes, {INDEX_SLOT_BYTES} a slot, {INDEX_ENTRY_BYTES} an entry"
                )
        elif slots is None and index_bytes not in (0, index_file_bytes(defaults.index_slots, defaults.index_entries)):
            noted = "cannot be read" if self.findings.counts.get("table") else "does not say"
            raise ConfigurationError(
                f"the index files in {self.path / 'index'} have {index_bytes:,} bytes, not the usual "
                f"{index_file_bytes(defaults.index_slots, defaults.index_entries):,}, and {self.state.path} {noted} "
                "how many slots they have: pass --index-slots as it was when the store was made (store.index_slots; "
                "RocketMQ: maxHashSlotNum)"
            )
        return StoreSettings(
            commitlog_file_bytes=log_bytes or defaults.commitlog_file_bytes,
            consumequeue_file_bytes=queue_bytes or defaults.consumequeue_file_bytes,
            index_slots=slots or defaults.index_slots,
            index_entries=entries or defaults.index_entries,
        )

    def _load_log(self) -> None:
        size = self.settings.commitlog_file_bytes
        folder = self.path / "commitlog"
        for path in self._own_files(folder, OFFSET_NAME):
            fd = self.files.open(path)
            held = self.files.size(fd)
            if held == 0:
                self.files.close(fd)
                self.findings.note(f"{path} is empty: a start removes it")
                continue
            # A file that is too long is read up to its size, a short one as far as it goes.
            file = MappedFile(self.files, path, fd, min(held, size))
            if file.start_offset % size:
                self.findings.add("foreign-file", path, f"its name is not a multiple of the file size, {size:,}")
                file.close()
                continue
            if held != size:
                self._add_size(path, held, size, file.start_offset + min(held, size))
            self._check_no_gap(file)
            self.log_files.append(file)

    def _check_no_gap(self, file: MappedFile) -> None:
        size = self.settings.commitlog_file_bytes
        if self.log_files and (expected := self.log_files[-1].start_offset + size) != file.start_offset:
            self.findings.add(
                "missing-file",
                file.path.with_name(file_name(expected)),
                f"{(file.start_offset - expected) // size:,} missing between {self.log_files[-1].path.name} and "
                f"{file.path.name}",
                physical_offset=expected,
            )

    def _load_queues(self) -> None:
        folder = self.queues.folder
        for path in _strays(folder):
            self.findings.add("foreign-file", path, "only folders belong there, one for each topic")
        for topic_folder in _folders(folder):
            topic = topic_folder.name
            if topic.startswith(LIGHT_QUEUE_PREFIX):
                self.findings.note("RocketMQ's light queues (%LMQ%…) are not checked")
                continue
            # Bytes that are not UTF-8 have become surrogates in the name.
            if topic.encode(errors="replace").decode() != topic:
                self.findings.add("foreign-file", topic_folder, "its name is not a topic")
                continue
            for path in _strays(topic_folder):
                self.findings.add("foreign-file", path, "only folders belong there, one for each queue")
            for queue_folder in _folders(topic_folder):
                if not QUEUE_NAME.match(queue_folder.name):
                    self.findings.add("foreign-file", queue_folder, "its name is not a queue's number")
                    continue
                for path in self._own_files(queue_folder, OFFSET_NAME):
                    self._check_queue_file(path)
                self.queues.add(topic, int(queue_folder.name)).load()

    def _check_queue_file(self, path: Path) -> None:
        size, held = self.settings.consumequeue_file_bytes, path.stat().st_size
        if held == 0:
            self.findings.note(f"{path} is empty: a start removes it")
        elif held != size:
            self._add_size(path, held, size)
        if int(path.name) % size:
            self.findings.add("foreign-file", path, f"its name is not a multiple of the file size, {size:,}")
        before = path.with_name(file_name(max(int(path.name) - size, 0)))
        if not before.exists() and any(int(other) < int(path.name) for other in _names(path.parent, OFFSET_NAME)):
            self.findings.add("file-size", before, f"it is missing before {path.name}")

    def _load_index(self) -> None:
        slots, entries = self.settings.index_slots, self.settings.index_entries
        size = index_file_bytes(slots, entries)
        for path in self._own_files(self.path / "index", _INDEX_NAME):
            held = path.stat().st_size
            if held != size:
                self._add_size(path, held, size)
            else:
                self.index_files.append(IndexFile(self.files, path, self.files.open(path), slots, entries))

    def _add_size(self, path: Path, held: int, size: int, physical_offset: int = -1) -> None:
        text = f"it has {held:,} bytes instead of {size:,}"
        self.findings.add("file-size", path, text, position=min(held, size), physical_offset=physical_offset)

    def _own_files(self, folder: Path, pattern: re.Pattern[str]) -> list[Path]:
        """Return the files of a folder with valid names, in order; each other entry is a finding."""
        own = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if pattern.match(path.name) and is_plain_file(path):
                own.append(path)
            else:
                self.findings.add("foreign-file", path, f"no file of that name belongs in {folder}")
        return own


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _strays(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.is_dir()) if folder.is_dir() else []


def _names(folder: Path, pattern: re.Pattern[str]) -> list[str]:
    if not folder.is_dir():
        return []
    return [path.name for path in folder.iterdir() if pattern.match(path.name) and is_plain_file(path)]


def _file_sizes(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    return [(folder / name).stat().st_size for name in _names(folder, pattern)]


def _most_common(sizes: Iterable[int]) -> int:
    """Return the most common size, the larger one of a tie; 0 without files."""
    counts = Counter(size for size in sizes if size > 0)
    return max(counts, key=lambda size: (counts[size], size), default=0)


# ---- The end of a log, found without changing anything, and a check of the bytes after it.
#
# The rules are those of recovery: everything below the mark's flushed offset, or below a message that a queue
# proves, belongs to the log; after that, the log ends at the first place without a sound record.


@dataclass(frozen=True, slots=True)
class LogEnd:
    """``offset``: end of the log; ``dispatched``: records below this must be in queues and index."""

    offset: int
    dispatched: int


def find_end(store: OfflineStore) -> LogEnd:
    """Find the end of the log. Reads little, unless the store is not FlintMQ's and has no queues."""
    mark = store.checkpoint.mark
    proven = mark.flushed_offset if mark is not None else _proven_by_queues(store)
    if store.log_files:
        # Mark and queues may name a place outside of the files that are there.
        proven = min(max(proven, store.log_start), store.log_files[-1].end_offset)
    end = _first_bad(store, proven)
    if mark is not None:
        return LogEnd(end, min(mark.dispatched_offset, end))
    # After a crash of RocketMQ nothing says what it has dispatched.
    return LogEnd(end, end if store.clean else 0)


def _proven_by_queues(store: OfflineStore) -> int:
    """Return the end of the last message that a queue knows and that exists; 0 without one."""
    proven = 0
    for queue in store.queues:
        last = last_record_unit(queue, count_units(queue, FOREVER))
        if last is not None and last[1] + last[2] > proven and store.fits(queue, last):
            proven = last[1] + last[2]
    return proven


def _first_bad(store: OfflineStore, begin: int) -> int:
    """Return the first place without a sound record, starting at ``begin``, a record boundary."""
    scan = LogScan(store.state.checksummed)
    at = begin
    while (file := store.find(at)) is not None:
        status, position = scan.step(file.array(), at, file.end_offset, file.start_offset)
        at = file.end_offset if status == kernel.BLANK else file.start_offset + position
        if status not in (kernel.BLANK, kernel.DONE):
            break
    return at


def check_behind(store: OfflineStore, end: LogEnd) -> None:
    """Check the bytes after the end: after an orderly stop of FlintMQ there are none; else note what a start would
    cut."""
    for file in store.log_files:
        begin = max(end.offset - file.start_offset, 0)
        if begin >= file.size:
            continue
        position = _first_not_zero(store, file.fd, begin, file.size)
        if position is None:
            continue
        if store.clean and not store.is_rocketmq:
            store.findings.add(
                "behind-end",
                file.path,
                f"the log ends at {end.offset:,}, but there are bytes after it",
                position=position,
                physical_offset=file.start_offset + position,
            )
            return
        array, parts = file.array(), np.zeros(kernel.PARTS, np.int64)
        stop = _data_end(store, file.fd, position, file.size)
        record = search.next_record(array, position, stop, file.start_offset, parts)
        sound = (
            f"; a plausible record begins at {file.start_offset + record:,}: unless it is left over from an earlier "
            "crash, the log is damaged at its end"
            if record < stop
            else ""
        )
        store.findings.note(
            f"the log ends at {end.offset:,}; a start cuts the {stop - begin:,} bytes after it in {file.path}{sound}"
        )
        return


def _first_not_zero(store: OfflineStore, fd: int, begin: int, end: int) -> int | None:
    for at, stop in store.files.data_ranges(fd, begin, end):
        for chunk in range(at, stop, len(ZERO_CHUNK)):
            held = bytearray(min(len(ZERO_CHUNK), stop - chunk))
            store.files.read(fd, memoryview(held), chunk, wait=True)
            if held != ZERO_CHUNK[: len(held)]:
                return chunk + len(held) - len(held.lstrip(b"\0"))
    return None


def _data_end(store: OfflineStore, fd: int, begin: int, end: int) -> int:
    return max((stop for _, stop in store.files.data_ranges(fd, begin, end)), default=begin)


# ---- Opening a store for reading, either stopped or while a broker serves it.

ATTEMPTS = 20
PAUSE_S = 0.01


@contextmanager
def open_for_reading(
    path: Path, findings: Findings, *, running: bool, index_slots: int | None
) -> Iterator[tuple[OfflineStore, int]]:
    """Return the store, and the physical offset below which it may be read.

    ``running``: without a lock, while a FlintMQ broker runs. A broker never changes what it has flushed, and its
    checkpoint says how far that is. Raises ``StoreLocked``, or ``ConfigurationError``.
    """
    if running:
        store = _open_running(path, findings, index_slots)
        assert store.checkpoint.mark is not None
        end = store.checkpoint.mark.flushed_offset
    else:
        try:
            store = OfflineStore(path, findings, index_slots=index_slots)
        except StoreLocked as error:
            raise StoreLocked(f"{error}, or pass --running to read up to its flushed offset") from None
        end = find_end(store).offset
    with store:
        yield store, end


def _open_running(path: Path, findings: Findings, index_slots: int | None) -> OfflineStore:
    """Open the store of a running broker: the checkpoint may be half written when read, and old files may vanish."""
    for attempt in range(ATTEMPTS):
        try:
            store = OfflineStore(path, findings, shared=False, index_slots=index_slots)
        except FileNotFoundError:
            if attempt + 1 == ATTEMPTS:
                raise
        else:
            if store.checkpoint.mark is not None:
                return store
            store.close()
        time.sleep(PAUSE_S)
    raise ConfigurationError(
        f"{path} cannot be read beside a broker: its checkpoint has no flushed offset (RocketMQ writes none). Stop the "
        "broker first"
    )
