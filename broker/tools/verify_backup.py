"""``flintmq-broker verify`` of a backup: its manifest, every byte of its files, and every record of its log."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from threading import Lock

import numpy as np

from ...protocol.backup_folder import MANIFEST, PROGRESS, TABLES_PREFIX
from ...protocol.store_files import file_name
from ..kernels import dispatch as kernel
from ..kernels import examine
from ..store.errors import CorruptFile
from ..store.files.checksummed import ChecksummedRanges
from ..store.files.file_system import Files
from ..store.files.json_table import SHAPE_ERRORS
from ..store.files.system_calls import usable_processors
from ..store.message_store import OWN_FOLDER
from ..store.tables.store_state import StoreState
from .backup_manifest import LOG_FOLDER, BackedUp, BackupError, Manifest, load_whole
from .findings import Findings
from .hashing_copy import copy_summed
from .log_pass import THREADS_MAX, Progress
from .offline import ReadOnlyFiles

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
            if status == kernel.BLANK and int.from_bytes(array[at : at + 4].tobytes(), "big") == size - at:
                break
            found = int(examine.next_record(array, at + 1, size, base, parts))
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
