"""``flintmq-broker restore URL STORE``: a store from an archive, as of its end or of an earlier time.

The log's files have the names and the bytes that they had: each record is where it was. As in the restore of a backup,
the checkpoint is written first and the log's files come last, in order, each by an atomic rename, so that no broker
starts on a half-restored store; and the store looks as after a crash: the first start makes queues and index from the
log, and moves back offsets that are ahead of it. Every object is compared with the SHA-256 in the manifest.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...protocol.storage.archive.errors import CorruptObject
from ...protocol.storage.archive.fragment import decode_index, pieces_in
from ...protocol.storage.archive.manifest import ArchiveGap, Entry
from ...protocol.storage.archive.objects import ObjectNotFound, Objects
from ...protocol.storage.archive.reader import MISSING, ArchiveReader
from ...protocol.storage.archive.tables import TABLES, ArchivedTable, decode_table, parse_table_object
from ...protocol.storage.layout import BLANK_BYTES_MIN, MAGIC_BLANK
from ...protocol.storage.record import unpack_head
from ...protocol.store_files import FILE_MODE, file_name
from ..replication.member.tables import archived_tables
from ..store import MessageStore, StoreSettings
from ..store.files.file_system import Files, make_durable_folder
from ..store.message_store import OWN_FOLDER
from ..store.tables.checkpoint import Mark, StoreCheckpoint
from .backup import LOG_FOLDER, BackupError, write_new
from .output import Progress


@dataclass(frozen=True, slots=True)
class RestoredArchive:
    """Result of a restore: the range of the log, the store time of the last record (ms since 1970 UTC), the number of
    tables, the gap after which the log begins (None: it has all that the archive has), and whether a broker on the
    store continues the archive."""

    begin: int
    end: int
    last_ms: int
    tables: int
    gap: ArchiveGap | None
    continues: bool
    seconds: float


def restore_archive(url: str, store: Path, progress: Progress, until_ms: int | None = None) -> RestoredArchive:
    """Make a store of an archive in the folder ``store``, which must be missing or empty. Blocks.

    ``until_ms``: only what was stored before this time. Raises ``BackupError``, and the archive's errors.
    """
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise BackupError(f"{store} is not empty: choose a folder that does not exist, or empty it")
    with ArchiveReader(Objects(url)) as reader:
        restoring = _Restoring(reader, store, progress, until_ms)
        try:
            return restoring.run()
        except BaseException as error:
            if store.exists():
                error.add_note(f"{store} is not complete, and no broker starts on it: remove it before you try again")
            raise


class _Restoring:
    """One run of a restore."""

    def __init__(self, reader: ArchiveReader, store: Path, progress: Progress, until_ms: int | None) -> None:
        self._reader = reader
        self._store = store
        self._progress = progress
        self._until_ms = until_ms
        self._files = Files()
        self._identity = reader.identity()
        self._manifest = reader.refresh()

    def run(self) -> RestoredArchive:
        began = time.perf_counter()
        manifest, file_bytes = self._manifest, self._identity.file_bytes
        end, last_ms = self._end()
        gap = max((gap for gap in manifest.gaps if gap.end <= end), key=lambda gap: gap.end, default=None)
        entries = [entry for entry, _ in self._reader.entries(gap.end if gap is not None else manifest.start, end)]
        begin = entries[0].start if entries else end
        if begin % file_bytes:
            raise BackupError(
                f"{self._reader.objects.url} begins at physical offset {begin:,}, in the middle of a file of "
                f"{file_bytes:,} bytes: no store can be made of it. `flintmq archive query` and `read_store` read it"
            )
        tables = list(self._tables(end))
        files, store = self._files, self._store
        for name in (LOG_FOLDER, "config", f"{OWN_FOLDER}/new"):
            make_durable_folder(files, store / name)
        # Nothing is dispatched: the first start makes queues and index.
        StoreCheckpoint(files, store / "checkpoint").write_alone(Mark(end, begin), last_ms)
        write_new(files, store / "abort", b"", FILE_MODE)
        files.sync_folder(store)
        # An archive that a set writes belongs to the set, and one from whose end something is left out has gone on.
        continues = end == manifest.end and not self._identity.set
        self._write_tables(tables, continues)
        self._write_log(entries, end)
        return RestoredArchive(begin, end, last_ms, len(tables), gap, continues, time.perf_counter() - began)

    def _end(self) -> tuple[int, int]:
        """Return the physical offset at which the restored log ends, and the store time of its last record."""
        until_ms = self._until_ms
        last: Entry | None = None
        for entry, _ in self._reader.entries(until_ms=until_ms):
            last = entry
        if last is None:
            raise BackupError(
                f"{self._reader.objects.url} has no message that was stored "
                + ("yet" if until_ms is None else "before that time")
            )
        if until_ms is None or last.last_ms < until_ms:
            return (self._manifest.end if until_ms is None else last.end), last.last_ms
        end, last_ms = last.start, last.first_ms
        for position, record_end, stored_ms in self._records(last):
            if stored_ms >= until_ms:
                return position, last_ms
            end, last_ms = record_end, stored_ms
        return end, last_ms

    def _records(self, entry: Entry) -> Iterator[tuple[int, int, int]]:
        """Yield begin, end and store time of each record of a fragment."""
        for begin, blob in _joined(self._pieces(entry)):
            at = 0
            while at < len(blob):
                head = unpack_head(blob, at)
                yield begin + at, begin + at + head.total_size, head.store_timestamp
                at += head.total_size

    def _pieces(self, entry: Entry) -> list[tuple[int, bytes]]:
        """Return the parts of the log that a fragment holds, checked."""
        index = decode_index(self._whole(entry.name.idx, entry.idx_sha256), entry.name.idx)
        log = self._whole(entry.name.log, entry.log_sha256)
        return [(position, bytes(raw)) for position, raw in pieces_in(log, index, entry.name.log)]

    def _whole(self, name: str, sha256: bytes) -> bytes:
        try:
            blob = self._reader.objects.get(name)
        except ObjectNotFound:
            raise CorruptObject(name, MISSING) from None
        if hashlib.sha256(blob).digest() != sha256:
            raise CorruptObject(name, "its SHA-256 is not the one in the manifest")
        return blob

    # ---- tables

    def _tables(self, end: int) -> Iterator[ArchivedTable]:
        """Yield the newest version of each table that refers to nothing after ``end``."""
        newest: dict[str, tuple[int, str]] = {}
        for each in self._reader.objects.list(TABLES):
            parsed = parse_table_object(each.name)
            if parsed is not None and parsed[0] <= end and parsed[0] >= newest.get(parsed[1], (-1, ""))[0]:
                newest[parsed[1]] = parsed[0], each.name
        for _, name in newest.values():
            yield decode_table(self._reader.objects.get(name), name)

    def _write_tables(self, tables: list[ArchivedTable], continues: bool) -> None:
        settings = StoreSettings(commitlog_file_bytes=self._identity.file_bytes)
        store = MessageStore(self._store, settings)  # it is not opened: only its tables are written
        contents = {table.name: table.content for table in tables}
        for table in archived_tables(store):
            if contents.get(table.name):
                table.write(contents[table.name])
        if continues:
            store.state.identify(self._identity.store_id)

    # ---- the log

    def _write_log(self, entries: list[Entry], end: int) -> None:
        """Write the log's files; the next fragment is read while one is written."""
        total, done = sum(entry.raw_bytes for entry in entries), 0
        writer = _LogWriter(self._files, self._store, self._identity.file_bytes)
        following = [self._reader.pool.submit(self._pieces, entry) for entry in entries[:1]]
        for entry, after in zip(entries, [*entries[1:], None], strict=True):
            pieces = following.pop().result()
            if after is not None:
                following.append(self._reader.pool.submit(self._pieces, after))
            for position, raw in pieces:
                writer.write(position, raw[: max(end - position, 0)])
            done += entry.raw_bytes
            self._progress("restoring", done, total)
        writer.finish()


def _joined(pieces: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of the log with those that follow each other joined."""
    begin, parts, end = -1, list[bytes](), -1
    for position, raw in pieces:
        if position != end and parts:
            yield begin, b"".join(parts)
            parts = []
        if not parts:
            begin = position
        parts.append(raw)
        end = position + len(raw)
    if parts:
        yield begin, b"".join(parts)


class _LogWriter:
    """Writes a log's files in order, each under another name until it is whole."""

    def __init__(self, files: Files, store: Path, file_bytes: int) -> None:
        self._files = files
        self._store = store
        self._file_bytes = file_bytes
        self._fd = -1
        self._start = -1
        self._end = -1

    def write(self, position: int, raw: bytes) -> None:
        """Write a part of one file. Raises ``BackupError`` if records before it are missing."""
        if not raw:
            return
        start = position - position % self._file_bytes
        if start != self._start:
            if self._start >= 0 and start != self._start + self._file_bytes:
                raise BackupError(
                    f"the archive lacks the log between physical offsets {self._end:,} and {position:,}: run `flintmq "
                    "archive verify`, which names what is missing"
                )
            self._close(blank=True)
            self._open(start)
        if position != self._end:
            raise BackupError(
                f"the archive lacks the log between physical offsets {self._end:,} and {position:,}: run `flintmq "
                "archive verify`, which names what is missing"
            )
        self._files.write(self._fd, raw, position - start)
        self._end = position + len(raw)

    def finish(self) -> None:
        """Complete the last file, in which the log ends."""
        self._close(blank=False)

    def _open(self, start: int) -> None:
        self._fd = self._files.open(self._scratch(start), create=True)
        self._files.resize(self._fd, self._file_bytes)
        self._start = self._end = start

    def _close(self, *, blank: bool) -> None:
        if self._fd < 0:
            return
        left = self._start + self._file_bytes - self._end
        if blank and left >= BLANK_BYTES_MIN:
            head = left.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True)
            self._files.write(self._fd, head, self._end - self._start)
        self._files.sync_data(self._fd)
        self._files.close(self._fd)
        self._fd = -1
        target = self._store / LOG_FOLDER / file_name(self._start)
        self._files.rename(self._scratch(self._start), target)
        self._files.sync_folder(target.parent)

    def _scratch(self, start: int) -> Path:
        return self._store / OWN_FOLDER / "new" / f"restored-{file_name(start)}"
