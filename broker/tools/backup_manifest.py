"""Layout of a backup, and its manifest ``backup.json``. The manifest is written last, by rename; a folder without it is
not a complete backup.

DEST/backup.json            each file with its size and SHA-256, and the end of the log; with a checksum
DEST/backup-progress.json   only during a backup: the log files that are already copied
DEST/commitlog/             the log's files, the last one up to the log's end
DEST/tables-N/              config/ and flintmq/; N grows, so that the previous backup stays complete
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...protocol.backup_folder import MANIFEST, PROGRESS, backup_kind
from ...protocol.checked_json import encode_checked, take_checksum
from ...protocol.errors import FlintError
from ..store.files.file_system import Files, open_file, replace_file
from ..store.files.json_table import SHAPE_ERRORS

LOG_FOLDER = "commitlog"
FORMAT = 1


class BackupError(FlintError):
    """A backup cannot be made or restored; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class BackedUp:
    """One file of a backup: its path below ``commitlog`` or the folder of the tables, its size in bytes, the SHA-256
    of its content, and its permissions."""

    path: str
    bytes: int
    sha256: str
    mode: int = 0o644


@dataclass(slots=True)
class Manifest:
    """A complete backup. The log's records are in ``[log_begin, log_end)``, physical offsets; ``file_bytes``: size of a
    CommitLog file; ``last_store_ms``: store time of the last record; ``running``: made while a broker ran."""

    made_at: str
    version: str
    source: str
    running: bool
    log_begin: int
    log_end: int
    file_bytes: int
    last_store_ms: int
    tables_folder: str
    tables: list[BackedUp] = field(default_factory=list)
    log: list[BackedUp] = field(default_factory=list)
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        """Return the total size of all files."""
        return sum(each.bytes for each in (*self.tables, *self.log))

    def save(self, files: Files, folder: Path) -> None:
        """Write the manifest of ``folder`` durably: the backup is complete from then on."""
        replace_file(files, folder / MANIFEST, encode_checked(asdict(self)).encode())

    @classmethod
    def load(cls, folder: Path) -> Manifest | None:
        """Return the manifest of ``folder``, or None. Raises ``BackupError`` if it is unreadable."""
        table = _read(folder / MANIFEST)
        if table is None:
            return None
        if not isinstance(table, dict):
            raise _unreadable(folder / MANIFEST, TypeError("not a JSON object"))
        # First, because another format may have another checksum and other fields.
        if table.get("format") != FORMAT:
            raise BackupError(
                f"{folder / MANIFEST} has format {table.get('format')!r}, this FlintMQ reads format {FORMAT}: use "
                "the one that made it"
            )
        try:
            take_checksum(table)
            files = {name: [_file(row) for row in table[name]] for name in ("tables", "log")}
            return cls(**{**table, **files})
        except SHAPE_ERRORS as error:
            raise _unreadable(folder / MANIFEST, error) from None


def load_whole(folder: Path) -> Manifest:
    """Return the manifest of the backup in ``folder``. Raises ``BackupError`` if it is missing or cannot be read."""
    manifest = Manifest.load(folder)
    if manifest is not None:
        return manifest
    if backup_kind(folder):
        raise BackupError(
            f"{folder} holds an incomplete backup: there is no {MANIFEST}. Run `flintmq-broker backup STORE "
            f"{folder}` again; what is copied already stays. If this is a copy of a backup, copy its {MANIFEST} too"
        )
    raise BackupError(f"{folder} is not a backup: it has no {MANIFEST} in it")


def write_new(files: Files, path: Path, content: bytes, mode: int) -> None:
    """Write a small file that is not there yet, with these permissions from its first byte on; its content is on disk
    when it returns."""
    fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        files.write(fd, content, 0)
        files.sync_data(fd)
    finally:
        files.close(fd)
    files.sync_folder(path.parent)


def save_progress(files: Files, folder: Path, copied: list[BackedUp]) -> None:
    """Note which log files a backup that is being made has already; durable when it returns."""
    replace_file(files, folder / PROGRESS, json.dumps([asdict(each) for each in copied], indent=1).encode())


def load_progress(folder: Path) -> list[BackedUp]:
    """Return the files that an interrupted backup has copied; none if no backup was interrupted."""
    rows = _read(folder / PROGRESS)
    try:
        return [_file(row) for row in rows or []]
    except SHAPE_ERRORS as error:
        raise _unreadable(folder / PROGRESS, error) from None


def _file(row: dict[str, Any]) -> BackedUp:
    """Return a row of the manifest as a file. Raises ``ValueError`` if its path leads out of the backup."""
    found = BackedUp(str(row["path"]), int(row["bytes"]), str(row["sha256"]), int(row["mode"]))
    path = Path(found.path)
    if path.is_absolute() or ".." in path.parts or not path.parts or found.bytes < 0:
        raise ValueError(f"{found.path!r} is not a file of a backup")
    return found


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except SHAPE_ERRORS as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> BackupError:
    return BackupError(
        f"{path} cannot be read: {type(error).__name__}: {error}. The backup is damaged: make another in a new folder"
    )
