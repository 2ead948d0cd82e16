"""``flintmq-broker verify``: check that everything in a store is consistent. Changes nothing."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from threading import Lock

import numpy as np

from ...protocol.display import escape, show_bytes, to_json
from ...protocol.store_files import MANIFEST, PROGRESS, TABLES_PREFIX, file_name
from ..kernels import dispatch as kernel
from ..kernels import search
from ..store.derivation import ends_file
from ..store.errors import CorruptFile
from ..store.files.checksummed import ChecksummedRanges
from ..store.files.file_system import Files
from ..store.files.json_table import SHAPE_ERRORS
from ..store.files.system_calls import usable_processors
from ..store.message_store import OWN_FOLDER
from ..store.recovery.holes import lost_text
from ..store.tables.store_state import StoreState
from .backup import LOG_FOLDER, BackedUp, BackupError, Manifest, copy_summed, load_whole
from .derived_checks import UnitPass
from .findings import KINDS, Finding, Findings
from .log_verifier import SEGMENT_BYTES, THREADS_MAX, LogPass, Progress
from .metadata_check import check_checkpoint, check_log_is_whole, check_offsets, check_tables
from .offline import OfflineStore, ReadOnlyFiles, check_behind, find_end

QUARANTINED_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification. ``log_bytes``: size of the checked records; ``seconds``: duration."""

    findings: Findings
    broker: str
    clean: bool
    log_files: int
    log_start: int
    log_end: int
    log_bytes: int
    records: int
    queues: int
    units: int
    index_files: int
    entries: int
    seconds: float
    threads: int


def verify(
    path: Path, progress: Progress, *, index_slots: int | None = None, segment_bytes: int = SEGMENT_BYTES
) -> Verified:
    """Verify the store at ``path``. ``segment_bytes``: size of the log range that one thread takes at a time.

    Raises ``StoreLocked``, and ``ConfigurationError`` if it is not a store.
    """
    started = time.perf_counter()
    findings = Findings()
    with OfflineStore(path, findings, index_slots=index_slots) as store:
        check_tables(store)
        check_log_is_whole(store)
        end = find_end(store)
        check_behind(store, end)
        check_checkpoint(store, end)
        _note_quarantine(store)
        log = LogPass(store, end, progress, segment_bytes=segment_bytes)
        log.run()
        # Only a whole pass shows which messages are deleted; the next one leaves them out.
        if log.begun_again:
            store.take_for_deleted(log.begun_again)
            findings.note("topics that were deleted and created again: their older messages are skipped")
            log = LogPass(store, end, progress, segment_bytes=segment_bytes)
            log.run()
        findings.extend(log.findings)
        ends, units = {}, 0
        for queue in store.queues:
            units_pass = UnitPass(store, queue, end).run()
            ends[queue.topic, queue.queue_id] = units_pass.next_offset
            units += units_pass.live
            reported = log.reported.get(queue.row, set())
            # If each live unit is that of a record, none can be a stray one.
            if units_pass.live != log.explained.get(queue.row, 0) or reported:
                units_pass.find_strays(reported)
        check_offsets(store, ends)
        _note_what_is_left(findings, log)
        return Verified(
            findings=findings,
            broker="RocketMQ" if store.is_rocketmq else "FlintMQ",
            clean=store.clean,
            log_files=len(store.log_files),
            log_start=store.log_start,
            log_end=end.offset,
            log_bytes=log.bytes,
            records=log.records,
            queues=sum(1 for queue in store.queues if queue.end_byte),
            units=units,
            index_files=len(store.index_files),
            entries=sum(max(file.index_count - 1, 0) for file in store.index_files),
            seconds=time.perf_counter() - started,
            threads=log.threads,
        )


def _note_quarantine(store: OfflineStore) -> None:
    """Note known losses, which are no longer findings."""
    for hole in list(store.quarantine)[:QUARANTINED_SHOWN]:
        found = datetime.fromtimestamp(hole.found_ms / 1000, tz=UTC)
        store.findings.note(
            f"quarantined: {hole.bytes:,} bytes at physical offset {hole.physical_offset:,} ({hole.reason}), found "
            f"{found:%Y-%m-%d %H:%M} UTC. {lost_text(hole.lost)}; kept in {store.quarantine.folder / hole.file}"
        )
    more = len(store.quarantine.ranges) - QUARANTINED_SHOWN
    if more > 0:
        store.findings.note(f"{more:,} more quarantined ranges: see {store.quarantine.path}")


def _note_what_is_left(findings: Findings, log: LogPass) -> None:
    if log.pending_units or log.pending_keys:
        findings.note(
            f"{log.pending_units:,} messages and {log.pending_keys:,} keys are not in queues and index yet: the next "
            "start adds them"
        )


# ---- ``flintmq-broker verify`` of a backup: its manifest, every byte of its files, and every record of its
# log.

SCAN_STEP_BYTES = 8 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_TABLE_FOLDERS = ("config", OWN_FOLDER)


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """Result of a verification. ``bytes``: size of all files; ``records``: number of readable records."""

    manifest: Manifest
    findings: Findings
    records: int
    bytes: int
    seconds: float


def verify_backup(folder: Path, progress: Progress) -> VerifiedBackup:
    """Verify the backup in ``folder``. Changes nothing.

    Raises ``BackupError`` if the manifest is missing or unreadable: without it, the expected content is unknown.
    """
    started = time.perf_counter()
    manifest = load_whole(folder)
    run = _Run(folder, manifest, progress)
    run.check_manifest()
    run.check_files()
    return VerifiedBackup(manifest, run.findings, run.records, run.bytes_done, time.perf_counter() - started)


class _Run:
    """One verification of a backup."""

    def __init__(self, folder: Path, manifest: Manifest, progress: Progress) -> None:
        self.folder = folder
        self.manifest = manifest
        self.findings = Findings()
        self.records = 0
        self.bytes_done = 0
        self._progress = progress
        self._counting = Lock()
        self._tables = folder / manifest.tables_folder
        self._log = folder / LOG_FOLDER
        self._checksummed = ChecksummedRanges()

    # The manifest: is it consistent, and does the folder match it?

    def check_manifest(self) -> None:
        """Check that the manifest is consistent and matches the names in the folder."""
        for problem in self._problems():
            self.findings.add("backup-manifest", self.folder / MANIFEST, problem)
        named = {self._tables / each.path for each in self.manifest.tables}
        named |= {self._log / each.path for each in self.manifest.log}
        named |= {self.folder / MANIFEST, self.folder / PROGRESS}
        for path in sorted(self.folder.rglob("*")):
            if path not in named and not path.is_dir():
                self.findings.note(f"{path} is not part of the backup: {MANIFEST} does not name it")
        if (self.folder / PROGRESS).exists():
            self.findings.note(
                f"a later run of `flintmq-broker backup` into {self.folder} was interrupted: the backup "
                "before it stays valid. The next run continues"
            )

    def _problems(self) -> Iterator[str]:
        manifest = self.manifest
        for each in (*manifest.tables, *manifest.log):
            if not _SHA256.match(each.sha256):
                yield f"{each.path}: {each.sha256!r} is not a SHA-256"
        for files in (manifest.tables, manifest.log):
            for name in sorted({each.path for each in files if sum(other.path == each.path for other in files) > 1}):
                yield f"{name} is named more than once"
        if not re.fullmatch(rf"{TABLES_PREFIX}[0-9]+", manifest.tables_folder):
            yield f"{manifest.tables_folder!r} is not a folder of tables"
        for each in manifest.tables:
            if Path(each.path).parts[0] not in _TABLE_FOLDERS:
                yield f"{each.path} is not a table of a store"
        try:
            datetime.fromisoformat(manifest.made_at)
        except ValueError:
            yield f"made_at is not a time: {manifest.made_at!r}"
        yield from self._log_problems()

    def _log_problems(self) -> Iterator[str]:
        """Yield why its files do not form one log from ``log_begin`` to ``log_end``."""
        manifest, size = self.manifest, self.manifest.file_bytes
        log = sorted(manifest.log, key=lambda each: each.path)
        wrong = [each.path for each in log if not re.fullmatch("[0-9]{20}", each.path)]
        if wrong:
            yield f"{', '.join(wrong)}: not names of CommitLog files"
            return
        begins = [int(each.path) for each in log]
        if not 0 <= manifest.log_begin <= manifest.log_end:
            yield f"the log cannot go from {manifest.log_begin:,} to {manifest.log_end:,}"
        elif (begins[0] if log else manifest.log_end) != manifest.log_begin:
            yield f"the log begins at {manifest.log_begin:,}, but its first file is {log[0].path if log else 'missing'}"
        for before, behind in pairwise(begins):
            if before + size != behind:
                yield f"{file_name(before + size)} is missing after {file_name(before)}"
        if begins and begins[-1] + size < manifest.log_end:
            yield f"{file_name(begins[-1] + size)} is missing: the log continues up to {manifest.log_end:,}"
        for number, each in enumerate(log):
            wanted = min(manifest.log_end - begins[number], size)
            if each.bytes != wanted:
                yield f"{each.path}: {each.bytes:,} bytes of it were backed up, where the log has {wanted:,}"

    # The files: do they match the manifest, and is the log readable?

    def check_files(self) -> None:
        """Read every byte, tables first because they say which records must have a checksum."""
        for each in self.manifest.tables:
            self._check_sum(self._tables / each.path, each)
        self._checksummed = self._checksummed_ranges()
        with ThreadPoolExecutor(max(1, min(usable_processors(), THREADS_MAX)), "verify") as pool:
            work: list[Future[None]] = [pool.submit(self._check_log_file, each) for each in self.manifest.log]
            try:
                for future in work:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _check_log_file(self, each: BackedUp) -> None:
        path = self._log / each.path
        held = self._check_sum(path, each)
        if re.fullmatch("[0-9]{20}", each.path):
            self._check_records(path, int(each.path), min(held, each.bytes))

    def _check_sum(self, path: Path, each: BackedUp) -> int:
        """Compare a file with its SHA-256; return how many of the backed-up bytes it has."""
        if not path.is_file():
            self.findings.add("backup-file", path, "it is missing")
            return 0
        held = path.stat().st_size
        if held < each.bytes:
            self.findings.add("backup-file", path, f"it has {held:,} bytes instead of {each.bytes:,}", position=held)
        digest = hashlib.sha256()
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Nothing is written, so there is no target.
            copy_summed(Files(), fd, -1, 0, min(held, each.bytes), digest, self._count, write=False)
        finally:
            os.close(fd)
        if held >= each.bytes and digest.hexdigest() != each.sha256:
            self.findings.add("backup-file", path, "its SHA-256 is not that of the file that was backed up")
        elif held > each.bytes:
            # An interrupted run appends to the last file; `restore` leaves that out.
            self.findings.note(f"{path} has {held - each.bytes:,} bytes after the size that {MANIFEST} states")
        return held

    def _count(self, count: int) -> None:
        with self._counting:
            self.bytes_done += count
            self._progress(self.bytes_done, self.manifest.bytes)

    def _checksummed_ranges(self) -> ChecksummedRanges:
        state = StoreState(ReadOnlyFiles(), self._tables / OWN_FOLDER / "state.json")
        try:
            state.load()
        except (CorruptFile, *SHAPE_ERRORS) as error:
            if self._tables.is_dir():
                self.findings.note(f"{error}: it is unknown which records must have a checksum over the whole record")
        return state.checksummed

    def _check_records(self, path: Path, base: int, size: int) -> None:
        """Check each record of a log file below ``size``."""
        if not size:
            return
        files = ReadOnlyFiles()
        fd = files.open(path)
        try:
            array = np.frombuffer(files.map(fd, size), np.uint8)
        finally:
            # The map has a descriptor of its own.
            files.close(fd)
        parts, state = np.zeros(kernel.PARTS, np.int64), np.zeros(kernel.STATE, np.int64)
        at = 0
        while at < size:
            state[kernel.S_CHECKSUMMED], border = self._checksummed.at(base + at)
            stop = min(at + SCAN_STEP_BYTES, size, border - base)
            status, at = kernel.scan(array, at, stop, base, parts, state)
            if status == kernel.DONE:
                continue
            if status == kernel.BLANK and ends_file(array, at):
                break
            found = int(search.next_record(array, at + 1, size, base, parts))
            name = "a blank record that does not end its file" if status == kernel.BLANK else kernel.BAD_NAMES[status]
            self.findings.add(
                "backup-record",
                path,
                f"{name}; {found - at:,} bytes up to the next readable record",
                position=at,
                physical_offset=base + at,
            )
            at = found
        with self._counting:
            self.records += int(state[kernel.S_RECORDS])


__all__ = ["BackupError", "VerifiedBackup", "verify_backup"]


# ---- Findings for people and for programs.


def as_json(verified: Verified, path: Path) -> Iterator[str]:
    """Yield JSON lines: each kept finding, then the summary."""
    yield from _findings_json(verified.findings)
    yield to_json(
        {
            "kind": "summary",
            "store": str(path),
            "broker": verified.broker,
            "stopped_in_order": verified.clean,
            "log_start": verified.log_start,
            "log_end": verified.log_end,
            "log_bytes": verified.log_bytes,
            "records": verified.records,
            "queues": verified.queues,
            "units": verified.units,
            "index_files": verified.index_files,
            "entries": verified.entries,
            "seconds": round(verified.seconds, 3),
            "findings": verified.findings.counts,
            "notes": verified.findings.notes,
        }
    )


def backup_as_json(verified: VerifiedBackup, folder: Path) -> Iterator[str]:
    """Yield JSON lines for a backup."""
    manifest = verified.manifest
    yield from _findings_json(verified.findings)
    yield to_json(
        {
            "kind": "summary",
            "backup": str(folder),
            "source": manifest.source,
            "made_at": manifest.made_at,
            "version": manifest.version,
            "beside_a_broker": manifest.running,
            "log_start": manifest.log_begin,
            "log_end": manifest.log_end,
            "records": verified.records,
            "tables": len(manifest.tables),
            "bytes": verified.bytes,
            "seconds": round(verified.seconds, 3),
            "findings": verified.findings.counts,
            "notes": verified.findings.notes,
        }
    )


def _findings_json(findings: Findings) -> Iterator[str]:
    for finding in findings:
        yield to_json(
            {
                "kind": finding.kind,
                "file": str(finding.path),
                "position": None if finding.position < 0 else finding.position,
                "physical_offset": None if finding.physical_offset < 0 else finding.physical_offset,
                "what": finding.text,
                "why": KINDS[finding.kind].why,
                "remedy": KINDS[finding.kind].remedy,
            }
        )


def backup_as_text(verified: VerifiedBackup, folder: Path, shown: int) -> Iterator[str]:
    """Yield the text report of a backup."""
    manifest = verified.manifest
    beside = "beside a running broker" if manifest.running else "of a stopped store"
    files = f"{len(manifest.log):,} file{'s' * (len(manifest.log) != 1)}"
    made = f"made {escape(manifest.made_at)} by FlintMQ {escape(manifest.version)}"
    yield f"backup   {escape(str(folder))}, {made} {beside}"
    yield f"source   {escape(manifest.source)}"
    yield (
        f"log      {verified.records:,} records in {files}, physical offsets {manifest.log_begin:,} to "
        f"{manifest.log_end:,}"
    )
    yield f"tables   {len(manifest.tables):,}"
    rate = verified.bytes / max(verified.seconds, 1e-3)
    yield f"checked  {show_bytes(verified.bytes)} in {verified.seconds:.2f} s, {show_bytes(rate)}/s"
    yield from _conclusion(
        verified.findings, folder, shown, "every file is as it was backed up, and every record of the log can be read"
    )


def as_text(verified: Verified, path: Path, shown: int) -> Iterator[str]:
    """Yield the text report of a store: a summary, then the findings by kind, ``shown`` of each."""
    stopped = "stopped in order" if verified.clean else "not stopped in order: the next start recovers it"
    log_files = f"{verified.log_files:,} file{'s' * (verified.log_files != 1)}"
    index_files = f"{verified.index_files:,} file{'s' * (verified.index_files != 1)}"
    rate = verified.log_bytes / max(verified.seconds, 1e-3)
    yield f"store    {path}, {verified.broker}'s, {stopped}"
    yield (
        f"log      {verified.records:,} records in {log_files}, physical offsets {verified.log_start:,} to "
        f"{verified.log_end:,}"
    )
    yield f"queues   {verified.units:,} messages in {verified.queues:,} queues"
    yield f"index    {verified.entries:,} entries in {index_files}"
    yield (
        f"checked  {show_bytes(verified.log_bytes)} of the log and all that belongs to it in {verified.seconds:.2f} s, "
        f"{show_bytes(rate)}/s"
    )
    yield from _conclusion(verified.findings, path, shown, "nothing is wrong")


def _conclusion(findings: Findings, path: Path, shown: int, sound: str) -> Iterator[str]:
    """Yield the notes and the findings, and in the last line their number, or ``sound`` if there are none."""
    for note in findings.notes:
        yield f"note     {escape(note)}"
    yield from findings_text(findings, path, shown)
    if findings.total:
        yield ""
        yield f"damaged  {findings.total:,} finding{'s' * (findings.total != 1)} of {len(findings.counts):,} kinds"
    else:
        yield f"sound    {sound}"


def findings_text(findings: Findings, store: Path, shown: int) -> Iterator[str]:
    """Yield the findings by kind, at most ``shown`` of each."""
    for kind, group in groupby(findings, key=lambda finding: finding.kind):
        count = findings.counts[kind]
        yield ""
        yield f"{KINDS[kind].title}: {count:,}"
        for finding, _ in zip(group, range(shown), strict=False):
            yield f"  {finding_line(finding, store)}"
        if count > shown:
            yield f"  … and {count - shown:,} more"
        yield f"  why it matters: {KINDS[kind].why}"
        yield f"  what helps: {KINDS[kind].remedy}"


def finding_line(finding: Finding, store: Path) -> str:
    """Return place and error of a finding on one line; the file is relative to the store."""
    path = finding.path.relative_to(store) if finding.path.is_relative_to(store) else finding.path
    where = [f"byte {finding.position:,}"] if finding.position >= 0 else []
    if finding.physical_offset >= 0:
        where.append(f"physical offset {finding.physical_offset:,}")
    return escape(f"{path}{', ' if where else ''}{', '.join(where)}: {finding.text}")
