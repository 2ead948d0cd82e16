"""Telling the folder of a backup from the folder of a store. Both have a subfolder ``commitlog``.

``flintmq-broker backup`` writes ``backup.json`` last: a backup folder without it is incomplete.
"""

from __future__ import annotations

import re
from pathlib import Path

from .errors import ConfigurationError

MANIFEST, PROGRESS = "backup.json", "backup-progress.json"
TABLES_PREFIX = "tables-"
_TABLES_NAME = re.compile(rf"{TABLES_PREFIX}[0-9]+\Z")

WHOLE, INCOMPLETE = "a backup", "an incomplete backup"


class NotAStore(ConfigurationError):
    """A command that needs a store got the folder of a backup."""


def backup_kind(folder: Path) -> str:
    """Return ``WHOLE``, ``INCOMPLETE``, or an empty string if the folder holds no backup."""
    if (folder / MANIFEST).exists():
        return WHOLE
    if (folder / PROGRESS).exists():
        return INCOMPLETE
    # A copy of a backup without its manifest still has tables-N folders. A store keeps its tables in `config`.
    has_tables = folder.is_dir() and any(_TABLES_NAME.match(path.name) for path in folder.iterdir())
    return INCOMPLETE if has_tables and not (folder / "checkpoint").exists() else ""


def refuse_backup(folder: Path) -> None:
    """Raise ``NotAStore`` if the folder holds a backup. Call this before changing anything in a store."""
    kind = backup_kind(folder)
    if kind == WHOLE:
        raise NotAStore(
            f"{folder} is a backup, not a store: it contains {MANIFEST}. Use `flintmq-broker restore {folder} STORE` "
            f"to restore it into the empty folder STORE, or `flintmq-broker verify {folder}` to check it. Nothing was "
            "changed"
        )
    if kind:
        raise NotAStore(
            f"{folder} is not a store: it holds an incomplete backup, without {MANIFEST}. If the backup was "
            f"interrupted, `flintmq-broker backup STORE {folder}` continues it; if this is a copy, copy {MANIFEST} "
            f"too. Then `flintmq-broker restore {folder} STORE` restores it. Nothing was changed"
        )
